"""Multi-head attention: parameter counts, grouped queries, and agreement with PyTorch's module."""

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
    LayerState,
    Lengths,
    MultiHeadConfig,
    SelfAttention,
    attend,
)
from regard.attention.attend import Cosine, Dot, ScaledDot
from regard.attention.multi_head import split_heads
from regard.config import ConfigError
from regard.errors import UserError
from tests.attention.support import assert_close

WIDTH = 24
# Sums of a few dozen float64 numbers up to 10, in another order.
ROUNDING = 1e-12


def self_attention(width: int = WIDTH, pattern=None, **settings: Any) -> SelfAttention:
    torch.manual_seed(0)
    return SelfAttention(MultiHeadConfig(**settings), width, pattern or Full()).double().eval()


def embeddings(rows: int, length: int, width: int = WIDTH, seed: int = 1) -> Tensor:
    return torch.randn(rows, length, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def run(layer: SelfAttention, x: Tensor, **more: Any) -> Tensor:
    return layer(x, Context(torch.zeros(x.shape[:2], dtype=torch.long), **more), LayerState())


def parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# Parameters.


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 32])
def test_parameter_count_does_not_depend_on_heads(heads: int) -> None:
    # Four projections of width × width and their biases.
    assert parameters(self_attention(64, heads=heads)) == 4 * (64 * 64 + 64)


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_fewer_kv_heads_have_smaller_kv_projections(kv_heads: int) -> None:
    layer = self_attention(64, heads=8, kv_heads=kv_heads)
    assert parameters(layer) == 2 * (64 * 64 + 64) + 2 * (64 + 1) * 8 * kv_heads


def test_without_bias_there_are_only_four_matrices() -> None:
    assert parameters(self_attention(64, heads=8, bias=False)) == 4 * 64 * 64


def test_without_an_output_projection_there_are_three_matrices() -> None:
    assert parameters(self_attention(64, heads=8, output_projection=False)) == 3 * (64 * 64 + 64)


def test_cosine_similarity_adds_one_scale_per_head() -> None:
    plain, cosine = (parameters(self_attention(heads=4, similarity=kind)) for kind in ("scaled", "cosine"))
    assert cosine == plain + 4


# Self-attention.


def test_heads_are_slices_of_the_width() -> None:
    x = embeddings(2, 3, 12)
    split = split_heads(x, 3)
    assert split.shape == (2, 3, 3, 4)
    assert torch.equal(split[:, 1], x[:, :, 4:8])


def test_empty_input_gives_an_empty_output() -> None:
    assert run(self_attention(heads=4, kv_heads=2), embeddings(2, 0)).shape == (2, 0, WIDTH)


@given(
    st.sampled_from([(1, 1), (3, 3), (4, 2), (6, 3), (4, 1)]),
    st.sampled_from([None, 5]),
    st.sampled_from([None, 3]),
    st.integers(1, 6),
    st.booleans(),
)
def test_self_attention_equals_projections_around_attend(
    layout: tuple[int, int], head_dim: int | None, value_head_dim: int | None, length: int, causal: bool
) -> None:
    heads, kv_heads = layout
    pattern = Causal() if causal else Full()
    layer = self_attention(
        pattern=pattern, heads=heads, kv_heads=kv_heads, head_dim=head_dim, value_head_dim=value_head_dim
    )
    x = embeddings(2, length)

    def split(projection: nn.Module, count: int) -> Tensor:
        return projection(x).unflatten(-1, (count, -1)).movedim(-2, 1)

    key, value = split(layer.k_proj, kv_heads), split(layer.v_proj, kv_heads)
    mixed = attend(split(layer.q_proj, heads), key, value, pattern, backend="reference")
    assert_close(run(layer, x), layer.o_proj(torch.cat(list(mixed.unbind(1)), dim=-1)), ROUNDING)


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_query_equals_multi_head_with_repeated_weights(kv_heads: int, causal: bool) -> None:
    pattern = Causal() if causal else Full()
    shared = self_attention(pattern=pattern, heads=6, kv_heads=kv_heads)
    apart = self_attention(pattern=pattern, heads=6)
    weights = shared.state_dict()
    for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
        each = weights[name].unflatten(0, (kv_heads, -1))  # (kv_heads, head_dim, …)
        weights[name] = each.repeat_interleave(6 // kv_heads, dim=0).flatten(0, 1)
    apart.load_state_dict(weights)
    assert_close(run(shared, embeddings(2, 5)), run(apart, embeddings(2, 5)), ROUNDING)


def test_without_an_output_projection_heads_are_concatenated() -> None:
    plain, mixed = self_attention(heads=4, output_projection=False), self_attention(heads=4)
    mixed.load_state_dict({**mixed.state_dict(), **plain.state_dict()})
    mixed.o_proj.load_state_dict({"weight": torch.eye(WIDTH), "bias": torch.zeros(WIDTH)})
    assert_close(run(plain, embeddings(2, 5)), run(mixed, embeddings(2, 5)), ROUNDING)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_self_attention_equals_torch_multihead_attention(causal: bool, bias: bool) -> None:
    layer = self_attention(pattern=Causal() if causal else Full(), heads=4, bias=bias)
    theirs = nn.MultiheadAttention(WIDTH, 4, bias=bias, batch_first=True).double().eval()
    ours = (layer.q_proj, layer.k_proj, layer.v_proj)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in ours]))
        theirs.out_proj.load_state_dict(layer.o_proj.state_dict())
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in ours]))
    x = embeddings(2, 6)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1) if causal else None  # in PyTorch, True means masked
    expected, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
    assert_close(run(layer, x), expected, ROUNDING)


def test_without_positions_self_attention_is_permutation_equivariant() -> None:
    layer, x = self_attention(heads=4), embeddings(2, 6)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert_close(run(layer, x[:, order]), run(layer, x)[:, order], ROUNDING)


# Cross-attention.


def cross_attention(shared: bool = False, **settings: Any) -> CrossAttention:
    torch.manual_seed(0)
    return MultiHeadConfig(**settings).cross_attention(WIDTH, shared_kv=shared).double().eval()


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_cross_attention_ignores_padding_of_the_source(heads: int, kv_heads: int) -> None:
    layer = cross_attention(heads=heads, kv_heads=kv_heads)
    x, encoded, lengths = embeddings(2, 3), embeddings(2, 7, seed=2), [4, 7]
    context = Context(torch.zeros(2, 3, dtype=torch.long), memory=Lengths(torch.tensor(lengths)))
    batched = layer(x, context, LayerState(cross_kv=layer.project_kv(encoded)))
    for row, length in enumerate(lengths):
        memory = layer.project_kv(encoded[row : row + 1, :length])
        alone = layer(x[row : row + 1], Context(torch.zeros(1, 3, dtype=torch.long)), LayerState(cross_kv=memory))
        assert_close(batched[row : row + 1], alone, ROUNDING)


def test_layers_with_shared_kv_have_no_kv_projections() -> None:
    layer = cross_attention(shared=True, heads=4)
    assert layer.shared_kv
    assert parameters(layer) == 2 * (WIDTH * WIDTH + WIDTH)


def test_shared_kv_projection_fits_cross_attention() -> None:
    config = MultiHeadConfig(heads=4, kv_heads=2, value_head_dim=5)
    memory = config.kv_projection(WIDTH).double()(embeddings(2, 7))
    layer = config.cross_attention(WIDTH, shared_kv=True).double()
    result = layer(embeddings(2, 3), Context(torch.zeros(2, 3, dtype=torch.long)), LayerState(cross_kv=memory))
    assert result.shape == (2, 3, WIDTH)


# Similarity and dropout.


@pytest.mark.parametrize(("name", "kind"), [("scaled", ScaledDot), ("dot", Dot), ("cosine", Cosine)])
def test_similarity_is_selected_by_name(name: str, kind: type) -> None:
    assert isinstance(self_attention(heads=4, similarity=name).similarity(), kind)


def test_cosine_scale_is_initialized_to_the_root_of_head_dim() -> None:
    layer = self_attention(heads=4, similarity="cosine")
    assert_close(layer.logit_scale.detach(), torch.full((4, 1, 1), 6**0.5, dtype=torch.float64), 1e-7)  # set in float32


def test_dropout_applies_in_training() -> None:
    layer, x = self_attention(heads=4, dropout=0.5).train(), embeddings(2, 5)
    assert not torch.equal(run(layer, x), run(layer, x))


def test_no_dropout_in_evaluation() -> None:
    layer, x = self_attention(heads=4, dropout=0.5), embeddings(2, 5)
    assert_close(run(layer, x), run(self_attention(heads=4), x), ROUNDING)


# Errors.


@pytest.mark.parametrize(
    ("settings", "key", "problem"),
    [
        ({"heads": 5}, "heads", "5 heads do not divide the width 24"),
        ({"heads": 48}, "heads", "48 heads do not divide the width 24"),
        ({"heads": 4, "kv_heads": 3}, "kv_heads", "3 KV heads do not divide 4 heads"),
        ({"heads": 4, "kv_heads": 8}, "kv_heads", "8 KV heads do not divide 4 heads"),
        (
            {"heads": 4, "value_head_dim": 5, "output_projection": False},
            "output_projection",
            "4 heads of value_head_dim 5 must add up to the width 24",
        ),
    ],
    ids=str,
)
def test_head_sizes_that_do_not_fit_are_an_error(settings: dict[str, Any], key: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: .*{problem}") as caught:
        MultiHeadConfig(**settings).sizes(WIDTH)
    assert caught.value.key == key


def test_heads_need_not_divide_the_width_with_a_given_head_dim() -> None:
    assert run(self_attention(heads=5, head_dim=3), embeddings(2, 4)).shape == (2, 4, WIDTH)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"heads": 0}, "heads"),
        ({"kv_heads": 0}, "kv_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"value_head_dim": -1}, "value_head_dim"),
        ({"similarity": "cosines"}, "similarity"),
        ({"pattern": "slide(3)"}, "pattern"),
        ({"pattern": "sliding(0)"}, "pattern"),
        ({"dropout": 1.0}, "dropout"),
        ({"dropout": -0.1}, "dropout"),
        ({"head": 8}, "head"),
    ],
    ids=str,
)
def test_config_error_names_the_key(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError, match=f"^{key}: "):
        MultiHeadConfig(**settings)
