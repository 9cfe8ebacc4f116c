"""Show that a word with two senses has one static vector, but other vectors in other sentences.

    python examples/banks.py MODEL… [--json FILE]

The word is *bank*: two sentences are about the bank of a river, two about banks with money, and "I bank only at my
local bank" has it as a verb and as a noun. For each layer of each model this prints the mean cosine between the vectors
of *bank* within each sense, across both, and between verb and noun. Where senses are told apart, the cosine across is
lower than those within. A MODEL is a run folder: of static word vectors, a bidirectional language model (ELMo), an
encoder, or any other model of texts.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import regard
from regard.errors import UserError
from regard.files import write_text

RIVER = ("We went to the river bank.", "I had a picnic by the river bank yesterday.")
MONEY = ("I need to go to the bank to make a deposit.", "I am NOT going to rob a bank tomorrow at 8:30am ET.")
VERB_AND_NOUN = "I bank only at my local bank."


class Similarity(NamedTuple):
    """Mean cosines between the vectors of a word in one layer."""

    layer: int
    river: float
    money: float
    across: float
    verb_and_noun: float | None
    """None if the vector of one of them is missing."""

    @property
    def apart(self) -> float:
        """The mean cosine within a sense minus that across senses."""
        return (self.river + self.money) / 2 - self.across


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="run folder, or name of a pretrained model")
    parser.add_argument("--json", type=Path, help="file for all results")
    options = parser.parse_args()
    try:
        results = {name: similarities(regard.load(name)) for name in options.models}
        for name, layers in results.items():
            print_table(name, layers)
        if options.json is not None:
            found = [{"model": name, "layers": [each._asdict() for each in layers]} for name, layers in results.items()]
            write_text(options.json, json.dumps(found, indent=1) + "\n")
    except UserError as error:
        sys.exit(f"banks.py: {error}")


def similarities(
    model: regard.Pipeline,
    word: str = "bank",
    first: Sequence[str] = RIVER,
    second: Sequence[str] = MONEY,
    both: str = VERB_AND_NOUN,
) -> list[Similarity]:
    """The cosines of every layer. Static vectors have a single one."""
    layers = 0 if hasattr(model, "keyed") else model.context_model.layers
    found = []
    for layer in range(layers + 1):
        one, other = (
            [vectors_of(model, word, sentence, layer)[0] for sentence in sentences] for sentences in (first, second)
        )
        pair = vectors_of(model, word, both, layer)
        found.append(
            Similarity(
                layer,
                river=mean_cosine(list(combinations(one, 2))),
                money=mean_cosine(list(combinations(other, 2))),
                across=mean_cosine(list(product(one, other))),
                verb_and_noun=mean_cosine([pair[:2]]) if len(pair) > 1 else None,
            )
        )
    return found


def vectors_of(model: regard.Pipeline, word: str, sentence: str, layer: int) -> list[Tensor]:
    """The vector of each occurrence of a word in a sentence, ignoring case."""
    words, vectors = model.contextual_vectors(sentence, layer=layer)
    found = [vector for each, vector in zip(words, vectors, strict=True) if each.lower() == word.lower()]
    if not found:
        raise UserError(f"{word!r} has no vector in {sentence!r}; choose sentences that contain it.")
    return found


def mean_cosine(pairs: Sequence[Sequence[Tensor]]) -> float:
    left, right = (torch.stack(side).double() for side in zip(*pairs, strict=True))
    return float(functional.cosine_similarity(left, right, dim=-1).mean())


def print_table(name: str, layers: Sequence[Similarity]) -> None:
    """One line per layer."""
    print(f"{name}\n  layer   river   money  across   apart   verb and noun")
    for each in layers:
        verb = "–" if each.verb_and_noun is None else f"{each.verb_and_noun:.3f}"
        numbers = "".join(f"{value:8.3f}" for value in (each.river, each.money, each.across, each.apart))
        print(f"  {each.layer:<5}{numbers}   {verb}")


if __name__ == "__main__":
    main()
