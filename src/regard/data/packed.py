"""Whole documents in rows of a fixed length, one behind the other, with as little padding as can be had.

A document that is longer than a row is split; pieces that fill no row are laid by first-fit decreasing: the longest
first, each in the first row that still has room for it. That needs at most 11/9 of the fewest rows possible, plus 6/9
(Dósa 2007).

What a document's tokens are predicted from is in its own row: the `start` token first, then the document's own. So
every cell of a document is a prediction, and padding stands at the end of rows only. A later piece of a long document
begins with the token before it.
"""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.epochs import ORDER, Dice, EpochBatches, dealt
from regard.data.rows import RowBatch
from regard.data.shapes import Integers
from regard.data.windows import TokenStream, WindowReport, check_rows
from regard.errors import UserError


class PackedRows(EpochBatches[RowBatch]):
    """Every document once an epoch, in rows that stay the same and come in another order.

    `documents` of a batch numbers the pieces of each row from 0 on, so that none sees another. Without a `start` token
    a document's first token is only read, not predicted, and one of a single token is left out.
    """

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        rows: int,
        *,
        start: int | None = None,
        seed: int = 0,
        padding: int = 0,
    ) -> None:
        check_rows(length, rows)
        self.stream, self.length, self.rows = stream, length, rows
        self.start, self.padding = start, padding
        first, sizes, opens = _pieces(stream.offsets, length, start is not None)
        if not len(sizes):
            raise UserError("There is no document with a token to predict; give more text.")
        row = first_fit(sizes, length)
        order = np.argsort(row, kind="stable")
        # Pieces in the order of their rows, and where each row's begin.
        self._first, self._sizes, self._opens = first[order], sizes[order], opens[order]
        self._rows = np.concatenate(([0], np.cumsum(np.bincount(row))))
        super().__init__(seed, stream.key, len(stream), length, rows, start, _digest(first), _digest(sizes))
        self._drawn: tuple[int, Integers] | None = None
        documents = int(np.count_nonzero(np.diff(stream.offsets) > (start is None)))
        split = int(np.count_nonzero(np.diff(stream.offsets) > length + (start is None)))
        self.report = WindowReport(
            tokens=int(sizes.sum(dtype=np.int64)),
            batches=self.count(0),
            rows=rows,
            length=length,
            what=f"{documents:,} documents packed ({split:,} of them split)",
        )

    @property
    def fewest_rows(self) -> int:
        return self.rows

    def count(self, epoch: int) -> int:
        return -(-(len(self._rows) - 1) // self.rows)

    def make(self, epoch: int, number: int) -> RowBatch:
        if self._drawn is None or self._drawn[0] != epoch:
            self._drawn = epoch, Dice(self.seed, epoch, 0, ORDER).order(len(self._rows) - 1)
        chosen = dealt(self._drawn[1], self.count(epoch), number)
        starts, pieces = self._rows[chosen], self._rows[chosen + 1] - self._rows[chosen]
        within = _ranges(pieces)  # of each piece, its number in the row
        piece = np.repeat(starts, pieces) + within
        sizes = self._sizes[piece].astype(np.int64)
        lengths = np.zeros(self.rows, dtype=np.int64)
        np.add.at(lengths, np.repeat(np.arange(len(chosen)), pieces), sizes)
        places = np.repeat(self._first[piece], sizes) + _ranges(sizes)
        wanted = self.stream.tokens[places].astype(np.int64)
        before = self.stream.tokens[places - 1].astype(np.int64)
        if self.start is not None:
            before[(np.cumsum(sizes) - sizes)[self._opens[piece]]] = self.start
        real = np.arange(self.length) < lengths[:, None]  # (rows, length)

        def laid(values: Integers, rest: int) -> torch.Tensor:
            cells = np.full((self.rows, self.length), rest, dtype=np.int64)
            cells[real] = values
            return torch.from_numpy(cells)

        return RowBatch(
            tokens=laid(before, self.padding),
            wanted=laid(wanted, self.padding),
            lengths=torch.from_numpy(lengths),
            documents=laid(np.repeat(within, sizes), -1),
            count=len(places),
            epoch=epoch,
            number=number,
        )


def first_fit(sizes: NDArray[np.integer], length: int) -> Integers:
    """The row of each piece by first-fit decreasing.  sizes: # (pieces,), from 1 to `length` each

    Rows with equally much room lie side by side in groups, and pieces of one size are laid all at once, so the work
    grows with the number of different sizes, not of pieces.
    """
    rows = np.empty(len(sizes), dtype=np.int64)
    order = np.argsort(-sizes.astype(np.int64), kind="stable")
    values, counts = np.unique(sizes, return_counts=True)
    first, many, room = (np.empty(0, dtype=np.int64) for _ in range(3))  # of each group
    used = laid = 0
    for size, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        # As many fresh rows as could be needed, behind all others.
        first = np.append(first, used)
        many, room = np.append(many, -(-count // (length // size))), np.append(room, length)
        fit = room // size
        upto = np.cumsum(fit * many)
        last = int(np.searchsorted(upto, count))  # groups before this one are filled
        full, rest = divmod(count - (int(upto[last - 1]) if last else 0), int(fit[last]))
        rows[order[laid : laid + count]] = np.concatenate(
            (
                np.repeat(
                    np.repeat(first[:last], many[:last]) + _ranges(many[:last]), np.repeat(fit[:last], many[:last])
                ),
                np.repeat(first[last] + np.arange(full), fit[last]),
                np.full(rest, first[last] + full),
            )
        )
        laid += count
        some, here, left = int(rest > 0), first[last], room[last]
        first = np.concatenate((first[:last], [here, here + full, here + full + some], first[last + 1 :]))
        used = max(used, int(here) + full + some)
        room = np.concatenate(
            (room[:last] - fit[:last] * size, [left - fit[last] * size, left - rest * size, left], room[last + 1 :])
        )
        many = np.concatenate((many[:last], [full, some, many[last] - full - some], many[last + 1 :]))
        open_ = (many > 0) & (room >= values[0]) & (first < used)
        first, many, room = first[open_], many[open_], room[open_]
    return rows


def _pieces(offsets: Integers, length: int, started: bool) -> tuple[Integers, NDArray[np.int32], NDArray[np.bool_]]:
    """Documents in pieces of at most `length` cells: the place of each one's first predicted token, its number of cells
    and whether it opens a document with the start token."""
    begins = offsets[:-1] + (not started)
    sizes = np.maximum(offsets[1:] - begins, 0)
    pieces = -(-sizes // length)
    within = _ranges(pieces)
    first = np.repeat(begins, pieces) + within * length
    left = np.repeat(sizes, pieces) - within * length
    return first, np.minimum(left, length).astype(np.int32), (within == 0) & started


def _ranges(counts: Integers) -> Integers:
    """0, 1, 2 … for each count, one range behind the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _digest(values: NDArray[np.integer]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values.astype("<i8")).data).hexdigest()
