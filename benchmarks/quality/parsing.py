"""Measure a parser's speed, and verify that every output is a complete tree over exactly the words of the input.

    regard train gum-parse --out runs/gum-parse
    python benchmarks/quality/parsing.py runs/gum-parse

Parses the recipe's test and validation sets, the first 1,000 trees of its training data, and adversarial sentences:
random words, a word of 1,000 letters, brackets, characters of other scripts. The speed is measured at the recipe's beam
size.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from benchmarks.common import log, write_results

from regard.data.trees.tree import Tree, escape_brackets
from regard.task.parsing.pipeline import Parser
from regard.task.parsing.recipe import ParsingRecipe
from regard.task.recipe_io import read_recipe

TRAIN_SENTENCES, RANDOM_SENTENCES = 1000, 200
ADVERSARIAL: tuple[tuple[str, ...], ...] = (
    ("(",), (")", ")", "("), ("(S", "(NP", "x"), ("a" * 1000,), ("🙂", "猫", "кот", "‏שלום"),
    ("-LRB-", "-RRB-", "-NONE-"),
    (".",) * 60, ("the",) * 150, ("\\", '"', "'", "`"), ("\u200b",), ("</s>", "<s>", "<pad>"),
)  # fmt: skip


def random_sentences(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Sentences of random words."""
    rng = random.Random(1)
    return [tuple(rng.choice(words) for _ in range(rng.randint(1, 60))) for _ in range(RANDOM_SENTENCES)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of a parser")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    recipe = read_recipe(str(options.run / "recipe.toml"))
    assert isinstance(recipe, ParsingRecipe)
    pipeline = Parser.load(str(options.run), device=options.device)
    inputs = {name: [tree.words() for tree in source.trees()] for name, source in recipe.data.test.items()}
    if recipe.data.valid is not None:
        inputs["valid"] = [tree.words() for tree in recipe.data.valid.trees()]
    inputs["train"] = [tree.words() for tree in islice(recipe.data.train[0].trees(), TRAIN_SENTENCES)]
    inputs["drawn by chance"] = random_sentences(sorted({word for sentence in inputs["train"] for word in sentence}))
    inputs["odd"] = list(ADVERSARIAL)
    pipeline.parse_words(inputs["valid" if "valid" in inputs else "train"][:64])  # compile kernels, capture CUDA graphs
    cases: list[dict[str, Any]] = []
    for name, sentences in inputs.items():
        start = time.perf_counter()
        outputs = pipeline.parse_words(sentences)
        seconds = time.perf_counter() - start
        correct = sum(
            Tree.parse(str(output.tree)).words() == tuple(map(escape_brackets, words))
            for output, words in zip(outputs, sentences, strict=True)
        )
        cases.append(
            log(
                {
                    "case": name,
                    "sentences": len(sentences),
                    "whole_trees_over_the_right_words": correct,
                    "share": correct / len(sentences),
                    "beam_size": recipe.decode.beam_size,
                    "seconds": seconds,
                    "sentences_a_second": len(sentences) / seconds,
                }
            )
        )
    print(f"written: {write_results(f'parsing-{recipe.name}-{options.device}', cases)}")
    return 0 if all(case["share"] == 1 for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
