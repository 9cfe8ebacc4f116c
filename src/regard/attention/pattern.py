"""Who may look at whom, as a question about two positions.

A `Pattern` answers one question on index tensors: in this row, may the query at position i look at the key at position
j? Positions are absolute, counted from 0 in the row, so a cached step, a chunk and a whole sentence ask the same
question. From that one answer come the dense mask, FlexAttention's block mask and the count of allowed pairs; they
cannot disagree. A `Scope` is a pattern laid over one piece of work: these rows, these queries, these keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.errors import UserError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # the side of FlexAttention's blocks
STRIP = 1 << 24  # pairs looked at together when counting: bounds memory at any length


class Pattern:
    """Which keys a query may see. A kind of pattern is a frozen dataclass with `allows`; the rest follows from it."""

    @property
    def rows_alike(self) -> bool:
        """Whether every row gets the same answer, so that one mask serves the whole batch."""
        return True

    @property
    def causal(self) -> bool:
        """Whether it is certain that no query sees a later position."""
        return False

    @property
    def sees_itself(self) -> bool:
        """Whether it is certain that every query sees the key at its own position, so that none sees nothing."""
        return False

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """True where the query may look at the key; the three index tensors broadcast against each other."""
        raise NotImplementedError

    def covers(self, start: int, queries: int, keys: int) -> bool:
        """Whether it is certain, without looking at a tensor, that every one of these queries sees every key."""
        return False

    def reduce(self, start: int, queries: int, keys: int) -> Pattern:
        """The simplest pattern that gives the same answers for these queries and keys."""
        return Full() if self.covers(start, queries, keys) else self

    def __and__(self, other: Pattern) -> Pattern:
        return Both(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    def over(
        self,
        queries: int,
        keys: int | None = None,
        *,
        rows: int = 1,
        start: int | Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> Scope:
        """Lay the pattern over `queries` × `keys` (as many as queries, if not given); see `Scope`."""
        return Scope(self, queries, queries if keys is None else keys, rows, start, device)

    def mask(self, queries: int, keys: int | None = None, **more: Any) -> Tensor:
        """The dense mask, True where allowed.  # (queries, keys), or (rows, queries, keys) where rows differ"""
        scope = self.over(queries, keys, **more)
        dense = scope.mask()[:, 0].expand(-1, scope.queries, scope.keys)
        return dense[0] if dense.shape[0] == 1 and scope.rows == 1 else dense.expand(scope.rows, -1, -1)

    def pairs(self, queries: int, keys: int | None = None, **more: Any) -> int:
        """How many (query, key) pairs are allowed, over all rows."""
        return self.over(queries, keys, **more).pairs()

    def block_mask(self, queries: int, keys: int | None = None, **more: Any) -> BlockMask:
        """FlexAttention's form of the same pattern."""
        return self.over(queries, keys, **more).block_mask()


@dataclass(frozen=True)
class Full(Pattern):
    """Every query sees every key."""

    @property
    def sees_itself(self) -> bool:
        return True

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query == query) & (key == key)

    def covers(self, start: int, queries: int, keys: int) -> bool:
        return True


@dataclass(frozen=True)
class Causal(Pattern):
    """A token sees itself and what came before it (j ≤ i)."""

    @property
    def causal(self) -> bool:
        return True

    @property
    def sees_itself(self) -> bool:
        return True

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def covers(self, start: int, queries: int, keys: int) -> bool:
        return keys <= start + 1


@dataclass(frozen=True)
class Both(Pattern):
    """Allowed where both parts allow it: `first & second`."""

    first: Pattern
    second: Pattern

    @property
    def rows_alike(self) -> bool:
        return self.first.rows_alike and self.second.rows_alike

    @property
    def causal(self) -> bool:
        return self.first.causal or self.second.causal

    @property
    def sees_itself(self) -> bool:
        return self.first.sees_itself and self.second.sees_itself

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.first.allows(row, query, key) & self.second.allows(row, query, key)

    def reduce(self, start: int, queries: int, keys: int) -> Pattern:
        first, second = (part.reduce(start, queries, keys) for part in (self.first, self.second))
        if isinstance(first, Full):
            return second
        return first if isinstance(second, Full) or first == second else Both(first, second)


@dataclass(frozen=True)
class Either(Pattern):
    """Allowed where one part allows it, or both: `first | second`."""

    first: Pattern
    second: Pattern

    @property
    def rows_alike(self) -> bool:
        return self.first.rows_alike and self.second.rows_alike

    @property
    def causal(self) -> bool:
        return self.first.causal and self.second.causal

    @property
    def sees_itself(self) -> bool:
        return self.first.sees_itself or self.second.sees_itself

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.first.allows(row, query, key) | self.second.allows(row, query, key)

    def reduce(self, start: int, queries: int, keys: int) -> Pattern:
        first, second = (part.reduce(start, queries, keys) for part in (self.first, self.second))
        if isinstance(first, Full) or isinstance(second, Full):
            return Full()
        return first if first == second else Either(first, second)


class Scope:
    """A pattern laid over one piece of work: `rows` × `queries` × `keys`.

    Key number j stands at position j. Query number i stands at position start + i, where `start` is one number or one
    a row (rows of different length in one cache). Left out, it is keys − queries: the last query stands at the last
    key, which is what a cached step or chunk means (bottom-right alignment, not PyTorch's top-left `is_causal`).

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
    ) -> None:
        if queries < 0 or keys < 0 or rows < 0:
            raise UserError(f"A pattern covers 0 or more rows, queries and keys; found {rows}, {queries} and {keys}.")
        if isinstance(start, Tensor) and start.shape != (rows,):
            raise UserError(f"start holds one position a row: expected shape ({rows},), found {tuple(start.shape)}.")
        self.start: int | Tensor = keys - queries if start is None else start
        self.pattern = pattern if isinstance(self.start, Tensor) else pattern.reduce(self.start, queries, keys)
        self.queries, self.keys, self.rows = queries, keys, rows
        self.device = torch.device(device) if device is not None else None
        if self.device is None and isinstance(self.start, Tensor):
            self.device = self.start.device
        self._mask: Tensor | None = None
        self._open_mask: tuple[Tensor, Tensor | None] | None = None
        self._block_mask: BlockMask | None = None

    @property
    def rows_alike(self) -> bool:
        """Whether one mask serves every row."""
        return self.pattern.rows_alike and isinstance(self.start, int)

    @property
    def everything(self) -> bool:
        """Whether every query sees every key: no mask is needed."""
        return isinstance(self.pattern, Full)

    @property
    def triangle(self) -> bool:
        """Whether this is the plain lower triangle of a square, for which every backend has its own fast way."""
        return (
            isinstance(self.pattern, Causal)
            and isinstance(self.start, int)
            and self.start == 0
            and self.queries == self.keys
        )

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The pattern's answer for query number `query` (not position) of row `row`."""
        start = self.start[row] if isinstance(self.start, Tensor) else self.start
        return self.pattern.allows(row, query + start, key)

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
            inside = isinstance(self.start, Tensor) or 0 <= self.start <= self.keys - self.queries
            if self.pattern.sees_itself and inside:
                self._open_mask = (allowed, None)
            else:
                empty = ~allowed.any(dim=-1, keepdim=True)
                self._open_mask = (allowed | empty, empty)
        return self._open_mask

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
            tiles = allowed.view(rows, -1, BLOCK, key_blocks, BLOCK)
            counts.append(tiles.sum(dim=(2, 4), dtype=torch.int32))  # (rows, strip blocks, key blocks)
        return torch.cat(counts, dim=1) if counts else row.new_zeros(rows, 0, key_blocks)

    def pairs(self) -> int:
        """How many (query, key) pairs are allowed, over all rows."""
        count = int(self.blocks().sum(dtype=torch.int64))
        return count * self.rows if self.rows_alike else count

    def block_mask(self) -> BlockMask:
        """FlexAttention's form: which blocks are empty (skipped), which full (no mask inside), which need the mask."""
        if self._block_mask is None:
            if self.rows_alike and isinstance(self.start, int):
                self._block_mask = _shared_block_mask(self.pattern, self.queries, self.keys, self.start, self.device)
            else:
                self._block_mask = _make_block_mask(self)
        return self._block_mask


@lru_cache(maxsize=64)
def _shared_block_mask(pattern: Pattern, queries: int, keys: int, start: int, device: torch.device | None) -> BlockMask:
    """One block mask for every call with the same pattern and lengths: making it again at each step would be waste."""
    return _make_block_mask(Scope(pattern, queries, keys, 1, start, device))


def _make_block_mask(scope: Scope) -> BlockMask:
    from torch.nn.attention.flex_attention import BlockMask

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
    if isinstance(start, Tensor):
        return lambda row, head, query, key: pattern.allows(row, query + start[row], key)
    if start == 0:
        return lambda row, head, query, key: pattern.allows(row, query, key)
    offset = torch.tensor(start, device=scope.device)  # a number would be compiled in, once for every chunk
    return lambda row, head, query, key: pattern.allows(row, query + offset, key)
