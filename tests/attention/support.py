"""What the tests of this room share: patterns beside their plain definition, work to lay them over, tensors to attend.

A `Seen` holds a pattern and, written apart from the package, the plain Python answer to the question the pattern
answers on tensors. Whatever is drawn from here can therefore be checked pair by pair.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import Causal, Dilated, Documents, Full, Global, Lengths, Pattern, Sliding

Answer = Callable[[int, int, int], bool]  # (row, query position, key position)


@dataclass(frozen=True)
class Seen:
    """A pattern and its definition in plain Python."""

    pattern: Pattern
    answer: Answer = field(repr=False)
    text: str = ""
    """How a settings file spells it, where it can."""


@dataclass(frozen=True)
class Work:
    """A pattern to be laid over rows × queries × keys; `starts` holds what `start` means for each row."""

    seen: Seen
    rows: int
    queries: int
    keys: int
    start: int | list[int] | None
    starts: list[int]

    @property
    def given_start(self) -> int | Tensor | None:
        return torch.tensor(self.start) if isinstance(self.start, list) else self.start

    def scope(self):
        return self.seen.pattern.over(self.queries, self.keys, rows=self.rows, start=self.given_start)

    def plain_mask(self) -> Tensor:
        """The mask by asking the plain definition about every pair.  # (rows, queries, keys)"""
        cells = [
            [[self.seen.answer(row, start + query, key) for key in range(self.keys)] for query in range(self.queries)]
            for row, start in enumerate(self.starts)
        ]
        return torch.tensor(cells, dtype=torch.bool).view(self.rows, self.queries, self.keys)


def full() -> Seen:
    return Seen(Full(), lambda row, query, key: True, "full")


def causal() -> Seen:
    return Seen(Causal(), lambda row, query, key: key in range(query + 1), "causal")


def sliding(window: int) -> Seen:
    return Seen(
        Sliding(window), lambda row, query, key: key in range(query - window + 1, query + window), f"sliding({window})"
    )


def dilated(window: int, step: int) -> Seen:
    def answer(row: int, query: int, key: int) -> bool:
        return any(key in (query - count * step, query + count * step) for count in range(window))

    return Seen(Dilated(window, step), answer, f"dilated({window}, {step})")


def everywhere(tokens: int) -> Seen:
    return Seen(Global(tokens), lambda row, query, key: query < tokens or key < tokens, f"global({tokens})")


def both(first: Seen, second: Seen) -> Seen:
    def answer(row: int, query: int, key: int) -> bool:
        return first.answer(row, query, key) and second.answer(row, query, key)

    return Seen(first.pattern & second.pattern, answer, f"({first.text}) & ({second.text})")


def either(first: Seen, second: Seen) -> Seen:
    def answer(row: int, query: int, key: int) -> bool:
        return first.answer(row, query, key) or second.answer(row, query, key)

    return Seen(first.pattern | second.pattern, answer, f"({first.text}) | ({second.text})")


def lengths(values: list[int]) -> Seen:
    return Seen(Lengths(torch.tensor(values)), lambda row, query, key: key in range(values[row]))


def documents(numbers: list[list[int]], within: Seen, key_numbers: list[list[int]] | None = None) -> Seen:
    """Each number but −1 stands in one run, so a document begins where its number first appears."""
    others = numbers if key_numbers is None else key_numbers

    def answer(row: int, query: int, key: int) -> bool:
        number = numbers[row][query]
        if number < 0 or number != others[row][key]:
            return False
        return within.answer(row, query - numbers[row].index(number), key - others[row].index(number))

    given = None if key_numbers is None else torch.tensor(key_numbers)
    return Seen(Documents(torch.tensor(numbers), within.pattern, given), answer)


@st.composite
def numberings(draw, rows: int, positions: int) -> list[list[int]]:
    """For each row, documents of one token or more in a row, some stretches of padding among them."""
    table = []
    for _ in range(rows):
        line: list[int] = []
        for number in range(positions):
            line += [number] * draw(st.integers(1, positions)) + [-1] * draw(st.sampled_from([0, 0, 0, 2]))
            if len(line) >= positions:
                break
        leading = draw(st.sampled_from([0, 0, 1]))
        table.append(([-1] * leading + line)[:positions])
    return table


def plain_kinds() -> st.SearchStrategy[Seen]:
    """The kinds that know nothing of rows: those a settings file can name."""
    return st.one_of(
        st.builds(full),
        st.builds(causal),
        st.builds(sliding, st.integers(1, 12)),
        st.builds(dilated, st.integers(1, 6), st.integers(1, 4)),
        st.builds(everywhere, st.integers(1, 5)),
    )


def joined(kinds: st.SearchStrategy[Seen]) -> st.SearchStrategy[Seen]:
    """Patterns of these kinds, alone or joined by & and |."""
    return st.recursive(
        kinds, lambda inner: st.one_of(st.builds(both, inner, inner), st.builds(either, inner, inner)), max_leaves=4
    )


def plain_patterns() -> st.SearchStrategy[Seen]:
    return joined(plain_kinds())


def causal_patterns() -> st.SearchStrategy[Seen]:
    """What a decoder layer can have: any pattern, and nothing later."""
    return st.builds(both, st.builds(causal), plain_patterns())


@st.composite
def row_patterns(draw, rows: int, positions: int) -> Seen:
    """Any pattern at all, padding and packed documents included."""
    padding = st.builds(lengths, st.lists(st.integers(0, positions), min_size=rows, max_size=rows))
    packed = st.builds(documents, numberings(rows, positions), plain_patterns())
    return draw(joined(st.one_of(plain_kinds(), padding, packed)))


SHORT = st.integers(1, 20)
AROUND_BLOCKS = st.sampled_from([1, 100, 127, 128, 129, 200, 256, 300])
"""Lengths at, below and above a whole number of FlexAttention's blocks of 128."""


@st.composite
def works(draw, sizes: st.SearchStrategy[int] = SHORT) -> Work:
    """Every pattern over every alignment: the default one, one start for all rows, a start for each row."""
    rows, queries, keys = draw(st.integers(1, 3)), draw(sizes), draw(sizes)
    one, each = st.integers(0, keys), st.lists(st.integers(0, keys), min_size=rows, max_size=rows)
    # With more queries than keys the default start is negative, where there are no documents to look up.
    start = draw(st.one_of(st.none(), one, each) if queries <= keys else st.one_of(one, each))
    starts = start if isinstance(start, list) else [keys - queries if start is None else start] * rows
    positions = max([keys] + [first + queries for first in starts])
    return Work(draw(row_patterns(rows, positions)), rows, queries, keys, start, starts)


@dataclass(frozen=True)
class Layout:
    """How many heads, sharing how many key heads, how wide."""

    heads: int
    key_heads: int
    width: int
    value_width: int


@st.composite
def layouts(draw) -> Layout:
    """Multi-head, grouped-query and multi-query; values as wide as keys or not."""
    key_heads, group = draw(st.sampled_from([(1, 1), (3, 1), (2, 2), (1, 4), (2, 3)]))
    return Layout(key_heads * group, key_heads, draw(st.sampled_from([1, 4, 8, 16])), draw(st.sampled_from([1, 6, 8])))


def inputs(
    layout: Layout, rows: int, queries: int, keys: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with numbers from −1 to 1, so that an error in the result is one relative to 1."""
    random = torch.Generator().manual_seed(seed)
    shapes = (
        (rows, layout.heads, queries, layout.width),
        (rows, layout.key_heads, keys, layout.width),
        (rows, layout.key_heads, keys, layout.value_width),
    )
    query, key, value = (torch.rand(shape, generator=random, dtype=torch.float64) * 2 - 1 for shape in shapes)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal shape and dtype, no NaN, and no number further off than `tolerance`."""
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
