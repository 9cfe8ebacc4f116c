"""How much two sets of word vectors agree, although their coordinates have nothing to do with each other.

Two trainings on the same text end with other numbers and the same neighbors. Two measures do not depend on the
coordinates: how many of a word's nearest neighbors are the same in both sets, and how similar its two vectors are once
one set has been rotated onto the other (orthogonal Procrustes; Hamilton, Leskovec and Jurafsky 2016).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.model.before.word_vectors.neighbors import NeighborSearch, Vector, unit_rows


@dataclass(frozen=True)
class ComparedWord:
    """How much two sets agree on a word."""

    word: str
    overlap: float
    """The fraction of its nearest neighbors that are the same."""
    similarity: float
    """The cosine of its vectors after the rotation."""


@dataclass(frozen=True)
class VectorComparison:
    """How much two sets agree on the words that both have."""

    shared: int
    """How many words both have."""
    neighbors: int
    """How many nearest neighbors of each word were compared."""
    words: tuple[ComparedWord, ...]
    """The words compared, in the order of the first set; all neighbors are among them."""

    @property
    def overlap(self) -> float:
        """The mean fraction of the nearest neighbors that are the same."""
        return float(np.mean([one.overlap for one in self.words]))

    @property
    def chance(self) -> float:
        """The overlap that sets without relation have."""
        return self.neighbors / (len(self.words) - 1)

    @property
    def similarity(self) -> float:
        """The mean cosine of a word's two vectors after the rotation."""
        return float(np.mean([one.similarity for one in self.words]))

    def most_different(self, count: int) -> list[ComparedWord]:
        """The words on which the sets agree least."""
        return sorted(self.words, key=lambda one: (one.similarity, one.overlap))[:count]


def compare_vectors(
    first: KeyedVectors, second: KeyedVectors, *, words: int = 10_000, neighbors: int = 10
) -> VectorComparison:
    """Compare two sets on the first `words` words of the first set that the second has too."""
    shared = [word for word in first.words if word in second.ids]
    chosen = shared[:words]
    if len(chosen) < 3:
        raise UserError(
            f"{first.name} and {second.name} have {len(shared)} words in common; at least 3 are needed to compare them."
        )
    one = unit_rows(first.vectors[[first.ids[word] for word in chosen]])
    other = unit_rows(second.vectors[[second.ids[word] for word in chosen]])
    count = min(neighbors, len(chosen) - 1)
    overlaps = _overlaps(one, other, count)
    similarities = np.einsum("ij,ij->i", unit_rows(one @ rotation(one, other)), other)
    compared = map(ComparedWord, chosen, overlaps.tolist(), similarities.tolist())
    return VectorComparison(len(shared), count, tuple(compared))


def rotation(first: Vector, second: Vector) -> Vector:
    """The matrix with orthonormal rows or columns that brings `first` nearest to `second`: U Vᵀ of the singular value
    decomposition of firstᵀ second (Schönemann 1966).  # (dimension of first, dimension of second)"""
    u, _, vt = np.linalg.svd(first.T.astype(np.float64) @ second.astype(np.float64), full_matrices=False)
    found: Vector = (u @ vt).astype(np.float32)
    return found


def _overlaps(first: Vector, second: Vector, count: int) -> NDArray[np.float64]:
    """The fraction of the nearest neighbors of each row that are the same rows in both.  # (words,)"""
    alone = [(row,) for row in range(len(first))]
    near = [NeighborSearch(units).nearest(units, count, alone).rows for units in (first, second)]
    return np.array([len(np.intersect1d(*rows)) / count for rows in zip(*near, strict=True)])
