"""Stacks: what stands at their end, how they start, what they remember of an encoder, where dropout falls in them."""

import pytest
import torch
from torch import Tensor, nn

from regard.attention import Context, Full, HeadsConfig, LayerState, NoPositionConfig, RotaryConfig
from regard.config import ConfigError
from regard.model import FeedForwardConfig, StackConfig
from regard.model.stack import Stack, check_stack

from .small_models import EXACT, WIDTH, stack, with_experts, with_first

NONE = NoPositionConfig()
CONTEXT = Context(torch.zeros(2, 5, dtype=torch.long))


def make(config: StackConfig, memory: str | None = None, causal: bool = True) -> Stack:
    torch.manual_seed(0)
    return Stack(config, WIDTH, NONE, causal=causal, memory=memory).double().eval()


def vectors(rows: int = 2, tokens: int = 5) -> Tensor:
    return torch.randn(rows, tokens, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("order", ["pre", "none"])
def test_blocks_that_leave_their_output_unnormed_are_followed_by_a_norm(order):
    made = make(stack(order=order))
    y = made(vectors(), CONTEXT, made.states())
    assert isinstance(made.norm, nn.LayerNorm)
    torch.testing.assert_close(y.mean(dim=-1), torch.zeros(2, 5).double(), **EXACT)


def test_post_norm_blocks_are_followed_by_nothing():
    made = make(stack(order="post"))
    x = vectors()
    y = made(x, CONTEXT, made.states())
    for block in made.blocks:
        x = block(x, CONTEXT, LayerState())
    assert torch.equal(y, x)
    assert not list(made.norm.parameters())


def test_a_stack_goes_through_its_blocks_in_turn():
    made = make(stack(layers=3))
    x = vectors()
    y = made(x, CONTEXT, made.states())
    for block in made.blocks:
        x = block(x, CONTEXT, LayerState())
    assert torch.equal(y, made.norm(x))


@pytest.mark.parametrize(("memory", "parts"), [(None, 2), ("layer", 3), ("shared", 3)])
def test_a_layer_is_attention_cross_attention_where_there_is_an_encoder_and_feed_forward(memory, parts):
    names = ["attention", "cross", "feed_forward"] if parts == 3 else ["attention", "feed_forward"]
    assert [list(block) for block in make(stack(), memory).blocks] == [names, names]


def test_layers_share_no_parameters():
    made = make(stack(layers=3), "layer")
    first, second, third = (set(block.parameters()) for block in made.blocks)
    assert not first & second
    assert not second & third
    assert not first & third


def test_a_stack_that_is_not_causal_sees_what_comes():
    made = make(stack(), causal=False)
    x = vectors()
    changed = x.clone()
    changed[:, -1] += 1
    assert not torch.equal(made(x, CONTEXT, made.states())[:, 0], made(changed, CONTEXT, made.states())[:, 0])


def test_every_layer_makes_its_own_keys_and_values_of_the_memory():
    made = make(stack(layers=2), "layer")
    (first, _), (second, _) = made.remember(vectors())
    assert first.shape == second.shape == (2, 4, 5, WIDTH // 4)
    assert not torch.equal(first, second)


def test_a_shared_memory_is_projected_once_and_handed_to_every_layer():
    made = make(stack(layers=3), "shared")
    first, second, third = made.remember(vectors())
    assert first is second is third


def test_layers_that_share_a_memory_have_no_projection_of_their_own():
    parameters = [name for name, _ in make(stack(), "shared").named_parameters()]
    assert not [name for name in parameters if "cross.function.source" in name]
    assert [name for name in parameters if name.startswith("memory.")]


def test_states_without_a_capacity_keep_no_past():
    assert all(state.own is None and state.memory is None for state in make(stack()).states())


def test_states_with_a_capacity_each_have_their_own_room():
    first, second = make(stack()).states(capacity=7)
    assert first.own is not second.own
    assert first.own.capacity == second.own.capacity == 7


# First layers that differ


def test_the_first_layers_have_their_own_feed_forward_and_the_others_theirs():
    made = make(with_first(with_experts(stack(layers=4), experts=3), layers=2, hidden=9))
    kinds = [type(block["feed_forward"].function).__name__ for block in made.blocks]
    assert kinds == ["FeedForward", "FeedForward", "Experts", "Experts"]
    assert [block["feed_forward"].function.widen.weight.shape[-2] for block in made.blocks] == [9, 9, 24, 24]


def test_first_layers_like_the_others_are_the_same_stack():
    plain = stack(layers=3)
    one, other = make(plain), make(with_first(plain, layers=2))
    assert one.state_dict().keys() == other.state_dict().keys()
    x = vectors()
    assert torch.equal(one(x, CONTEXT, one.states()), other(x, CONTEXT, other.states()))


def test_settings_without_first_layers_are_read_as_they_ever_were():
    assert StackConfig.read({"layers": 3}).first is None
    assert [each.hidden for each in StackConfig.read({"layers": 3}).feed_forwards] == [2048] * 3


def test_first_layers_are_read_from_plain_data_and_go_back_into_it():
    given = {"layers": 3, "first": {"layers": 1, "feed_forward": {"kind": "experts", "hidden": 5}}}
    config = StackConfig.read(given)
    assert [each.kind for each in config.feed_forwards] == ["experts", "dense", "dense"]
    assert StackConfig.read(config.plain()) == config


@pytest.mark.parametrize(
    ("first", "key", "problem"),
    [
        ({"layers": 3, "feed_forward": {}}, "first.layers", "found 3; expected fewer than layers (3)."),
        ({"layers": 0, "feed_forward": {}}, "first.layers", "found 0; expected greater than or equal to 1."),
        ({"layers": 1}, "first.feed_forward", "this key is required"),
        ({"feed_forward": {"kind": "sparse"}}, "first.feed_forward.kind", "found 'sparse'"),
        ({"feed_forward": {}, "layer": 1}, "first.layer", "unknown key; did you mean 'layers'?"),
    ],
)
def test_first_layers_that_cannot_be_are_refused_by_key(first, key, problem):
    with pytest.raises(ConfigError) as caught:
        StackConfig(layers=3, first=first)
    assert caught.value.key == key
    assert problem in caught.value.problem


# How weights start


def spread(weight: Tensor) -> float:
    """Largest number over Glorot's limit √(6 / (in + out)) (Glorot & Bengio 2010, eq. 16)."""
    return weight.abs().max().item() / (6 / sum(weight.shape)) ** 0.5


@pytest.mark.parametrize("order", ["pre", "post", "none"])
@pytest.mark.parametrize(
    "name", ["attention.function.query", "attention.function.source.value", "feed_forward.function.widen"]
)
def test_what_opens_a_sublayer_starts_within_glorot_s_limit(order, name):
    weight = make(stack(layers=8, order=order)).blocks[0].get_submodule(name).weight
    assert spread(weight) == pytest.approx(1, abs=0.05)  # the largest of 256 draws or more


@pytest.mark.parametrize(("order", "gain"), [("pre", (2 * 8) ** -0.5), ("post", 1.0), ("none", 1.0)])
@pytest.mark.parametrize("name", ["attention.function.output", "cross.function.output", "feed_forward.function.narrow"])
def test_what_joins_a_residual_sum_of_pre_norm_starts_smaller_the_deeper_the_stack(order, gain, name):
    weight = make(stack(layers=8, order=order), "layer").blocks[0].get_submodule(name).weight
    assert spread(weight) == pytest.approx(gain, rel=0.05)


def test_biases_start_at_zero():
    biases = [each for name, each in make(stack(), "layer").named_parameters() if name.endswith("bias")]
    assert biases
    assert all(bias.eq(0).all() for bias in biases)


# Dropout


def test_dropout_of_a_stack_is_that_of_each_of_its_sublayers():
    made = make(stack(dropout=0.0).model_copy(update={"dropout": 0.4}), "layer")
    assert [sublayer.dropout.p for block in made.blocks for sublayer in block.values()] == [0.4] * 6


def test_dropout_of_attention_falls_on_whole_weights():
    """With one key a head's only weight is 1: dropped, the head says nothing, kept, it says its value twice."""
    config = HeadsConfig(heads=4, dropout=0.5, output=False, bias=False)
    attention = config.self_attention(WIDTH, Full(), None).double().train()
    x = vectors(rows=6, tokens=1)
    torch.manual_seed(0)
    y = attention(x, Context(torch.zeros(6, 1, dtype=torch.long)), LayerState()).view(6, 4, WIDTH // 4)
    value = attention.source.value(x).view(6, 4, WIDTH // 4)
    gone, kept = y.eq(0).all(dim=-1), torch.isclose(y, 2 * value, **EXACT).all(dim=-1)
    assert (gone | kept).all()
    assert gone.any()
    assert kept.any()


def test_dropout_of_attention_is_none_in_evaluation():
    config = HeadsConfig(heads=4, output=False)
    torch.manual_seed(0)
    attention = config.self_attention(WIDTH, Full(), None).double().eval()
    plain = attention(vectors(), CONTEXT, LayerState())
    attention.dropout = 0.5
    assert torch.equal(attention(vectors(), CONTEXT, LayerState()), plain)


# Settings that cannot be built


@pytest.mark.parametrize(
    ("attention", "position", "key", "problem"),
    [
        (HeadsConfig(heads=5), NONE, "encoder.attention.heads", "5 heads do not divide the width 16"),
        (HeadsConfig(heads=4, key_heads=3), NONE, "encoder.attention.key_heads", "choose a divisor of heads"),
        (HeadsConfig(heads=16), RotaryConfig(), "position.kind", "a head's width must be even; found 1"),
    ],
    ids=["heads", "key heads", "rotary"],
)
def test_what_cannot_be_built_at_this_width_is_refused_with_its_key(attention, position, key, problem):
    config = StackConfig(attention=attention, feed_forward=FeedForwardConfig())
    with pytest.raises(ConfigError) as caught:
        check_stack("encoder", config, WIDTH, position)
    assert caught.value.key == key
    assert problem in caught.value.problem


def test_heads_need_not_divide_the_width_where_their_own_width_is_given():
    check_stack("encoder", stack(heads=5, head_width=4), WIDTH, NONE)
