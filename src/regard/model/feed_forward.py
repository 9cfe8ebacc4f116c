"""The feed-forward network, applied to each token on its own.

FFN(x) = f(x W₁ + b₁) W₂ + b₂ (Vaswani et al. 2017, §3.3). The gated form multiplies the up projection by an activated
gate (Shazeer 2020); with SiLU that is SwiGLU.
"""

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from regard.attention import Context, LayerState
from regard.config import Config


def _squared_relu(x: Tensor) -> Tensor:
    """ReLU² (So et al. 2021)."""
    return functional.relu(x).square()


Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "relu2", "swiglu", "geglu", "geglu-tanh"]
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "relu2": _squared_relu,
}
_GATED = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh"}


def activation_function(activation: Activation) -> Callable[[Tensor], Tensor]:
    """The activation function; of a gated one, the function applied to the gate."""
    return _FUNCTIONS[_GATED.get(activation, activation)]


def is_gated(activation: Activation) -> bool:
    """Whether the activation is gated: the up projection is multiplied by an activated gate."""
    return activation in _GATED


class FeedForwardConfig(Config):
    """A dense feed-forward network: two linear layers with an activation function between them."""

    kind: Literal["dense"] = "dense"
    hidden: int = Field(default=2048, ge=1, le=10_000_000)
    """The width between the two projections (d_ff)."""
    activation: Activation = "relu"
    """The activation function. swiglu, geglu and geglu-tanh are gated: a third projection, activated by SiLU or GELU,
    multiplies the hidden features. relu2 is the square of ReLU."""
    bias: bool = True
    """Whether the projections have a bias."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The dropout probability after the activation function."""

    def build(self, width: int) -> nn.Module:
        kind = GatedFeedForward if is_gated(self.activation) else FeedForward
        return kind(self, width)


class NoFeedForwardConfig(Config):
    """No feed-forward network: layers of attention alone, which shows what the feed-forward is good for."""

    kind: Literal["none"] = "none"

    # What the estimates of cost and memory read of any feed-forward.
    hidden: ClassVar[int] = 0
    activation: ClassVar[Activation] = "relu"
    bias: ClassVar[bool] = False
    dropout: ClassVar[float] = 0.0


class FeedForward(nn.Module):
    """f(x W₁) W₂."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation_name = config.activation
        self.activation = activation_function(config.activation)
        self.up_proj = nn.Linear(width, config.hidden, bias=config.bias)
        self.down_proj = nn.Linear(config.hidden, width, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        output: Tensor = self.down_proj(self.dropout(self.activation(self.up_proj(x))))
        return output


class GatedFeedForward(FeedForward):
    """(f(x G) · x W₁) W₂."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__(config, width)
        self.gate_proj = nn.Linear(width, config.hidden, bias=config.bias)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        output: Tensor = self.down_proj(self.dropout(self.activation(self.gate_proj(x)) * self.up_proj(x)))
        return output
