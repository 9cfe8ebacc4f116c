"""The plain feed-forward: each token alone, widened, bent and narrowed again.

FFN(x) = f(x W₁ + b₁) W₂ + b₂ (Vaswani et al. 2017, §3.3). The gated form multiplies two widened copies, one of them
bent (Shazeer 2020); with SiLU that is SwiGLU.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch.nn.functional as functional
from pydantic import Field
from torch import Tensor, nn

from regard.attention import Context, LayerState
from regard.config import Config


def _squared_relu(x: Tensor) -> Tensor:
    """ReLU² (So et al. 2021)."""
    return functional.relu(x).square()


Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "relu2", "swiglu", "geglu", "geglu-tanh"]
_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu-tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
    "relu2": _squared_relu,
}
_GATED = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh"}


def bend_of(activation: Activation) -> Callable[[Tensor], Tensor]:
    """What bends numbers; of a gated form, what bends the gate."""
    return _PLAIN[_GATED.get(activation, activation)]


def is_gated(activation: Activation) -> bool:
    """Whether two widened copies are multiplied."""
    return activation in _GATED


class FeedForwardConfig(Config):
    kind: Literal["dense"] = "dense"
    hidden: int = Field(default=2048, ge=1)
    activation: Activation = "relu"
    bias: bool = True
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def build(self, width: int) -> nn.Module:
        kind = GatedFeedForward if is_gated(self.activation) else FeedForward
        return kind(self, width)


class FeedForward(nn.Module):
    """f(x W₁) W₂."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__()
        self.activation = config.activation
        self.bend = bend_of(config.activation)
        self.widen = nn.Linear(width, config.hidden, bias=config.bias)
        self.narrow = nn.Linear(config.hidden, width, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        narrowed: Tensor = self.narrow(self.dropout(self.bend(self.widen(x))))
        return narrowed


class GatedFeedForward(FeedForward):
    """(f(x G) · x W₁) W₂."""

    def __init__(self, config: FeedForwardConfig, width: int) -> None:
        super().__init__(config, width)
        self.gate = nn.Linear(width, config.hidden, bias=config.bias)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        narrowed: Tensor = self.narrow(self.dropout(self.bend(self.gate(x)) * self.widen(x)))
        return narrowed
