"""The attention patterns: those of Longformer's figure 2, and packed documents. Padding (`Lengths`) is in context.py.

Combine them with `&` and `|`:

    Causal() & Sliding(512)                     a language model with a sliding window
    Causal() & (Global(4) | Sliding(512))       the same with four global (sink) tokens
    Full() & Lengths(lengths)                   an encoder over padded rows

`read_pattern` parses the same from text ("causal & (global(4) | sliding(512))"), as in recipes.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.pattern import Both, Causal, Either, Full, Lookback, Pattern
from regard.errors import UserError


@dataclass(frozen=True)
class Sliding(Pattern):
    """Sliding window: the `window` nearest keys on either side, its own included. The cost is linear in the length.

    The window is counted to one side, so under `Causal()` exactly `window` keys are visible; 1 is the query's own key.
    """

    window: int

    def __post_init__(self) -> None:
        _check_number("sliding", "window", self.window)

    @property
    def includes_self(self) -> bool:
        return True

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() < self.window

    def allows_all(self, start: int, queries: int, keys: int) -> bool:
        return max(start + queries - 1, keys - 1 - start) < self.window

    def lookback(self) -> Lookback:
        return Lookback(self.window, 0)

    def key_range(self, first: int, last: int, keys: int) -> tuple[int, int]:
        lowest = min(max(0, first - self.window + 1), keys)
        return lowest, max(lowest, min(keys, last + self.window))


@dataclass(frozen=True)
class Dilated(Pattern):
    """Dilated sliding window: `window` keys to either side, its own included, `step` apart."""

    window: int
    step: int

    def __post_init__(self) -> None:
        _check_number("dilated", "window", self.window)
        _check_number("dilated", "step", self.step)

    @property
    def includes_self(self) -> bool:
        return True

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = (query - key).abs()
        return (distance < self.window * self.step) & (distance % self.step == 0)

    def allows_all(self, start: int, queries: int, keys: int) -> bool:
        return self.step == 1 and Sliding(self.window).allows_all(start, queries, keys)

    def lookback(self) -> Lookback:
        return Lookback((self.window - 1) * self.step + 1, 0)

    def key_range(self, first: int, last: int, keys: int) -> tuple[int, int]:
        return Sliding((self.window - 1) * self.step + 1).key_range(first, last, keys)


@dataclass(frozen=True)
class Global(Pattern):
    """Global tokens: the first `tokens` positions attend to all positions, and all positions attend to them."""

    tokens: int

    def __post_init__(self) -> None:
        _check_number("global", "tokens", self.tokens)

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query < self.tokens) | (key < self.tokens)

    def allows_all(self, start: int, queries: int, keys: int) -> bool:
        return keys <= self.tokens or start + queries <= self.tokens

    def lookback(self) -> Lookback:
        return Lookback(1, self.tokens)  # what a global query attends to before it is global too


class Documents(Pattern):
    """Packed documents: a query attends only to keys of its own document, through the pattern `within`.

    `document_ids` assigns each position to a document; negative ids are padding, and an id that occurs again after
    another one begins a new document. Positions within a document count from its first token, so a packed document gets
    exactly what it would get alone in a row, including its own global tokens. `key_document_ids` is for
    cross-attention, where queries and keys are packed separately.
    """

    def __init__(
        self, document_ids: Tensor, within: Pattern | None = None, key_document_ids: Tensor | None = None
    ) -> None:
        for given in (document_ids, key_document_ids):
            if given is not None and (given.dim() != 2 or given.dtype.is_floating_point):
                raise UserError(
                    "documents needs one integer per position: expected the shape (rows, positions), "
                    f"found {tuple(given.shape)} of {given.dtype}."
                )
        self.within = Full() if within is None else within
        self.document_ids = document_ids  # (rows, positions)
        self.starts = document_starts(document_ids)
        self.key_document_ids = document_ids if key_document_ids is None else key_document_ids  # (rows, key positions)
        self.key_starts = self.starts if key_document_ids is None else document_starts(key_document_ids)

    @property
    def same_for_all_rows(self) -> bool:
        return False

    @property
    def causal(self) -> bool:
        return self.within.causal and self.key_document_ids is self.document_ids

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        (query_rows, query_positions), (key_rows, key_positions) = self.document_ids.shape, self.key_document_ids.shape
        fits = isinstance(start, Tensor) or 0 <= start <= query_positions - queries
        if not (query_rows == key_rows == rows and keys <= key_positions and fits):
            raise UserError(
                f"documents of the shape {tuple(self.document_ids.shape)}, and {tuple(self.key_document_ids.shape)} "
                f"for keys, do not fit {rows} rows, {queries} queries from position {start} and {keys} keys; every "
                "position needs a document id."
            )

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        document, key_document = self.document_ids[row, query], self.key_document_ids[row, key]
        start, key_start = self.starts[row, query], self.key_starts[row, key]
        # Documents of one row are compared by their start: an id that occurs again later is another document.
        same = start == key_start if self.key_document_ids is self.document_ids else document == key_document
        return same & (document >= 0) & self.within.allows(row, query - start, key - key_start)


def document_starts(document_ids: Tensor) -> Tensor:
    """The position at which each position's document starts.  document_ids, result: # (rows, positions)"""
    position = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)
    begins = torch.ones_like(document_ids, dtype=torch.bool)
    begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return torch.where(begins, position, 0).cummax(dim=1).values


_MAX_NUMBER = 1_000_000_000
"""No sequence is longer; window × step then fits 64 bits."""

_NAMES: dict[str, tuple[type[Pattern], int]] = {
    "full": (Full, 0),
    "causal": (Causal, 0),
    "sliding": (Sliding, 1),
    "dilated": (Dilated, 2),
    "global_": (Global, 1),  # `global` is a Python keyword; see read_pattern
}


def read_pattern(text: str) -> Pattern:
    """A pattern from text such as "sliding(512)" or "global(4) | dilated(16, 2)"."""
    # `global` is a Python keyword, which the parser would refuse as a name.
    source = text.replace("global", "global_")
    try:
        return _from_tree(ast.parse(source.strip(), mode="eval").body, text)
    except (SyntaxError, RecursionError, MemoryError):
        raise UserError(_expected(text)) from None


def _from_tree(node: ast.expr, text: str) -> Pattern:
    match node:
        case ast.BinOp(left, ast.BitAnd(), right):
            return Both(_from_tree(left, text), _from_tree(right, text))
        case ast.BinOp(left, ast.BitOr(), right):
            return Either(_from_tree(left, text), _from_tree(right, text))
        case ast.Name(name):
            return _named(name, [], text)
        case ast.Call(ast.Name(name), arguments, []):
            return _named(name, [_number(argument) for argument in arguments], text)
    raise UserError(_expected(text))


def _number(node: ast.expr) -> object:
    match node:
        case ast.Constant(value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int(value))):
            return -value  # refused by the pattern, with the reason
    return None


def _named(name: str, values: Sequence[object], text: str) -> Pattern:
    kind, count = _NAMES.get(name, (None, 0))
    if kind is None or len(values) != count or not all(type(value) is int for value in values):
        raise UserError(_expected(text))
    return kind(*values)


def _expected(text: str) -> str:
    return (
        f"{text!r} is not a pattern; write full, causal, sliding(window), dilated(window, step) or global(tokens), "
        "combined by & and | (for example 'global(4) | sliding(512)')."
    )


def _check_number(kind: str, name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{kind}: {name} is {value}; it includes the token itself, so it must be at least 1.")
    if value > _MAX_NUMBER:
        raise UserError(f"{kind}: {name} is larger than {_MAX_NUMBER:,}, the most that a pattern takes; choose less.")
