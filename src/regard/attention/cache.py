"""What has been computed once and is used again while decoding.

A `Cache` holds, for every decoder layer, the keys and values of the tokens so far (written into memory set aside at
the start) and the keys and values made from the encoder's output (once). Rows may differ in length: row r's next token
stands at position `lengths[r]`, and slot j of a row always holds position j. A slot past a row's length may hold
leftovers of a rewound or padded chunk; causal patterns never look there.

Several rows may write about one source, as the hypotheses of a beam search do. They stand beside each other, and the
encoder's keys and values are there once for each such group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.attention.context import Context
    from regard.attention.pattern import Pattern
    from regard.attention.scope import Scope

KeyValue = tuple[Tensor, Tensor]  # each (batch, key heads, keys, width)


class Store:
    """One layer's own keys and values, room set aside for `capacity` positions when the first ones come."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tensors: KeyValue | None = None

    def append(self, key: Tensor, value: Tensor, context: Context) -> KeyValue:
        """Write keys and values of a pass' tokens behind those there; give back all they may look at, new included."""
        start, extent = context.start, context.extent
        if self.tensors is None:
            self.tensors = (self._room(key), self._room(value))
        for kept, new in zip(self.tensors, (key, value), strict=True):
            if isinstance(start, int):
                kept[:, :, start : start + new.shape[2]] = new
            else:
                row = torch.arange(new.shape[0], device=new.device)[:, None]
                place = start[:, None] + torch.arange(new.shape[2], device=new.device)  # (rows, new)
                kept[row, :, place] = new.transpose(1, 2)
        return self.tensors[0][:, :, :extent], self.tensors[1][:, :, :extent]

    def scope(self, context: Context, pattern: Pattern) -> Scope:
        """What a pass' tokens may see of what `append` gave back."""
        return context.own(pattern)

    def check_rewound(self, extent: int, lengths: int | Tensor) -> None:
        """Refuse to forget all from `lengths` on, of up to `extent`, where what came before is not there any more."""

    def reorder(self, rows: Tensor) -> None:
        if self.tensors is not None:
            self.tensors = (self.tensors[0].index_select(0, rows), self.tensors[1].index_select(0, rows))

    def grow(self, capacity: int) -> None:
        """Make room for more positions."""
        self.capacity = capacity
        if self.tensors is not None:
            self.tensors = (_longer(self.tensors[0], capacity), _longer(self.tensors[1], capacity))

    def put(self, rows: Tensor, other: Store, count: int) -> None:
        """Let these of then `count` rows hold what another store holds."""
        if self.tensors is None and other.tensors is None:
            return
        like = other.tensors or self.tensors
        assert like is not None
        mine = self.tensors or (_rows_of(like[0], 0, self.capacity), _rows_of(like[1], 0, self.capacity))
        # Of rows that hold nothing yet the length is 0, and what lies past a row's length does not count.
        theirs = other.tensors or (mine[0][:0], mine[1][:0])
        self.tensors = _put(mine, rows[: theirs[0].shape[0]], theirs, count)

    def _room(self, like: Tensor) -> Tensor:
        return like.new_zeros(*like.shape[:2], self.capacity, like.shape[3])


@dataclass
class LayerState:
    """What one layer has to hand besides its input: its own past, and what it sees of the encoder."""

    own: Store | None = None
    memory: KeyValue | None = None


class Cache:
    """The state of a batch of rows being decoded."""

    def __init__(
        self,
        rows: int,
        capacity: int,
        layers: list[LayerState],
        *,
        memory_lengths: Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if rows < 1 or capacity < 1:
            raise UserError(f"A cache needs at least one row and one position; found {rows} and {capacity}.")
        self.capacity = capacity
        self.layers = layers
        self.lengths = torch.zeros(rows, dtype=torch.long, device=device)  # (rows,)
        self.memory_lengths = memory_lengths
        self.sources = rows
        """How many sources the rows write about; a group of rows each."""
        self.extent = 0
        """No row is longer than this. Known without asking the device."""
        self._common: int | None = 0

    @property
    def rows(self) -> int:
        return self.lengths.shape[0]

    @property
    def group(self) -> int:
        """How many rows write about the same source."""
        return self.rows // self.sources

    @property
    def start(self) -> int | Tensor:
        """Where the next tokens go: one number while all rows are known to be equally long, else one a row."""
        return self.lengths if self._common is None else self._common

    def room_for(self, count: int) -> int:
        """The extent after `count` more positions; an error if they do not fit."""
        if self.extent + count > self.capacity:
            self.tighten()  # padded and rewound rows may leave more room than is known without asking the device
        if self.extent + count > self.capacity:
            raise UserError(
                f"The cache has room for {self.capacity} positions and {self.extent + count} are needed; "
                "start with a larger capacity."
            )
        return self.extent + count

    def advance(self, width: int, counts: Tensor | None = None) -> None:
        """Note that `width` positions were written, of which the first `counts[r]` are real in row r (all, if None)."""
        self.extent = self.room_for(width)
        if counts is None:
            self.lengths = self.lengths + width
            self._common = None if self._common is None else self._common + width
        else:
            self.lengths = self.lengths + counts
            self._common = None

    def rewind(self, lengths: int | Tensor) -> None:
        """Forget everything from position `lengths` on (one number, or one a row). Nothing is erased, only hidden."""
        for layer in self.layers:
            if layer.own is not None:
                layer.own.check_rewound(self.extent, lengths)
        if isinstance(lengths, int):
            if lengths < 0 or (self._common is None and bool((self.lengths < lengths).any())) or lengths > self.extent:
                raise UserError(f"The cache cannot be rewound to length {lengths}: it holds {self.lengths.tolist()}.")
            self.lengths = torch.full_like(self.lengths, lengths)
            self._common = self.extent = lengths
        else:
            if lengths.shape != self.lengths.shape:
                raise UserError(f"rewind wants one length a row: {self.rows} of them, found {tuple(lengths.shape)}.")
            self.lengths = torch.minimum(self.lengths, lengths.to(self.lengths)).clamp(min=0)
            self._common = None

    def tighten(self) -> None:
        """Ask the device how long the longest row really is, so that later steps look no further than that."""
        self.extent = int(self.lengths.max())
        self._common = self.extent if bool((self.lengths == self.extent).all()) else None

    def reorder(self, rows: Tensor) -> None:
        """Make row i what row `rows[i]` was; there may be more rows afterwards, or fewer. Each has its own source."""
        self.regroup(rows, rows // self.group)

    def regroup(self, rows: Tensor, sources: Tensor | None) -> None:
        """Make row i what row `rows[i]` was, and give group j the source that group `sources[j]` had.

        Without `sources` each group keeps its own, and nothing of the encoder is moved. All groups are equally large.
        """
        count = self.sources if sources is None else sources.shape[0]
        if count == 0 or rows.shape[0] % count:
            raise UserError(f"{rows.shape[0]} rows cannot share {count} sources evenly.")
        self.lengths = self.lengths.index_select(0, rows)
        for layer in self.layers:
            if layer.own is not None:
                layer.own.reorder(rows)
        if sources is not None:
            self._move_memory(sources)
        self.sources = count

    def _move_memory(self, sources: Tensor) -> None:
        if self.memory_lengths is not None:
            self.memory_lengths = self.memory_lengths.index_select(0, sources)
        moved: dict[int, KeyValue] = {}  # a memory shared by all layers is moved once
        for layer in self.layers:
            if layer.memory is not None:
                if id(layer.memory) not in moved:
                    key, value = layer.memory
                    moved[id(layer.memory)] = (key.index_select(0, sources), value.index_select(0, sources))
                layer.memory = moved[id(layer.memory)]

    def put(self, sources: Tensor, other: Cache) -> None:
        """Let these groups of rows be what the groups of another cache are, of the same model and group size.

        Groups numbered past the last are added behind it.  sources: # (other's sources,)
        """
        group = self.group
        if other.group != group:
            raise UserError(f"Groups of {other.group} rows cannot take the place of groups of {group}.")
        count = max(self.sources, int(sources.max()) + 1)
        rows = (sources[:, None] * group + torch.arange(group, device=sources.device)).flatten()
        self.grow(max(self.capacity, other.capacity))
        self.lengths = _put_rows(self.lengths, rows, other.lengths, count * group)
        self._common, self.extent, self.sources = None, max(self.extent, other.extent), count
        if self.memory_lengths is not None and other.memory_lengths is not None:
            self.memory_lengths = _put_rows(self.memory_lengths, sources, other.memory_lengths, count)
        moved: dict[int, KeyValue] = {}
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            if mine.own is not None and theirs.own is not None:
                mine.own.put(rows, theirs.own, count * group)
            if mine.memory is not None and theirs.memory is not None:
                if id(mine.memory) not in moved:
                    moved[id(mine.memory)] = _put(mine.memory, sources, theirs.memory, count)
                mine.memory = moved[id(mine.memory)]

    def clear(self, sources: Tensor) -> None:
        """Let these groups of rows hold nothing.  sources: # (groups,)"""
        self.lengths = self.lengths.view(self.sources, -1).index_fill(0, sources, 0).view(-1)
        self._common = None

    def grow(self, capacity: int) -> None:
        """Make room for up to `capacity` positions a row, keeping what is there."""
        if capacity > self.capacity:
            self.capacity = capacity
            for layer in self.layers:
                if layer.own is not None:
                    layer.own.grow(capacity)

    def bytes(self) -> int:
        """Memory held for keys and values."""
        kept = {
            tensor.data_ptr(): tensor.nbytes
            for layer in self.layers
            for pair in (layer.own.tensors if layer.own is not None else None, layer.memory)
            if pair is not None
            for tensor in pair
        }
        return sum(kept.values())


def _longer(tensor: Tensor, positions: int) -> Tensor:
    """With room for more positions.  (rows, heads, fewer, width) → (rows, heads, positions, width)"""
    missing = positions - tensor.shape[2]
    return tensor if missing <= 0 else torch.nn.functional.pad(tensor, (0, 0, 0, missing))


def _put(mine: KeyValue, rows: Tensor, theirs: KeyValue, count: int) -> KeyValue:
    positions = max(mine[0].shape[2], theirs[0].shape[2])
    key, value = (
        _put_rows(_longer(old, positions), rows, _longer(new, positions), count)
        for old, new in zip(mine, theirs, strict=True)
    )
    return key, value


def _put_rows(mine: Tensor, rows: Tensor, theirs: Tensor, count: int) -> Tensor:
    """A tensor of `count` rows, some of them replaced by those of another."""
    if count > mine.shape[0]:
        mine = torch.cat((mine, mine.new_zeros(count - mine.shape[0], *mine.shape[1:])))
    mine[rows] = theirs
    return mine


def _rows_of(like: Tensor, rows: int, positions: int) -> Tensor:
    return like.new_zeros(rows, like.shape[1], positions, like.shape[3])
