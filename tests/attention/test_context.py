"""The context of a forward pass: positions, masks and what layers share."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import (
    Causal,
    Context,
    Documents,
    DynamicScaling,
    Full,
    Global,
    KVCache,
    LayerState,
    Lengths,
    MultiHeadConfig,
    Pattern,
    Rotary,
    SelfAttention,
    Sliding,
)
from regard.errors import UserError
from tests.attention.support import PatternSpec, assert_close, plain_patterns

# Sums of a few dozen float64 numbers up to 10, in another order.
ROUNDING = 1e-12


def ids(rows: int, length: int) -> Tensor:
    return torch.zeros(rows, length, dtype=torch.long)


def numbers(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


# Positions.


def test_positions_start_at_the_start() -> None:
    assert Context(ids(2, 3), start=4).positions.tolist() == [4, 5, 6]


def test_positions_of_each_row_begin_at_its_start() -> None:
    assert Context(ids(2, 3), start=torch.tensor([0, 7])).positions.tolist() == [[0, 1, 2], [7, 8, 9]]


def test_positions_restart_in_every_packed_document() -> None:
    positions = Context(ids(2, 5), documents=numbers([3, 3, 5, 5, 5], [0, 1, 1, -1, -1])).positions
    assert positions.tolist() == [[0, 1, 0, 1, 2], [0, 0, 1, 0, 1]]


def test_positions_continue_after_a_cache() -> None:
    cache = KVCache(2, 20, [])
    cache.advance(3)
    assert Context.after(cache, ids(2, 2)).positions.tolist() == [3, 4]


def test_positions_continue_after_rows_of_different_lengths() -> None:
    cache = KVCache(2, 20, [])
    cache.advance(3, torch.tensor([1, 3]))
    assert Context.after(cache, ids(2, 2)).positions.tolist() == [[1, 2], [3, 4]]


def test_lengths_after_a_cache_include_new_tokens() -> None:
    cache = KVCache(2, 20, [])
    cache.advance(3, torch.tensor([1, 3]))
    lengths = Context.after(cache, ids(2, 2), torch.tensor([2, 0])).lengths
    assert lengths is not None
    assert lengths.tolist() == [3, 3]


# Masks.


@given(plain_patterns(), st.lists(st.integers(1, 6), min_size=2, max_size=2))
def test_no_token_attends_to_padding(spec: PatternSpec, lengths: list[int]) -> None:
    context = Context(ids(2, 6), lengths=torch.tensor(lengths))
    mask = context.self_mask(spec.pattern).dense().expand(2, 1, 6, 6)[:, 0]
    for row, length in enumerate(lengths):
        assert torch.equal(mask[row, :length, :length], spec.pattern.dense_mask(length, start=0))
        assert not mask[row, :length, length:].any()


def test_causal_mask_needs_no_padding_mask() -> None:
    context = Context(ids(2, 6), lengths=torch.tensor([3, 6]))
    assert context.self_mask(Causal()).is_causal


def test_without_padding_all_rows_share_one_mask() -> None:
    assert Context(ids(2, 6)).self_mask(Sliding(2)).dense().shape == (1, 1, 6, 6)


@given(plain_patterns())
def test_packed_documents_use_the_layers_pattern(spec: PatternSpec) -> None:
    packed = numbers([0, 0, 0, 1, 1, -1], [0, 1, 1, 1, 1, 1])
    actual = Context(ids(2, 6), documents=packed).self_mask(spec.pattern).dense()[:, 0]
    assert torch.equal(actual, Documents(packed, spec.pattern).dense_mask(6, rows=2))


def test_cached_step_needs_no_mask() -> None:
    cache = KVCache(2, 20, [])
    cache.advance(5)
    attention_mask = Context.after(cache, ids(2, 1)).self_mask(Causal())
    assert attention_mask.is_full
    assert attention_mask.keys == 6


@pytest.mark.parametrize("memory", [None, Full(), Lengths(torch.tensor([2, 4]))], ids=["none given", "full", "lengths"])
def test_cross_mask_is_the_memory_pattern(memory: Pattern | None) -> None:
    attention_mask = Context(ids(2, 3), start=7, memory=memory).cross_mask(2, 4)
    expected = (memory or Full()).dense_mask(3, 4, rows=2, start=0)
    assert torch.equal(attention_mask.dense()[:, 0].expand(2, 3, 4), expected)


# Sharing between layers.


def test_layers_with_equal_patterns_share_a_mask() -> None:
    context = Context(ids(2, 6))
    assert context.self_mask(Causal() & Sliding(2)) is context.self_mask(Causal() & Sliding(2))


def test_layers_with_different_patterns_have_different_masks() -> None:
    context = Context(ids(2, 6))
    assert context.self_mask(Sliding(2)) is not context.self_mask(Sliding(3))


def test_all_cross_attention_shares_a_mask() -> None:
    context = Context(ids(2, 6), memory=Lengths(torch.tensor([1, 2])))
    assert context.cross_mask(2, 4) is context.cross_mask(2, 4)


def test_layers_with_the_same_rotary_share_its_rotation() -> None:
    context, rotary = Context(ids(2, 6)), Rotary(4)
    assert context.rotation(rotary) is context.rotation(rotary)


# Padding and packed documents do not change the output.


def layer(pattern: Pattern, rotary: Rotary | None) -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(MultiHeadConfig(heads=3, kv_heads=1), 12, pattern, rotary).double().eval()


def embeddings(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


ROTARIES = [
    pytest.param(None, id="no positions"),
    pytest.param(Rotary(4), id="rotary"),
    pytest.param(Rotary(4, scaling=DynamicScaling(factor=4.0, original_max_length=3)), id="dynamic"),
]


@pytest.mark.parametrize("rotary", ROTARIES)
@given(spec=plain_patterns(), lengths=st.lists(st.integers(1, 7), min_size=3, max_size=3))
def test_padded_row_equals_the_row_alone(rotary: Rotary | None, spec: PatternSpec, lengths: list[int]) -> None:
    heads, x = layer(spec.pattern, rotary), embeddings(3, 7)
    batched = heads(x, Context(ids(3, 7), lengths=torch.tensor(lengths)), LayerState())
    for row, length in enumerate(lengths):
        alone = heads(x[row : row + 1, :length], Context(ids(1, length)), LayerState())
        assert_close(batched[row : row + 1, :length], alone, ROUNDING)


@pytest.mark.parametrize("rotary", ROTARIES[:2])
@given(spec=plain_patterns(), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_packed_document_equals_the_document_alone(rotary: Rotary | None, spec: PatternSpec, sizes: list[int]) -> None:
    heads, x = layer(spec.pattern, rotary), embeddings(1, sum(sizes))
    packed = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[None]
    batched = heads(x, Context(ids(1, sum(sizes)), documents=packed), LayerState())
    alone = [heads(part, Context(ids(1, part.shape[1])), LayerState()) for part in x.split(sizes, dim=1)]
    assert_close(batched, torch.cat(alone, dim=1), ROUNDING)


@pytest.mark.parametrize("rotary", ROTARIES[:2])
@given(spec=plain_patterns(), position=st.integers(1, 6))
def test_causal_output_ignores_later_tokens(rotary: Rotary | None, spec: PatternSpec, position: int) -> None:
    heads, x = layer(Causal() & spec.pattern, rotary), embeddings(2, 7)
    changed = x.clone()
    changed[:, position:] = 9.0
    before, after = (heads(inputs, Context(ids(2, 7)), LayerState()) for inputs in (x, changed))
    assert torch.equal(before[:, :position], after[:, :position])


# Attention hooks.


def test_attention_hook_receives_every_module_and_its_weights() -> None:
    shown: list[tuple[object, Tensor]] = []
    heads, x = layer(Causal(), None), embeddings(2, 5)
    heads(x, Context(ids(2, 5), attention_hook=lambda module, weights: shown.append((module, weights))), LayerState())
    [(module, weights)] = shown
    assert module is heads
    assert weights.shape == (2, 3, 5, 5)
    assert not weights.triu(1).any()
    assert_close(weights.sum(dim=-1), torch.ones(2, 3, 5, dtype=torch.float64), ROUNDING)


@given(plain_patterns())
def test_attention_hook_does_not_change_the_output(spec: PatternSpec) -> None:
    heads, x = layer(spec.pattern, None), embeddings(2, 5)
    plain, watched = (
        heads(x, Context(ids(2, 5), attention_hook=attention_hook), LayerState())
        for attention_hook in (None, lambda module, weights: None)
    )
    assert_close(watched, plain, ROUNDING)


# Invalid input.


@pytest.mark.parametrize("shape", [(3,), (1, 2, 3)])
def test_tokens_of_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"shape \(rows, tokens\); found") as caught:
        Context(torch.zeros(shape, dtype=torch.long))
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize("name", ["lengths", "documents"])
@pytest.mark.parametrize("wrong", [ids(3, 3), torch.zeros(3, dtype=torch.long), torch.zeros(2), torch.zeros(2, 3)])
def test_lengths_and_documents_of_wrong_shape_are_refused(name: str, wrong: Tensor) -> None:
    expected = {"lengths": r"\(2,\)", "documents": r"\(2, 3\)"}[name]
    with pytest.raises(UserError, match=f"{name} must contain integers of shape {expected}") as caught:
        Context(ids(2, 3), **{name: wrong})
    assert f"found {tuple(wrong.shape)} of {wrong.dtype}" in str(caught.value)


def test_cache_with_another_number_of_rows_is_refused() -> None:
    with pytest.raises(UserError, match="has 3 rows, but the tokens have 2"):
        Context.after(KVCache(3, 9, []), ids(2, 1))


@pytest.mark.parametrize("counts", [torch.tensor([1, 1]), torch.tensor([1]), torch.tensor(1), torch.tensor([1.0] * 3)])
def test_counts_of_wrong_shape_or_dtype_are_refused(counts: Tensor) -> None:
    with pytest.raises(UserError, match=r"counts must contain integers of shape \(3,\)"):
        Context.after(KVCache(3, 9, []), ids(3, 2), counts)


@pytest.mark.parametrize("start", [torch.tensor([1, 2]), torch.tensor([[1]])])
def test_starts_of_wrong_shape_or_dtype_are_refused(start: Tensor) -> None:
    with pytest.raises(UserError, match=r"start must contain integers of shape \(3,\)"):
        Context(ids(3, 2), start=start)


def test_packed_documents_with_length_dependent_rope_scaling_are_refused() -> None:
    rotary = Rotary(4, scaling=DynamicScaling(factor=4.0, original_max_length=3))
    context = Context(ids(1, 4), documents=numbers([0, 0, 1, 1]))
    with pytest.raises(UserError, match="give each document its own row"):
        context.rotation(rotary)


def test_global_tokens_are_those_of_each_document() -> None:
    context = Context(ids(1, 4), documents=numbers([0, 0, 1, 1]))
    assert context.self_mask(Global(1)).dense()[0, 0].tolist() == [
        [True, True, False, False],
        [True, False, False, False],
        [False, False, True, True],
        [False, False, True, False],
    ]
