"""The KV caches of the fused decoders: keys and values of what each row has generated, and of the source it is about.

A step never reallocates tensors, so a captured CUDA graph can be replayed. Between two steps rows are reordered by an
index, replaced and cleared in place as long as there is room; only growing makes new tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.attention import KVCache
from regard.errors import UserError
from regard.kernels import dispatch

SOURCE_MULTIPLE = 16
"""On a GPU sources are padded to a multiple of this, so that few shapes occur."""
_MAX_KERNEL_ROWS = 8192
"""The most rows that one kernel can reorder."""


class BeamKVCache:
    """Keys and values by layer, position and row.

    The token at position j of row r's hypothesis was written by row `beam_indices[j, r]`, so that reordering beams
    moves only this index. `lengths` holds the length of each row; `extent` is an upper bound of them, known without
    asking the device. There is one source for each group of adjacent rows.
    """

    index_dtype: ClassVar = torch.int64
    capacity_multiple: ClassVar = 1

    def __init__(
        self,
        layers: int,
        rows: int,
        capacity: int,
        kv_width: int,
        cross_kv: Tensor | None = None,
        source_lengths: Tensor | None = None,
        *,
        max_positions: int | None = None,
        like: Tensor | None = None,
    ) -> None:
        """cross_kv: # (2, layers or 1, sources, positions, kv width); source_lengths: # (sources,)

        Both are None without cross-attention. `max_positions` is the number of learned positions. The cache has the
        dtype and the device of `like`; float32 on the CPU without it.
        """
        like = torch.empty(0, dtype=torch.float32) if like is None else like
        shape = (layers, _round_up(capacity, self.capacity_multiple), rows, kv_width)
        self.keys, self.values = (self._allocate(like, shape) for _ in range(2))
        self.beam_indices = self._own_indices(shape[1], rows, like.device)  # (positions, rows)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=like.device)
        no_cross_kv = self.keys.new_zeros(2, 0, rows, 0, kv_width)
        self.cross_kv = no_cross_kv if cross_kv is None else cross_kv
        self.source_lengths = torch.zeros_like(self.lengths) if source_lengths is None else source_lengths
        self.sources, self.max_positions, self.extent = rows, max_positions, 0

    @property
    def capacity(self) -> int:
        return self.beam_indices.shape[0]

    @property
    def rows(self) -> int:
        return self.beam_indices.shape[1]

    @property
    def signature(self) -> tuple[Any, ...]:
        """Caches with the same signature can take each other's place in a captured CUDA graph."""
        return self.keys.shape, self.keys.dtype, self.cross_kv.shape, self.sources

    def advance(self) -> None:
        """Count one more token in every row; an error if there is no room for it."""
        if self.extent >= min(self.capacity, self.max_positions or self.capacity):
            self.tighten()
        if self.extent == self.capacity:
            raise UserError(f"The cache has room for {self.capacity} positions and {self.extent + 1} are needed.")
        if self.extent == self.max_positions:
            raise UserError(
                f"There are learned positions for {self.max_positions} tokens and {self.extent + 1} are needed; "
                "shorten the text, or train with a larger position.max_length."
            )
        self.extent += 1

    def copy_prompts(self, cache: KVCache) -> None:
        """Copy the keys and values that the plain model has computed for prompts."""
        for number, layer in enumerate(cache.layers):
            if layer.self_kv is not None and layer.self_kv.tensors is not None:
                for mine, prompts in zip((self.keys, self.values), layer.self_kv.tensors, strict=True):
                    prompts = prompts[:, :, : cache.extent]  # (rows, heads, positions, head_dim)
                    mine[number, : cache.extent] = concat_heads(prompts).transpose(0, 1)
        self.lengths.copy_(cache.lengths)
        self.extent = cache.extent

    def tighten(self) -> None:
        """Ask the device how long the longest row really is."""
        self.extent = int(self.lengths.max())

    def reorder_beams(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Row i becomes what row `rows[i]` was; group j gets the source of group `sources[j]`, or keeps its own."""
        if sources is None and rows.shape[0] == self.rows:
            self._reorder_in_place(rows)
            return
        self._gather_rows(rows)
        if sources is not None:
            self.cross_kv = self.cross_kv.index_select(2, sources)
            self.source_lengths = self.source_lengths.index_select(0, sources)
            self.sources = sources.shape[0]

    def scatter_rows(self, sources: Tensor, other: Self) -> None:
        """Replace these groups of rows by those of another cache; groups past the last are added."""
        group = self.rows // self.sources
        if other.rows != group * other.sources:
            raise UserError(f"Groups of {other.rows // other.sources} rows cannot replace groups of {group}.")
        count = max(self.sources, int(sources.max()) + 1)
        rows = (sources[:, None] * group + torch.arange(group, device=sources.device)).flatten()
        other._gather_rows(torch.arange(other.rows, device=rows.device))
        self.reserve(max(self.capacity, other.capacity), count * group)
        extent = other.extent
        self.keys[:, :extent, rows], self.values[:, :extent, rows] = other.keys[:, :extent], other.values[:, :extent]
        self.beam_indices[:, rows], self.lengths[rows] = rows.to(self.index_dtype), other.lengths
        self.cross_kv = _scatter(self.cross_kv, 2, sources, other.cross_kv, count)
        self.source_lengths = _scatter(self.source_lengths, 0, sources, other.source_lengths, count)
        self.sources, self.extent = count, max(self.extent, extent)

    def clear_rows(self, sources: Tensor) -> None:
        """Empty these groups of rows."""
        self.lengths.view(self.sources, -1)[sources] = 0

    def is_full(self) -> bool:
        """Whether one more token needs more capacity."""
        if self.extent == self.capacity:
            self.tighten()
        return self.extent == self.capacity

    def grow(self) -> None:
        """Double the capacity."""
        self.reserve(2 * self.capacity, self.rows)

    def reserve(self, capacity: int, rows: int) -> None:
        """Make room for more positions and rows."""
        capacity, rows = max(self.capacity, _round_up(capacity, self.capacity_multiple)), max(self.rows, rows)
        if (capacity, rows) == (self.capacity, self.rows):
            return
        beam_indices = self._own_indices(capacity, rows, self.keys.device)
        beam_indices[: self.capacity, : self.rows] = self.beam_indices
        layers, _, _, kv_width = self.keys.shape
        enlarged = []
        for old in (self.keys, self.values):
            new = self._allocate(old, (layers, capacity, rows, kv_width))
            new[:, : self.extent, : self.rows] = old[:, : self.extent]
            enlarged.append(new)
        self.keys, self.values = enlarged
        self.beam_indices, self.lengths = beam_indices, _enlarge(self.lengths, (rows,))

    def nbytes(self) -> int:
        """Memory of all keys and values."""
        return self.keys.nbytes + self.values.nbytes + self.cross_kv.nbytes

    def _allocate(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Memory for keys or values. Kernels for CUDA read whole blocks, in which masked numbers must be finite."""
        return like.new_zeros(shape)

    def _own_indices(self, positions: int, rows: int, device: torch.device) -> Tensor:
        """Indices by which every row wrote its own tokens.  # (positions, rows)"""
        return torch.arange(rows, dtype=self.index_dtype, device=device).repeat(positions, 1)

    def _reorder_in_place(self, rows: Tensor) -> None:
        self.beam_indices.copy_(self.beam_indices.index_select(1, rows))
        self.lengths.copy_(self.lengths.index_select(0, rows))

    def _gather_rows(self, rows: Tensor) -> None:
        """Copy the hypotheses of these rows to new tensors, where every row holds its own tokens."""
        extent, count = self.extent, rows.shape[0]
        writers = self.beam_indices[:extent].index_select(1, rows).long()  # (extent, rows)
        positions = torch.arange(extent, device=rows.device)[:, None]
        shape = (self.keys.shape[0], self.capacity, count, self.keys.shape[3])
        gathered = []
        for old in (self.keys, self.values):
            new = self._allocate(old, shape)
            new[:, :extent] = old[:, positions, writers]
            gathered.append(new)
        self.keys, self.values = gathered
        self.beam_indices = self._own_indices(self.capacity, count, rows.device)
        self.lengths = self.lengths[rows]


@dataclass(frozen=True)
class LayerSizes:
    """The widths of what one layer computes for a token: embedding, query + key + value, feed-forward; and its
    heads."""

    width: int
    qkv: int
    hidden: int
    heads: int


class Workspace:
    """Tensors that a decode step writes its intermediate results to, reused by the next step."""

    def __init__(self, tensors: Sequence[Tensor], scores: NDArray[np.float32]) -> None:
        """tensors: # (rows, width) four times, (rows, query + key + value), (rows, hidden)
        scores: # (heads, positions)
        """
        self.tensors, self.scores = tensors, scores
        self.x, self.normed, self.query, self.attended, self.qkv, self.hidden = tensors
        self.arrays = tuple(tensor.numpy() for tensor in tensors)
        self.x_array, self.normed_array, _, self.attended_array, *_ = self.arrays

    @classmethod
    def allocate(cls, rows: int, sizes: LayerSizes, positions: int) -> Self:
        widths = (*[sizes.width] * 4, sizes.qkv, sizes.hidden)
        return cls([torch.zeros(rows, width) for width in widths], np.zeros((sizes.heads, positions), np.float32))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and positions."""
        return len(self.x), self.scores.shape[1]

    def first(self, rows: int) -> Workspace:
        """The part for so many rows."""
        return self if rows == len(self.x) else Workspace([tensor[:rows] for tensor in self.tensors], self.scores)


class CpuKVCache(BeamKVCache):
    """The cache of a `CpuDecoder`, with its workspace."""

    _workspace: Workspace | None = None

    def _allocate(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Nothing reads what has not been written, and most of it never is: outputs end before their maximum length."""
        return like.new_empty(shape)

    def workspace(self, sizes: LayerSizes, rows: int) -> Workspace:
        """Room for a step of so many rows."""
        positions = max(self.capacity, self.cross_kv.shape[3])
        if self._workspace is None or self._workspace.shape != (self.rows, positions):
            self._workspace = Workspace.allocate(self.rows, sizes, positions)
        return self._workspace.first(rows)

    def advance(self) -> None:
        self.tighten()  # which costs nothing here, and saves work where long rows were replaced
        super().advance()

    def _reorder_in_place(self, rows: Tensor) -> None:
        from regard.kernels.cpu.decode_attention import reorder_beams

        reorder_beams(self.beam_indices.numpy(), rows.numpy(), self.extent, np.empty(len(rows), np.int64))
        self.lengths.copy_(self.lengths.index_select(0, rows))


class CudaKVCache(BeamKVCache):
    """The cache of a `CudaDecoder`, whose shapes are rounded up so that few of them occur."""

    index_dtype: ClassVar = torch.int32
    capacity_multiple: ClassVar = 64

    def copy_from(self, other: CudaKVCache) -> None:
        """Become a copy of another cache with the same signature, in place."""
        extent = other.extent
        pairs = [(self.keys[:, :extent], other.keys[:, :extent]), (self.values[:, :extent], other.values[:, :extent])]
        pairs += zip(self._index_tensors(), other._index_tensors(), strict=True)
        for mine, theirs in pairs:
            if mine.data_ptr() != theirs.data_ptr():
                mine.copy_(theirs)
        self.extent = extent

    def unshare_from(self, other: CudaKVCache) -> None:
        """Copy the tensors that this cache shares with another."""
        shared = {tensor.data_ptr() for tensor in (other.keys, other.values, *other._index_tensors())}

        def unshare(tensor: Tensor) -> Tensor:
            return tensor.clone() if tensor.data_ptr() in shared else tensor

        self.keys, self.values = unshare(self.keys), unshare(self.values)
        self.beam_indices, self.lengths, self.source_lengths, self.cross_kv = map(unshare, self._index_tensors())

    def _index_tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All tensors but the keys and values of the rows."""
        return self.beam_indices, self.lengths, self.source_lengths, self.cross_kv

    def _reorder_in_place(self, rows: Tensor) -> None:
        if self.rows > _MAX_KERNEL_ROWS or not dispatch.runs_triton(self.keys.device):
            super()._reorder_in_place(rows)
            return
        from regard.kernels.cuda.decode_attention import reorder_beams

        reorder_beams(self.beam_indices, self.lengths, rows)


def concat_heads(x: Tensor) -> Tensor:
    """(rows, heads, positions, head_dim) → (rows, positions, heads · head_dim)"""
    return x.transpose(1, 2).flatten(2)


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _enlarge(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tensor of a larger shape, with zeros after what is there."""
    enlarged = tensor.new_zeros(shape)
    enlarged[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return enlarged


def _scatter(mine: Tensor, dim: int, indices: Tensor, theirs: Tensor, count: int) -> Tensor:
    """A tensor of size `count` in one dimension, where these indices are replaced; in place if nothing must grow.

    Where the other tensor is smaller in another dimension, what is beyond it does not count.
    """
    shape = [max(sizes) for sizes in zip(mine.shape, theirs.shape, strict=True)]
    shape[dim] = count
    if list(mine.shape) != shape:
        mine = _enlarge(mine, tuple(shape))
    where: list[Any] = [slice(0, size) for size in theirs.shape]
    where[dim] = indices
    mine[tuple(where)] = theirs
    return mine
