"""Windows: rows of a fixed length cut from one long stream of tokens, for training or scoring next-token prediction.

A position is one prediction: it reads one token of the stream, and the next token is its target. A stream of n tokens
has n - 1 positions. There are three ways to cut it:

    ContiguousWindows    adjacent windows from a random offset, in random order: an epoch has each position once
    RandomWindows        windows at random offsets, drawn with replacement, as nanoGPT does
    sequential_windows   adjacent windows from the start, in order, once: for an exact loss

`PackedDocuments` (packing.py) keeps documents separate instead. Tokens are read from memory or from a memory-mapped
file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching.epochs import CounterRng, EpochBatches, Integers, Purpose, count_of, even_chunk
from regard.data.batching.row_batch import RowBatch
from regard.data.store.token_store import TokenStore
from regard.errors import UserError


class TokenStream:
    """Concatenated ids, and the offsets at which documents begin (and the last one ends); by default one document.

    `tokens` may be a memory-mapped file (`numpy.memmap`). `key` identifies their source, for resuming.
    """

    def __init__(self, tokens: NDArray[Any], offsets: Integers | None = None, key: str = "") -> None:
        self.tokens = np.asarray(tokens)
        self.offsets = np.array([0, len(tokens)]) if offsets is None else offsets
        self.key = key
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu":
            raise UserError(
                f"A token stream must be one row of whole numbers; found the shape {self.tokens.shape} of "
                f"{self.tokens.dtype}."
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.tokens):
            raise UserError(f"The document offsets do not cover the {len(self.tokens):,} tokens of the stream.")

    @classmethod
    def from_store(cls, store: TokenStore, side: str | None = None) -> "TokenStream":
        """One side of a token store, by default the last; its items become the documents."""
        side = store.sides[-1] if side is None else side
        return cls(*store.stream(side), key=f"{store.key} {side}")

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class WindowStats:
    """Sizes of an epoch: the number of predicted tokens, and the shape of the batches."""

    tokens: int
    batches: int
    rows: int
    length: int
    layout: str

    @property
    def padded_tokens(self) -> int:
        return self.batches * self.rows * self.length

    @property
    def padding(self) -> float:
        """The fraction of all positions that holds no token."""
        return 1 - self.tokens / self.padded_tokens

    def __str__(self) -> str:
        return (
            f"{count_of(self.tokens, 'token')} to predict in {count_of(self.batches, 'batch', 'batches')} of "
            f"{self.rows:,} × {self.length:,}, {self.layout}, {100 * self.padding:.1f} % padding."
        )


class ContiguousWindows(EpochBatches[RowBatch]):
    """Every token but the first is predicted once per epoch, in rows of `length`.

    The first window has a random size, so that windows begin at other offsets in each epoch. It and the last window may
    be short and are padded. Windows are spread evenly over the batches, so no batch has many empty rows.
    """

    def __init__(self, stream: TokenStream, length: int, rows: int, *, seed: int = 0, pad_id: int = 0) -> None:
        check_shape(length, rows)
        check_stream(stream, 2)
        super().__init__(seed, stream.key, len(stream), length, rows)
        self.stream, self.length, self.rows, self.pad_id = stream, length, rows, pad_id
        self._positions = len(stream) - 1
        self._order: tuple[int, int, Integers] | None = None
        self.stats = WindowStats(self._positions, self.num_batches(0), rows, length, "contiguous windows")

    @property
    def min_rows(self) -> int:
        return self.rows

    def num_batches(self, epoch: int) -> int:
        return -(-self._windows(self._offset(epoch)) // self.rows)

    def make(self, epoch: int, index: int) -> RowBatch:
        offset, order = self._shuffled(epoch)
        chosen = even_chunk(order, self.num_batches(epoch), index)
        first = np.maximum(offset + (chosen - 1) * self.length, 0)
        last = np.minimum(offset + chosen * self.length, self._positions)
        return _cut(self.stream, first, last - first, (self.rows, self.length), self.pad_id, epoch, index)

    def _offset(self, epoch: int) -> int:
        """The number of positions of the first window: 1 to `length`."""
        return 1 + int(CounterRng(self.seed, epoch, 0, Purpose.OFFSETS).integers(self.length, 1)[0])

    def _windows(self, offset: int) -> int:
        return 1 + max(0, -(-(self._positions - offset) // self.length))

    def _shuffled(self, epoch: int) -> tuple[int, Integers]:
        """The size of an epoch's first window, and the order of its windows."""
        if self._order is None or self._order[0] != epoch:
            offset = self._offset(epoch)
            rng = CounterRng(self.seed, epoch, 0, Purpose.SHUFFLE)
            self._order = epoch, offset, rng.permutation(self._windows(offset))
        return self._order[1:]


class RandomWindows(EpochBatches[RowBatch]):
    """Windows at offsets drawn uniformly with replacement (nanoGPT's `get_batch`).

    An epoch has as many batches as it takes to predict about as many tokens as the stream has.
    """

    def __init__(self, stream: TokenStream, length: int, rows: int, *, seed: int = 0) -> None:
        check_shape(length, rows)
        check_stream(stream, length + 1)
        super().__init__(seed, stream.key, len(stream), length, rows)
        self.stream, self.length, self.rows = stream, length, rows
        batches = self.num_batches(0)
        self.stats = WindowStats(batches * rows * length, batches, rows, length, "random windows")

    @property
    def min_rows(self) -> int:
        return self.rows

    def num_batches(self, epoch: int) -> int:
        return -(-(len(self.stream) - 1) // (self.rows * self.length))

    def make(self, epoch: int, index: int) -> RowBatch:
        rows = self.rows if index < self.num_batches(epoch) else 0
        rng = CounterRng(self.seed, epoch, index, Purpose.OFFSETS)
        first = rng.integers(len(self.stream) - self.length, rows)
        sizes = np.full(rows, self.length)
        return _cut(self.stream, first, sizes, (self.rows, self.length), 0, epoch, index)


def sequential_windows(stream: TokenStream, length: int, rows: int, *, pad_id: int = 0) -> Iterator[RowBatch]:
    """The stream in order, in windows of `length` that do not overlap: every token but the first is predicted once.

    The last window may be short. All batches have the same shape: `rows` rows, or fewer if there are no more windows.
    """
    check_shape(length, rows)
    check_stream(stream, 2)
    positions = len(stream) - 1
    starts = np.arange(0, positions, length)
    rows = min(rows, len(starts))
    for index, first in enumerate(range(0, len(starts), rows)):
        chosen = starts[first : first + rows]
        yield _cut(stream, chosen, np.minimum(positions - chosen, length), (rows, length), pad_id, 0, index)


def check_shape(length: int, rows: int) -> None:
    """Refuse batches without positions."""
    if length < 1 or rows < 1:
        raise UserError(f"A batch needs at least one row ({rows}) of at least one token ({length}).")


def check_stream(stream: TokenStream, min_tokens: int) -> None:
    """Refuse a stream with fewer tokens than a window needs."""
    if len(stream) < min_tokens:
        raise UserError(
            f"The text has {len(stream):,} tokens, but windows need at least {min_tokens:,}; give more text"
            f"{', or make the windows shorter' if min_tokens > 2 else ''}."
        )


def _cut(
    stream: TokenStream,
    first: Integers,
    sizes: Integers,
    shape: tuple[int, int],
    pad_id: int,
    epoch: int,
    index: int,
) -> RowBatch:
    """The windows of these sizes from these offsets, as the first rows of a batch.  first, sizes: # (windows,)"""
    rows, length = shape
    columns = np.arange(length)
    offsets = first[:, None] + columns  # (windows, length)
    padding = columns >= sizes[:, None] if (sizes < length).any() else None
    if padding is not None:
        offsets[padding] = 0
    sides = []
    for shift in (0, 1):
        ids = np.empty(shape, dtype=np.int64)
        ids[: len(first)] = stream.tokens[offsets + shift]
        if padding is not None:
            ids[: len(first)][padding] = pad_id
        ids[len(first) :] = pad_id
        sides.append(torch.from_numpy(ids))
    lengths = np.zeros(rows, dtype=np.int64)
    lengths[: len(first)] = sizes
    return RowBatch(sides[0], sides[1], torch.from_numpy(lengths), None, int(sizes.sum()), epoch, index)
