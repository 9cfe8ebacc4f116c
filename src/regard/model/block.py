"""A block is a list of sublayers, each a function with a residual connection and a norm around it.

Encoder, decoder and language model differ in their lists, not in their classes. The function is any module called
with (x, context, state): attention, feed-forward, what comes next. The order of norm and residual is a small class of
its own: before the function (pre-norm, Xiong et al. 2020), after the sum (post-norm, Vaswani et al.
2017), or no residual at all, which is there to see what the residual is good for.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from regard.attention import Context, LayerState
from regard.config import Config

Order = Literal["pre", "post", "none"]


class NormConfig(Config):
    """Layer normalisation, or its simpler form that neither centres nor shifts (RMSNorm, Zhang & Sennrich 2019)."""

    kind: Literal["layer", "rms"] = "layer"
    epsilon: float = Field(default=1e-5, gt=0)
    bias: bool = True

    def build(self, width: int) -> nn.Module:
        if self.kind == "rms":
            return nn.RMSNorm(width, eps=self.epsilon)
        return nn.LayerNorm(width, eps=self.epsilon, bias=self.bias)


class PreNorm(nn.Module):
    """x + f(norm(x)): gradients reach every layer through the sum alone."""

    def __init__(self, function: nn.Module, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.function, self.norm, self.dropout = function, norm, nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        changed: Tensor = x + self.dropout(self.function(self.norm(x), context, state))
        return changed


class PostNorm(PreNorm):
    """norm(x + f(x)): the paper's order; dropout falls on f(x) before it is added (§5.4)."""

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        changed: Tensor = self.norm(x + self.dropout(self.function(x, context, state)))
        return changed


class NoResidual(PreNorm):
    """f(norm(x)) alone."""

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        changed: Tensor = self.dropout(self.function(self.norm(x), context, state))
        return changed


ORDERS: dict[Order, type[PreNorm]] = {"pre": PreNorm, "post": PostNorm, "none": NoResidual}


class Block(nn.ModuleDict):
    """One layer: its sublayers in turn, each under its name."""

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        for sublayer in self.values():
            x = sublayer(x, context, state)
        return x
