"""How fast a trained parser reads, and whether all that it writes is a tree over exactly the words it was given.

    regard train gum-parse --out runs/gum-parse
    python benchmarks/parsing.py runs/gum-parse

Takes every part of the parser's own data, learnt from and held out (of the former the first thousand trees), and
sentences that nobody would write: words drawn by chance, a word a thousand letters long, brackets, signs of other
scripts. Sentences a second are those of the test part, at the recipe's beam width, with nothing left out.
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
from common import say, write_results

from regard.data.trees import Tree, word_for_file
from regard.task import load_parser, read_recipe
from regard.task.parsing_recipe import ParsingRecipe

LEARNT, DRAWN = 1000, 200
ODD: tuple[tuple[str, ...], ...] = (
    ("(",), (")", ")", "("), ("(S", "(NP", "x"), ("a" * 1000,), ("🙂", "猫", "кот", "‏שלום"),
    ("-LRB-", "-RRB-", "-NONE-"),
    (".",) * 60, ("the",) * 150, ("\\", '"', "'", "`"), ("\u200b",), ("</s>", "<s>", "<pad>"),
)  # fmt: skip


def drawn(words: Sequence[str]) -> list[tuple[str, ...]]:
    """Sentences of words drawn by chance."""
    source = random.Random(1)
    return [tuple(source.choice(words) for _ in range(source.randint(1, 60))) for _ in range(DRAWN)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of a parser")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    recipe = read_recipe(str(options.run / "recipe.toml"))
    assert isinstance(recipe, ParsingRecipe)
    trained = load_parser(str(options.run), device=options.device)
    parts = {name: [tree.words() for tree in place.trees()] for name, place in recipe.data.test.items()}
    if recipe.data.valid is not None:
        parts["valid"] = [tree.words() for tree in recipe.data.valid.trees()]
    parts["train"] = [tree.words() for tree in islice(recipe.data.train[0].trees(), LEARNT)]
    parts["drawn by chance"] = drawn(sorted({word for sentence in parts["train"] for word in sentence}))
    parts["odd"] = list(ODD)
    trained.parse_words(parts["valid" if "valid" in parts else "train"][:64])  # what is compiled or recorded first
    cases: list[dict[str, Any]] = []
    for name, sentences in parts.items():
        begin = time.perf_counter()
        found = trained.parse_words(sentences)
        seconds = time.perf_counter() - begin
        whole = sum(
            Tree.of(str(parsed.tree)).words() == tuple(map(word_for_file, words))
            for parsed, words in zip(found, sentences, strict=True)
        )
        cases.append(
            say(
                {
                    "case": name,
                    "sentences": len(sentences),
                    "whole_trees_over_the_right_words": whole,
                    "share": whole / len(sentences),
                    "beams": recipe.decode.beams,
                    "seconds": seconds,
                    "sentences_a_second": len(sentences) / seconds,
                }
            )
        )
    print(f"written: {write_results(f'parsing-{recipe.name}-{options.device}', cases)}")
    return 0 if all(case["share"] == 1 for case in cases) else 1


if __name__ == "__main__":
    sys.exit(main())
