"""Attention patterns: which keys each query may attend to.

A `Pattern` is a predicate on index tensors: in this row, may the query at position i attend to the key at position j?
Positions are absolute, counted from 0 in the row, so a cached step, a chunk and a whole sequence ask the same question.
The dense mask, FlexAttention's block mask and the number of allowed pairs all follow from that predicate (mask.py), so
they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from regard.attention.mask import Mask


class Lookback(NamedTuple):
    """A bound on the keys a causal query can attend to: the last `window`, itself included, and the first
    `sink_tokens`."""

    window: int
    sink_tokens: int


class Pattern:
    """Which keys a query may attend to. A new pattern is a frozen dataclass with `allows`; the other methods only allow
    shortcuts."""

    @property
    def same_for_all_rows(self) -> bool:
        """Whether the pattern is the same for every row, so that one mask serves the whole batch."""
        return True

    @property
    def causal(self) -> bool:
        """Whether no query attends to a later position, for certain."""
        return False

    @property
    def includes_self(self) -> bool:
        """Whether every query attends to the key at its own position, for certain, so that no row is fully masked."""
        return False

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """True where the query may attend to the key. The three index tensors are broadcast against each other."""
        raise NotImplementedError

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        """Raise an error if the pattern's own tensors do not fit these sizes."""

    def allows_all(self, start: int, queries: int, keys: int) -> bool:
        """Whether every one of these queries may attend to every key, for certain and without evaluating `allows`."""
        return False

    def key_range(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """A range of keys, as (start, stop), that contains all keys of the queries at positions `first` to `last`."""
        return 0, keys

    def lookback(self) -> Lookback | None:
        """How far back a query attends, under a causal pattern; None if there is no bound."""
        return None

    def simplify(self, start: int, queries: int, keys: int) -> Pattern:
        """The simplest pattern that is equivalent for these queries and keys."""
        return Full() if self.allows_all(start, queries, keys) else self

    def __and__(self, other: Pattern) -> Pattern:
        return Both(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        return Either(self, other)

    def bind(
        self,
        queries: int,
        keys: int | None = None,
        *,
        rows: int = 1,
        start: int | Tensor | None = None,
        device: torch.device | str | None = None,
    ) -> Mask:
        """Bind the pattern to `queries` × `keys` (by default as many keys as queries); see `Mask`."""
        from regard.attention.mask import Mask

        return Mask(self, queries, queries if keys is None else keys, rows, start, device)

    def dense_mask(self, queries: int, keys: int | None = None, **more: Any) -> Tensor:
        """The dense mask, True where allowed.  # (queries, keys), or (rows, queries, keys) for several rows"""
        mask = self.bind(queries, keys, **more)
        dense = mask.dense()[:, 0].expand(-1, mask.queries, mask.keys)
        return dense[0] if dense.shape[0] == 1 and mask.rows == 1 else dense.expand(mask.rows, -1, -1)

    def pairs(self, queries: int, keys: int | None = None, **more: Any) -> int:
        """The number of allowed (query, key) pairs, over all rows."""
        return self.bind(queries, keys, **more).pairs()

    def block_mask(self, queries: int, keys: int | None = None, **more: Any) -> BlockMask:
        """The pattern as FlexAttention's block mask."""
        return self.bind(queries, keys, **more).block_mask()


@dataclass(frozen=True)
class Full(Pattern):
    """Every query attends to every key."""

    @property
    def includes_self(self) -> bool:
        return True

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query == query) & (key == key)

    def allows_all(self, start: int, queries: int, keys: int) -> bool:
        return True


@dataclass(frozen=True)
class Causal(Pattern):
    """A query attends to its own position and earlier ones (j ≤ i)."""

    @property
    def causal(self) -> bool:
        return True

    @property
    def includes_self(self) -> bool:
        return True

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def allows_all(self, start: int, queries: int, keys: int) -> bool:
        return keys <= start + 1

    def key_range(self, first: int, last: int, keys: int) -> tuple[int, int]:
        return 0, max(0, min(keys, last + 1))


@dataclass(frozen=True)
class Both(Pattern):
    """The intersection of two patterns: `first & second`."""

    first: Pattern
    second: Pattern

    @property
    def same_for_all_rows(self) -> bool:
        return self.first.same_for_all_rows and self.second.same_for_all_rows

    @property
    def causal(self) -> bool:
        return self.first.causal or self.second.causal

    @property
    def includes_self(self) -> bool:
        return self.first.includes_self and self.second.includes_self

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.first.allows(row, query, key) & self.second.allows(row, query, key)

    def key_range(self, first: int, last: int, keys: int) -> tuple[int, int]:
        one, other = (part.key_range(first, last, keys) for part in (self.first, self.second))
        lowest = max(one[0], other[0])
        return lowest, max(lowest, min(one[1], other[1]))

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        self.first.check(rows, queries, keys, start)
        self.second.check(rows, queries, keys, start)

    def lookback(self) -> Lookback | None:
        """Both bounds hold; the tighter one is returned."""
        bounds = [bound for part in (self.first, self.second) if (bound := part.lookback()) is not None]
        return min(bounds, key=sum, default=None)

    def simplify(self, start: int, queries: int, keys: int) -> Pattern:
        first, second = (part.simplify(start, queries, keys) for part in (self.first, self.second))
        if isinstance(first, Full):
            return second
        return first if isinstance(second, Full) or first == second else Both(first, second)


@dataclass(frozen=True)
class Either(Pattern):
    """The union of two patterns: `first | second`."""

    first: Pattern
    second: Pattern

    @property
    def same_for_all_rows(self) -> bool:
        return self.first.same_for_all_rows and self.second.same_for_all_rows

    @property
    def causal(self) -> bool:
        return self.first.causal and self.second.causal

    @property
    def includes_self(self) -> bool:
        return self.first.includes_self or self.second.includes_self

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.first.allows(row, query, key) | self.second.allows(row, query, key)

    def key_range(self, first: int, last: int, keys: int) -> tuple[int, int]:
        one, other = (part.key_range(first, last, keys) for part in (self.first, self.second))
        return min(one[0], other[0]), max(one[1], other[1])

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        self.first.check(rows, queries, keys, start)
        self.second.check(rows, queries, keys, start)

    def lookback(self) -> Lookback | None:
        one, other = self.first.lookback(), self.second.lookback()
        if one is None or other is None:
            return None
        return Lookback(max(one.window, other.window), max(one.sink_tokens, other.sink_tokens))

    def simplify(self, start: int, queries: int, keys: int) -> Pattern:
        first, second = (part.simplify(start, queries, keys) for part in (self.first, self.second))
        if isinstance(first, Full) or isinstance(second, Full):
            return Full()
        return first if first == second else Either(first, second)
