"""Strategies for tests of attention: patterns with a reference definition, masks, and random inputs.

A `PatternSpec` has a pattern and its independent definition in plain Python, so that masks can be checked pair by pair.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import Causal, Dilated, Documents, Full, Global, Lengths, Pattern, Sliding

Allows = Callable[[int, int, int], bool]  # (row, query position, key position)


@dataclass(frozen=True)
class PatternSpec:
    """A pattern and its definition in plain Python."""

    pattern: Pattern
    allows: Allows = field(repr=False)
    text: str = ""
    """The pattern as text in a config, if it has one."""


@dataclass(frozen=True)
class MaskSpec:
    """A pattern for rows × queries × keys; `starts` has the resolved `start` of each row."""

    spec: PatternSpec
    rows: int
    queries: int
    keys: int
    start: int | list[int] | None
    starts: list[int]

    @property
    def start_argument(self) -> int | Tensor | None:
        return torch.tensor(self.start) if isinstance(self.start, list) else self.start

    def bind(self):
        return self.spec.pattern.bind(self.queries, self.keys, rows=self.rows, start=self.start_argument)

    def reference_mask(self) -> Tensor:
        """The mask by the plain definition, pair by pair.  # (rows, queries, keys)"""
        cells = [
            [[self.spec.allows(row, start + query, key) for key in range(self.keys)] for query in range(self.queries)]
            for row, start in enumerate(self.starts)
        ]
        return torch.tensor(cells, dtype=torch.bool).view(self.rows, self.queries, self.keys)


def full() -> PatternSpec:
    return PatternSpec(Full(), lambda row, query, key: True, "full")


def causal() -> PatternSpec:
    return PatternSpec(Causal(), lambda row, query, key: key in range(query + 1), "causal")


def sliding(window: int) -> PatternSpec:
    return PatternSpec(
        Sliding(window), lambda row, query, key: key in range(query - window + 1, query + window), f"sliding({window})"
    )


def dilated(window: int, step: int) -> PatternSpec:
    def allows(row: int, query: int, key: int) -> bool:
        return any(key in (query - count * step, query + count * step) for count in range(window))

    return PatternSpec(Dilated(window, step), allows, f"dilated({window}, {step})")


def global_tokens(tokens: int) -> PatternSpec:
    return PatternSpec(Global(tokens), lambda row, query, key: query < tokens or key < tokens, f"global({tokens})")


def intersection(first: PatternSpec, second: PatternSpec) -> PatternSpec:
    def allows(row: int, query: int, key: int) -> bool:
        return first.allows(row, query, key) and second.allows(row, query, key)

    return PatternSpec(first.pattern & second.pattern, allows, f"({first.text}) & ({second.text})")


def union(first: PatternSpec, second: PatternSpec) -> PatternSpec:
    def allows(row: int, query: int, key: int) -> bool:
        return first.allows(row, query, key) or second.allows(row, query, key)

    return PatternSpec(first.pattern | second.pattern, allows, f"({first.text}) | ({second.text})")


def lengths(values: list[int]) -> PatternSpec:
    return PatternSpec(Lengths(torch.tensor(values)), lambda row, query, key: key in range(values[row]))


def documents(
    query_ids: list[list[int]], within: PatternSpec, key_document_ids: list[list[int]] | None = None
) -> PatternSpec:
    """The positions of each document id except −1 are contiguous, so a document starts at the first one."""
    key_ids = query_ids if key_document_ids is None else key_document_ids

    def allows(row: int, query: int, key: int) -> bool:
        document = query_ids[row][query]
        if document < 0 or document != key_ids[row][key]:
            return False
        return within.allows(row, query - query_ids[row].index(document), key - key_ids[row].index(document))

    key_tensor = None if key_document_ids is None else torch.tensor(key_document_ids)
    return PatternSpec(Documents(torch.tensor(query_ids), within.pattern, key_tensor), allows)


@st.composite
def packed_ids(draw, rows: int, positions: int) -> list[list[int]]:
    """Document ids of each row: documents of one or more tokens, sometimes with padding (−1) between them."""
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


def basic_patterns() -> st.SearchStrategy[PatternSpec]:
    """Patterns that are the same for all rows: those that a config can name."""
    return st.one_of(
        st.builds(full),
        st.builds(causal),
        st.builds(sliding, st.integers(1, 12)),
        st.builds(dilated, st.integers(1, 6), st.integers(1, 4)),
        st.builds(global_tokens, st.integers(1, 5)),
    )


def combined(kinds: st.SearchStrategy[PatternSpec]) -> st.SearchStrategy[PatternSpec]:
    """Patterns of these kinds, alone or combined by & and |."""
    return st.recursive(
        kinds,
        lambda inner: st.one_of(st.builds(intersection, inner, inner), st.builds(union, inner, inner)),
        max_leaves=4,
    )


def plain_patterns() -> st.SearchStrategy[PatternSpec]:
    return combined(basic_patterns())


def causal_patterns() -> st.SearchStrategy[PatternSpec]:
    """Patterns of a decoder layer: any pattern without later keys."""
    return st.builds(intersection, st.builds(causal), plain_patterns())


@st.composite
def row_patterns(draw, rows: int, positions: int) -> PatternSpec:
    """Any pattern, including padding and packed documents."""
    padding = st.builds(lengths, st.lists(st.integers(0, positions), min_size=rows, max_size=rows))
    packed = st.builds(documents, packed_ids(rows, positions), plain_patterns())
    return draw(combined(st.one_of(basic_patterns(), padding, packed)))


SHORT = st.integers(1, 20)
AROUND_BLOCKS = st.sampled_from([1, 100, 127, 128, 129, 200, 256, 300])
"""Lengths around multiples of FlexAttention's block size of 128."""


@st.composite
def mask_specs(draw, sizes: st.SearchStrategy[int] = SHORT) -> MaskSpec:
    """Any pattern with any alignment: the default, one start for all rows, or one start per row."""
    rows, queries, keys = draw(st.integers(1, 3)), draw(sizes), draw(sizes)
    one, each = st.integers(0, keys), st.lists(st.integers(0, keys), min_size=rows, max_size=rows)
    # With more queries than keys the default start is negative, for which documents have no ids.
    start = draw(st.one_of(st.none(), one, each) if queries <= keys else st.one_of(one, each))
    starts = start if isinstance(start, list) else [keys - queries if start is None else start] * rows
    positions = max([keys] + [first + queries for first in starts])
    return MaskSpec(draw(row_patterns(rows, positions)), rows, queries, keys, start, starts)


@dataclass(frozen=True)
class Layout:
    """The numbers of heads and KV heads, and their widths."""

    heads: int
    kv_heads: int
    width: int
    value_head_dim: int


@st.composite
def layouts(draw) -> Layout:
    """Multi-head, grouped-query and multi-query; values as wide as keys or not."""
    kv_heads, group = draw(st.sampled_from([(1, 1), (3, 1), (2, 2), (1, 4), (2, 3)]))
    return Layout(kv_heads * group, kv_heads, draw(st.sampled_from([1, 4, 8, 16])), draw(st.sampled_from([1, 6, 8])))


def inputs(
    layout: Layout, rows: int, queries: int, keys: int, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Random query, key and value from −1 to 1, so that absolute errors of the result are relative to 1."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (rows, layout.heads, queries, layout.width),
        (rows, layout.kv_heads, keys, layout.width),
        (rows, layout.kv_heads, keys, layout.value_head_dim),
    )
    query, key, value = (torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1 for shape in shapes)
    return query.to(dtype), key.to(dtype), value.to(dtype)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Assert equal shape and dtype, no NaN, and no difference above `tolerance`."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)
