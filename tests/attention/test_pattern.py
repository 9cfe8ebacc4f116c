"""A pattern's one answer, and the three things made from it: the dense mask, the block mask and the count."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from regard.attention import Causal, Dilated, Documents, Full, Global, Lengths, Pattern, Scope, Sliding
from regard.attention import scope as scope_module
from regard.attention.scope import BLOCK
from regard.errors import UserError

from .support import (
    AROUND_BLOCKS,
    Seen,
    Work,
    causal,
    causal_patterns,
    documents,
    joined,
    numberings,
    plain_kinds,
    plain_patterns,
    works,
)


def dense(scope: Scope) -> Tensor:
    """The mask as one tensor.  # (rows, queries, keys)"""
    return scope.mask()[:, 0].expand(scope.rows, scope.queries, scope.keys)


def blockwise(mask: Tensor) -> Tensor:
    """Whether a block holds an allowed pair at all.  # (rows, query blocks, key blocks)"""
    _, queries, keys = mask.shape
    lines = [
        [mask[:, top : top + BLOCK, left : left + BLOCK].flatten(1).any(dim=1) for left in range(0, keys, BLOCK)]
        for top in range(0, queries, BLOCK)
    ]
    return torch.stack([torch.stack(line, dim=-1) for line in lines], dim=1)


def unfolded(block_mask: BlockMask, rows: int, queries: int, keys: int) -> Tensor:
    """What FlexAttention would look at: full blocks whole, partial ones through the function, others not at all."""
    allowed = torch.zeros(rows, queries, keys, dtype=torch.bool)
    lists = (
        (block_mask.kv_num_blocks, block_mask.kv_indices, False),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, True),
    )
    for row in range(rows):
        for numbers, indices, whole in lists:
            assert numbers is not None
            source = row if numbers.shape[0] > 1 else 0
            for line, count in enumerate(numbers[source, 0].tolist()):
                for column in indices[source, 0, line, :count].tolist():
                    query = torch.arange(line * BLOCK, min((line + 1) * BLOCK, queries))[:, None]
                    key = torch.arange(column * BLOCK, min((column + 1) * BLOCK, keys))[None]
                    answer = block_mask.mask_mod(torch.tensor(row), torch.tensor(0), query, key)
                    allowed[row, query, key] = True if whole else answer.expand(len(query), key.shape[1])
    return allowed


@given(works())
@settings(max_examples=150)
def test_the_dense_mask_is_the_plain_definition_of_the_pattern(work: Work) -> None:
    assert torch.equal(dense(work.scope()), work.plain_mask())


@given(plain_patterns(), st.integers(1, 8), st.integers(1, 8))
def test_without_a_start_the_last_query_stands_at_the_last_key(seen: Seen, queries: int, keys: int) -> None:
    work = Work(seen, 1, queries, keys, None, [keys - queries])  # more queries than keys too
    assert torch.equal(dense(work.scope()), work.plain_mask())


@given(plain_patterns(), plain_patterns(), st.integers(1, 9), st.integers(0, 5))
def test_joining_with_and_allows_what_both_allow(first: Seen, second: Seen, length: int, start: int) -> None:
    masks = [part.pattern.mask(length, length + 2, start=start) for part in (first, second)]
    assert torch.equal((first.pattern & second.pattern).mask(length, length + 2, start=start), masks[0] & masks[1])


@given(plain_patterns(), plain_patterns(), st.integers(1, 9), st.integers(0, 5))
def test_joining_with_or_allows_what_either_allows(first: Seen, second: Seen, length: int, start: int) -> None:
    masks = [part.pattern.mask(length, length + 2, start=start) for part in (first, second)]
    assert torch.equal((first.pattern | second.pattern).mask(length, length + 2, start=start), masks[0] | masks[1])


@given(works())
def test_a_reduced_pattern_gives_the_same_answers(work: Work) -> None:
    start = work.starts[0]
    row, query, key = (
        torch.arange(work.rows)[:, None, None],
        torch.arange(start, start + work.queries)[:, None],
        torch.arange(work.keys),
    )
    reduced = work.seen.pattern.reduce(start, work.queries, work.keys)
    shape = (work.rows, work.queries, work.keys)
    assert torch.equal(
        reduced.allows(row, query, key).expand(shape), work.seen.pattern.allows(row, query, key).expand(shape)
    )


@given(plain_kinds(), st.integers(0, 6), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=200)
def test_a_pattern_covers_only_work_in_which_every_pair_is_allowed(
    seen: Seen, start: int, queries: int, keys: int
) -> None:
    work = Work(seen, 1, queries, keys, start, [start])
    assert work.plain_mask().all() or not seen.pattern.covers(start, queries, keys)


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
def test_work_in_which_all_is_seen_needs_no_mask(pattern: Pattern, start: int, queries: int, keys: int) -> None:
    assert pattern.over(queries, keys, start=start).everything


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
def test_work_in_which_one_pair_is_hidden_keeps_its_mask(pattern: Pattern, start: int, queries: int, keys: int) -> None:
    assert not pattern.over(queries, keys, start=start).everything


def test_a_window_as_wide_as_the_text_leaves_the_plain_triangle() -> None:
    assert (Causal() & Sliding(6)).over(6).triangle


@pytest.mark.parametrize("scope", [Causal().over(5, 6), Causal().over(5, start=1), (Causal() & Sliding(4)).over(5)])
def test_only_the_square_triangle_from_the_first_position_is_called_one(scope: Scope) -> None:
    assert not scope.triangle


@given(joined(st.one_of(plain_kinds(), st.builds(causal), st.builds(documents, numberings(1, 9), causal_patterns()))))
@settings(max_examples=100)
def test_a_pattern_that_says_it_is_causal_allows_nothing_later(seen: Seen) -> None:
    sees_ahead = Work(seen, 1, 9, 9, 0, [0]).plain_mask().triu(1).any()
    assert not (seen.pattern.causal and sees_ahead)


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
def test_a_pattern_that_looks_back_only_says_it_is_causal(pattern: Pattern) -> None:
    assert pattern.causal


@given(joined(st.one_of(plain_kinds(), st.builds(documents, numberings(1, 9), plain_patterns()))))
@settings(max_examples=100)
def test_a_pattern_that_says_every_token_sees_itself_allows_the_whole_diagonal(seen: Seen) -> None:
    sees_all = Work(seen, 1, 9, 9, 0, [0]).plain_mask()[0].diagonal().all()
    assert sees_all or not seen.pattern.sees_itself


@pytest.mark.parametrize("pattern", [Full(), Causal() & Sliding(1), Dilated(2, 3), Global(1) | Sliding(2)], ids=str)
def test_a_pattern_in_which_every_token_sees_itself_says_so(pattern: Pattern) -> None:
    assert pattern.sees_itself


@given(works())
def test_a_pattern_that_says_rows_are_alike_gives_every_row_the_same_mask(work: Work) -> None:
    mask = Work(work.seen, work.rows, work.keys, work.keys, 0, [0] * work.rows).plain_mask()
    assert torch.equal(mask, mask[:1].expand_as(mask)) or not work.seen.pattern.rows_alike


@given(works())
@settings(max_examples=150)
def test_no_query_sees_a_key_beyond_the_reach_of_its_strip(work: Work) -> None:
    scope = work.scope()
    if isinstance(scope.start, int):
        mask = dense(scope)
        for query in range(scope.queries):
            position = scope.start + query
            lowest, end = scope.pattern.reach(position, position, scope.keys)
            assert 0 <= lowest <= end <= scope.keys
            assert not mask[:, query, :lowest].any()
            assert not mask[:, query, end:].any()


@given(works())
@settings(max_examples=150)
def test_the_open_mask_is_the_mask_with_every_query_that_sees_nothing_seeing_all(work: Work) -> None:
    mask = work.plain_mask()
    blind = ~mask.any(dim=-1, keepdim=True)
    opened, empty = work.scope().open_mask()
    shape = (work.rows, work.queries, work.keys)
    assert torch.equal(opened[:, 0].expand(shape), mask | blind)
    assert torch.equal(torch.zeros_like(blind) if empty is None else empty[:, 0].expand_as(blind), blind)


def test_where_every_query_sees_itself_no_mask_need_be_opened() -> None:
    assert (Causal() & Sliding(2)).over(3, 5).open_mask()[1] is None


@given(works(AROUND_BLOCKS))
@settings(max_examples=80)
def test_the_block_mask_allows_the_same_pairs_as_the_dense_mask(work: Work) -> None:
    scope = work.scope()
    assert torch.equal(unfolded(scope.block_mask(), work.rows, work.queries, work.keys), dense(scope))


@given(works(AROUND_BLOCKS))
def test_the_block_mask_lists_the_blocks_with_an_allowed_pair_and_no_others(work: Work) -> None:
    scope = work.scope()
    listed = scope.block_mask().to_dense()[:, 0].bool()
    assert torch.equal(listed.expand(work.rows, -1, -1), blockwise(dense(scope)))


@given(works(AROUND_BLOCKS))
def test_the_count_of_pairs_is_that_of_the_dense_mask(work: Work) -> None:
    scope = work.scope()
    assert scope.pairs() == int(dense(scope).sum())


@given(works(AROUND_BLOCKS), st.sampled_from([1, BLOCK * 300, 2 * BLOCK * 300]))
def test_counting_in_thinner_strips_gives_the_same_blocks(work: Work, strip: int) -> None:
    whole = work.scope().blocks()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scope_module, "STRIP", strip)
        assert torch.equal(work.scope().blocks(), whole)


def test_the_block_mask_of_a_long_text_never_looks_at_the_whole_square_at_once() -> None:
    looked_at: list[int] = []

    class Watched(Pattern):
        def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
            looked_at.append(torch.broadcast_shapes(row.shape, query.shape, key.shape).numel())
            return query == key

    Watched().over(16_384).block_mask()
    assert sum(looked_at) == 16_384**2
    assert max(looked_at) <= scope_module.STRIP < 16_384**2 / 10


@pytest.mark.parametrize(("queries", "keys", "rows"), [(0, 5, 1), (5, 0, 1), (0, 0, 1), (5, 5, 0)])
def test_where_there_is_nothing_to_see_no_pair_is_counted(queries: int, keys: int, rows: int) -> None:
    assert Causal().pairs(queries, keys, rows=rows) == 0


def test_pairs_are_counted_over_all_rows() -> None:
    assert Causal().pairs(4, rows=3) == 3 * (1 + 2 + 3 + 4)


def test_the_mask_of_several_rows_has_a_square_for_each() -> None:
    mask = Lengths(torch.tensor([1, 2])).mask(1, 3, rows=2)
    assert mask.tolist() == [[[True, False, False]], [[True, True, False]]]


def test_a_scope_makes_its_mask_once() -> None:
    scope = Causal().over(5, rows=2, start=torch.tensor([0, 1]))
    assert scope.mask() is scope.mask()


def test_a_scope_whose_rows_differ_makes_its_block_mask_once() -> None:
    scope = Causal().over(5, rows=2, start=torch.tensor([0, 1]))
    assert scope.block_mask() is scope.block_mask()


def test_equal_patterns_over_equal_lengths_share_one_block_mask() -> None:
    first, second = ((Causal() & Sliding(3)).over(40, rows=rows) for rows in (1, 2))
    assert first.block_mask() is second.block_mask()


def test_a_block_mask_first_made_without_gradients_can_be_used_in_training_later() -> None:
    with torch.inference_mode():
        (Causal() & Sliding(3)).block_mask(41)
    assert not (Causal() & Sliding(3)).block_mask(41).kv_num_blocks.is_inference()


@pytest.mark.parametrize(("queries", "keys", "rows"), [(-1, 2, 1), (2, -1, 1), (2, 2, -1)])
def test_a_negative_count_is_refused_with_the_three_counts(queries: int, keys: int, rows: int) -> None:
    with pytest.raises(UserError, match=f"found {rows}, {queries} and {keys}"):
        Scope(Full(), queries, keys, rows)


def test_starts_for_another_number_of_rows_are_refused_with_both_shapes() -> None:
    with pytest.raises(UserError, match=r"expected shape \(2,\), found \(3,\)"):
        Causal().over(4, rows=2, start=torch.tensor([0, 1, 2]))


def test_a_pattern_without_an_answer_says_so() -> None:
    with pytest.raises(NotImplementedError):
        Pattern().mask(3)
