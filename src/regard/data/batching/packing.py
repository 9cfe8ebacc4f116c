"""Document packing: documents one after another in rows of a fixed length, with as little padding as possible.

A document that is longer than a row is split. The pieces are packed by first-fit decreasing: the longest first, each
into the first row that still has room for it, which needs at most 11/9 of the fewest rows possible, plus 6/9
(Dósa 2007).

A document's tokens are predicted from BOS and the document's own tokens, all in the same row. So every position of a
document is a prediction, and only the end of a row is padding. A later piece of a long document begins with the token
before it.
"""

import hashlib

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batching.epochs import CounterRng, EpochBatches, Integers, Purpose, even_chunk
from regard.data.batching.row_batch import RowBatch
from regard.data.batching.windows import TokenStream, WindowStats, check_shape
from regard.errors import UserError


class PackedDocuments(EpochBatches[RowBatch]):
    """Every document once per epoch, in fixed rows that are shuffled anew each time.

    A batch's `documents` numbers the pieces of each row from 0, so that attention stays within a document. Without a
    BOS token a document's first token is read but not predicted, and a document of a single token is dropped.
    """

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        rows: int,
        *,
        bos_id: int | None = None,
        seed: int = 0,
        pad_id: int = 0,
    ) -> None:
        check_shape(length, rows)
        self.stream, self.length, self.rows = stream, length, rows
        self.bos_id, self.pad_id = bos_id, pad_id
        first, sizes, begins = _pieces(stream.offsets, length, bos_id is not None)
        if not len(sizes):
            raise UserError("There is no document with a token to predict; give more text.")
        row = first_fit(sizes, length)
        order = np.argsort(row, kind="stable")
        # The pieces in the order of their rows, and the first piece of each row.
        self._first, self._sizes, self._begins = first[order], sizes[order], begins[order]
        self._rows = np.concatenate(([0], np.cumsum(np.bincount(row))))
        super().__init__(seed, stream.key, len(stream), length, rows, bos_id, _digest(first), _digest(sizes))
        self._order: tuple[int, Integers] | None = None
        documents = int(np.count_nonzero(np.diff(stream.offsets) > (bos_id is None)))
        split = int(np.count_nonzero(np.diff(stream.offsets) > length + (bos_id is None)))
        self.stats = WindowStats(
            tokens=int(sizes.sum(dtype=np.int64)),
            batches=self.num_batches(0),
            rows=rows,
            length=length,
            layout=f"{documents:,} packed documents ({split:,} of them split)",
        )

    @property
    def min_rows(self) -> int:
        return self.rows

    @property
    def row_count(self) -> int:
        """The rows of an epoch."""
        return len(self._rows) - 1

    def num_batches(self, epoch: int) -> int:
        return -(-(len(self._rows) - 1) // self.rows)

    def make(self, epoch: int, index: int) -> RowBatch:
        if self._order is None or self._order[0] != epoch:
            rng = CounterRng(self.seed, epoch, 0, Purpose.SHUFFLE)
            self._order = epoch, rng.permutation(len(self._rows) - 1)
        chosen = even_chunk(self._order[1], self.num_batches(epoch), index)
        starts, pieces = self._rows[chosen], self._rows[chosen + 1] - self._rows[chosen]
        within = _ranges(pieces)  # the number of each piece in its row
        piece = np.repeat(starts, pieces) + within
        sizes = self._sizes[piece].astype(np.int64)
        lengths = np.zeros(self.rows, dtype=np.int64)
        np.add.at(lengths, np.repeat(np.arange(len(chosen)), pieces), sizes)
        offsets = np.repeat(self._first[piece], sizes) + _ranges(sizes)
        targets = self.stream.tokens[offsets].astype(np.int64)
        tokens = self.stream.tokens[offsets - 1].astype(np.int64)
        if self.bos_id is not None:
            tokens[(np.cumsum(sizes) - sizes)[self._begins[piece]]] = self.bos_id
        real = np.arange(self.length) < lengths[:, None]  # (rows, length)

        def rows_of(values: Integers, pad: int) -> torch.Tensor:
            rows = np.full((self.rows, self.length), pad, dtype=np.int64)
            rows[real] = values
            return torch.from_numpy(rows)

        return RowBatch(
            tokens=rows_of(tokens, self.pad_id),
            targets=rows_of(targets, self.pad_id),
            lengths=torch.from_numpy(lengths),
            documents=rows_of(np.repeat(within, sizes), -1),
            count=len(offsets),
            epoch=epoch,
            index=index,
        )


def first_fit(sizes: NDArray[np.integer], length: int) -> Integers:
    """The row of each piece by first-fit decreasing.  sizes: # (pieces,), from 1 to `length` each

    Rows with the same room form a group, and all pieces of one size are placed at once, so the time grows with the
    number of distinct sizes, not with the number of pieces.
    """
    rows = np.empty(len(sizes), dtype=np.int64)
    order = np.argsort(-sizes.astype(np.int64), kind="stable")
    values, counts = np.unique(sizes, return_counts=True)
    first, group_rows, room = (np.empty(0, dtype=np.int64) for _ in range(3))  # of each group of rows
    used = placed = 0
    for size, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        # Add a group of as many empty rows as could be needed, after all others.
        first = np.append(first, used)
        group_rows, room = np.append(group_rows, -(-count // (length // size))), np.append(room, length)
        fit = room // size
        cumulative = np.cumsum(fit * group_rows)
        last = int(np.searchsorted(cumulative, count))  # the groups before this one get filled
        full, rest = divmod(count - (int(cumulative[last - 1]) if last else 0), int(fit[last]))
        rows[order[placed : placed + count]] = np.concatenate(
            (
                np.repeat(
                    np.repeat(first[:last], group_rows[:last]) + _ranges(group_rows[:last]),
                    np.repeat(fit[:last], group_rows[:last]),
                ),
                np.repeat(first[last] + np.arange(full), fit[last]),
                np.full(rest, first[last] + full),
            )
        )
        placed += count
        partial, start, space = int(rest > 0), first[last], room[last]
        first = np.concatenate((first[:last], [start, start + full, start + full + partial], first[last + 1 :]))
        used = max(used, int(start) + full + partial)
        room = np.concatenate(
            (room[:last] - fit[:last] * size, [space - fit[last] * size, space - rest * size, space], room[last + 1 :])
        )
        group_rows = np.concatenate(
            (group_rows[:last], [full, partial, group_rows[last] - full - partial], group_rows[last + 1 :])
        )
        open_ = (group_rows > 0) & (room >= values[0]) & (first < used)
        first, group_rows, room = first[open_], group_rows[open_], room[open_]
    return rows


def _pieces(offsets: Integers, length: int, with_bos: bool) -> tuple[Integers, NDArray[np.int32], NDArray[np.bool_]]:
    """Documents in pieces of at most `length` positions: the offset of each one's first predicted token, its number of
    positions, and whether it begins a document with the BOS token."""
    begins = offsets[:-1] + (not with_bos)
    sizes = np.maximum(offsets[1:] - begins, 0)
    pieces = -(-sizes // length)
    within = _ranges(pieces)
    first = np.repeat(begins, pieces) + within * length
    left = np.repeat(sizes, pieces) - within * length
    return first, np.minimum(left, length).astype(np.int32), (within == 0) & with_bos


def _ranges(counts: Integers) -> Integers:
    """The ranges 0 … count - 1, concatenated."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _digest(values: NDArray[np.integer]) -> str:
    return hashlib.sha256(np.ascontiguousarray(values.astype("<i8")).data).hexdigest()
