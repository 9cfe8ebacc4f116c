"""Activation functions with dropout in one kernel, written in Triton for a GPU: forward and backward."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.cuda.dropout_rng import keep_scale
from regard.kernels.params import Dropout

_BLOCK = 2048
ACTIVATIONS = ("relu", "gelu", "gelu-tanh", "silu")
"""The activation functions of a feed-forward that there are kernels for."""


@triton.jit
def _activation_and_grad(x, activation: tl.constexpr):
    """The activation of x, and its derivative there."""
    if activation == "relu":
        y, dy = tl.maximum(x, 0.0), tl.where(x > 0.0, 1.0, 0.0)
    elif activation == "gelu":
        # Φ by Abramowitz and Stegun 7.1.26, within 1e-7; its exponential is the density's.
        exponential = tl.exp(-0.5 * x * x)
        t = 1.0 / (1.0 + 0.2316418881662 * tl.abs(x))
        tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
        tail = tail * exponential
        cdf = tl.where(x > 0.0, 1.0 - 0.5 * tail, 0.5 * tail)
        y, dy = x * cdf, cdf + x * 0.3989422804014327 * exponential
    elif activation == "gelu-tanh":
        # (1 + tanh u) / 2 is the sigmoid of 2 u.
        sigmoid = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        inner = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        y, dy = x * sigmoid, sigmoid + x * sigmoid * (1.0 - sigmoid) * inner
    else:
        sigmoid = tl.sigmoid(x)
        y, dy = x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid))
    return y, dy


@triton.jit(do_not_specialize=["offset"])
def _activation_forward(
    x, out, seed, offset, p, count, activation: tl.constexpr, has_dropout: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * block
    cols = tl.arange(0, block)
    mask = cols < count - first
    y, _ = _activation_and_grad(tl.load(x + first + cols, mask, 0.0).to(tl.float32), activation)
    if has_dropout:
        y = y * keep_scale(seed, offset, first.to(tl.uint32) + cols.to(tl.uint32), p)
    tl.store(out + first + cols, y.to(out.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["offset"])
def _activation_backward(
    x, grad, x_grad, seed, offset, p, count,
    activation: tl.constexpr, has_dropout: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * block
    cols = tl.arange(0, block)
    mask = cols < count - first
    g = tl.load(grad + first + cols, mask, 0.0).to(tl.float32)
    _, dy = _activation_and_grad(tl.load(x + first + cols, mask, 0.0).to(tl.float32), activation)
    g = g * dy
    if activation == "relu":
        g = g * (1.0 / (1.0 - p))  # x is the output here: what was dropped is zero in it
    elif has_dropout:
        g = g * keep_scale(seed, offset, first.to(tl.uint32) + cols.to(tl.uint32), p)
    tl.store(x_grad + first + cols, g.to(x_grad.dtype.element_ty), mask)


class _Activation(torch.autograd.Function):
    """For ReLU only the output is stored: gradients flow where it is above zero."""

    @staticmethod
    def forward(context: Any, x: Tensor, activation: str, dropout: Dropout[Tensor] | None) -> Tensor:
        p, seed, offset = dropout or (0.0, x, 0)
        x = x.contiguous()
        out = torch.empty_like(x)
        _activation_forward[(triton.cdiv(x.numel(), _BLOCK),)](
            x, out, seed, offset, p, x.numel(), activation=activation, has_dropout=dropout is not None, block=_BLOCK
        )
        context.save_for_backward(out if activation == "relu" else x, *(() if dropout is None else (seed,)))
        context.settings = activation, p, offset
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Any, ...]:
        x, *seeds = context.saved_tensors
        activation, p, offset = context.settings
        grad = grad.contiguous()
        x_grad = torch.empty_like(grad)
        _activation_backward[(triton.cdiv(x.numel(), _BLOCK),)](
            x, grad, x_grad, seeds[0] if seeds else x, offset, p, x.numel(),
            activation=activation, has_dropout=bool(seeds), block=_BLOCK,
        )  # fmt: skip
        return x_grad, None, None


def activation_dropout(x: Tensor, activation: str, dropout: Dropout[Tensor] | None) -> Tensor:
    """dropout(activation(x)), for one of `ACTIVATIONS`.  x: # (…, hidden)"""
    out: Tensor = _Activation.apply(x, activation, dropout)  # type: ignore[no-untyped-call]
    return out
