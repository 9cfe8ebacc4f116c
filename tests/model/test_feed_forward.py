"""Feed-forward layers, dense and gated: every activation against its formula, dropout and invalid settings."""

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from regard import UserError
from regard.attention import Context, LayerState
from regard.model import FeedForwardConfig
from regard.model.feed_forward import Activation

WIDTH = 6
X = torch.linspace(-3, 3, 2 * 4 * WIDTH, dtype=torch.float64).view(2, 4, WIDTH)
ROUNDING = {"rtol": 1e-12, "atol": 1e-12}  # float64


def gelu(x: Tensor) -> Tensor:
    """x Φ(x) (Hendrycks & Gimpel 2016)."""
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation in the same paper, which GPT-2 uses."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


PLAIN = {
    "relu": lambda x: torch.maximum(x, torch.zeros(())),
    "gelu": gelu,
    "gelu-tanh": gelu_tanh,
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "relu2": lambda x: torch.maximum(x, torch.zeros(())) ** 2,
}
GATED = {"swiglu": PLAIN["silu"], "geglu": gelu, "geglu-tanh": gelu_tanh}


def run(config: FeedForwardConfig, train: bool = False) -> tuple[torch.nn.Module, Tensor]:
    torch.manual_seed(0)
    layer = config.build(WIDTH).double().train(train)
    return layer, layer(X, Context(torch.zeros(2, 4, dtype=torch.long)), LayerState())


def test_every_activation_has_a_formula_here():
    assert PLAIN.keys() | GATED.keys() == set(get_args(Activation))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", PLAIN)
def test_dense_layer_equals_the_formula(activation, bias):
    layer, y = run(FeedForwardConfig(hidden=10, activation=activation, bias=bias))
    expected = layer.down_proj(PLAIN[activation](layer.up_proj(X)))
    torch.testing.assert_close(y, expected, **ROUNDING)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", GATED)
def test_gated_layer_equals_the_formula(activation, bias):
    layer, y = run(FeedForwardConfig(hidden=10, activation=activation, bias=bias))
    expected = layer.down_proj(GATED[activation](layer.gate_proj(X)) * layer.up_proj(X))
    torch.testing.assert_close(y, expected, **ROUNDING)


@pytest.mark.parametrize(("activation", "matrices"), [("relu", 2), ("swiglu", 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_the_projections_and_optional_biases(activation, matrices, bias):
    layer, _ = run(FeedForwardConfig(hidden=10, activation=activation, bias=bias))
    biases = (matrices - 1) * 10 + WIDTH if bias else 0
    assert sum(parameter.numel() for parameter in layer.parameters()) == matrices * 10 * WIDTH + biases


@pytest.mark.parametrize("activation", ["relu", "swiglu"])
def test_dropout_applies_to_the_hidden_features(activation):
    """With one hidden feature and no bias, the output is zero if the feature is dropped, and else doubled."""
    config = FeedForwardConfig(hidden=1, activation=activation, bias=False)
    _, plain = run(config)
    _, dropped = run(config.model_copy(update={"dropout": 0.5}), train=True)
    is_dropped = dropped.eq(0).all(dim=-1)
    is_kept = torch.isclose(dropped, 2 * plain, **ROUNDING).all(dim=-1)
    is_nonzero = plain.ne(0).any(dim=-1)
    assert (is_dropped | is_kept).all()
    assert (is_dropped & is_nonzero).any()
    assert (is_kept & is_nonzero).any()


def test_evaluation_has_no_dropout():
    config = FeedForwardConfig(hidden=10)
    assert torch.equal(run(config.model_copy(update={"dropout": 0.5}))[1], run(config)[1])


def test_tokens_are_independent():
    layer, y = run(FeedForwardConfig(hidden=10))
    alone = layer(X[:, 2:3], Context(torch.zeros(2, 1, dtype=torch.long)), LayerState())
    torch.testing.assert_close(y[:, 2:3], alone, **ROUNDING)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"activation": "rleu"}, "activation: found 'rleu'; expected 'relu', 'gelu', "),
        ({"hidden": 0}, "hidden: found 0; expected greater than or equal to 1."),
        ({"dropout": -0.1}, "dropout: found -0.1; expected greater than or equal to 0."),
        ({"kind": "moe"}, "kind: found 'moe'; expected 'dense'."),
    ],
    ids=str,
)
def test_invalid_setting_is_refused_by_key(settings, message):
    with pytest.raises(UserError) as caught:
        FeedForwardConfig(**settings)
    assert str(caught.value).startswith(message)
