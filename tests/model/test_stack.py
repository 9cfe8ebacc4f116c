"""Stacks, blocks and norms: final norm, cross-attention keys and values, dense prefix, initialization and dropout."""

import pytest
import torch
from torch import Tensor, nn

from regard import UserError
from regard.attention import Context, Full, LayerState, MultiHeadConfig, NoPositionConfig, RotaryConfig
from regard.config import ConfigError
from regard.fused.support import stack_unsupported_reason
from regard.model import FeedForwardConfig, NormConfig, StackConfig
from regard.model.stack import Block, NoResidualBlock, PostNormBlock, PreNormBlock, Stack, check_stack
from tests.model.small_models import EXACT, WIDTH, norm_order, stack, with_dense_prefix, with_experts

NONE = NoPositionConfig()
CONTEXT = Context(torch.zeros(2, 5, dtype=torch.long))


def build_stack(config: StackConfig, cross_kv: str | None = None, causal: bool = True) -> Stack:
    torch.manual_seed(0)
    return Stack(config, WIDTH, NONE, causal=causal, cross_kv=cross_kv).double().eval()


def vectors(rows: int = 2, tokens: int = 5) -> Tensor:
    return torch.randn(rows, tokens, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("order", ["pre", "none"])
def test_blocks_without_post_norm_are_followed_by_a_final_norm(order):
    model = build_stack(stack(**norm_order(order)))
    y = model(vectors(), CONTEXT, model.states())
    assert isinstance(model.final_norm, nn.LayerNorm)
    torch.testing.assert_close(y.mean(dim=-1), torch.zeros(2, 5).double(), **EXACT)


def test_post_norm_blocks_have_no_final_norm():
    model = build_stack(stack(norm_position="post"))
    x = vectors()
    y = model(x, CONTEXT, model.states())
    for block in model.layers:
        x = block(x, CONTEXT, LayerState())
    assert torch.equal(y, x)
    assert not list(model.final_norm.parameters())


def test_stack_applies_its_blocks_in_order():
    model = build_stack(stack(layers=3))
    x = vectors()
    y = model(x, CONTEXT, model.states())
    for block in model.layers:
        x = block(x, CONTEXT, LayerState())
    assert torch.equal(y, model.final_norm(x))


@pytest.mark.parametrize(("cross_kv", "sublayers"), [(None, 2), ("per_layer", 3), ("shared", 3)])
def test_layers_have_cross_attention_only_with_cross_kv(cross_kv, sublayers):
    names = ("self_attn", "cross_attn", "feed_forward") if sublayers == 3 else ("self_attn", "feed_forward")
    assert [block.names for block in build_stack(stack(), cross_kv).blocks()] == [names, names]


def test_layers_share_no_parameters():
    model = build_stack(stack(layers=3), "per_layer")
    first, second, third = (set(block.parameters()) for block in model.layers)
    assert not first & second
    assert not second & third
    assert not first & third


def test_non_causal_stack_attends_to_later_tokens():
    model = build_stack(stack(), causal=False)
    x = vectors()
    changed = x.clone()
    changed[:, -1] += 1
    assert not torch.equal(model(x, CONTEXT, model.states())[:, 0], model(changed, CONTEXT, model.states())[:, 0])


def test_cross_kv_per_layer_differs_between_layers():
    model = build_stack(stack(layers=2), "per_layer")
    (first, _), (second, _) = model.project_memory(vectors())
    assert first.shape == second.shape == (2, 4, 5, WIDTH // 4)
    assert not torch.equal(first, second)


def test_shared_cross_kv_is_projected_once():
    model = build_stack(stack(layers=3), "shared")
    first, second, third = model.project_memory(vectors())
    assert first is second is third


def test_layers_with_shared_cross_kv_have_no_kv_projections():
    parameters = [name for name, _ in build_stack(stack(), "shared").named_parameters()]
    assert not [name for name in parameters if "cross_attn.k_proj" in name or "cross_attn.v_proj" in name]
    assert [name for name in parameters if name.startswith("cross_kv.")]


def test_states_without_a_capacity_have_no_cache():
    assert all(state.self_kv is None and state.cross_kv is None for state in build_stack(stack()).states())


def test_states_with_a_capacity_have_separate_caches():
    first, second = build_stack(stack()).states(capacity=7)
    assert first.self_kv is not second.self_kv
    assert first.self_kv.capacity == second.self_kv.capacity == 7


# Dense prefix


def test_dense_prefix_has_its_own_feed_forward():
    model = build_stack(with_dense_prefix(with_experts(stack(layers=4), experts=3), layers=2, hidden=9))
    kinds = [type(block.feed_forward).__name__ for block in model.layers]
    assert kinds == ["FeedForward", "FeedForward", "MixtureOfExperts", "MixtureOfExperts"]
    hidden = [getattr(block.feed_forward, "experts", block.feed_forward).up_proj.weight for block in model.layers]
    assert [weight.shape[-2] for weight in hidden] == [9, 9, 24, 24]


def test_dense_prefix_like_the_other_layers_is_the_same_stack():
    plain = stack(layers=3)
    one, other = build_stack(plain), build_stack(with_dense_prefix(plain, layers=2))
    assert one.state_dict().keys() == other.state_dict().keys()
    x = vectors()
    assert torch.equal(one(x, CONTEXT, one.states()), other(x, CONTEXT, other.states()))


def test_default_has_no_dense_prefix():
    assert StackConfig.read({"layers": 3}).dense_prefix is None
    assert [each.hidden for each in StackConfig.read({"layers": 3}).feed_forwards] == [2048] * 3


def test_dense_prefix_round_trips_through_plain_data():
    settings = {"layers": 3, "dense_prefix": {"layers": 1, "feed_forward": {"kind": "moe", "hidden": 5}}}
    config = StackConfig.read(settings)
    assert [each.kind for each in config.feed_forwards] == ["moe", "dense", "dense"]
    assert StackConfig.read(config.plain()) == config


@pytest.mark.parametrize(
    ("dense_prefix", "key", "problem"),
    [
        ({"layers": 3, "feed_forward": {}}, "dense_prefix.layers", "found 3; expected fewer than layers (3)."),
        ({"layers": 0, "feed_forward": {}}, "dense_prefix.layers", "found 0; expected greater than or equal to 1."),
        ({"layers": 1}, "dense_prefix.feed_forward", "this key is required"),
        ({"feed_forward": {"kind": "sparse"}}, "dense_prefix.feed_forward.kind", "found 'sparse'"),
        ({"feed_forward": {}, "layer": 1}, "dense_prefix.layer", "unknown key; did you mean 'layers'?"),
    ],
)
def test_invalid_dense_prefix_is_refused_by_key(dense_prefix, key, problem):
    with pytest.raises(ConfigError) as caught:
        StackConfig(layers=3, dense_prefix=dense_prefix)
    assert caught.value.key == key
    assert problem in caught.value.problem


# Initialization


def max_over_glorot(weight: Tensor) -> float:
    """The largest weight divided by Glorot's limit √(6 / (in + out)) (Glorot & Bengio 2010, eq. 16)."""
    return weight.abs().max().item() / (6 / sum(weight.shape)) ** 0.5


@pytest.mark.parametrize("order", ["pre", "post", "none"])
@pytest.mark.parametrize("name", ["self_attn.q_proj", "self_attn.v_proj", "feed_forward.up_proj"])
def test_input_projections_have_glorot_initialization(order, name):
    weight = build_stack(stack(layers=8, **norm_order(order))).layers[0].get_submodule(name).weight
    assert max_over_glorot(weight) == pytest.approx(1, abs=0.05)  # the largest of 256 samples or more


@pytest.mark.parametrize(("order", "gain"), [("pre", (2 * 8) ** -0.5), ("post", 1.0), ("none", 1.0)])
@pytest.mark.parametrize("name", ["self_attn.o_proj", "cross_attn.o_proj", "feed_forward.down_proj"])
def test_output_projections_of_pre_norm_are_scaled_down_by_depth(order, gain, name):
    weight = build_stack(stack(layers=8, **norm_order(order)), "per_layer").layers[0].get_submodule(name).weight
    assert max_over_glorot(weight) == pytest.approx(gain, rel=0.05)


def test_biases_are_initialized_to_zero():
    biases = [each for name, each in build_stack(stack(), "per_layer").named_parameters() if name.endswith("bias")]
    assert biases
    assert all(bias.eq(0).all() for bias in biases)


# Dropout


def test_every_sublayer_has_the_dropout_of_the_stack():
    model = build_stack(stack(dropout=0.0).model_copy(update={"dropout": 0.4}), "per_layer")
    assert [sublayer.dropout.p for block in model.layers for sublayer in block.sublayers] == [0.4] * 6


def test_attention_dropout_drops_attention_weights():
    """With one key, the only weight of a head is 1: the head returns zero if it is dropped, else twice its value."""
    config = MultiHeadConfig(heads=4, dropout=0.5, output_projection=False, bias=False)
    attention = config.self_attention(WIDTH, Full(), None).double().train()
    x = vectors(rows=6, tokens=1)
    torch.manual_seed(0)
    y = attention(x, Context(torch.zeros(6, 1, dtype=torch.long)), LayerState()).view(6, 4, WIDTH // 4)
    value = attention.v_proj(x).view(6, 4, WIDTH // 4)
    dropped, kept = y.eq(0).all(dim=-1), torch.isclose(y, 2 * value, **EXACT).all(dim=-1)
    assert (dropped | kept).all()
    assert dropped.any()
    assert kept.any()


def test_evaluation_has_no_attention_dropout():
    config = MultiHeadConfig(heads=4, output_projection=False)
    torch.manual_seed(0)
    attention = config.self_attention(WIDTH, Full(), None).double().eval()
    plain = attention(vectors(), CONTEXT, LayerState())
    attention.dropout = 0.5
    assert torch.equal(attention(vectors(), CONTEXT, LayerState()), plain)


# Invalid configs


@pytest.mark.parametrize(
    ("attention", "position", "key", "problem"),
    [
        (MultiHeadConfig(heads=5), NONE, "encoder.attention.heads", "5 heads do not divide the width 16"),
        (MultiHeadConfig(heads=4, kv_heads=3), NONE, "encoder.attention.kv_heads", "choose a divisor of heads"),
        (MultiHeadConfig(heads=16), RotaryConfig(), "position.kind", "head_dim must be even; found 1"),
    ],
    ids=["heads", "kv heads", "rotary"],
)
def test_config_that_does_not_fit_the_width_is_refused_by_key(attention, position, key, problem):
    config = StackConfig(attention=attention, feed_forward=FeedForwardConfig())
    with pytest.raises(ConfigError) as caught:
        check_stack("encoder", config, WIDTH, position)
    assert caught.value.key == key
    assert problem in caught.value.problem


def test_heads_need_not_divide_the_width_if_head_dim_is_set():
    check_stack("encoder", stack(heads=5, head_dim=4), WIDTH, NONE)


# Blocks

BLOCK_CONTEXT = Context(torch.zeros(2, 3, dtype=torch.long))
BLOCK_STATE = LayerState()
X = torch.linspace(-2, 3, 2 * 3 * 8, dtype=torch.float64).view(2, 3, 8)


class Triple(nn.Module):
    """3x + 1, which is never zero for X."""

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        assert context is BLOCK_CONTEXT
        assert state is BLOCK_STATE
        return 3 * x + 1


class Halve(nn.Module):
    """Replaces a norm, so that the output shows where it is applied."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


class HalveConfig(NormConfig):
    def build(self, width: int) -> nn.Module:
        return Halve()


def build_block(kind: type[Block], dropout: float = 0.0, names: tuple[str, ...] = ("only",)) -> Block:
    return kind({name: Triple() for name in names}, HalveConfig(), 8, dropout)


def test_pre_norm_block_normalizes_the_sublayer_input():
    assert torch.equal(build_block(PreNormBlock)(X, BLOCK_CONTEXT, BLOCK_STATE), X + (3 * (X / 2) + 1))


def test_post_norm_block_normalizes_the_sum():
    assert torch.equal(build_block(PostNormBlock)(X, BLOCK_CONTEXT, BLOCK_STATE), (X + (3 * X + 1)) / 2)


def test_block_without_residual_does_not_add_the_input():
    assert torch.equal(build_block(NoResidualBlock)(X, BLOCK_CONTEXT, BLOCK_STATE), 3 * (X / 2) + 1)


@pytest.mark.parametrize(
    ("kind", "added"),
    [
        (PreNormBlock, lambda y: y - X),
        (PostNormBlock, lambda y: 2 * y - X),
        (NoResidualBlock, lambda y: y),
    ],
    ids=["pre", "post", "none"],
)
def test_dropout_applies_to_the_sublayer_output_only(kind, added):
    """§5.4 of the paper: dropout on the output of each sublayer, before it is added to its input and normalized."""
    torch.manual_seed(0)
    block = build_block(kind, 0.75).train()
    function = 3 * X + 1 if kind is PostNormBlock else 3 * (X / 2) + 1
    kept = added(block(X, BLOCK_CONTEXT, BLOCK_STATE)) / function  # 0 where dropped, 1 / (1 − 0.75) elsewhere
    near_zero, near_four = kept.abs() < 1e-9, (kept - 4).abs() < 1e-9
    assert (near_zero | near_four).all()
    assert near_zero.any()
    assert near_four.any()


@pytest.mark.parametrize("kind", [PreNormBlock, PostNormBlock, NoResidualBlock])
def test_evaluation_has_no_block_dropout(kind):
    with_dropout, plain = build_block(kind, 0.75).eval(), build_block(kind)
    assert torch.equal(with_dropout(X, BLOCK_CONTEXT, BLOCK_STATE), plain(X, BLOCK_CONTEXT, BLOCK_STATE))


def test_block_applies_its_sublayers_in_order():
    first = X + (3 * (X / 2) + 1)
    block = build_block(PreNormBlock, names=("first", "second"))
    assert torch.equal(block(X, BLOCK_CONTEXT, BLOCK_STATE), first + (3 * (first / 2) + 1))


def test_modules_of_sublayers_have_flat_names():
    block = build_block(PreNormBlock, names=("self_attn", "feed_forward"))
    assert [name for name, _ in block.named_children()] == [
        "self_attn",
        "self_attn_norm",
        "self_attn_dropout",
        "feed_forward",
        "feed_forward_norm",
        "feed_forward_dropout",
    ]


# Norms


def test_layer_norm_centers_and_scales():
    norm = NormConfig(eps=0.1).build(8).double()
    centered = X - X.mean(dim=-1, keepdim=True)
    expected = centered / (centered.square().mean(dim=-1, keepdim=True) + 0.1).sqrt()
    torch.testing.assert_close(norm(X), expected, rtol=1e-12, atol=1e-12)


def test_rms_norm_scales_without_centering():
    norm = NormConfig(kind="rms", eps=0.1).build(8).double()
    expected = X / (X.square().mean(dim=-1, keepdim=True) + 0.1).sqrt()
    torch.testing.assert_close(norm(X), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (NormConfig(), {"weight", "bias"}),
        (NormConfig(bias=False), {"weight"}),
        (NormConfig(kind="rms"), {"weight"}),
    ],
    ids=["layer", "layer without bias", "rms"],
)
def test_parameters_of_a_norm(config, names):
    assert {name for name, _ in config.build(8).named_parameters()} == names


def test_eps_of_zero_is_refused():
    with pytest.raises(UserError, match=r"^eps: found 0; expected greater than 0\.$"):
        NormConfig(eps=0)


def test_no_feed_forward_leaves_layers_of_attention_alone():
    config = StackConfig.read({"layers": 2, "attention": {"heads": 2}, "feed_forward": {"kind": "none"}})
    model = build_stack(config, cross_kv="per_layer")
    assert [block.names for block in model.blocks()] == [("self_attn", "cross_attn")] * 2
    assert stack_unsupported_reason(model.float()) == "a layer has no feed-forward"
