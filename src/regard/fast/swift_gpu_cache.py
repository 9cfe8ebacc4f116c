"""What rows of a fast writer on a GPU have written and what they write about, in tensors that stay where they are.

A recorded step goes to the same places in memory every time, so whatever happens between two steps happens in place as
long as there is room: rows move by an index, others join, some leave. Only growing makes new tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import UserError
from regard.fast import triton_switch

_POSITIONS, SOURCE = 64, 16
"""Room comes in steps, so that few shapes occur."""
_MOVED = 8192
"""The most rows that are moved by one kernel."""
Pair = tuple[Tensor, Tensor]


class SwiftGpuCache:
    """Keys and values by layer, position and row.

    Position j of row r's text was written by row `origin[j, r]`, so moving rows moves this index only. `lengths` says
    how long each row is; `extent` is a bound for them, known without asking the device. Memory is there once a source.
    """

    def __init__(
        self,
        layers: int,
        rows: int,
        capacity: int,
        width: int,
        memory: list[Pair],
        memory_lengths: Tensor,
        *,
        limit: int | None = None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, _rounded(capacity, _POSITIONS), rows, width)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        own = torch.arange(rows, dtype=torch.int32, device=device)
        self.origin = own.repeat(shape[1], 1)  # (positions, rows)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)
        self.memory = memory  # of each layer # (sources, positions, width), twice
        self.memory_lengths = memory_lengths  # (sources,)
        self.sources, self.limit, self.extent = rows, limit, 0

    @property
    def capacity(self) -> int:
        return self.origin.shape[0]

    @property
    def rows(self) -> int:
        return self.origin.shape[1]

    @property
    def signature(self) -> tuple[Any, ...]:
        """Caches alike in this can stand in for each other."""
        memory = self.memory[0][0].shape if self.memory else None
        return self.keys.shape, self.keys.dtype, memory, self.sources

    def advance(self) -> None:
        """Note that every row is one token longer, or refuse where there is no place for it."""
        if self.extent >= min(self.capacity, self.limit or self.capacity):
            self.tighten()
        if self.extent == self.capacity:
            raise UserError(f"The cache has room for {self.capacity} positions and {self.extent + 1} are needed.")
        if self.extent == self.limit:
            raise UserError(
                f"There are learned positions for {self.limit} tokens and {self.extent + 1} are needed; "
                "shorten the text, or train with a larger position.limit."
            )
        self.extent += 1

    def tighten(self) -> None:
        """Ask the device how long the longest row really is."""
        self.extent = int(self.lengths.max())

    def take(self, other: SwiftGpuCache) -> None:
        """Become what another cache of the same signature is, in place."""
        extent = other.extent
        pairs = [(mine[:, :extent], theirs[:, :extent]) for mine, theirs in zip(self._own, other._own, strict=True)]
        pairs += zip(self._rest, other._rest, strict=True)
        for mine, theirs in pairs:
            if mine.data_ptr() != theirs.data_ptr():
                mine.copy_(theirs)
        self.extent = extent

    def leave(self, other: SwiftGpuCache) -> None:
        """Have tensors of its own in place of those that are another's."""
        theirs = {tensor.data_ptr() for tensor in (*other._own, *other._rest)}

        def own(tensor: Tensor) -> Tensor:
            return tensor.clone() if tensor.data_ptr() in theirs else tensor

        self.keys, self.values, self.origin, self.lengths = map(
            own, (self.keys, self.values, self.origin, self.lengths)
        )
        self.memory_lengths = own(self.memory_lengths)
        self._set_memory([(own(key), own(value)) for key, value in _once(self.memory)])

    @property
    def _own(self) -> tuple[Tensor, ...]:
        return self.keys, self.values

    @property
    def _rest(self) -> tuple[Tensor, ...]:
        memory = [tensor for pair in _once(self.memory) for tensor in pair]
        return self.origin, self.lengths, self.memory_lengths, *memory

    def regroup(self, rows: Tensor, sources: Tensor | None) -> None:
        """Row i becomes what row `rows[i]` was, group j gets the source of group `sources[j]` or keeps its own."""
        if sources is None and rows.shape[0] == self.rows:
            self._move(rows)
            return
        self._rewrite(rows)
        if sources is not None:
            self._set_memory([(key[sources], value[sources]) for key, value in _once(self.memory)])
            self.memory_lengths = self.memory_lengths[sources]
            self.sources = sources.shape[0]

    def put(self, sources: Tensor, other: SwiftGpuCache) -> None:
        """Let these groups of rows be those of another cache; groups past the last are added."""
        group = self.rows // self.sources
        if other.rows != group * other.sources:
            raise UserError(f"Groups of {other.rows // other.sources} rows cannot take the place of groups of {group}.")
        count = max(self.sources, int(sources.max()) + 1)
        rows = (sources[:, None] * group + torch.arange(group, device=sources.device)).flatten()
        other._rewrite(torch.arange(other.rows, device=rows.device))
        self.grow(max(self.capacity, other.capacity), count * group)
        extent = other.extent
        self.keys[:, :extent, rows], self.values[:, :extent, rows] = other.keys[:, :extent], other.values[:, :extent]
        self.origin[:, rows], self.lengths[rows] = rows.to(torch.int32), other.lengths
        pairs = zip(_once(self.memory), _once(other.memory), strict=True)
        self._set_memory([(_put(k, sources, nk, count), _put(v, sources, nv, count)) for (k, v), (nk, nv) in pairs])
        if self.memory:
            self.memory_lengths = _put(self.memory_lengths, sources, other.memory_lengths, count)
        self.sources, self.extent = count, max(self.extent, extent)

    def clear(self, sources: Tensor) -> None:
        """Let these groups of rows hold nothing."""
        self.lengths.view(self.sources, -1)[sources] = 0

    def grow(self, capacity: int, rows: int) -> None:
        """Room for more positions and rows."""
        capacity, count = max(self.capacity, _rounded(capacity, _POSITIONS)), max(self.rows, rows)
        if (capacity, count) == (self.capacity, self.rows):
            return
        own = torch.arange(count, dtype=torch.int32, device=self.origin.device).repeat(capacity, 1)
        own[: self.capacity, : self.rows] = self.origin
        self.keys, self.values = (_grown(each, (each.shape[0], capacity, count)) for each in (self.keys, self.values))
        self.origin, self.lengths = own, _grown(self.lengths, (count,))

    def bytes(self) -> int:
        memory = sum(key.nbytes + value.nbytes for key, value in _once(self.memory))
        return self.keys.nbytes + self.values.nbytes + memory

    def _set_memory(self, pairs: list[Pair]) -> None:
        """New tensors for memory, whether each layer has its own or all share one."""
        self.memory = pairs * len(self.memory) if len(pairs) == 1 else pairs

    def _move(self, rows: Tensor) -> None:
        """Let row i be what row `rows[i]` was, in place; in one kernel where there is one."""
        if self.rows <= _MOVED and triton_switch.runs_on(self.origin.device):
            from regard.fast.triton_kernels import move_rows

            move_rows(self.origin, self.lengths, rows)
            return
        self.origin.copy_(self.origin.index_select(1, rows))
        self.lengths.copy_(self.lengths.index_select(0, rows))

    def _rewrite(self, rows: Tensor) -> None:
        """Copy the texts of these rows together, so that each again has written its own."""
        extent, count = self.extent, rows.shape[0]
        writers = self.origin[:extent].index_select(1, rows).long()  # (extent, rows)
        places = torch.arange(extent, device=rows.device)[:, None]
        shape = (self.keys.shape[0], self.capacity, count, self.keys.shape[3])
        made = []
        for old in (self.keys, self.values):
            new = old.new_zeros(shape)
            new[:, :extent] = old[:, places, writers]
            made.append(new)
        self.keys, self.values = made
        self.origin = torch.arange(count, dtype=torch.int32, device=rows.device).repeat(self.capacity, 1)
        self.lengths = self.lengths[rows]


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step


def _once(memory: list[Pair]) -> list[Pair]:
    """Each pair of tensors once, where layers share them."""
    return list({id(pair[0]): pair for pair in memory}.values())


def _grown(tensor: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """With its first dimensions made larger, zeros behind what is there."""
    grown = tensor.new_zeros(*sizes, *tensor.shape[len(sizes) :])
    grown[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return grown


def _put(mine: Tensor, rows: Tensor, theirs: Tensor, count: int) -> Tensor:
    """A tensor of `count` rows, some of them replaced; in place where nothing must grow."""
    shape = (count, *(max(sizes) for sizes in zip(mine.shape[1:], theirs.shape[1:], strict=True)))
    if mine.shape != shape:
        mine = _grown(mine, shape)
    part: Any = (rows, *(slice(0, size) for size in theirs.shape[1:]))
    mine[part] = theirs
    return mine
