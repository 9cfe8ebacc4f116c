"""One word, two meanings: do its vectors in context part where a single vector cannot?

*Bank* has one vector in a table of words. In context it has another in every sentence, and those of river banks should
be nearer to each other than to those of banks for money.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product

import torch
from torch import Tensor
from torch.nn import functional

from regard.errors import UserError
from regard.task.filler import Filler, WordVectors


@dataclass(frozen=True)
class Senses:
    """Mean cosines between the vectors of a word, over pairs of sentences."""

    first: float
    """Both sentences have the word in its first meaning."""
    second: float
    """Both in its second."""
    across: float
    """One in each."""
    static: float
    """Of all pairs, before any layer: 1 where the word always has the same tokens."""

    @property
    def apart(self) -> float:
        """By how much a meaning is nearer to itself than to the other."""
        return (self.first + self.second) / 2 - self.across

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in (asdict(self) | {"apart": self.apart}).items()}


def compare_senses(
    filler: Filler, word: str, first: Sequence[str], second: Sequence[str], *, layer: int | None = None
) -> Senses:
    """How near the vectors of a word are within each of two meanings, and across. Sentences are given for each; the
    vectors are those of the last layer, or of the one asked for."""
    if min(len(first), len(second)) < 2:
        raise UserError(f"Each meaning needs two sentences at least; found {len(first)} and {len(second)}.")
    groups = [
        torch.stack([_of_word(filler.vectors(text, layer=layer), word, text) for text in texts])
        for texts in (first, second)
    ]
    static = [_of_word(filler.static_vectors(text), word, text) for text in (*first, *second)]
    return Senses(
        first=_mean_cosine(list(combinations(groups[0], 2))),
        second=_mean_cosine(list(combinations(groups[1], 2))),
        across=_mean_cosine(list(product(*groups))),
        static=_mean_cosine(list(combinations(static, 2))),
    )


def _of_word(found: WordVectors, word: str, text: str) -> Tensor:
    """The vector of the first time the word comes, whatever its case."""
    wanted = [place for place, one in enumerate(found.words) if one.casefold() == word.casefold()]
    if not wanted:
        raise UserError(f"The word {word!r} is not in {text!r}; give sentences that have it.")
    return found.vectors[wanted[0]]


def _mean_cosine(pairs: Sequence[Sequence[Tensor]]) -> float:
    one, other = (torch.stack(side) for side in zip(*pairs, strict=True))
    return float(functional.cosine_similarity(one.double(), other.double(), dim=-1).mean())
