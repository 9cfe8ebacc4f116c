"""What rows of a fast writer have written and what they write about, in the layout that its kernels want."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from regard.errors import UserError

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Sizes:
    """How much room the rows of a step need: numbers in a word vector, in what attention asks and keeps, between."""

    width: int
    made: int
    hidden: int
    heads: int


class Desk:
    """Room to work in during a step, kept from one to the next."""

    def __init__(self, rows: int, sizes: Sizes, positions: int) -> None:
        self.x, self.normed, self.asked, self.mixed = (torch.zeros(rows, sizes.width) for _ in range(4))
        self.made, self.hidden = torch.zeros(rows, sizes.made), torch.zeros(rows, sizes.hidden)
        all_of_it = (self.x, self.normed, self.asked, self.mixed, self.made, self.hidden)
        self.room = tuple(tensor.numpy() for tensor in all_of_it)
        self.x_array, self.normed_array, _, self.mixed_array, *_ = self.room
        self.weights = np.zeros((sizes.heads, positions), np.float32)
        self.shape = (rows, positions)


class SwiftCache:
    """What rows have written and what they write about, in the layout that the kernels want.

    Position j of row r's text was written by row `origin[j, r]`, so moving rows moves this index only. `lengths` says
    how long each row is. Memory is there once for each source.
    """

    def __init__(self, layers: int, rows: int, capacity: int, width: int) -> None:
        self.keys = np.zeros((layers, capacity, rows, width), np.float32)
        self.values = np.zeros((layers, capacity, rows, width), np.float32)
        self.origin = np.zeros((capacity, rows), np.int64)
        self.lengths = np.zeros(rows, np.int64)
        self.memory = np.zeros((2, 0, rows, 0, width), np.float32)  # keys and values of each layer's sources
        self.memory_lengths = np.zeros(0, np.int64)
        self.sources = rows
        self._desk: Desk | None = None

    @property
    def capacity(self) -> int:
        return self.origin.shape[0]

    @property
    def rows(self) -> int:
        return self.origin.shape[1]

    @property
    def extent(self) -> int:
        return int(self.lengths.max())

    def desk(self, sizes: Sizes) -> Desk:
        longest = max(self.capacity, self.memory.shape[3])
        if self._desk is None or self._desk.shape != (self.rows, longest):
            self._desk = Desk(self.rows, sizes, longest)
        return self._desk

    def regroup(self, rows: Numbers, sources: Numbers | None) -> None:
        """Row i becomes what row `rows[i]` was, group j gets the source of group `sources[j]` or keeps its own."""
        from regard.fast.kernels import move_origins

        if sources is None and len(rows) == self.rows:
            move_origins(self.origin, rows, self.extent, np.empty(len(rows), np.int64))
            self.lengths = self.lengths[rows]
            return
        self._rewrite(rows)
        if sources is not None:
            self.memory = self.memory.take(sources, axis=2)
            self.memory_lengths = self.memory_lengths[sources]
            self.sources = len(sources)

    def put(self, sources: Numbers, other: SwiftCache) -> None:
        """Let these groups of rows be those of another cache; groups past the last are added."""
        group = self.rows // self.sources
        if other.rows != group * other.sources:
            raise UserError(f"Groups of {other.rows // other.sources} rows cannot take the place of groups of {group}.")
        count = max(self.sources, int(sources.max()) + 1)
        rows = (sources[:, None] * group + np.arange(group)).reshape(-1)
        other._rewrite(np.arange(other.rows))
        self.grow(max(self.capacity, other.capacity), count * group)
        extent = other.extent
        self.keys[:, :extent, rows], self.values[:, :extent, rows] = other.keys[:, :extent], other.values[:, :extent]
        self.origin[:, rows], self.lengths[rows] = rows, other.lengths
        self.memory = _put(self.memory, 2, sources, other.memory, count)
        if len(self.memory_lengths):
            self.memory_lengths = _put(self.memory_lengths, 0, sources, other.memory_lengths, count)
        self.sources = count

    def grow(self, capacity: int, rows: int) -> None:
        """Room for more positions and rows."""
        more = (max(0, capacity - self.capacity), max(0, rows - self.rows))
        if any(more):
            wider = ((0, 0), (0, more[0]), (0, more[1]), (0, 0))
            self.keys, self.values = np.pad(self.keys, wider), np.pad(self.values, wider)
            self.origin = np.pad(self.origin, wider[1:3])
            self.lengths = np.pad(self.lengths, (0, more[1]))

    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes + self.memory.nbytes

    def _rewrite(self, rows: Numbers) -> None:
        """Copy the texts of these rows together, so that each again has written its own."""
        extent = self.extent
        from_rows = self.origin[:extent, rows]  # (extent, rows)
        places = np.arange(extent)[:, None]
        keys, values = self.keys, self.values
        shape = (keys.shape[0], self.capacity, len(rows), keys.shape[3])
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.keys[:, :extent], self.values[:, :extent] = keys[:, places, from_rows], values[:, places, from_rows]
        self.origin = np.broadcast_to(np.arange(len(rows)), (self.capacity, len(rows))).copy()
        self.lengths = self.lengths[rows]


def _put(mine: NDArray[Any], axis: int, places: Numbers, theirs: NDArray[Any], count: int) -> NDArray[Any]:
    """An array with `count` places along an axis, some of them taken from another. Where those are shorter, what is
    behind them does not count."""
    shape = [max(sizes) for sizes in zip(mine.shape, theirs.shape, strict=True)]
    shape[axis] = count
    if list(mine.shape) != shape:
        small = mine
        mine = np.zeros(shape, small.dtype)
        mine[tuple(slice(0, size) for size in small.shape)] = small
    where: list[Any] = [slice(0, size) for size in theirs.shape]
    where[axis] = places
    mine[tuple(where)] = theirs
    return mine
