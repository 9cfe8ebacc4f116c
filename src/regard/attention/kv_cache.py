"""The KV cache: keys and values that are computed once and used in every later decoding step.

A `KVCache` holds, for every decoder layer, the keys and values of the tokens so far, in preallocated memory, and the
keys and values of the encoder's output. Rows may have different lengths: row r's next token is at position
`lengths[r]`, and slot j of a row always holds position j. Slots past a row's length may contain leftovers of truncated
or padded chunks, which causal patterns never read.

Several rows may belong to one source, as the hypotheses of a beam search do. They are adjacent, and the encoder's keys
and values are stored once for each such group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.attention.context import Context
    from regard.attention.mask import Mask
    from regard.attention.pattern import Pattern

KeyValue = tuple[Tensor, Tensor]  # each (batch, kv_heads, keys, head_dim)


class KVBuffer:
    """The self-attention keys and values of one layer, allocated for `capacity` positions on first use."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tensors: KeyValue | None = None

    def append(self, key: Tensor, value: Tensor, context: Context) -> KeyValue:
        """Append the keys and values of a pass, and return all that its tokens may attend to, new ones included."""
        start, extent = context.start, context.extent
        if self.tensors is None:
            self.tensors = (self._allocate(key), self._allocate(value))
        for buffer, new in zip(self.tensors, (key, value), strict=True):
            if isinstance(start, int):
                buffer[:, :, start : start + new.shape[2]] = new
            else:
                row = torch.arange(new.shape[0], device=new.device)[:, None]
                position = start[:, None] + torch.arange(new.shape[2], device=new.device)  # (rows, new)
                buffer[row, :, position] = new.transpose(1, 2)
        return self.tensors[0][:, :, :extent], self.tensors[1][:, :, :extent]

    def mask(self, context: Context, pattern: Pattern) -> Mask:
        """The mask of a pass's tokens over what `append` returned."""
        return context.self_mask(pattern)

    def check_truncate(self, extent: int, lengths: int | Tensor) -> None:
        """Raise an error if the buffer, which holds up to `extent` positions, cannot be truncated to `lengths`."""

    def reorder(self, rows: Tensor) -> None:
        if self.tensors is not None:
            self.tensors = (self.tensors[0].index_select(0, rows), self.tensors[1].index_select(0, rows))

    def grow(self, capacity: int) -> None:
        """Raise the capacity."""
        self.capacity = capacity
        if self.tensors is not None:
            self.tensors = (_pad_positions(self.tensors[0], capacity), _pad_positions(self.tensors[1], capacity))

    def scatter_rows(self, rows: Tensor, other: KVBuffer, count: int) -> None:
        """Replace these rows, of then `count` in all, by those of another buffer."""
        if self.tensors is None and other.tensors is None:
            return
        like = other.tensors or self.tensors
        assert like is not None
        mine = self.tensors or (_rows_of(like[0], 0, self.capacity), _rows_of(like[1], 0, self.capacity))
        # Rows without tokens have length 0, and slots past a row's length are never read.
        theirs = other.tensors or (mine[0][:0], mine[1][:0])
        self.tensors = _replace_kv(mine, rows[: theirs[0].shape[0]], theirs, count)

    def _allocate(self, like: Tensor) -> Tensor:
        return like.new_zeros(*like.shape[:2], self.capacity, like.shape[3])


@dataclass
class LayerState:
    """The cached keys and values of one layer: its own, and those of the encoder's output."""

    self_kv: KVBuffer | None = None
    cross_kv: KeyValue | None = None


class KVCache:
    """The cached keys and values of all layers, for a batch of rows."""

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
        """The number of sources, each with a group of rows."""
        self.extent = 0
        """An upper bound on the rows' lengths, known without synchronizing with the device."""
        self._common: int | None = 0

    @property
    def rows(self) -> int:
        return self.lengths.shape[0]

    @property
    def group(self) -> int:
        """The number of rows of one source."""
        return self.rows // self.sources

    @property
    def start(self) -> int | Tensor:
        """The position of the next tokens: one number while all rows are known to be equally long, else one per row."""
        return self.lengths if self._common is None else self._common

    def extent_after(self, count: int) -> int:
        """The extent after `count` more positions; an error if they do not fit."""
        if self.extent + count > self.capacity:
            self.tighten()  # padded and truncated rows may be shorter than is known without synchronizing
        if self.extent + count > self.capacity:
            raise UserError(
                f"The cache has a capacity of {self.capacity} positions, but {self.extent + count} are needed; "
                "create it with a larger capacity."
            )
        return self.extent + count

    def advance(self, width: int, counts: Tensor | None = None) -> None:
        """Record that `width` positions were appended, of which row r uses the first `counts[r]` (by default all)."""
        self.extent = self.extent_after(width)
        if counts is None:
            self.lengths = self.lengths + width
            self._common = None if self._common is None else self._common + width
        else:
            self.lengths = self.lengths + counts
            self._common = None

    def truncate(self, lengths: int | Tensor) -> None:
        """Drop everything from position `lengths` on (one number, or one per row). Only the lengths change."""
        for layer in self.layers:
            if layer.self_kv is not None:
                layer.self_kv.check_truncate(self.extent, lengths)
        if isinstance(lengths, int):
            if lengths < 0 or (self._common is None and bool((self.lengths < lengths).any())) or lengths > self.extent:
                raise UserError(f"The cache cannot be truncated to {lengths}: its lengths are {self.lengths.tolist()}.")
            self.lengths = torch.full_like(self.lengths, lengths)
            self._common = self.extent = lengths
        else:
            if lengths.shape != self.lengths.shape:
                raise UserError(f"truncate needs one length per row: {self.rows}, found {tuple(lengths.shape)}.")
            self.lengths = torch.minimum(self.lengths, lengths.to(self.lengths)).clamp(min=0)
            self._common = None

    def tighten(self) -> None:
        """Read the length of the longest row from the device, so that later steps attend no further than that."""
        self.extent = int(self.lengths.max())
        self._common = self.extent if bool((self.lengths == self.extent).all()) else None

    def reorder(self, rows: Tensor) -> None:
        """Make row i a copy of the old row `rows[i]`; the number of rows may change. Each has its own source."""
        self.reorder_beams(rows, rows // self.group)

    def reorder_beams(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Make row i a copy of the old row `rows[i]`, and give group j the source of the old group `sources[j]`.

        Without `sources` each group keeps its source, and the encoder's keys and values are not moved. All groups have
        the same size.
        """
        count = self.sources if sources is None else sources.shape[0]
        if count == 0 or rows.shape[0] % count:
            raise UserError(f"{count} sources do not divide {rows.shape[0]} rows.")
        self.lengths = self.lengths.index_select(0, rows)
        for layer in self.layers:
            if layer.self_kv is not None:
                layer.self_kv.reorder(rows)
        if sources is not None:
            self._reorder_sources(sources)
        self.sources = count

    def _reorder_sources(self, sources: Tensor) -> None:
        if self.memory_lengths is not None:
            self.memory_lengths = self.memory_lengths.index_select(0, sources)
        moved: dict[int, KeyValue] = {}  # keys and values that all layers share are moved once
        for layer in self.layers:
            if layer.cross_kv is not None:
                if id(layer.cross_kv) not in moved:
                    key, value = layer.cross_kv
                    moved[id(layer.cross_kv)] = (key.index_select(0, sources), value.index_select(0, sources))
                layer.cross_kv = moved[id(layer.cross_kv)]

    def scatter_rows(self, sources: Tensor, other: KVCache) -> None:
        """Replace these groups of rows by those of another cache of the same model and group size.

        Groups past the last are added.  sources: # (other's sources,)
        """
        group = self.group
        if other.group != group:
            raise UserError(f"Groups of {other.group} rows cannot replace groups of {group}.")
        count = max(self.sources, int(sources.max()) + 1)
        rows = (sources[:, None] * group + torch.arange(group, device=sources.device)).flatten()
        self.reserve(max(self.capacity, other.capacity))
        self.lengths = _replace_rows(self.lengths, rows, other.lengths, count * group)
        self._common, self.extent, self.sources = None, max(self.extent, other.extent), count
        if self.memory_lengths is not None and other.memory_lengths is not None:
            self.memory_lengths = _replace_rows(self.memory_lengths, sources, other.memory_lengths, count)
        moved: dict[int, KeyValue] = {}
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            if mine.self_kv is not None and theirs.self_kv is not None:
                mine.self_kv.scatter_rows(rows, theirs.self_kv, count * group)
            if mine.cross_kv is not None and theirs.cross_kv is not None:
                if id(mine.cross_kv) not in moved:
                    moved[id(mine.cross_kv)] = _replace_kv(mine.cross_kv, sources, theirs.cross_kv, count)
                mine.cross_kv = moved[id(mine.cross_kv)]

    def clear_rows(self, sources: Tensor) -> None:
        """Set the length of these groups of rows to 0.  sources: # (groups,)"""
        self.lengths = self.lengths.view(self.sources, -1).index_fill(0, sources, 0).view(-1)
        self._common = None

    def is_full(self) -> bool:
        """Whether one more token needs more capacity."""
        if self.extent == self.capacity:
            self.tighten()
        return self.extent == self.capacity

    def grow(self) -> None:
        """Double the capacity."""
        self.reserve(2 * self.capacity)

    def reserve(self, capacity: int) -> None:
        """Raise the capacity to `capacity` positions per row."""
        if capacity > self.capacity:
            self.capacity = capacity
            for layer in self.layers:
                if layer.self_kv is not None:
                    layer.self_kv.grow(capacity)

    def nbytes(self) -> int:
        """The bytes allocated for keys and values."""
        sizes = {
            tensor.data_ptr(): tensor.nbytes
            for layer in self.layers
            for pair in (layer.self_kv.tensors if layer.self_kv is not None else None, layer.cross_kv)
            if pair is not None
            for tensor in pair
        }
        return sum(sizes.values())


def _pad_positions(tensor: Tensor, positions: int) -> Tensor:
    """Pad to more positions.  (rows, heads, fewer, head_dim) → (rows, heads, positions, head_dim)"""
    missing = positions - tensor.shape[2]
    return tensor if missing <= 0 else torch.nn.functional.pad(tensor, (0, 0, 0, missing))


def _replace_kv(mine: KeyValue, rows: Tensor, theirs: KeyValue, count: int) -> KeyValue:
    positions = max(mine[0].shape[2], theirs[0].shape[2])
    key, value = (
        _replace_rows(_pad_positions(old, positions), rows, _pad_positions(new, positions), count)
        for old, new in zip(mine, theirs, strict=True)
    )
    return key, value


def _replace_rows(mine: Tensor, rows: Tensor, theirs: Tensor, count: int) -> Tensor:
    """A tensor of `count` rows, with these rows replaced."""
    if count > mine.shape[0]:
        mine = torch.cat((mine, mine.new_zeros(count - mine.shape[0], *mine.shape[1:])))
    mine[rows] = theirs
    return mine


def _rows_of(like: Tensor, rows: int, positions: int) -> Tensor:
    return like.new_zeros(rows, like.shape[1], positions, like.shape[3])
