"""Words and their vectors, whatever model they come from, and the questions that vectors alone can answer."""

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError
from regard.model.before.word_vectors.neighbors import NeighborSearch, unit_rows
from regard.model.before.word_vectors.spelling import nearest_spellings

Vector = NDArray[np.float32]


class Neighbor(NamedTuple):
    """A word, and the cosine of its vector with another."""

    word: str
    similarity: float


class KeyedVectors:
    """A vector for each word. The array may be memory-mapped: nothing here copies all of it.

    `compose` gives the vector of a word that is not in the vocabulary, or None: models with subwords have one.
    """

    def __init__(
        self,
        words: Sequence[str],
        vectors: Vector,
        *,
        counts: NDArray[np.int64] | None = None,
        compose: Callable[[str], Vector | None] | None = None,
        name: str = "",
    ) -> None:
        """`words` are distinct, the most frequent first if that is known; vectors: # (words, dimension)

        `counts` are how often the words occurred in training; `name` is what messages call these vectors.
        """
        if len(words) != len(vectors):
            raise ValueError(f"{len(words)} words, but {len(vectors)} vectors")
        self.words, self.vectors, self.counts, self.compose, self.name = words, vectors, counts, compose, name

    @cached_property
    def ids(self) -> dict[str, int]:
        """The row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def search(self) -> NeighborSearch:
        """The search over all vectors, for questions with vectors instead of words."""
        return NeighborSearch(self.vectors)

    @property
    def dimension(self) -> int:
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.ids

    def __getitem__(self, word: str) -> Vector:
        """The vector of a word; of an unknown one it is composed of its subwords where the model has them."""
        row = self.ids.get(word)
        if row is not None:
            return np.asarray(self.vectors[row], dtype=np.float32)
        composed = None if self.compose is None else self.compose(word)
        if composed is None:
            raise self.unknown_word(word)
        return composed

    def of(self, words: Sequence[str]) -> Vector:
        """The vectors of some words.  # (words, dimension)"""
        return np.stack([self[word] for word in words])

    def near(self, word: str, top: int = 10, *, limit: int | None = None) -> list[Neighbor]:
        """The words whose vectors have the highest cosine with the word's, among the first `limit` words if given."""
        return self.near_vector(self[word], top, exclude=(word,), limit=limit)

    def near_vector(
        self, vector: Vector, top: int = 10, *, exclude: Collection[str] = (), limit: int | None = None
    ) -> list[Neighbor]:
        """The words whose vectors are the most similar to a vector, except some."""
        rows = [self.ids[word] for word in exclude if word in self.ids]
        found = self.search.nearest(vector[None], top, [rows], limit)
        pairs = zip(found.rows[0].tolist(), found.similarities[0].tolist(), strict=True)
        return [Neighbor(self.words[row], similarity) for row, similarity in pairs if row >= 0]

    def similarity(self, first: str, second: str) -> float:
        """The cosine of the vectors of two words."""
        one, other = unit_rows(self.of((first, second)))
        return float(one @ other)

    def similarities(self, words: Sequence[str]) -> Vector:
        """The cosines of each pair of some words: symmetric, with 1 on the diagonal.  # (words, words)"""
        units = unit_rows(self.of(words))
        return units @ units.T

    def analogy(self, a: str, b: str, c: str, top: int = 1, *, limit: int | None = None) -> list[Neighbor]:
        """The words that are to `c` as `b` is to `a`: the most similar to b − a + c, each of length 1, without these
        three (3CosAdd; Mikolov, Yih and Zweig 2013)."""
        first, second, third = unit_rows(self.of((a, b, c)))
        return self.near_vector(second - first + third, top, exclude=(a, b, c), limit=limit)

    def odd(self, words: Sequence[str]) -> list[Neighbor]:
        """The words with their similarity to the mean of all of them, the one that fits least first."""
        if len(words) < 3:
            raise UserError(f"Which word is odd can only be said of at least 3 words; found {len(words)}.")
        units = unit_rows(self.of(words))
        fits = units @ unit_rows(units.mean(axis=0, keepdims=True))[0]
        return sorted(map(Neighbor, words, fits.tolist()), key=lambda one: one.similarity)

    def unknown_word(self, word: str) -> UserError:
        """The error for a word without a vector, with the nearest spellings."""
        where = f"{self.name}: " if self.name else ""
        near = nearest_spellings(word, self.ids, self.words)
        hint = f"; did you mean {', '.join(near)}?" if near else "."
        return UserError(f"{where}there is no vector for {word!r}{hint}")
