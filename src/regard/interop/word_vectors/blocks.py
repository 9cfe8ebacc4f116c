"""What the readers of all formats give: blocks of rows, so that a file of any size is read in bounded memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BLOCK_NUMBERS = 1 << 20
"""About how many numbers a block has."""


class VectorBlock(NamedTuple):
    """Some words, none of which occurred before, and their vectors."""

    words: list[str]
    vectors: NDArray[np.float32]  # (words, dimension)


@dataclass(frozen=True)
class VectorReader:
    """An open file of word vectors: its dimension, and its rows in blocks, which can be read once."""

    dimension: int
    blocks: Iterator[VectorBlock]


class Distinct:
    """Tells words that are new from repeated ones. Of a word that stands in a file twice, the first vector counts."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        self.repeated = 0

    def is_new(self, word: str) -> bool:
        before = len(self.words)
        self.words.add(word)
        self.repeated += before == len(self.words)
        return before < len(self.words)

    def report(self, name: str, log: Callable[[str], None]) -> None:
        """Say how many vectors were left out."""
        if self.repeated:
            log(f"{name}: {self.repeated:,} words stand there more than once; the first vector of each counts.")
