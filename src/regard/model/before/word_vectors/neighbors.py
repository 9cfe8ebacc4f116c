"""Exact search for the most similar vectors, in blocks: one pass over the array, whatever its size.

The cosine of a query with a block of vectors is one matrix product and a multiplication by the inverses of their norms,
which are computed once. No normalized copy is made, so an array that is memory-mapped stays on disk. After the first
blocks hardly any similarity is high enough to change the result, so choosing the highest costs next to nothing.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

BLOCK = 1 << 14
"""Vectors multiplied at once. Their similarities to a few queries fit into the processor's caches."""
QUERIES = 256
"""Queries answered in one pass over the vectors."""


class Nearest(NamedTuple):
    """The rows of the most similar vectors of each query, the most similar first, and their similarities."""

    rows: NDArray[np.int64]  # (queries, top)
    similarities: Vector  # (queries, top)


class NeighborSearch:
    """Finds the vectors with the highest cosine similarity. A vector of zeros is similar to none: its cosine is 0."""

    def __init__(self, vectors: NDArray[np.floating]) -> None:
        self.vectors = vectors  # (words, dimension)

    @cached_property
    def inverse_norms(self) -> Vector:
        """1 / |v| of each vector, and 0 for a vector of zeros.  # (words,)"""
        norms = np.empty(len(self.vectors), dtype=np.float32)
        for start in range(0, len(norms), BLOCK):
            block = self._block(start, len(norms))
            norms[start : start + BLOCK] = np.sqrt(np.einsum("ij,ij->i", block, block))
        inverse = np.zeros_like(norms)
        np.divide(1, norms, out=inverse, where=norms > 0)
        return inverse

    def unit(self, rows: NDArray[np.integer]) -> Vector:
        """The vectors of some rows, normalized to a length of 1."""
        chosen: Vector = np.asarray(self.vectors[rows], dtype=np.float32)
        return chosen * self.inverse_norms[rows, None]

    def nearest(
        self,
        queries: Vector,
        top: int,
        excluded: Sequence[Collection[int]] | None = None,
        limit: int | None = None,
    ) -> Nearest:
        """The `top` vectors most similar to each query, except the rows excluded for it.  queries: # (n, dimension)

        Only the first `limit` vectors are candidates. Rows that are equally similar are in ascending order. Where fewer
        than `top` are left, the rest have the row -1 and the similarity -inf.
        """
        limit = min(len(self.vectors), limit or len(self.vectors))
        top = min(top, limit)
        answers = [
            self._answer(unit_rows(queries[start : start + QUERIES]), top, excluded and excluded[start:], limit)
            for start in range(0, len(queries), QUERIES)
        ] or [Nearest(np.empty((0, top), np.int64), np.empty((0, top), np.float32))]
        return Nearest(*map(np.concatenate, zip(*answers, strict=True)))

    def _answer(self, queries: Vector, top: int, excluded: Sequence[Collection[int]] | None, limit: int) -> Nearest:
        """The nearest vectors of a few queries of length 1."""
        rows = np.full((len(queries), top), -1, dtype=np.int64)
        best = np.full((len(queries), top), -np.inf, dtype=np.float32)
        pairs = [(query, row) for query in range(len(queries)) for row in (excluded[query] if excluded else ())]
        left_out = np.array(sorted(pairs, key=lambda pair: pair[1]), dtype=np.int64).reshape(-1, 2)
        for start in range(0, limit, BLOCK):
            block = self._block(start, limit)
            scores = (block @ queries.T).T * self.inverse_norms[start : start + len(block)]  # (queries, block)
            first, last = np.searchsorted(left_out[:, 1], (start, start + len(block)))
            scores[left_out[first:last, 0], left_out[first:last, 1] - start] = -np.inf
            for query in np.flatnonzero(scores.max(axis=1) > best[:, -1]):
                found = np.flatnonzero(scores[query] > best[query, -1])
                if len(found) > top:  # all that are as high as the last of the highest, so that ties have an order
                    lowest = np.partition(scores[query, found], len(found) - top)[len(found) - top]
                    found = found[scores[query, found] >= lowest]
                merged = np.concatenate((best[query], scores[query, found]))
                merged_rows = np.concatenate((rows[query], found + start))
                order = np.argsort(-merged, kind="stable")[:top]
                best[query], rows[query] = merged[order], merged_rows[order]
        return Nearest(rows, best)

    def _block(self, start: int, limit: int) -> Vector:
        block: Vector = np.asarray(self.vectors[start : min(start + BLOCK, limit)], dtype=np.float32)
        return block


def unit_rows(vectors: NDArray[np.floating]) -> Vector:
    """Vectors with a length of 1; zeros stay zeros."""
    units = np.zeros(vectors.shape, dtype=np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    np.divide(vectors, norms, out=units, where=norms > 0, casting="same_kind")
    return units
