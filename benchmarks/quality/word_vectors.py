"""What word vectors know: recipes trained with several seeds, beside gensim on the same text with the same settings.

    pip install gensim
    python benchmarks/quality/word_vectors.py novels-skipgram novels-cbow novels-fasttext --seeds 1 2 3 --peer
    python benchmarks/quality/word_vectors.py novels-glove brown-glove        # gensim trains no GloVe

Scores are those of `regard score`: rank correlations with people's judgments of word pairs, and analogies. Both sides
have the same vocabulary, so the same pairs are known. Results are added to benchmarks/results/word-vectors.json: a case
for each recipe and side, with the score of each seed.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from benchmarks.common import RESULTS, write_results

import regard
from regard.data.text.vocabulary import VOCABULARY, Vocabulary
from regard.data.text.word_corpus import cached_corpus
from regard.model.before.word_vectors.config import SkipGramConfig
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.score.word_vectors import AnalogyScore, score_word_vectors
from regard.task.recipe_io import read_recipe
from regard.task.run import train

NAME = "word-vectors"
Trained = tuple[KeyedVectors, float]
"""Vectors, and the seconds of their training."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--peer", action="store_true", help="also train gensim")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.recipes:
        with tempfile.TemporaryDirectory() as folder:
            runs = [Path(folder) / f"seed-{seed}" for seed in options.seeds]
            sides: dict[str, Callable[[Path, int], Trained]] = {
                "regard": lambda run, seed, name=name: train_ours(name, options.overrides, run, seed)  # type: ignore[misc]
            }
            if options.peer:
                sides["gensim"] = lambda run, seed: train_peer(run, seed, options.threads)
            for side, train_one in sides.items():
                found = [measure(train_one(run, seed)) for run, seed in zip(runs, options.seeds, strict=True)]
                case = summarize(f"{name}, {side}", found) | {"seeds": options.seeds, "threads": options.threads}
                print(json.dumps(case), flush=True)
                print(f"Results written to {write_results(NAME, [*known_cases(case['case']), case])}")
    return 0


def train_ours(name: str, overrides: list[str], run: Path, seed: int) -> Trained:
    """A recipe, trained into the folder `run`."""
    recipe = read_recipe(name, [*overrides, f"train.seed={seed}"])
    trained = train(recipe, run)
    return regard.load(run).keyed, trained.seconds


def train_peer(run: Path, seed: int, threads: int) -> Trained:
    """gensim with the text, the vocabulary and the settings of a run."""
    from gensim.models import FastText, Word2Vec

    recipe: Any = read_recipe(run / "recipe.toml")
    vocabulary = Vocabulary.load(run / VOCABULARY)
    settings = recipe.make_model_config(len(vocabulary))
    subwords = settings.subwords
    ngrams = (
        {"min_n": subwords.min_length, "max_n": subwords.max_length, "bucket": subwords.buckets} if subwords else {}
    )
    peer = (FastText if subwords else Word2Vec)(
        sg=int(isinstance(settings, SkipGramConfig)),
        vector_size=settings.width,
        window=recipe.data.window,
        negative=settings.loss.negatives,
        ns_exponent=settings.loss.power,
        sample=recipe.data.subsample,
        min_count=1,
        workers=threads,
        seed=seed,
        alpha=recipe.train.schedule.lr,
        min_alpha=recipe.train.schedule.lr * 1e-4,
        epochs=recipe.train.epochs,
        **ngrams,
    )
    peer.build_vocab_from_freq(dict(zip(vocabulary.words, vocabulary.counts.tolist(), strict=True)))
    sentences = list(sentences_of(recipe, vocabulary))
    start = time.perf_counter()
    peer.train(sentences, total_examples=len(sentences), epochs=recipe.train.epochs)
    seconds = time.perf_counter() - start
    rows = [peer.wv.key_to_index[word] for word in vocabulary.words]
    return KeyedVectors(vocabulary.words, peer.wv.vectors[rows], counts=vocabulary.counts), seconds


def sentences_of(recipe: Any, vocabulary: Vocabulary) -> Iterator[list[str]]:
    """The text as regard reads it, as lists of words."""
    corpus = cached_corpus(recipe.data.train, recipe.data.words, vocabulary, lambda message: None)
    words = list(vocabulary.words)
    for start, end in pairwise(corpus.offsets):
        yield [words[each] for each in corpus.ids[start:end]]


def measure(trained: Trained) -> dict[str, float]:
    keyed, seconds = trained
    found = {"seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 1)}
    for name, score in score_word_vectors(keyed).items():
        if isinstance(score, AnalogyScore):
            found[name] = round(score.accuracy, 2)
        else:
            found[name], found[f"{name}-coverage"] = round(score.spearman, 4), round(score.coverage, 4)
    return found


def summarize(case: str, found: list[dict[str, float]]) -> dict[str, Any]:
    """Each measurement over the seeds: all values, their mean and standard deviation."""
    columns = {name: [each[name] for each in found] for name in found[0]}
    return {"case": case} | {
        name: {
            "values": values,
            "mean": round(fmean(values), 4),
            "std": round(stdev(values), 4) if values[1:] else None,
        }
        for name, values in columns.items()
    }


def known_cases(replaced: str) -> list[dict[str, Any]]:
    """What is recorded already, but for one case."""
    path = RESULTS / f"{NAME}.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))["cases"] if path.is_file() else []
    return [case for case in recorded if case["case"] != replaced]


if __name__ == "__main__":
    raise SystemExit(main())
