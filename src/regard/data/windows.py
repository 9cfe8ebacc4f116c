"""Rows of a fixed length cut from one long stream of tokens, to learn or to judge the token after each.

A cell is one prediction: it reads the token at some place and is asked for the next. A stream of n tokens has n − 1
cells. Three ways to lay them out:

    ContiguousWindows   windows side by side from a random offset, in random order: an epoch has each cell once
    RandomWindows       windows at random places, drawn with replacement, as nanoGPT does
    whole_windows       windows side by side from the start, in order, once: for an exact loss

`PackedRows` (packed.py) lays whole documents instead. Tokens are read where they lie, in memory or mapped from a file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.epochs import ORDER, PLACES, Dice, EpochBatches, dealt
from regard.data.rows import RowBatch
from regard.data.shapes import Integers
from regard.data.store import TokenStore
from regard.errors import UserError


class TokenStream:
    """Ids one behind the other, and where each document begins and the last one ends; one document if not given.

    `tokens` may be a mapped file (`numpy.memmap`). `key` names what they were made from, for resuming.
    """

    def __init__(self, tokens: NDArray[Any], offsets: Integers | None = None, key: str = "") -> None:
        self.tokens = np.asarray(tokens)
        self.offsets = np.array([0, len(tokens)]) if offsets is None else offsets
        self.key = key
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu":
            raise UserError(
                f"A stream is one row of whole numbers; found the shape {self.tokens.shape} of {self.tokens.dtype}."
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.tokens):
            raise UserError(f"The documents do not make up the {len(self.tokens):,} tokens of the stream.")

    @classmethod
    def of(cls, store: TokenStore, side: str | None = None) -> "TokenStream":
        """The items of a store as documents; of several sides name the one that is meant."""
        side = store.sides[-1] if side is None else side
        return cls(*store.stream(side), key=f"{store.key} {side}")

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class WindowReport:
    """What an epoch is: how much is predicted, in batches of how many cells."""

    tokens: int
    batches: int
    rows: int
    length: int
    what: str

    @property
    def cells(self) -> int:
        return self.batches * self.rows * self.length

    @property
    def padding(self) -> float:
        """The share of all cells that holds no token."""
        return 1 - self.tokens / self.cells

    def __str__(self) -> str:
        return (
            f"{self.tokens:,} tokens to predict in {self.batches:,} batches of {self.rows:,} × {self.length:,}, "
            f"{self.what}, {100 * self.padding:.1f} % padding."
        )


class ContiguousWindows(EpochBatches[RowBatch]):
    """Every token but the first predicted once an epoch, in rows of `length`.

    The first row of the stream has a random number of cells, so that windows begin elsewhere in each epoch. It and the
    last may be short; the rest is padding. Rows are dealt evenly, so no batch has many empty ones.
    """

    def __init__(self, stream: TokenStream, length: int, rows: int, *, seed: int = 0, padding: int = 0) -> None:
        check_rows(length, rows)
        check_stream(stream, 2)
        super().__init__(seed, stream.key, len(stream), length, rows)
        self.stream, self.length, self.rows, self.padding = stream, length, rows, padding
        self._cells = len(stream) - 1
        self._drawn: tuple[int, int, Integers] | None = None
        self.report = WindowReport(self._cells, self.count(0), rows, length, "windows side by side")

    @property
    def fewest_rows(self) -> int:
        return self.rows

    def count(self, epoch: int) -> int:
        return -(-self._windows(self._offset(epoch)) // self.rows)

    def make(self, epoch: int, number: int) -> RowBatch:
        offset, order = self._draw(epoch)
        chosen = dealt(order, self.count(epoch), number)
        first = np.maximum(offset + (chosen - 1) * self.length, 0)
        last = np.minimum(offset + chosen * self.length, self._cells)
        return cut(self.stream, first, last - first, (self.rows, self.length), self.padding, epoch, number)

    def _offset(self, epoch: int) -> int:
        """How many cells the first window has: 1 to `length`."""
        return 1 + int(Dice(self.seed, epoch, 0, PLACES).below(self.length, 1)[0])

    def _windows(self, offset: int) -> int:
        return 1 + max(0, -(-(self._cells - offset) // self.length))

    def _draw(self, epoch: int) -> tuple[int, Integers]:
        if self._drawn is None or self._drawn[0] != epoch:
            offset = self._offset(epoch)
            self._drawn = epoch, offset, Dice(self.seed, epoch, 0, ORDER).order(self._windows(offset))
        return self._drawn[1:]


class RandomWindows(EpochBatches[RowBatch]):
    """Windows at places drawn with replacement, each as likely as any other (nanoGPT's `get_batch`).

    An epoch is as many batches as predict about as many tokens as there are.
    """

    def __init__(self, stream: TokenStream, length: int, rows: int, *, seed: int = 0) -> None:
        check_rows(length, rows)
        check_stream(stream, length + 1)
        super().__init__(seed, stream.key, len(stream), length, rows)
        self.stream, self.length, self.rows = stream, length, rows
        batches = self.count(0)
        self.report = WindowReport(batches * rows * length, batches, rows, length, "windows at random places")

    @property
    def fewest_rows(self) -> int:
        return self.rows

    def count(self, epoch: int) -> int:
        return -(-(len(self.stream) - 1) // (self.rows * self.length))

    def make(self, epoch: int, number: int) -> RowBatch:
        places = len(self.stream) - self.length
        rows = self.rows if number < self.count(epoch) else 0
        first = Dice(self.seed, epoch, number, PLACES).below(places, rows)
        sizes = np.full(rows, self.length)
        return cut(self.stream, first, sizes, (self.rows, self.length), 0, epoch, number)


def whole_windows(stream: TokenStream, length: int, rows: int, *, padding: int = 0) -> Iterator[RowBatch]:
    """All of a stream in order, in windows of `length` that do not overlap: every token but the first predicted once.

    The last window may be short. All batches have the same shape: `rows` rows, or fewer if that is all there is.
    """
    check_rows(length, rows)
    check_stream(stream, 2)
    cells = len(stream) - 1
    starts = np.arange(0, cells, length)
    rows = min(rows, len(starts))
    for number, first in enumerate(range(0, len(starts), rows)):
        chosen = starts[first : first + rows]
        yield cut(stream, chosen, np.minimum(cells - chosen, length), (rows, length), padding, 0, number)


def cut(
    stream: TokenStream,
    first: Integers,
    sizes: Integers,
    shape: tuple[int, int],
    padding: int,
    epoch: int,
    number: int,
) -> RowBatch:
    """The windows of so many cells from these places on, as the first rows of a batch.  first, sizes: # (windows,)"""
    rows, length = shape
    columns = np.arange(length)
    places = first[:, None] + columns  # (windows, length)
    behind = columns >= sizes[:, None] if (sizes < length).any() else None
    if behind is not None:
        places[behind] = 0
    sides = []
    for shift in (0, 1):
        ids = np.empty(shape, dtype=np.int64)
        ids[: len(first)] = stream.tokens[places + shift]
        if behind is not None:
            ids[: len(first)][behind] = padding
        ids[len(first) :] = padding
        sides.append(torch.from_numpy(ids))
    lengths = np.zeros(rows, dtype=np.int64)
    lengths[: len(first)] = sizes
    return RowBatch(sides[0], sides[1], torch.from_numpy(lengths), None, int(sizes.sum()), epoch, number)


def check_rows(length: int, rows: int) -> None:
    """Refuse rows without cells."""
    if length < 1 or rows < 1:
        raise UserError(f"Batches need at least one row ({rows}) of at least one token ({length}).")


def check_stream(stream: TokenStream, fewest: int) -> None:
    """Refuse a stream with fewer tokens than a window needs."""
    if len(stream) < fewest:
        raise UserError(
            f"The text has {len(stream):,} tokens, and windows need at least {fewest:,}; give more text"
            f"{', or make them shorter' if fewest > 2 else ''}."
        )
