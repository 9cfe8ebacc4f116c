"""Patterns: combinations, simplification and properties; their dense masks, block masks and counts of pairs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from regard.attention import Causal, Dilated, Documents, Full, Global, Lengths, Mask, Pattern, Sliding
from regard.attention import mask as mask_module
from regard.attention.mask import FLEX_BLOCK
from regard.errors import UserError
from tests.attention.support import (
    AROUND_BLOCKS,
    MaskSpec,
    PatternSpec,
    basic_patterns,
    causal,
    causal_patterns,
    combined,
    documents,
    mask_specs,
    packed_ids,
    plain_patterns,
)


def dense(attention_mask: Mask) -> Tensor:
    """The mask as one tensor.  # (rows, queries, keys)"""
    return attention_mask.dense()[:, 0].expand(attention_mask.rows, attention_mask.queries, attention_mask.keys)


def blockwise(mask: Tensor) -> Tensor:
    """Whether each block has an allowed pair.  # (rows, query blocks, key blocks)"""
    _, queries, keys = mask.shape
    lines = [
        [
            mask[:, top : top + FLEX_BLOCK, left : left + FLEX_BLOCK].flatten(1).any(dim=1)
            for left in range(0, keys, FLEX_BLOCK)
        ]
        for top in range(0, queries, FLEX_BLOCK)
    ]
    return torch.stack([torch.stack(line, dim=-1) for line in lines], dim=1)


def expand_block_mask(block_mask: BlockMask, rows: int, queries: int, keys: int) -> Tensor:
    """The pairs that FlexAttention computes: all of a full block, and those of a partial block by `mask_mod`."""
    allowed = torch.zeros(rows, queries, keys, dtype=torch.bool)
    lists = (
        (block_mask.kv_num_blocks, block_mask.kv_indices, False),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, True),
    )
    for row in range(rows):
        for counts, indices, is_full in lists:
            assert counts is not None
            source = row if counts.shape[0] > 1 else 0
            for line, count in enumerate(counts[source, 0].tolist()):
                for column in indices[source, 0, line, :count].tolist():
                    query = torch.arange(line * FLEX_BLOCK, min((line + 1) * FLEX_BLOCK, queries))[:, None]
                    key = torch.arange(column * FLEX_BLOCK, min((column + 1) * FLEX_BLOCK, keys))[None]
                    allows = block_mask.mask_mod(torch.tensor(row), torch.tensor(0), query, key)
                    allowed[row, query, key] = True if is_full else allows.expand(len(query), key.shape[1])
    return allowed


@given(mask_specs())
@settings(max_examples=150)
def test_dense_mask_equals_the_definition(mask_spec: MaskSpec) -> None:
    assert torch.equal(dense(mask_spec.bind()), mask_spec.reference_mask())


@given(plain_patterns(), st.integers(1, 8), st.integers(1, 8))
def test_default_start_aligns_the_last_query_with_the_last_key(spec: PatternSpec, queries: int, keys: int) -> None:
    mask_spec = MaskSpec(spec, 1, queries, keys, None, [keys - queries])  # also with more queries than keys
    assert torch.equal(dense(mask_spec.bind()), mask_spec.reference_mask())


@given(plain_patterns(), plain_patterns(), st.integers(1, 9), st.integers(0, 5))
def test_and_is_the_intersection(first: PatternSpec, second: PatternSpec, length: int, start: int) -> None:
    masks = [part.pattern.dense_mask(length, length + 2, start=start) for part in (first, second)]
    assert torch.equal(
        (first.pattern & second.pattern).dense_mask(length, length + 2, start=start), masks[0] & masks[1]
    )


@given(plain_patterns(), plain_patterns(), st.integers(1, 9), st.integers(0, 5))
def test_or_is_the_union(first: PatternSpec, second: PatternSpec, length: int, start: int) -> None:
    masks = [part.pattern.dense_mask(length, length + 2, start=start) for part in (first, second)]
    assert torch.equal(
        (first.pattern | second.pattern).dense_mask(length, length + 2, start=start), masks[0] | masks[1]
    )


@given(mask_specs())
def test_simplified_pattern_is_equivalent(mask_spec: MaskSpec) -> None:
    start = mask_spec.starts[0]
    row, query, key = (
        torch.arange(mask_spec.rows)[:, None, None],
        torch.arange(start, start + mask_spec.queries)[:, None],
        torch.arange(mask_spec.keys),
    )
    reduced = mask_spec.spec.pattern.simplify(start, mask_spec.queries, mask_spec.keys)
    shape = (mask_spec.rows, mask_spec.queries, mask_spec.keys)
    assert torch.equal(
        reduced.allows(row, query, key).expand(shape), mask_spec.spec.pattern.allows(row, query, key).expand(shape)
    )


@given(basic_patterns(), st.integers(0, 6), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=200)
def test_allows_all_implies_every_pair_is_allowed(spec: PatternSpec, start: int, queries: int, keys: int) -> None:
    mask_spec = MaskSpec(spec, 1, queries, keys, start, [start])
    assert mask_spec.reference_mask().all() or not spec.pattern.allows_all(start, queries, keys)


@pytest.mark.parametrize(
    ("pattern", "start", "queries", "keys"),
    [
        (Causal(), 7, 1, 8),
        (Causal() & Sliding(8), 7, 1, 8),
        (Causal() & Dilated(8, 1), 7, 1, 8),
        (Causal() & (Global(8) | Sliding(2)), 7, 1, 8),
        (Sliding(8), 0, 8, 8),
        (Causal() | Global(4), 0, 4, 9),
    ],
)
def test_mask_that_allows_all_is_full(pattern: Pattern, start: int, queries: int, keys: int) -> None:
    assert pattern.bind(queries, keys, start=start).is_full


@pytest.mark.parametrize(
    ("pattern", "start", "queries", "keys"),
    [
        (Causal(), 6, 1, 8),
        (Causal(), 7, 1, 9),
        (Causal() & Sliding(7), 7, 1, 8),
        (Causal() & Dilated(8, 2), 7, 1, 8),
        (Sliding(7), 0, 8, 8),
        (Sliding(7), 8, 8, 8),
        (Global(4), 0, 5, 9),
    ],
)
def test_mask_with_one_masked_pair_is_not_full(pattern: Pattern, start: int, queries: int, keys: int) -> None:
    assert not pattern.bind(queries, keys, start=start).is_full


def test_window_as_long_as_the_sequence_is_plain_causal() -> None:
    assert (Causal() & Sliding(6)).bind(6).is_causal


@pytest.mark.parametrize(
    "attention_mask", [Causal().bind(5, 6), Causal().bind(5, start=1), (Causal() & Sliding(4)).bind(5)]
)
def test_only_a_square_lower_triangle_is_causal(attention_mask: Mask) -> None:
    assert not attention_mask.is_causal


@given(
    combined(st.one_of(basic_patterns(), st.builds(causal), st.builds(documents, packed_ids(1, 9), causal_patterns())))
)
@settings(max_examples=100)
def test_causal_pattern_allows_no_later_key(spec: PatternSpec) -> None:
    allows_later = MaskSpec(spec, 1, 9, 9, 0, [0]).reference_mask().triu(1).any()
    assert not (spec.pattern.causal and allows_later)


@pytest.mark.parametrize(
    "pattern",
    [
        Causal(),
        Causal() & Global(2),
        Sliding(3) & Causal(),
        Causal() | (Causal() & Sliding(3)),
        Documents(torch.zeros(1, 5, dtype=torch.long), Causal()),
    ],
)
def test_pattern_without_later_keys_is_causal(pattern: Pattern) -> None:
    assert pattern.causal


@given(combined(st.one_of(basic_patterns(), st.builds(documents, packed_ids(1, 9), plain_patterns()))))
@settings(max_examples=100)
def test_includes_self_implies_the_diagonal(spec: PatternSpec) -> None:
    allows_self = MaskSpec(spec, 1, 9, 9, 0, [0]).reference_mask()[0].diagonal().all()
    assert allows_self or not spec.pattern.includes_self


@pytest.mark.parametrize("pattern", [Full(), Causal() & Sliding(1), Dilated(2, 3), Global(1) | Sliding(2)], ids=str)
def test_pattern_with_the_diagonal_includes_self(pattern: Pattern) -> None:
    assert pattern.includes_self


@given(mask_specs())
def test_same_for_all_rows_implies_equal_rows(mask_spec: MaskSpec) -> None:
    mask = MaskSpec(
        mask_spec.spec, mask_spec.rows, mask_spec.keys, mask_spec.keys, 0, [0] * mask_spec.rows
    ).reference_mask()
    assert torch.equal(mask, mask[:1].expand_as(mask)) or not mask_spec.spec.pattern.same_for_all_rows


@given(mask_specs())
@settings(max_examples=150)
def test_key_range_contains_all_allowed_keys(mask_spec: MaskSpec) -> None:
    attention_mask = mask_spec.bind()
    if isinstance(attention_mask.start, int):
        mask = dense(attention_mask)
        for query in range(attention_mask.queries):
            position = attention_mask.start + query
            lowest, end = attention_mask.pattern.key_range(position, position, attention_mask.keys)
            assert 0 <= lowest <= end <= attention_mask.keys
            assert not mask[:, query, :lowest].any()
            assert not mask[:, query, end:].any()


@given(mask_specs())
@settings(max_examples=150)
def test_nonempty_mask_fills_empty_rows(mask_spec: MaskSpec) -> None:
    mask = mask_spec.reference_mask()
    fully_masked = ~mask.any(dim=-1, keepdim=True)
    filled, empty = mask_spec.bind().nonempty_mask()
    shape = (mask_spec.rows, mask_spec.queries, mask_spec.keys)
    assert torch.equal(filled[:, 0].expand(shape), mask | fully_masked)
    assert torch.equal(
        torch.zeros_like(fully_masked) if empty is None else empty[:, 0].expand_as(fully_masked), fully_masked
    )


def test_nonempty_mask_of_a_pattern_that_includes_self_is_the_mask() -> None:
    assert (Causal() & Sliding(2)).bind(3, 5).nonempty_mask()[1] is None


@given(mask_specs(AROUND_BLOCKS))
@settings(max_examples=80)
def test_block_mask_allows_the_same_pairs_as_the_dense_mask(mask_spec: MaskSpec) -> None:
    attention_mask = mask_spec.bind()
    assert torch.equal(
        expand_block_mask(attention_mask.block_mask(), mask_spec.rows, mask_spec.queries, mask_spec.keys),
        dense(attention_mask),
    )


@given(mask_specs(AROUND_BLOCKS))
def test_block_mask_lists_exactly_the_blocks_with_an_allowed_pair(mask_spec: MaskSpec) -> None:
    attention_mask = mask_spec.bind()
    listed = attention_mask.block_mask().to_dense()[:, 0].bool()
    assert torch.equal(listed.expand(mask_spec.rows, -1, -1), blockwise(dense(attention_mask)))


@given(mask_specs(AROUND_BLOCKS))
def test_number_of_pairs_equals_the_dense_mask(mask_spec: MaskSpec) -> None:
    attention_mask = mask_spec.bind()
    assert attention_mask.pairs() == int(dense(attention_mask).sum())


@given(mask_specs(AROUND_BLOCKS), st.sampled_from([1, FLEX_BLOCK * 300, 2 * FLEX_BLOCK * 300]))
def test_block_counts_do_not_depend_on_the_chunk_size(mask_spec: MaskSpec, chunk_size: int) -> None:
    expected = mask_spec.bind().block_counts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mask_module, "MAX_PAIRS", chunk_size)
        assert torch.equal(mask_spec.bind().block_counts(), expected)


def test_block_mask_of_a_long_sequence_is_built_in_chunks() -> None:
    positions_checked: list[int] = []

    class Recorded(Pattern):
        def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
            positions_checked.append(torch.broadcast_shapes(row.shape, query.shape, key.shape).numel())
            return query == key

    Recorded().bind(16_384).block_mask()
    assert sum(positions_checked) == 16_384**2
    assert max(positions_checked) <= mask_module.MAX_PAIRS < 16_384**2 / 10


@pytest.mark.parametrize(("queries", "keys", "rows"), [(0, 5, 1), (5, 0, 1), (0, 0, 1), (5, 5, 0)])
def test_empty_mask_has_no_pairs(queries: int, keys: int, rows: int) -> None:
    assert Causal().pairs(queries, keys, rows=rows) == 0


def test_pairs_are_counted_over_all_rows() -> None:
    assert Causal().pairs(4, rows=3) == 3 * (1 + 2 + 3 + 4)


def test_mask_of_several_rows_has_one_square_per_row() -> None:
    mask = Lengths(torch.tensor([1, 2])).dense_mask(1, 3, rows=2)
    assert mask.tolist() == [[[True, False, False]], [[True, True, False]]]


def test_dense_mask_is_cached() -> None:
    attention_mask = Causal().bind(5, rows=2, start=torch.tensor([0, 1]))
    assert attention_mask.dense() is attention_mask.dense()


def test_block_mask_of_different_rows_is_cached() -> None:
    attention_mask = Causal().bind(5, rows=2, start=torch.tensor([0, 1]))
    assert attention_mask.block_mask() is attention_mask.block_mask()


def test_equal_patterns_and_lengths_share_a_block_mask() -> None:
    first, second = ((Causal() & Sliding(3)).bind(40, rows=rows) for rows in (1, 2))
    assert first.block_mask() is second.block_mask()


def test_block_mask_built_in_inference_mode_works_in_training() -> None:
    with torch.inference_mode():
        (Causal() & Sliding(3)).block_mask(41)
    assert not (Causal() & Sliding(3)).block_mask(41).kv_num_blocks.is_inference()


@pytest.mark.parametrize(("queries", "keys", "rows"), [(-1, 2, 1), (2, -1, 1), (2, 2, -1)])
def test_negative_sizes_are_refused(queries: int, keys: int, rows: int) -> None:
    with pytest.raises(UserError, match=f"found {rows}, {queries} and {keys}"):
        Mask(Full(), queries, keys, rows)


def test_starts_of_wrong_shape_are_refused() -> None:
    with pytest.raises(UserError, match=r"expected shape \(2,\), found \(3,\)"):
        Causal().bind(4, rows=2, start=torch.tensor([0, 1, 2]))


def test_pattern_without_allows_raises() -> None:
    with pytest.raises(NotImplementedError):
        Pattern().dense_mask(3)
