"""Compare the contextual vectors of a word with two senses, within each sense and across both.

A static embedding has one vector for *bank*. In context its vector differs from sentence to sentence, and those of
river banks should be closer to each other than to those of financial banks.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, product

import torch
from torch import Tensor
from torch.nn import functional

from regard.errors import UserError
from regard.task.contextual_vectors.model import TextVectors
from regard.task.masked_lm.pipeline import FillMask


@dataclass(frozen=True)
class SenseSimilarity:
    """Mean cosine similarities between the vectors of a word, over pairs of sentences."""

    first: float
    """Both sentences use the word in its first sense."""
    second: float
    """Both use it in its second sense."""
    across: float
    """Each uses it in another sense."""
    static: float
    """Of the static embeddings, over all pairs: 1 if the word always has the same tokens."""

    @property
    def apart(self) -> float:
        """The mean similarity within a sense minus that across senses."""
        return (self.first + self.second) / 2 - self.across

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in (asdict(self) | {"apart": self.apart}).items()}


def compare_senses(
    fill_mask: FillMask, word: str, first: Sequence[str], second: Sequence[str], *, layer: int | None = None
) -> SenseSimilarity:
    """The similarity of a word's vectors within and across two senses, each given as a list of sentences.

    The vectors are those of the last layer, unless `layer` is given.
    """
    if min(len(first), len(second)) < 2:
        raise UserError(f"Each sense needs at least two sentences; found {len(first)} and {len(second)}.")
    senses = [
        torch.stack([_vector_of(word, fill_mask.vectors(text, layer=layer), text) for text in texts])
        for texts in (first, second)
    ]
    static = [_vector_of(word, fill_mask.static_vectors(text), text) for text in (*first, *second)]
    return SenseSimilarity(
        first=_mean_cosine(list(combinations(senses[0], 2))),
        second=_mean_cosine(list(combinations(senses[1], 2))),
        across=_mean_cosine(list(product(*senses))),
        static=_mean_cosine(list(combinations(static, 2))),
    )


def _vector_of(word: str, vectors: TextVectors, text: str) -> Tensor:
    """The vector of the word's first occurrence, ignoring case."""
    positions = [position for position, each in enumerate(vectors.words) if each.casefold() == word.casefold()]
    if not positions:
        raise UserError(f"The word {word!r} is not in {text!r}; choose sentences that contain it.")
    return vectors.vectors[positions[0]]


def _mean_cosine(pairs: Sequence[Sequence[Tensor]]) -> float:
    left, right = (torch.stack(side) for side in zip(*pairs, strict=True))
    return float(functional.cosine_similarity(left.double(), right.double(), dim=-1).mean())
