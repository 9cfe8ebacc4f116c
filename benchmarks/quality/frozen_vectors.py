"""Classify texts by vectors that stay as they are: a bag of static vectors, ELMo's scalar mix, an encoder.

    python benchmarks/quality/frozen_vectors.py --bilstm RUN… --encoder RUN… [--static RUN…] [--seeds 1 2 3 4 5]

The texts are the passages of the Brown corpus that ship with regard, and their genre (as in `quick-classify`). Each
text is the mean of its tokens' vectors, and a logistic regression is all that is trained, with an L2 penalty chosen on
the validation set. Representations are

- the bag of static vectors: of runs of word vectors, and of vectors counted from the same passages (PPMI and SVD);
- the embeddings, the last layer, and the scalar mix of all layers (Peters et al. 2018) of bidirectional language models
  and of encoders. The mix is trained with the regression.

A seed determines the order of the examples. `std` is over the seeds and, with several runs of one kind, over these;
`sampling_error` is the standard error that follows from the number of test texts. The results,
benchmarks/results/frozen-vectors.json, say how long each run was trained.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, write_results
from torch import Tensor, nn
from torch.nn import functional

import regard
from regard.data.labels.labeled_texts import LabeledConfig, read_labeled
from regard.lab.compare.word_vectors import ppmi_vectors
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.model.scalar_mix import ScalarMix
from regard.task.contextual_vectors.vectors import bag_of_vectors

DATASET = "brown-genres"
SPLITS = ("train", "valid", "test")
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Weight decays, of which the best on the validation set is used."""
EPOCHS, BATCH, LEARNING_RATE = 20, 128, 0.01
PPMI_WIDTH = 100


@dataclass
class Labeled:
    """Texts and the numbers of their labels."""

    texts: list[str]
    labels: Tensor  # (texts,)


class MixedRegression(nn.Module):
    """A logistic regression on a scalar mix of layers; of a single layer it is a plain one."""

    def __init__(self, layers: int, width: int, labels: int) -> None:
        super().__init__()
        self.mix = ScalarMix(layers) if layers > 1 else None
        self.linear = nn.Linear(width, labels)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x: # (texts, layers, width); gives (texts, labels)"""
        mixed = x[:, 0] if self.mix is None else self.mix(x.transpose(0, 1))
        logits: Tensor = self.linear(mixed)
        return logits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--static", nargs="*", default=[], metavar="RUN", help="runs of static word vectors")
    parser.add_argument("--bilstm", nargs="*", default=[], metavar="RUN", help="runs of bidirectional language models")
    parser.add_argument("--encoder", nargs="*", default=[], metavar="RUN", help="runs of encoders")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    options = parser.parse_args()
    data, names = read_data()
    cases = [log(measure("bag of PPMI vectors", [ppmi_features(data)], data, options.seeds, {"trained_on": DATASET}))]
    if options.static:
        runs = [regard.load(run) for run in options.static]
        found = [
            {split: bag_of_vectors(run.keyed, each.texts)[:, None] for split, each in data.items()} for run in runs
        ]
        cases.append(log(measure("bag of static vectors", found, data, options.seeds, training_of(options.static))))
    for kind, runs in (("biLSTM", options.bilstm), ("encoder", options.encoder)):
        if not runs:
            continue
        layers = [features_of(run, data) for run in runs]
        for name, chosen in (("embeddings", slice(0, 1)), ("last layer", slice(-1, None)), ("scalar mix", slice(None))):
            some = [{split: each[:, chosen] for split, each in found.items()} for found in layers]
            cases.append(log(measure(f"{kind}, {name}", some, data, options.seeds, training_of(runs))))
    majority = float((data["test"].labels == data["train"].labels.mode().values).double().mean())
    cases.append(log({"case": "most frequent genre", "accuracy": round(100 * majority, 1), "labels": names}))
    write_results("frozen-vectors", cases)
    return 0


def read_data() -> tuple[dict[str, Labeled], list[str]]:
    """The three splits, and the names of the labels."""
    rows = {split: list(read_labeled(LabeledConfig(dataset=DATASET, path=f"{split}.tsv.gz"))) for split in SPLITS}
    names = sorted({row.label for row in rows["train"]})
    return {
        split: Labeled([row.text for row in some], torch.tensor([names.index(row.label) for row in some]))
        for split, some in rows.items()
    }, names


def ppmi_features(data: dict[str, Labeled]) -> dict[str, Tensor]:
    """Bags of vectors that are counted from the training texts.  # (texts, 1, width) each"""
    words, vectors = ppmi_vectors(data["train"].texts, PPMI_WIDTH)
    return bags_of(KeyedVectors(words, vectors.numpy()), data)


def bags_of(keyed: KeyedVectors, data: dict[str, Labeled]) -> dict[str, Tensor]:
    """The means of static vectors.  # (texts, 1, width) each"""
    return {split: bag_of_vectors(keyed, each.texts)[:, None] for split, each in data.items()}


def features_of(run: str, data: dict[str, Labeled]) -> dict[str, Tensor]:
    """The mean of each text's tokens in every layer.  # (texts, layers, width) each"""
    model = regard.load(run, device="auto").context_model
    return {split: model.mean_vectors(each.texts, "all", truncate=True) for split, each in data.items()}


def training_of(runs: Sequence[str]) -> dict[str, Any]:
    """What the runs were trained on and how long, from their recipes."""
    recipe: Any = regard.read_recipe(runs[0])
    origin = json.loads((Path(runs[0]) / "run.json").read_text(encoding="utf-8"))["origin"]
    sources = [source.location for source in recipe.data.train]
    return {
        "runs": len(runs),
        "recipe": recipe.name,
        "trained_on": ", ".join(sources),
        "steps": recipe.train.steps,
        "batch_tokens": recipe.train.batch_tokens,
        "parameters": origin["parameters"],
    }


def measure(
    name: str, runs: Sequence[dict[str, Tensor]], data: dict[str, Labeled], seeds: Sequence[int], facts: dict[str, Any]
) -> dict[str, Any]:
    """The accuracy of a regression on one representation, over runs and seeds."""
    scores, weights = [], []
    for features in runs:
        scaled = standardized(features)
        for seed in seeds:
            model = max((fit(scaled, data, seed, penalty) for penalty in PENALTIES), key=lambda each: each[0])[1]
            scores.append(accuracy(model, scaled["test"], data["test"].labels))
            if model.mix is not None:
                weights.append(model.mix.weights.softmax(dim=0).detach())
    mean = statistics.mean(scores)
    case = {
        "case": name,
        "accuracy": round(100 * mean, 1),
        "std": round(100 * statistics.stdev(scores), 2) if len(scores) > 1 else None,
        "sampling_error": round(100 * math.sqrt(mean * (1 - mean) / len(data["test"].labels)), 1),
        "seeds": list(seeds),
        "width": runs[0]["train"].shape[-1],
        **facts,
    }
    if weights:
        case["mix"] = [round(value, 3) for value in torch.stack(weights).mean(dim=0).tolist()]
    return case


def standardized(features: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every feature with mean 0 and variance 1 over the training set."""
    mean, std = features["train"].mean(dim=0), features["train"].std(dim=0).clamp(min=1e-6)
    return {split: (each - mean) / std for split, each in features.items()}


def fit(
    features: dict[str, Tensor], data: dict[str, Labeled], seed: int, penalty: float
) -> tuple[float, MixedRegression]:
    """A regression and its accuracy on the validation set."""
    generator = torch.Generator().manual_seed(seed)
    x, labels = features["train"], data["train"].labels
    model = MixedRegression(x.shape[1], x.shape[2], int(data["train"].labels.max()) + 1)
    mix = [] if model.mix is None else [{"params": list(model.mix.parameters()), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        [{"params": list(model.linear.parameters()), "weight_decay": penalty / LEARNING_RATE}, *mix], lr=LEARNING_RATE
    )
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=EPOCHS * -(-len(x) // BATCH))
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(x), generator=generator).split(BATCH):
            loss = functional.cross_entropy(model(x[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return accuracy(model, features["valid"], data["valid"].labels), model


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, labels: Tensor) -> float:
    return float((model(x).argmax(dim=-1) == labels).double().mean())


if __name__ == "__main__":
    sys.exit(main())
