"""Who may look at whom, as a question about two positions.

A `Pattern` answers one question on index tensors: in this row, may the query at position i look at the key at position
j? Positions are absolute, counted from 0 in the row, so a cached step, a chunk and a whole sentence ask the same
question. From that one answer come the dense mask, FlexAttention's block mask and the count of allowed pairs; they
cannot disagree. `scope.py` makes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from regard.attention.scope import Scope


class Horizon(NamedTuple):
    """What a query sees at most of what came before: the last `window` keys, itself included, and the first `kept`."""

    window: int
    kept: int


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

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        """Refuse work that what the pattern knows of rows and positions does not fit."""

    def covers(self, start: int, queries: int, keys: int) -> bool:
        """Whether it is certain, without looking at a tensor, that every one of these queries sees every key."""
        return False

    def reach(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """Bounds on what queries at positions `first` to `last` can see: the lowest key, and the end behind all."""
        return 0, keys

    def horizon(self) -> Horizon | None:
        """How far back a query ever looks, where nothing later is seen; None if there is no bound."""
        return None

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
        from regard.attention.scope import Scope

        return Scope(self, queries, queries if keys is None else keys, rows, start, device)

    def mask(self, queries: int, keys: int | None = None, **more: Any) -> Tensor:
        """The dense mask, True where allowed.  # (queries, keys), or (rows, queries, keys) for several rows"""
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

    def reach(self, first: int, last: int, keys: int) -> tuple[int, int]:
        return 0, max(0, min(keys, last + 1))


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

    def reach(self, first: int, last: int, keys: int) -> tuple[int, int]:
        one, other = (part.reach(first, last, keys) for part in (self.first, self.second))
        lowest = max(one[0], other[0])
        return lowest, max(lowest, min(one[1], other[1]))

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        self.first.check(rows, queries, keys, start)
        self.second.check(rows, queries, keys, start)

    def horizon(self) -> Horizon | None:
        """Of two bounds both hold; the one that takes less room is kept."""
        bounds = [bound for part in (self.first, self.second) if (bound := part.horizon()) is not None]
        return min(bounds, key=sum, default=None)

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

    def reach(self, first: int, last: int, keys: int) -> tuple[int, int]:
        one, other = (part.reach(first, last, keys) for part in (self.first, self.second))
        return min(one[0], other[0]), max(one[1], other[1])

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        self.first.check(rows, queries, keys, start)
        self.second.check(rows, queries, keys, start)

    def horizon(self) -> Horizon | None:
        one, other = self.first.horizon(), self.second.horizon()
        if one is None or other is None:
            return None
        return Horizon(max(one.window, other.window), max(one.kept, other.kept))

    def reduce(self, start: int, queries: int, keys: int) -> Pattern:
        first, second = (part.reduce(start, queries, keys) for part in (self.first, self.second))
        if isinstance(first, Full) or isinstance(second, Full):
            return Full()
        return first if first == second else Either(first, second)
