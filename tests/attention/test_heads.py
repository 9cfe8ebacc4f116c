"""Attention in several heads: layouts, what they cost, what they share, and agreement with PyTorch's own module."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.attention import (
    Causal,
    Context,
    CrossAttention,
    Full,
    HeadsConfig,
    LayerState,
    Lengths,
    SelfAttention,
    attend,
)
from regard.attention.heads import split_heads
from regard.attention.similarity import Cosine, Dot, ScaledDot
from regard.config import ConfigError
from regard.errors import UserError

from .support import assert_close

WIDTH = 24
# Sums of a few dozen float64 numbers up to 10, in another order.
ROUNDING = 1e-12


def self_attention(width: int = WIDTH, pattern=None, **settings: Any) -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(HeadsConfig(**settings), width, pattern or Full()).double().eval()


def words(rows: int, length: int, width: int = WIDTH, seed: int = 1) -> Tensor:
    return torch.randn(rows, length, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(layer: SelfAttention, x: Tensor, **more: Any) -> Tensor:
    return layer(x, Context(torch.zeros(x.shape[:2], dtype=torch.long), **more), LayerState())


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# What heads cost.


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 32])
def test_at_a_constant_width_any_number_of_heads_has_the_same_parameters(heads: int) -> None:
    # Four projections of width × width and their biases.
    assert parameters(self_attention(64, heads=heads)) == 4 * (64 * 64 + 64)


@pytest.mark.parametrize("key_heads", [1, 2, 4, 8])
def test_fewer_key_heads_save_their_share_of_keys_and_values(key_heads: int) -> None:
    layer = self_attention(64, heads=8, key_heads=key_heads)
    assert parameters(layer) == 2 * (64 * 64 + 64) + 2 * (64 + 1) * 8 * key_heads


def test_without_bias_there_are_only_the_four_matrices() -> None:
    assert parameters(self_attention(64, heads=8, bias=False)) == 4 * 64 * 64


def test_without_an_output_projection_there_are_three_matrices() -> None:
    assert parameters(self_attention(64, heads=8, output=False)) == 3 * (64 * 64 + 64)


def test_cosine_similarity_adds_one_scale_for_each_head() -> None:
    plain, cosine = (parameters(self_attention(heads=4, similarity=kind)) for kind in ("scaled", "cosine"))
    assert cosine == plain + 4


# What heads compute.


def test_heads_are_slices_of_the_width() -> None:
    x = words(2, 3, 12)
    split = split_heads(x, 3)
    assert split.shape == (2, 3, 3, 4)
    assert torch.equal(split[:, 1], x[:, :, 4:8])


def test_no_words_give_an_empty_result() -> None:
    assert run(self_attention(heads=4, key_heads=2), words(2, 0)).shape == (2, 0, WIDTH)


@given(
    st.sampled_from([(1, 1), (3, 3), (4, 2), (6, 3), (4, 1)]),
    st.sampled_from([None, 5]),
    st.sampled_from([None, 3]),
    st.integers(1, 6),
    st.booleans(),
)
def test_self_attention_is_its_projections_around_attend(
    layout: tuple[int, int], head_width: int | None, value_width: int | None, length: int, causal: bool
) -> None:
    heads, key_heads = layout
    pattern = Causal() if causal else Full()
    layer = self_attention(
        pattern=pattern, heads=heads, key_heads=key_heads, head_width=head_width, value_width=value_width
    )
    x = words(2, length)

    def split(projection: nn.Module, count: int) -> Tensor:
        return projection(x).unflatten(-1, (count, -1)).movedim(-2, 1)

    key, value = split(layer.source.key, key_heads), split(layer.source.value, key_heads)
    mixed = attend(split(layer.query, heads), key, value, pattern, path="reference")
    assert_close(run(layer, x), layer.output(torch.cat(list(mixed.unbind(1)), dim=-1)), ROUNDING)


@pytest.mark.parametrize("key_heads", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_shared_key_heads_equal_as_many_heads_with_the_same_weights(key_heads: int, causal: bool) -> None:
    pattern = Causal() if causal else Full()
    shared = self_attention(pattern=pattern, heads=6, key_heads=key_heads)
    apart = self_attention(pattern=pattern, heads=6)
    weights = shared.state_dict()
    for name in ("source.key.weight", "source.key.bias", "source.value.weight", "source.value.bias"):
        each = weights[name].unflatten(0, (key_heads, -1))  # (key heads, head width, …)
        weights[name] = each.repeat_interleave(6 // key_heads, dim=0).flatten(0, 1)
    apart.load_state_dict(weights)
    assert_close(run(shared, words(2, 5)), run(apart, words(2, 5)), ROUNDING)


def test_without_an_output_projection_the_heads_stand_side_by_side() -> None:
    plain, mixed = self_attention(heads=4, output=False), self_attention(heads=4)
    mixed.load_state_dict({**mixed.state_dict(), **plain.state_dict()})
    mixed.output.load_state_dict({"weight": torch.eye(WIDTH), "bias": torch.zeros(WIDTH)})
    assert_close(run(plain, words(2, 5)), run(mixed, words(2, 5)), ROUNDING)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_self_attention_is_that_of_pytorchs_own_module_with_the_same_weights(causal: bool, bias: bool) -> None:
    layer = self_attention(pattern=Causal() if causal else Full(), heads=4, bias=bias)
    theirs = nn.MultiheadAttention(WIDTH, 4, bias=bias, batch_first=True).double().eval()
    ours = (layer.query, layer.source.key, layer.source.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in ours]))
        theirs.out_proj.load_state_dict(layer.output.state_dict())
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in ours]))
    x = words(2, 6)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1) if causal else None  # there, True means hidden
    expected, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
    assert_close(run(layer, x), expected, ROUNDING)


def test_without_positions_permuted_words_give_the_permuted_result() -> None:
    layer, x = self_attention(heads=4), words(2, 6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert_close(run(layer, x[:, order]), run(layer, x)[:, order], ROUNDING)


# Cross-attention.


def cross_attention(shared: bool = False, **settings: Any) -> CrossAttention:
    torch.manual_seed(0)
    return HeadsConfig(**settings).cross_attention(WIDTH, shared_memory=shared).double().eval()


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2), (4, 1)])
def test_cross_attention_sees_the_real_words_of_the_encoder_and_no_padding(heads: int, key_heads: int) -> None:
    layer = cross_attention(heads=heads, key_heads=key_heads)
    assert layer.source is not None
    x, encoded, lengths = words(2, 3), words(2, 7, seed=2), [4, 7]
    context = Context(torch.zeros(2, 3, dtype=torch.long), memory=Lengths(torch.tensor(lengths)))
    together = layer(x, context, LayerState(memory=layer.source(encoded)))
    for row, length in enumerate(lengths):
        memory = layer.source(encoded[row : row + 1, :length])
        alone = layer(x[row : row + 1], Context(torch.zeros(1, 3, dtype=torch.long)), LayerState(memory=memory))
        assert_close(together[row : row + 1], alone, ROUNDING)


def test_layers_that_share_a_memory_have_no_projection_for_it_themselves() -> None:
    layer = cross_attention(shared=True, heads=4)
    assert layer.source is None
    assert parameters(layer) == 2 * (WIDTH * WIDTH + WIDTH)


def test_a_shared_memory_is_made_by_one_projection_that_fits_every_layer() -> None:
    config = HeadsConfig(heads=4, key_heads=2, value_width=5)
    memory = config.memory_projection(WIDTH).double()(words(2, 7))
    layer = config.cross_attention(WIDTH, shared_memory=True).double()
    result = layer(words(2, 3), Context(torch.zeros(2, 3, dtype=torch.long)), LayerState(memory=memory))
    assert result.shape == (2, 3, WIDTH)


# Similarity and dropout.


@pytest.mark.parametrize(("name", "kind"), [("scaled", ScaledDot), ("dot", Dot), ("cosine", Cosine)])
def test_each_similarity_is_had_by_its_name(name: str, kind: type) -> None:
    assert isinstance(self_attention(heads=4, similarity=name).similarity(), kind)


def test_a_cosine_scale_begins_at_the_root_of_the_heads_width_for_each_head() -> None:
    layer = self_attention(heads=4, similarity="cosine")
    assert_close(layer.scale.detach(), torch.full((4, 1, 1), 6**0.5, dtype=torch.float64), 1e-7)  # set in float32


def test_dropout_falls_on_the_weights_in_training() -> None:
    layer, x = self_attention(heads=4, dropout=0.5).train(), words(2, 5)
    assert not torch.equal(run(layer, x), run(layer, x))


def test_there_is_no_dropout_outside_training() -> None:
    layer, x = self_attention(heads=4, dropout=0.5), words(2, 5)
    assert_close(run(layer, x), run(self_attention(heads=4), x), ROUNDING)


# Wrong settings.


@pytest.mark.parametrize(
    ("settings", "key", "problem"),
    [
        ({"heads": 5}, "heads", "5 heads do not divide the width 24"),
        ({"heads": 48}, "heads", "48 heads do not divide the width 24"),
        ({"heads": 4, "key_heads": 3}, "key_heads", "4 heads cannot share 3 key heads evenly"),
        ({"heads": 4, "key_heads": 8}, "key_heads", "4 heads cannot share 8 key heads evenly"),
        ({"heads": 4, "value_width": 5, "output": False}, "output", "4 heads of 5 values must make the width 24"),
    ],
    ids=str,
)
def test_heads_that_do_not_fit_are_refused_naming_the_key(settings: dict[str, Any], key: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: .*{problem}") as caught:
        HeadsConfig(**settings).sizes(WIDTH)
    assert caught.value.key == key


def test_heads_that_do_not_divide_the_width_are_fine_with_a_width_of_their_own() -> None:
    assert run(self_attention(heads=5, head_width=3), words(2, 4)).shape == (2, 4, WIDTH)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"heads": 0}, "heads"),
        ({"key_heads": 0}, "key_heads"),
        ({"head_width": 0}, "head_width"),
        ({"value_width": -1}, "value_width"),
        ({"similarity": "cosines"}, "similarity"),
        ({"pattern": "slide(3)"}, "pattern"),
        ({"pattern": "sliding(0)"}, "pattern"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"head": 8}, "head"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_naming_its_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}: "):
        HeadsConfig(**settings)
