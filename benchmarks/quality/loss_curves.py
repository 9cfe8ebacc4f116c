"""Compare the loss curves of the fused trainer and of an unfused reference, over several seeds.

    python benchmarks/quality/loss_curves.py --device cuda            # 300 steps, 3 seeds
    python benchmarks/quality/loss_curves.py --device cpu --quick     # a few steps of a toy model; writes no results

The model of the recipe multi30k-en-de is trained in two ways, from the same initial weights on the same batches, with
dropout. The reference uses the unfused model in float32 without TF32, PyTorch's cross-entropy and no CUDA graphs. The
other is `regard.train`'s trainer: on a GPU with fused kernels in bfloat16 and CUDA graphs, on a CPU with fused kernels
in float32. Optimizer and gradient clipping are the recipe's in both, and so is the schedule, except that the learning
rate peaks within these few steps. The dropout masks differ, so only means over seeds are compared.

The test passes if the mean losses of the last 50 steps differ by at most two standard errors (over seeds) or by 1% of
the loss, whichever is larger. The final validation loss is computed by the unfused model in float32 for both.
"""

import argparse
import math
import statistics
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, write_results
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batching.token_batches import Batch
from regard.model import EncoderDecoder
from regard.task.translation.prepare import PreparedPairs, prepare_pairs
from regard.task.translation.recipe import TranslationRecipe, read_translation_recipe
from regard.task.translation.task import TranslationTask
from regard.train.loss import Loss
from regard.train.step import TrainStep
from regard.train.trainer import Trainer

RECIPE = "multi30k-en-de"
MARKS = (50, 100, 200, 300)
"""Steps at which the losses are reported."""
MARK_WINDOW, FINAL_WINDOW, CURVE_WINDOW = 20, 50, 10
"""The number of steps over which a loss is averaged at a mark, at the end, and for each point of a curve."""
TOY = [
    "model.width=32",
    *(f"model.{side}.layers=1" for side in ("encoder", "decoder")),
    *(f"model.{side}.feed_forward.hidden=64" for side in ("encoder", "decoder")),
    "tokenizer.vocab_size=600",
    "train.batch_tokens=1024",
]


class ReferenceTask(TranslationTask):
    """The translation task with PyTorch's cross-entropy."""

    def loss(self, forward: Any, batch: Batch) -> Loss:
        return self._cross_entropy(forward, batch, self.recipe.train.loss.label_smoothing)

    def nll(self, forward: Any, batch: Batch) -> Loss:
        return self._cross_entropy(forward, batch, 0.0)

    def _cross_entropy(self, forward: Any, batch: Batch, label_smoothing: float) -> Loss:
        bos = self.model.config.special_tokens.bos
        assert bos is not None
        inputs = torch.cat((torch.full_like(batch.target[:, :1], bos), batch.target[:, :-1]), dim=1)
        logits = forward(batch.source, inputs, source_lengths=batch.source_lengths).flatten(0, 1)
        is_token = torch.arange(batch.target.shape[1], device=logits.device) < batch.target_lengths[:, None]
        targets = batch.target.masked_fill(~is_token, -100).flatten()
        total = functional.cross_entropy(logits, targets, label_smoothing=label_smoothing, reduction="sum")
        with torch.no_grad():
            nll = functional.cross_entropy(logits, targets, reduction="sum") if label_smoothing else total
        return Loss(total, nll, is_token.sum())


def reference_losses(
    recipe: TranslationRecipe, prepared: PreparedPairs, model: EncoderDecoder, device: str
) -> list[float]:
    """The loss of every step of unfused training."""
    config = recipe.train
    task = ReferenceTask(recipe, prepared, model.to(device).train())
    optimizer = config.optimizer.build(model)
    train_step = TrainStep[Batch](task, "float32", model)
    losses: list[Tensor] = []
    for step, batch in enumerate(islice(task.batches.epochs(), config.steps), start=1):
        loss = train_step.backward(batch.to(device), torch.full((), 1 / batch.count, device=device))
        nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step(config.schedule.at(step))
        optimizer.zero_grad()
        losses.append(loss.mean)
    return _to_floats(losses)


def trainer_losses(
    recipe: TranslationRecipe, prepared: PreparedPairs, model: EncoderDecoder, device: str
) -> list[float]:
    """The loss of every step of the trainer, as in `regard train`."""
    task = TranslationTask(recipe, prepared, model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(task, recipe.train, Path(folder), device=device)
        return _to_floats([loss.mean for loss in trainer.steps(recipe.train.steps)])


@torch.no_grad()
def validation_loss(recipe: TranslationRecipe, prepared: PreparedPairs, model: EncoderDecoder, device: str) -> float:
    """The mean negative log-likelihood per token, by the unfused model in float32."""
    task = ReferenceTask(recipe, prepared, model.eval())
    losses = [task.nll(model, batch.to(device)) for batch in task.validation_batches()]
    return float(sum(float(loss.nll) for loss in losses) / sum(int(loss.count) for loss in losses))


def run_seed(recipe: TranslationRecipe, seed: int, device: str) -> dict[str, dict[str, Any]]:
    """Train in both ways with one seed: the losses of all steps, and the final validation loss."""
    seeded = recipe.model_copy(update={"train": recipe.train.model_copy(update={"seed": seed})})
    runs = {}
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_pairs(seeded, Path(folder), lambda sentence: None, None)
        for name, train in (("plain", reference_losses), ("fast", trainer_losses)):
            torch.manual_seed(seed)  # the same initial weights
            model = seeded.make_encoder_decoder_config(prepared.target.vocab_size).build()
            losses = train(seeded, prepared, model, device)
            runs[name] = {"losses": losses, "validation": validation_loss(seeded, prepared, model, device)}
    return runs


def compare(runs: list[dict[str, dict[str, Any]]], steps: int) -> dict[str, Any]:
    """The comparison of the curves over all seeds."""
    final = {name: [_mean_loss(run[name]["losses"], steps, FINAL_WINDOW) for run in runs] for name in ("plain", "fast")}
    plain, fast = (statistics.mean(final[name]) for name in ("plain", "fast"))
    error = math.sqrt(sum(_std(values) ** 2 for values in final.values()) / len(runs))
    allowed = max(2 * error, 0.01 * plain)
    differences = [ours - reference for ours, reference in zip(final["fast"], final["plain"], strict=True)]
    valid = {name: [run[name]["validation"] for run in runs] for name in ("plain", "fast")}
    return {
        f"loss_of_the_last_{FINAL_WINDOW}_steps": {"plain": plain, "fast": fast},
        "difference": fast - plain,
        "standard_error": error,
        "allowed": allowed,
        "difference_by_seed": differences,
        "passed": abs(fast - plain) <= allowed,
        "marks": [_mark(runs, step) for step in MARKS if step <= steps] or [_mark(runs, steps)],
        "validation_loss": {name: statistics.mean(values) for name, values in valid.items()},
        "validation_spread": {name: _std(values) for name, values in valid.items()},
        "validation_difference": statistics.mean(valid["fast"]) - statistics.mean(valid["plain"]),
    }


def _mark(runs: list[dict[str, dict[str, Any]]], step: int) -> dict[str, float]:
    """The losses at a step, averaged over the steps before it."""
    plain, fast = ([_mean_loss(run[name]["losses"], step, MARK_WINDOW) for run in runs] for name in ("plain", "fast"))
    return {
        "step": step,
        "plain": statistics.mean(plain),
        "fast": statistics.mean(fast),
        "difference": statistics.mean(fast) - statistics.mean(plain),
        "plain_spread": _std(plain),
        "fast_spread": _std(fast),
    }


def _mean_loss(losses: list[float], step: int, window: int) -> float:
    """The mean of the `window` losses up to a step."""
    return statistics.mean(losses[max(0, step - window) : step])


def _std(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def _to_floats(losses: list[Tensor]) -> list[float]:
    numbers: list[float] = torch.stack(losses).float().tolist()
    return numbers


def _curve(losses: list[float]) -> list[float]:
    """The mean loss of each window of steps."""
    windows = (losses[start : start + CURVE_WINDOW] for start in range(0, len(losses), CURVE_WINDOW))
    return [round(statistics.mean(window), 4) for window in windows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, help="training steps (default: 300, with --quick 12)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="override a recipe key"
    )
    parser.add_argument("--quick", action="store_true", help="train a toy model for a few steps and write no results")
    options = parser.parse_args()
    steps = options.steps or (12 if options.quick else 300)
    torch.set_float32_matmul_precision("highest")
    precision = "bfloat16" if options.device == "cuda" else "float32"
    recipe = read_translation_recipe(
        RECIPE,
        [
            f"train.steps={steps}",
            f"train.precision={precision}",
            "train.schedule.lr=0.001",
            f"train.schedule.warmup_steps={max(1, steps // 3)}",
            *(TOY if options.quick else []),
            *options.overrides,
            "train.loss.r_drop=0.0",  # the reference computes one forward pass
        ],
    )
    runs, cases = [], []
    for seed in options.seeds:
        runs.append(run_seed(recipe, seed, options.device))
        for name, run in runs[-1].items():
            metrics = {"curve": _curve(run["losses"]), "validation_loss": run["validation"]}
            cases.append(log({"case": f"{name}, seed {seed}", "steps_a_point": CURVE_WINDOW, **metrics}))
    case = f"{RECIPE}, {steps} steps: plain float32 and the training loop's {precision}"
    cases.append(log({"case": case, "seeds": options.seeds, "changes": options.overrides, **compare(runs, steps)}))
    if not options.quick:
        print(f"written: {write_results(f'curves-{options.device}', cases)}")
    return 0 if cases[-1]["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
