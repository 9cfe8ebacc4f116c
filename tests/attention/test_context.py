"""What one pass shares: where its tokens stand, what they may see, and that it is made once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import (
    Cache,
    Causal,
    Context,
    Documents,
    DynamicScaling,
    Full,
    Global,
    HeadsConfig,
    LayerState,
    Lengths,
    Pattern,
    Rotary,
    SelfAttention,
    Sliding,
)
from regard.errors import UserError

from .support import Seen, assert_close, plain_patterns

# Sums of a few dozen float64 numbers up to 10, in another order.
ROUNDING = 1e-12


def ids(rows: int, length: int) -> Tensor:
    return torch.zeros(rows, length, dtype=torch.long)


def numbers(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


# Where tokens stand.


def test_tokens_are_numbered_from_the_start() -> None:
    assert Context(ids(2, 3), start=4).positions.tolist() == [4, 5, 6]


def test_with_a_start_for_each_row_tokens_are_numbered_from_it() -> None:
    assert Context(ids(2, 3), start=torch.tensor([0, 7])).positions.tolist() == [[0, 1, 2], [7, 8, 9]]


def test_tokens_of_packed_documents_are_numbered_within_their_document() -> None:
    positions = Context(ids(2, 5), documents=numbers([3, 3, 5, 5, 5], [0, 1, 1, -1, -1])).positions
    assert positions.tolist() == [[0, 1, 0, 1, 2], [0, 0, 1, 0, 1]]


def test_behind_a_cache_tokens_are_numbered_on() -> None:
    cache = Cache(2, 20, [])
    cache.advance(3)
    assert Context.after(cache, ids(2, 2)).positions.tolist() == [3, 4]


def test_behind_rows_of_different_length_tokens_are_numbered_on_in_each() -> None:
    cache = Cache(2, 20, [])
    cache.advance(3, torch.tensor([1, 3]))
    assert Context.after(cache, ids(2, 2)).positions.tolist() == [[1, 2], [3, 4]]


def test_behind_a_cache_the_lengths_are_those_of_the_rows_with_their_new_tokens() -> None:
    cache = Cache(2, 20, [])
    cache.advance(3, torch.tensor([1, 3]))
    lengths = Context.after(cache, ids(2, 2), torch.tensor([2, 0])).lengths
    assert lengths is not None
    assert lengths.tolist() == [3, 3]


# What they may see.


@given(plain_patterns(), st.lists(st.integers(1, 6), min_size=2, max_size=2))
def test_no_real_token_sees_padding(seen: Seen, lengths: list[int]) -> None:
    context = Context(ids(2, 6), lengths=torch.tensor(lengths))
    mask = context.own(seen.pattern).mask().expand(2, 1, 6, 6)[:, 0]
    for row, length in enumerate(lengths):
        assert torch.equal(mask[row, :length, :length], seen.pattern.mask(length, start=0))
        assert not mask[row, :length, length:].any()


def test_where_nothing_later_is_seen_padding_needs_no_mask_of_its_own() -> None:
    context = Context(ids(2, 6), lengths=torch.tensor([3, 6]))
    assert context.own(Causal()).triangle


def test_without_padding_one_mask_serves_all_rows() -> None:
    assert Context(ids(2, 6)).own(Sliding(2)).mask().shape == (1, 1, 6, 6)


@given(plain_patterns())
def test_packed_documents_see_themselves_through_the_layers_pattern(seen: Seen) -> None:
    packed = numbers([0, 0, 0, 1, 1, -1], [0, 1, 1, 1, 1, 1])
    found = Context(ids(2, 6), documents=packed).own(seen.pattern).mask()[:, 0]
    assert torch.equal(found, Documents(packed, seen.pattern).mask(6, rows=2))


def test_a_step_behind_a_cache_sees_every_token_so_far_without_a_mask() -> None:
    cache = Cache(2, 20, [])
    cache.advance(5)
    scope = Context.after(cache, ids(2, 1)).own(Causal())
    assert scope.everything
    assert scope.keys == 6


@pytest.mark.parametrize("memory", [None, Full(), Lengths(torch.tensor([2, 4]))], ids=["none given", "full", "lengths"])
def test_what_is_seen_of_the_encoder_is_what_was_given(memory: Pattern | None) -> None:
    scope = Context(ids(2, 3), start=7, memory=memory).other(2, 4)
    expected = (memory or Full()).mask(3, 4, rows=2, start=0)
    assert torch.equal(scope.mask()[:, 0].expand(2, 3, 4), expected)


# Made once.


def test_layers_with_equal_patterns_share_one_scope() -> None:
    context = Context(ids(2, 6))
    assert context.own(Causal() & Sliding(2)) is context.own(Causal() & Sliding(2))


def test_layers_with_different_patterns_have_each_their_own() -> None:
    context = Context(ids(2, 6))
    assert context.own(Sliding(2)) is not context.own(Sliding(3))


def test_all_cross_attention_shares_one_scope() -> None:
    context = Context(ids(2, 6), memory=Lengths(torch.tensor([1, 2])))
    assert context.other(2, 4) is context.other(2, 4)


def test_layers_with_the_same_rotary_share_its_angles() -> None:
    context, rotary = Context(ids(2, 6)), Rotary(4)
    assert context.rotation(rotary) is context.rotation(rotary)


# Padding and documents change nothing for the tokens that are there.


def layer(pattern: Pattern, rotary: Rotary | None) -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(HeadsConfig(heads=3, key_heads=1), 12, pattern, rotary).double().eval()


def words(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


ROTARIES = [
    pytest.param(None, id="no positions"),
    pytest.param(Rotary(4), id="rotary"),
    pytest.param(Rotary(4, scaling=DynamicScaling(factor=4.0, trained=3)), id="dynamic"),
]


@pytest.mark.parametrize("rotary", ROTARIES)
@given(seen=plain_patterns(), lengths=st.lists(st.integers(1, 7), min_size=3, max_size=3))
def test_a_padded_row_gets_what_it_would_get_alone(rotary: Rotary | None, seen: Seen, lengths: list[int]) -> None:
    heads, x = layer(seen.pattern, rotary), words(3, 7)
    together = heads(x, Context(ids(3, 7), lengths=torch.tensor(lengths)), LayerState())
    for row, length in enumerate(lengths):
        alone = heads(x[row : row + 1, :length], Context(ids(1, length)), LayerState())
        assert_close(together[row : row + 1, :length], alone, ROUNDING)


@pytest.mark.parametrize("rotary", ROTARIES[:2])
@given(seen=plain_patterns(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_a_packed_document_gets_what_it_would_get_alone(rotary: Rotary | None, seen: Seen, sizes: list[int]) -> None:
    heads, x = layer(seen.pattern, rotary), words(1, sum(sizes))
    packed = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[None]
    together = heads(x, Context(ids(1, sum(sizes)), documents=packed), LayerState())
    alone = [heads(part, Context(ids(1, part.shape[1])), LayerState()) for part in x.split(sizes, dim=1)]
    assert_close(together, torch.cat(alone, dim=1), ROUNDING)


@pytest.mark.parametrize("rotary", ROTARIES[:2])
@given(seen=plain_patterns(), place=st.integers(1, 6))
def test_no_later_token_changes_what_an_earlier_one_gets(rotary: Rotary | None, seen: Seen, place: int) -> None:
    heads, x = layer(Causal() & seen.pattern, rotary), words(2, 7)
    changed = x.clone()
    changed[:, place:] = 9.0
    before, after = (heads(given, Context(ids(2, 7)), LayerState()) for given in (x, changed))
    assert torch.equal(before[:, :place], after[:, :place])


# Watching.


def test_a_watch_is_shown_every_attention_with_its_weights() -> None:
    shown: list[tuple[object, Tensor]] = []
    heads, x = layer(Causal(), None), words(2, 5)
    heads(x, Context(ids(2, 5), watch=lambda module, weights: shown.append((module, weights))), LayerState())
    [(module, weights)] = shown
    assert module is heads
    assert weights.shape == (2, 3, 5, 5)
    assert not weights.triu(1).any()
    assert_close(weights.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64), ROUNDING)


@given(plain_patterns())
def test_watching_changes_nothing(seen: Seen) -> None:
    heads, x = layer(seen.pattern, None), words(2, 5)
    plain, watched = (
        heads(x, Context(ids(2, 5), watch=watch), LayerState()) for watch in (None, lambda module, weights: None)
    )
    assert_close(watched, plain, ROUNDING)


# Wrong input.


@pytest.mark.parametrize("shape", [(3,), (1, 2, 3)])
def test_tokens_of_another_shape_are_refused_with_it(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"shape \(rows, tokens\); found") as caught:
        Context(torch.zeros(shape, dtype=torch.long))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("name", ["lengths", "documents"])
@pytest.mark.parametrize("wrong", [ids(3, 3), torch.zeros(3, dtype=torch.long), torch.zeros(2), torch.zeros(2, 3)])
def test_lengths_and_documents_of_another_shape_are_refused_with_both(name: str, wrong: Tensor) -> None:
    expected = {"lengths": r"\(2,\)", "documents": r"\(2, 3\)"}[name]
    with pytest.raises(UserError, match=f"{name} must hold whole numbers in the shape {expected}") as caught:
        Context(ids(2, 3), **{name: wrong})
    assert f"found {tuple(wrong.shape)} of {wrong.dtype}" in str(caught.value)


def test_a_cache_of_other_rows_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match="holds 3 rows and 2 rows of tokens were given"):
        Context.after(Cache(3, 9, []), ids(2, 1))


@pytest.mark.parametrize("counts", [torch.tensor([1, 1]), torch.tensor([1]), torch.tensor(1), torch.tensor([1.0] * 3)])
def test_counts_that_are_not_one_whole_number_a_row_are_refused(counts: Tensor) -> None:
    with pytest.raises(UserError, match=r"counts must hold whole numbers in the shape \(3,\)"):
        Context.after(Cache(3, 9, []), ids(3, 2), counts)


@pytest.mark.parametrize("start", [torch.tensor([1, 2]), torch.tensor([[1]])])
def test_starts_that_are_not_one_whole_number_a_row_are_refused(start: Tensor) -> None:
    with pytest.raises(UserError, match=r"start must hold whole numbers in the shape \(3,\)"):
        Context(ids(3, 2), start=start)


def test_packed_documents_under_angles_that_depend_on_the_length_are_refused_with_what_to_do() -> None:
    rotary = Rotary(4, scaling=DynamicScaling(factor=4.0, trained=3))
    context = Context(ids(1, 4), documents=numbers([0, 0, 1, 1]))
    with pytest.raises(UserError, match="give each document its own row"):
        context.rotation(rotary)


def test_global_tokens_are_those_of_each_document() -> None:
    context = Context(ids(1, 4), documents=numbers([0, 0, 1, 1]))
    assert context.own(Global(1)).mask()[0, 0].tolist() == [
        [True, True, False, False],
        [True, False, False, False],
        [False, False, True, True],
        [False, False, True, False],
    ]
