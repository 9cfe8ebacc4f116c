"""Sublayers, their order and their norms, each against the formula it stands for."""

import pytest
import torch
from torch import Tensor, nn

from regard import UserError
from regard.attention import Context, LayerState
from regard.model import NormConfig
from regard.model.block import Block, NoResidual, PostNorm, PreNorm

CONTEXT = Context(torch.zeros(2, 3, dtype=torch.long))
STATE = LayerState()
X = torch.linspace(-2, 3, 2 * 3 * 8, dtype=torch.float64).view(2, 3, 8)


class Triple(nn.Module):
    """Three times what it is given, plus one: never zero where X is used."""

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        assert context is CONTEXT
        assert state is STATE
        return 3 * x + 1


class Halve(nn.Module):
    """Stands in for a norm, so that its place shows."""

    def forward(self, x: Tensor) -> Tensor:
        return x / 2


def test_pre_norm_adds_the_function_of_the_normed_input():
    assert torch.equal(PreNorm(Triple(), Halve(), 0.0)(X, CONTEXT, STATE), X + (3 * (X / 2) + 1))


def test_post_norm_norms_the_sum():
    assert torch.equal(PostNorm(Triple(), Halve(), 0.0)(X, CONTEXT, STATE), (X + (3 * X + 1)) / 2)


def test_without_residual_the_input_is_not_added():
    assert torch.equal(NoResidual(Triple(), Halve(), 0.0)(X, CONTEXT, STATE), 3 * (X / 2) + 1)


@pytest.mark.parametrize(
    ("order", "added"),
    [
        (PreNorm, lambda y: y - X),
        (PostNorm, lambda y: 2 * y - X),
        (NoResidual, lambda y: y),
    ],
    ids=["pre", "post", "none"],
)
def test_dropout_falls_on_what_a_sublayer_adds_and_on_nothing_else(order, added):
    """§5.4 of the paper: on the output of each sublayer, before it is added to its input and normed."""
    torch.manual_seed(0)
    sublayer = order(Triple(), Halve(), 0.75).train()
    function = 3 * X + 1 if order is PostNorm else 3 * (X / 2) + 1
    kept = added(sublayer(X, CONTEXT, STATE)) / function  # 0 where dropped, 1 / (1 − 0.75) elsewhere
    near_zero, near_four = kept.abs() < 1e-9, (kept - 4).abs() < 1e-9
    assert (near_zero | near_four).all()
    assert near_zero.any()
    assert near_four.any()


@pytest.mark.parametrize("order", [PreNorm, PostNorm, NoResidual])
def test_evaluation_drops_nothing(order):
    dropping, plain = order(Triple(), Halve(), 0.75).eval(), order(Triple(), Halve(), 0.0)
    assert torch.equal(dropping(X, CONTEXT, STATE), plain(X, CONTEXT, STATE))


def test_a_block_goes_through_its_sublayers_in_turn():
    block = Block({"first": PreNorm(Triple(), Halve(), 0.0), "second": NoResidual(Triple(), Halve(), 0.0)})
    first = X + (3 * (X / 2) + 1)
    assert torch.equal(block(X, CONTEXT, STATE), 3 * (first / 2) + 1)


def test_layer_norm_centres_and_scales():
    norm = NormConfig(epsilon=0.1).build(8).double()
    centred = X - X.mean(dim=-1, keepdim=True)
    expected = centred / (centred.square().mean(dim=-1, keepdim=True) + 0.1).sqrt()
    torch.testing.assert_close(norm(X), expected, rtol=1e-12, atol=1e-12)


def test_rms_norm_scales_and_does_not_centre():
    norm = NormConfig(kind="rms", epsilon=0.1).build(8).double()
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
def test_a_norm_learns_a_gain_and_where_it_shifts_a_bias(config, names):
    assert {name for name, _ in config.build(8).named_parameters()} == names


def test_an_epsilon_of_zero_is_refused():
    with pytest.raises(UserError, match=r"^epsilon: found 0; expected greater than 0\.$"):
        NormConfig(epsilon=0)
