"""The kinds of pattern: the four pictures of Longformer's figure 2, the decoder's triangle, padding, packed documents.

Each is a few lines. Join them with `&` and `|`:

    Causal() & Sliding(512)                     a local language model
    Causal() & (Global(4) | Sliding(512))       with four tokens that all see and all are seen by
    Full() & Lengths(lengths)                   an encoder over padded rows

`read_pattern` reads the same from text ("causal & (global(4) | sliding(512))"), which is how settings files spell it.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.attention.pattern import Both, Causal, Either, Full, Horizon, Pattern
from regard.errors import UserError


@dataclass(frozen=True)
class Sliding(Pattern):
    """See the `window` nearest keys on either side, itself included: cost grows with length, not with its square.

    The window is counted to one side, so under `Causal()` exactly `window` keys are visible, and 1 means itself alone.
    """

    window: int

    def __post_init__(self) -> None:
        _at_least_one("sliding", "window", self.window)

    @property
    def sees_itself(self) -> bool:
        return True

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query - key).abs() < self.window

    def covers(self, start: int, queries: int, keys: int) -> bool:
        return max(start + queries - 1, keys - 1 - start) < self.window

    def horizon(self) -> Horizon:
        return Horizon(self.window, 0)

    def reach(self, first: int, last: int, keys: int) -> tuple[int, int]:
        lowest = min(max(0, first - self.window + 1), keys)
        return lowest, max(lowest, min(keys, last + self.window))


@dataclass(frozen=True)
class Dilated(Pattern):
    """See `window` keys to either side, itself included, `step` apart: a wider view at the same cost."""

    window: int
    step: int

    def __post_init__(self) -> None:
        _at_least_one("dilated", "window", self.window)
        _at_least_one("dilated", "step", self.step)

    @property
    def sees_itself(self) -> bool:
        return True

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = (query - key).abs()
        return (distance < self.window * self.step) & (distance % self.step == 0)

    def covers(self, start: int, queries: int, keys: int) -> bool:
        return self.step == 1 and Sliding(self.window).covers(start, queries, keys)

    def horizon(self) -> Horizon:
        return Horizon((self.window - 1) * self.step + 1, 0)

    def reach(self, first: int, last: int, keys: int) -> tuple[int, int]:
        return Sliding((self.window - 1) * self.step + 1).reach(first, last, keys)


@dataclass(frozen=True)
class Global(Pattern):
    """The first `tokens` positions see all and are seen by all."""

    tokens: int

    def __post_init__(self) -> None:
        _at_least_one("global", "tokens", self.tokens)

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query < self.tokens) | (key < self.tokens)

    def covers(self, start: int, queries: int, keys: int) -> bool:
        return keys <= self.tokens or start + queries <= self.tokens

    def horizon(self) -> Horizon:
        return Horizon(1, self.tokens)  # a global token sees all before it, which are global too


class Lengths(Pattern):
    """Padding: in row r only the first `lengths[r]` keys are real.  lengths: # (rows,)"""

    def __init__(self, lengths: Tensor) -> None:
        if lengths.dim() != 1 or lengths.dtype.is_floating_point:
            raise UserError(
                "lengths holds one whole number a row: expected the shape (rows,), "
                f"found {tuple(lengths.shape)} of {lengths.dtype}."
            )
        self.lengths = lengths

    @property
    def rows_alike(self) -> bool:
        return False

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        if self.lengths.shape[0] != rows:
            raise UserError(f"lengths of the shape {tuple(self.lengths.shape)} do not fit {rows} rows; give one a row.")

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key < self.lengths[row]


class Documents(Pattern):
    """Several documents packed in one row: a token sees only its own, through the pattern `within`.

    `numbers` says to which document each position belongs; a negative number is padding, seen by none, and a number
    that comes again after another begins a new document. Within a document positions count from its own first token,
    so a packed document gets just what it would get alone in a row (its own global tokens too). `key_numbers` is for
    cross-attention, where queries and keys are packed apart.
    """

    def __init__(self, numbers: Tensor, within: Pattern | None = None, key_numbers: Tensor | None = None) -> None:
        for given in (numbers, key_numbers):
            if given is not None and (given.dim() != 2 or given.dtype.is_floating_point):
                raise UserError(
                    "documents holds one whole number a position: expected shape (rows, positions), "
                    f"found {tuple(given.shape)} of {given.dtype}."
                )
        self.within = Full() if within is None else within
        self.numbers = numbers  # (rows, positions)
        self.starts = document_starts(numbers)
        self.key_numbers = numbers if key_numbers is None else key_numbers  # (rows, key positions)
        self.key_starts = self.starts if key_numbers is None else document_starts(key_numbers)

    @property
    def rows_alike(self) -> bool:
        return False

    @property
    def causal(self) -> bool:
        return self.within.causal and self.key_numbers is self.numbers

    def check(self, rows: int, queries: int, keys: int, start: int | Tensor) -> None:
        (own_rows, own), (other_rows, other) = self.numbers.shape, self.key_numbers.shape
        inside = isinstance(start, Tensor) or 0 <= start <= own - queries
        if not (own_rows == other_rows == rows and keys <= other and inside):
            raise UserError(
                f"documents of the shape {tuple(self.numbers.shape)}, for keys {tuple(self.key_numbers.shape)}, do not "
                f"fit {rows} rows, {queries} queries from start {start} and {keys} keys; give each position a number."
            )

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own, other = self.numbers[row, query], self.key_numbers[row, key]
        start, key_start = self.starts[row, query], self.key_starts[row, key]
        # In one row a document is one stretch: a number that comes again later is another document.
        same = start == key_start if self.key_numbers is self.numbers else own == other
        return same & (own >= 0) & self.within.allows(row, query - start, key - key_start)


def document_starts(numbers: Tensor) -> Tensor:
    """For every position the position where its document begins.  numbers, result: # (rows, positions)"""
    place = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
    begins = torch.ones_like(numbers, dtype=torch.bool)
    begins[:, 1:] = numbers[:, 1:] != numbers[:, :-1]
    return torch.where(begins, place, 0).cummax(dim=1).values


_NAMES: dict[str, tuple[type[Pattern], int]] = {
    "full": (Full, 0),
    "causal": (Causal, 0),
    "sliding": (Sliding, 1),
    "dilated": (Dilated, 2),
    "global_": (Global, 1),  # `global` is a Python keyword; see read_pattern
}


def read_pattern(text: str) -> Pattern:
    """A pattern from text such as "sliding(512)" or "global(4) | dilated(16, 2)"."""
    # `global` is a Python keyword; the parser wants a name that is not.
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
            return -value  # refused too, but by the pattern, which says why
    return None


def _named(name: str, values: Sequence[object], text: str) -> Pattern:
    kind, count = _NAMES.get(name, (None, 0))
    if kind is None or len(values) != count or not all(type(value) is int for value in values):
        raise UserError(_expected(text))
    return kind(*values)


def _expected(text: str) -> str:
    return (
        f"{text!r} is not a pattern; write full, causal, sliding(window), dilated(window, step) or global(tokens), "
        "joined by & and | (for example 'global(4) | sliding(512)')."
    )


def _at_least_one(kind: str, name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"{kind}: {name} is {value}; it counts the token itself, so it must be at least 1.")
