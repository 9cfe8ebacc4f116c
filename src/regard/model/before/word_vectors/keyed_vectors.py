"""Words and their vectors, whatever model they come from, and the questions that vectors alone can answer."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

Vector = NDArray[np.float32]


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

    def unknown_word(self, word: str) -> UserError:
        """The error for a word without a vector, with the nearest spellings."""
        where = f"{self.name}: " if self.name else ""
        near = get_close_matches(word, self.words, n=3, cutoff=0.7) if len(word) <= 64 else []
        hint = f"; did you mean {', '.join(near)}?" if near else "."
        return UserError(f"{where}there is no vector for {word!r}{hint}")
