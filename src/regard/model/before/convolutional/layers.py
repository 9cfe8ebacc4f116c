"""Convolutions over the tokens of a text, and weight normalization.

A convolution sees a window of `kernel` tokens, which dilation spreads out: they are `dilation` tokens apart. In a
decoder it is causal: the window ends with the token itself. Then all that decoding has to remember of the past is the
layer's last (kernel − 1) · dilation inputs. They are its cache, and zeros before the first token.

Weight normalization (Salimans and Kingma 2016) writes each row of a matrix as g · v / ‖v‖. Here g and v are plain
parameters, named and shaped as in `torch.nn.utils.weight_norm`, and the weight is computed in every call, so a copy of
the model in another precision only has to replace them.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, TypeVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

Dilation = Annotated[int, Field(ge=1, le=100_000)]
"""The distance of the tokens that a convolution sees from each other."""
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class WeightNormLinear(nn.Module):
    """A linear layer with weight normalization; at first its outputs have the variance of its inputs."""

    no_weight_decay: ClassVar = ("weight_g", "weight_v")  # g is a scale, and the length of v has no effect

    def __init__(self, inputs: int, outputs: int, dropout: float = 0.0) -> None:
        """`dropout` is that of the inputs, which raises their variance (Gehring et al. 2017, §3.5)."""
        super().__init__()
        self.weight_v = nn.Parameter(torch.randn(outputs, inputs) * ((1 - dropout) / inputs) ** 0.5)
        self.weight_g = nn.Parameter(_row_norms(self.weight_v.detach()))  # (outputs, 1)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """x: # (…, inputs); gives (…, outputs)"""
        return functional.linear(x, normalized_weight(self.weight_v, self.weight_g), self.bias)


class Convolution(nn.Module):
    """A convolution; parameters as in `torch.nn.Conv1d`, but tokens come before channels."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.kernel, self.dilation = kernel, dilation
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel) * (2 / (kernel * inputs)) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    @property
    def span(self) -> int:
        """The tokens that each output sees besides one: (kernel − 1) · dilation."""
        return (self.kernel - 1) * self.dilation

    def forward(self, x: Tensor) -> Tensor:
        """Only outputs whose whole window exists.  x: # (batch, span + tokens, inputs); (batch, tokens, outputs)"""
        return convolve(x, self.weight, self.bias, self.dilation)

    def centered(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Windows with the token in the middle; padding and what lies outside the text are zeros.

        x: # (batch, tokens, inputs); mask: # (batch, tokens), True where there is a token; (batch, tokens, outputs)
        """
        x = x if mask is None else x.masked_fill(~mask[..., None], 0)
        left = self.span // 2
        output: Tensor = self(functional.pad(x, (0, 0, left, self.span - left)))
        return output

    def causal(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """Windows that end with the token, and the cache after the last one.

        x: # (rows, tokens, inputs); cache: # (rows, span, inputs); gives (rows, tokens, outputs)
        """
        x = torch.cat((cache, x), dim=1)  # (rows, span + tokens, inputs)
        return self(x), x[:, x.shape[1] - self.span :]

    def empty_cache(self, rows: int) -> Tensor:
        """The cache before the first token.  # (rows, span, inputs)"""
        return self.bias.new_zeros(rows, self.span, self.weight.shape[1])


class GatedConvolution(Convolution):
    """A convolution with weight normalization and a gated linear unit (GLU; Dauphin et al. 2017): a · σ(b)."""

    no_weight_decay: ClassVar = ("weight_g", "weight_v")

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1, dropout: float = 0.0) -> None:
        """The gate halves the outputs at first, so the variance of the weights is 4 times that of a linear layer."""
        nn.Module.__init__(self)
        self.kernel, self.dilation = kernel, dilation
        std = (4 * (1 - dropout) / (kernel * inputs)) ** 0.5
        self.weight_v = nn.Parameter(torch.randn(2 * outputs, inputs, kernel) * std)
        self.weight_g = nn.Parameter(_row_norms(self.weight_v.detach()))  # (2 · outputs, 1, 1)
        self.bias = nn.Parameter(torch.zeros(2 * outputs))

    def forward(self, x: Tensor) -> Tensor:
        weight = normalized_weight(self.weight_v, self.weight_g)
        return functional.glu(convolve(x, weight, self.bias, self.dilation), dim=-1)

    def empty_cache(self, rows: int) -> Tensor:
        return self.bias.new_zeros(rows, self.span, self.weight_v.shape[1])


def convolve(x: Tensor, weight: Tensor, bias: Tensor, dilation: int = 1) -> Tensor:
    """x: # (batch, span + tokens, inputs); weight: # (outputs, inputs, kernel); gives (batch, tokens, outputs)"""
    return functional.conv1d(x.transpose(1, 2), weight, bias, dilation=dilation).transpose(1, 2)


def normalized_weight(v: Tensor, g: Tensor) -> Tensor:
    """g · v / ‖v‖ for each row.  v: # (outputs, …); g: # (outputs, 1, …)"""
    return torch._weight_norm(v, g, 0)  # what PyTorch's own parametrization calls: fused, and fast in the backward pass


def module_list(modules: Iterable[AnyModule]) -> Sequence[AnyModule]:
    """A `nn.ModuleList` whose elements keep their type for a type checker."""
    return cast(Sequence[AnyModule], nn.ModuleList(modules))


def scale_gradient(x: Tensor, scale: float) -> Tensor:
    """The same values, whose gradient is multiplied by `scale` in the backward pass."""
    output: Tensor = _ScaledGradient.apply(x, scale)  # type: ignore[no-untyped-call]
    return output


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.scale, None  # type: ignore[attr-defined]


def _row_norms(v: Tensor) -> Tensor:
    """v: # (outputs, …); gives (outputs, 1, …)"""
    norms: Tensor = torch.linalg.vector_norm(v, dim=tuple(range(1, v.dim())), keepdim=True)
    return norms
