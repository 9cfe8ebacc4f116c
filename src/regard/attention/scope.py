"""A pattern laid over one piece of work: these rows, these queries, these keys.

Here the predicate becomes what kernels want: a dense mask, FlexAttention's block mask, or nothing at all where every
query sees every key. Blocks are counted strip by strip, so a mask for a long sequence never exists as a square.
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

SIDE = 256  # queries in a strip, and keys in the blocks it takes them in
BLOCK = 128  # the side of FlexAttention's blocks
STRIP = 1 << 24  # pairs looked at together when counting: bounds memory at any length


class Strip(NamedTuple):
    """Some queries, the keys they can reach at most, and the mask between them.  # (rows or 1, 1, queries, keys)"""

    queries: slice
    keys: slice
    mask: Tensor


class Scope:
    """A pattern laid over one piece of work: `rows` × `queries` × `keys`.

    Key number j stands at position j. Query number i stands at position start + i, where `start` is one number or one
    a row (rows of different length in one cache). Left out, it is keys − queries: the last query stands at the last
    key, which is what a cached step or chunk means (bottom-right alignment, not PyTorch's top-left `is_causal`).

    With `places` keys stand elsewhere: key number j of row r at position places[r, j], and nowhere if that is negative.
    places: # (rows or 1, keys)

    Masks are made when first asked for and kept, so all layers of a model share one.
    """

    def __init__(
        self,
        pattern: Pattern,
        queries: int,
        keys: int,
        rows: int = 1,
        start: int | Tensor | None = None,
        device: torch.device | str | None = None,
        places: Tensor | None = None,
    ) -> None:
        if queries < 0 or keys < 0 or rows < 0:
            raise UserError(f"A pattern covers 0 or more rows, queries and keys; found {rows}, {queries} and {keys}.")
        if isinstance(start, Tensor) and start.shape != (rows,):
            raise UserError(f"start holds one position a row: expected shape ({rows},), found {tuple(start.shape)}.")
        self.start: int | Tensor = keys - queries if start is None else start
        self.places = places
        pattern.check(rows, queries, keys, self.start)
        plain = isinstance(self.start, int) and places is None
        self.pattern = pattern.reduce(self.start, queries, keys) if plain else pattern  # type: ignore[arg-type]
        self.queries, self.keys, self.rows = queries, keys, rows
        self.device = torch.device(device) if device is not None else None
        if self.device is None and isinstance(self.start, Tensor):
            self.device = self.start.device
        self._mask: Tensor | None = None
        self._open_mask: tuple[Tensor, Tensor | None] | None = None
        self._strips: list[Strip] | None = None
        self._block_mask: BlockMask | None = None

    @property
    def rows_alike(self) -> bool:
        """Whether one mask serves every row."""
        alike = self.places is None or self.places.shape[0] == 1
        return self.pattern.rows_alike and isinstance(self.start, int) and alike

    @property
    def everything(self) -> bool:
        """Whether every query sees every key: no mask is needed."""
        return isinstance(self.pattern, Full) and self.places is None

    @property
    def triangle(self) -> bool:
        """Whether this is the plain lower triangle of a square, for which every backend has its own fast way."""
        return (
            isinstance(self.pattern, Causal)
            and self.places is None
            and isinstance(self.start, int)
            and self.start == 0
            and self.queries == self.keys
        )

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The pattern's answer for query number `query` (not position) of row `row`."""
        start = self.start[row] if isinstance(self.start, Tensor) else self.start
        if self.places is None:
            return self.pattern.allows(row, query + start, key)
        place = self.places[row if self.places.shape[0] > 1 else torch.zeros_like(row), key]
        return self.pattern.allows(row, query + start, place) & (place >= 0)

    def mask(self) -> Tensor:
        """True where allowed; broadcasts with (batch, heads, query, key).  # (rows or 1, 1, queries or 1, keys or 1)"""
        if self._mask is None:
            rows = 1 if self.rows_alike else self.rows
            row, query, key = (torch.arange(size, device=self.device) for size in (rows, self.queries, self.keys))
            allowed = self.allows(row[:, None, None], query[None, :, None], key[None, None, :])
            self._mask = allowed[:, None]  # (rows or 1, 1, queries or 1, keys or 1)
        return self._mask

    def open_mask(self) -> tuple[Tensor, Tensor | None]:
        """The mask with every row that sees nothing opened, and which rows those are (None if there can be none).

        For kernels that do not say what such a row gives: let it see all, and clear its result.
        """
        if self._open_mask is None:
            allowed = self.mask()
            inside = isinstance(self.start, int) and 0 <= self.start <= self.keys - self.queries
            if self.pattern.sees_itself and inside and self.places is None:
                self._open_mask = (allowed, None)
            else:
                empty = ~allowed.any(dim=-1, keepdim=True)
                self._open_mask = (allowed | empty, empty)
        return self._open_mask

    def strips(self) -> list[Strip]:
        """The work cut into strips of queries, each with the keys it can reach at most and its own part of the mask."""
        if self._strips is None:
            self._strips = []
            for first in range(0, self.queries, SIDE):
                last = min(first + SIDE, self.queries)
                lowest, end = self._reach(first, last)
                row, query, key = (
                    torch.arange(begin, stop, device=self.device)
                    for begin, stop in ((0, 1 if self.rows_alike else self.rows), (first, last), (lowest, end))
                )
                allowed = self.allows(row[:, None, None], query[None, :, None], key[None, None, :])[:, None]
                self._strips.append(Strip(slice(first, last), slice(lowest, end), allowed))
        return self._strips

    def share_in_strips(self) -> float:
        """The share of all pairs that lies within the strips' reach: what is left to compute."""
        reached = 0
        for first in range(0, self.queries, SIDE):
            last = min(first + SIDE, self.queries)
            lowest, end = self._reach(first, last)
            reached += (last - first) * (end - lowest)
        return reached / max(1, self.queries * self.keys)

    def _reach(self, first: int, last: int) -> tuple[int, int]:
        """Bounds on the keys that queries number `first` to before `last` can see, moved out to whole blocks."""
        if isinstance(self.start, Tensor) or self.places is not None:
            return 0, self.keys
        lowest, end = self.pattern.reach(self.start + first, self.start + last - 1, self.keys)
        return lowest // SIDE * SIDE, min(self.keys, -(-end // SIDE) * SIDE)

    def blocks(self) -> Tensor:
        """Allowed pairs in each 128 × 128 block, counted strip by strip.  # (rows or 1, query blocks, key blocks)

        Looking at a strip of queries at a time keeps memory linear in the length, where a dense mask is quadratic.
        """
        rows = 1 if self.rows_alike else self.rows
        row = torch.arange(rows, device=self.device)[:, None, None]
        key = torch.arange(self.keys, device=self.device)[None, None, :]
        key_blocks = -(-self.keys // BLOCK)
        strip = max(1, STRIP // max(1, rows * self.keys * BLOCK)) * BLOCK
        counts = []
        for first in range(0, self.queries, strip):
            query = torch.arange(first, min(first + strip, self.queries), device=self.device)[None, :, None]
            allowed = self.allows(row, query, key).expand(rows, query.shape[1], self.keys)
            padding = (0, key_blocks * BLOCK - self.keys, 0, -query.shape[1] % BLOCK)
            allowed = torch.nn.functional.pad(allowed, padding)
            tiles = allowed.unflatten(2, (key_blocks, BLOCK)).unflatten(1, (-1, BLOCK))
            counts.append(tiles.sum(dim=(2, 4), dtype=torch.int32))  # (rows, strip blocks, key blocks)
        return torch.cat(counts, dim=1) if counts else row.new_zeros(rows, 0, key_blocks)

    def pairs(self) -> int:
        """How many (query, key) pairs are allowed, over all rows."""
        count = int(self.blocks().sum(dtype=torch.int64))
        return count * self.rows if self.rows_alike else count

    def block_mask(self) -> BlockMask:
        """FlexAttention's form: which blocks are empty (skipped), which full (no mask inside), which need the mask."""
        if self._block_mask is None:
            if self.rows_alike and isinstance(self.start, int) and self.places is None:
                self._block_mask = _shared_block_mask(self.pattern, self.queries, self.keys, self.start, self.device)
            else:
                self._block_mask = _make_block_mask(self)
        return self._block_mask


@lru_cache(maxsize=64)
def _shared_block_mask(pattern: Pattern, queries: int, keys: int, start: int, device: torch.device | None) -> BlockMask:
    """One block mask for every call with the same pattern and lengths: making it again at each step would be waste."""
    with torch.inference_mode(False):  # kept for training too, even if first asked for in inference mode
        return _make_block_mask(Scope(pattern, queries, keys, 1, start, device))


def _make_block_mask(scope: Scope) -> BlockMask:
    counts = scope.blocks()[:, None]  # (rows or 1, 1, query blocks, key blocks)
    full = counts == BLOCK * BLOCK
    part = (counts > 0) & ~full

    def listed(chosen: Tensor) -> tuple[Tensor, Tensor]:
        """How many blocks are chosen in each line, and their numbers, chosen ones first."""
        order = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
        return chosen.sum(dim=-1, dtype=torch.int32), order.to(torch.int32)

    return BlockMask.from_kv_blocks(
        *listed(part),
        *listed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=_mask_function(scope),
        seq_lengths=(scope.queries, scope.keys),
    )


def _mask_function(scope: Scope) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The predicate with the signature FlexAttention wants; plain names so that the compiler sees only tensors."""
    pattern, start = scope.pattern, scope.start
    if scope.places is not None:
        return lambda row, head, query, key: scope.allows(row, query, key)
    if isinstance(start, Tensor):
        return lambda row, head, query, key: pattern.allows(row, query + start[row], key)
    if start == 0:
        return lambda row, head, query, key: pattern.allows(row, query, key)
    offset = torch.tensor(start, device=scope.device)  # a number would be compiled in, once for every chunk
    return lambda row, head, query, key: pattern.allows(row, query + offset, key)
