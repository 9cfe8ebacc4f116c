"""Masks: a pattern bound to given rows, queries and keys.

Here the predicate becomes what kernels need: a dense mask, FlexAttention's block mask, or no mask at all where every
query attends to every key. Blocks are computed for some queries at a time, so the mask of a long sequence is never
materialized as a square.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from regard.attention.pattern import Causal, Full, Pattern
from regard.errors import UserError

QUERY_BLOCK = 256  # the size of the blocks of queries and of keys in blockwise attention
FLEX_BLOCK = 128  # the size of FlexAttention's blocks
MAX_PAIRS = 1 << 24  # pairs evaluated together when blocks are counted, which bounds memory at any length


class QueryBlock(NamedTuple):
    """A block of queries, a range that contains their keys, and the mask between them.

    mask: # (rows or 1, 1, queries, keys)
    """

    queries: slice
    keys: slice
    mask: Tensor


class Mask:
    """A pattern bound to `rows` × `queries` × `keys`.

    Key j is at position j. Query i is at position start + i, where `start` is one number or one per row (rows of
    different lengths in one cache). By default it is keys − queries: the last query is aligned with the last key, as in
    a cached step or chunk (bottom-right alignment, not the top-left one of PyTorch's `is_causal`).

    With `key_positions`, key j of row r is at position key_positions[r, j], and unused if that is negative.
    key_positions: # (rows or 1, keys)

    Each form of the mask is computed on first use and cached, so all layers of a model share it.
    """

    def __init__(
        self,
        pattern: Pattern,
        queries: int,
        keys: int,
        rows: int = 1,
        start: int | Tensor | None = None,
        device: torch.device | str | None = None,
        key_positions: Tensor | None = None,
    ) -> None:
        if queries < 0 or keys < 0 or rows < 0:
            raise UserError(f"A mask needs 0 or more rows, queries and keys; found {rows}, {queries} and {keys}.")
        if isinstance(start, Tensor) and start.shape != (rows,):
            raise UserError(f"start needs one position per row: expected shape ({rows},), found {tuple(start.shape)}.")
        self.start: int | Tensor = keys - queries if start is None else start
        self.key_positions = key_positions
        pattern.check(rows, queries, keys, self.start)
        plain = isinstance(self.start, int) and key_positions is None
        self.pattern = pattern.simplify(self.start, queries, keys) if plain else pattern  # type: ignore[arg-type]
        self.queries, self.keys, self.rows = queries, keys, rows
        self.device = torch.device(device) if device is not None else None
        if self.device is None and isinstance(self.start, Tensor):
            self.device = self.start.device
        self._dense: Tensor | None = None
        self._nonempty_mask: tuple[Tensor, Tensor | None] | None = None
        self._query_blocks: list[QueryBlock] | None = None
        self._block_mask: BlockMask | None = None

    @property
    def same_for_all_rows(self) -> bool:
        """Whether one mask serves every row."""
        same_positions = self.key_positions is None or self.key_positions.shape[0] == 1
        return self.pattern.same_for_all_rows and isinstance(self.start, int) and same_positions

    @property
    def is_full(self) -> bool:
        """Whether every query attends to every key, so that no mask is needed."""
        return isinstance(self.pattern, Full) and self.key_positions is None

    @property
    def is_causal(self) -> bool:
        """Whether this is the lower triangle of a square, for which every backend has a fast path."""
        return (
            isinstance(self.pattern, Causal)
            and self.key_positions is None
            and isinstance(self.start, int)
            and self.start == 0
            and self.queries == self.keys
        )

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The pattern's predicate for query and key indices (not positions)."""
        start = self.start[row] if isinstance(self.start, Tensor) else self.start
        if self.key_positions is None:
            return self.pattern.allows(row, query + start, key)
        position = self.key_positions[row if self.key_positions.shape[0] > 1 else torch.zeros_like(row), key]
        return self.pattern.allows(row, query + start, position) & (position >= 0)

    def dense(self) -> Tensor:
        """True where allowed; broadcasts with (batch, heads, query, key).  # (rows or 1, 1, queries or 1, keys or 1)"""
        if self._dense is None:
            rows = 1 if self.same_for_all_rows else self.rows
            row, query, key = (torch.arange(size, device=self.device) for size in (rows, self.queries, self.keys))
            allowed = self.allows(row[:, None, None], query[None, :, None], key[None, None, :])
            self._dense = allowed[:, None]  # (rows or 1, 1, queries or 1, keys or 1)
        return self._dense

    def nonempty_mask(self) -> tuple[Tensor, Tensor | None]:
        """The dense mask with its empty rows filled, and which rows those are (None if there can be none).

        For kernels whose result for a fully masked row is undefined: such a query attends to all keys, and its output
        is set to zero afterwards.
        """
        if self._nonempty_mask is None:
            allowed = self.dense()
            inside = isinstance(self.start, int) and 0 <= self.start <= self.keys - self.queries
            if self.pattern.includes_self and inside and self.key_positions is None:
                self._nonempty_mask = (allowed, None)
            else:
                empty = ~allowed.any(dim=-1, keepdim=True)
                self._nonempty_mask = (allowed | empty, empty)
        return self._nonempty_mask

    def query_blocks(self) -> list[QueryBlock]:
        """Blocks of queries, each with the range of its keys and its part of the mask."""
        if self._query_blocks is None:
            self._query_blocks = []
            for first in range(0, self.queries, QUERY_BLOCK):
                last = min(first + QUERY_BLOCK, self.queries)
                lowest, end = self._block_key_range(first, last)
                row, query, key = (
                    torch.arange(begin, stop, device=self.device)
                    for begin, stop in ((0, 1 if self.same_for_all_rows else self.rows), (first, last), (lowest, end))
                )
                allowed = self.allows(row[:, None, None], query[None, :, None], key[None, None, :])[:, None]
                self._query_blocks.append(QueryBlock(slice(first, last), slice(lowest, end), allowed))
        return self._query_blocks

    def reachable_fraction(self) -> float:
        """The fraction of all pairs that blockwise attention computes."""
        reached = 0
        for first in range(0, self.queries, QUERY_BLOCK):
            last = min(first + QUERY_BLOCK, self.queries)
            lowest, end = self._block_key_range(first, last)
            reached += (last - first) * (end - lowest)
        return reached / max(1, self.queries * self.keys)

    def _block_key_range(self, first: int, last: int) -> tuple[int, int]:
        """The range of keys of the queries from `first` to before `last`, rounded to whole blocks."""
        if isinstance(self.start, Tensor) or self.key_positions is not None:
            return 0, self.keys
        lowest, end = self.pattern.key_range(self.start + first, self.start + last - 1, self.keys)
        return lowest // QUERY_BLOCK * QUERY_BLOCK, min(self.keys, -(-end // QUERY_BLOCK) * QUERY_BLOCK)

    def block_counts(self) -> Tensor:
        """The number of allowed pairs in each FlexAttention block.  # (rows or 1, query blocks, key blocks)

        Some queries are counted at a time, which keeps memory linear in the length; a dense mask is quadratic.
        """
        rows = 1 if self.same_for_all_rows else self.rows
        row = torch.arange(rows, device=self.device)[:, None, None]
        key = torch.arange(self.keys, device=self.device)[None, None, :]
        key_blocks = -(-self.keys // FLEX_BLOCK)
        strip = max(1, MAX_PAIRS // max(1, rows * self.keys * FLEX_BLOCK)) * FLEX_BLOCK
        counts = []
        for first in range(0, self.queries, strip):
            query = torch.arange(first, min(first + strip, self.queries), device=self.device)[None, :, None]
            allowed = self.allows(row, query, key).expand(rows, query.shape[1], self.keys)
            padding = (0, key_blocks * FLEX_BLOCK - self.keys, 0, -query.shape[1] % FLEX_BLOCK)
            allowed = torch.nn.functional.pad(allowed, padding)
            tiles = allowed.unflatten(2, (key_blocks, FLEX_BLOCK)).unflatten(1, (-1, FLEX_BLOCK))
            counts.append(tiles.sum(dim=(2, 4), dtype=torch.int32))  # (rows, strip blocks, key blocks)
        return torch.cat(counts, dim=1) if counts else row.new_zeros(rows, 0, key_blocks)

    def pairs(self) -> int:
        """The number of allowed (query, key) pairs, over all rows."""
        count = int(self.block_counts().sum(dtype=torch.int64))
        return count * self.rows if self.same_for_all_rows else count

    def block_mask(self) -> BlockMask:
        """FlexAttention's block mask: empty blocks are skipped, full ones need no mask, the others evaluate it."""
        if self._block_mask is None:
            if self.same_for_all_rows and isinstance(self.start, int) and self.key_positions is None:
                self._block_mask = _shared_block_mask(self.pattern, self.queries, self.keys, self.start, self.device)
            else:
                self._block_mask = _make_block_mask(self)
        return self._block_mask


@lru_cache(maxsize=64)
def _shared_block_mask(pattern: Pattern, queries: int, keys: int, start: int, device: torch.device | None) -> BlockMask:
    """The block mask of a pattern and lengths, cached over calls because it is expensive to build."""
    with torch.inference_mode(False):  # usable in training even if first built in inference mode
        return _make_block_mask(Mask(pattern, queries, keys, 1, start, device))


def _make_block_mask(mask: Mask) -> BlockMask:
    counts = mask.block_counts()[:, None]  # (rows or 1, 1, query blocks, key blocks)
    full = counts == FLEX_BLOCK * FLEX_BLOCK
    part = (counts > 0) & ~full

    def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The number of selected blocks in each row of blocks, and their indices, selected ones first."""
        order = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        return chosen.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)

    return BlockMask.from_kv_blocks(
        *listed(part),
        *listed(full),
        BLOCK_SIZE=FLEX_BLOCK,
        mask_mod=_mask_function(mask),
        seq_lengths=(mask.queries, mask.keys),
    )


def _mask_function(mask: Mask) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The predicate with FlexAttention's signature; it closes over tensors only, for the compiler."""
    pattern, start = mask.pattern, mask.start
    if mask.key_positions is not None:
        return lambda row, head, query, key: mask.allows(row, query, key)
    if isinstance(start, Tensor):
        return lambda row, head, query, key: pattern.allows(row, query + start[row], key)
    if start == 0:
        return lambda row, head, query, key: pattern.allows(row, query, key)
    offset = torch.tensor(start, device=mask.device)  # a Python number would be compiled in, once for every chunk
    return lambda row, head, query, key: pattern.allows(row, query + offset, key)
