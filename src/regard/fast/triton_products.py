"""Products with a bias for training on a GPU, and the sums over rows on their way back, written in Triton.

The gradient of a bias is the sum of each column. PyTorch takes longer for it than for the gradient of the weights.
Here many programs sum some rows each, in float32 and always in the same order, so that the same step gives the same
numbers.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_COLUMNS, _SUMMING = 64, 528
"""Columns that a program sums, and about how many programs share in that. Found by trying."""


@triton.jit(do_not_specialize=["rows", "share"])
def _columns(x, sums, rows, width, share, block_rows: tl.constexpr, block_columns: tl.constexpr):
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    part = tl.program_id(1)
    last = tl.minimum(rows, (part + 1) * share)
    total = tl.zeros([block_rows, block_columns], tl.float32)
    for first in range(part * share, last, block_rows):
        row = (first + tl.arange(0, block_rows)).to(tl.int64)
        inside = (row < last)[:, None] & (column < width)[None, :]
        total += tl.load(x + row[:, None] * width + column[None, :], inside, 0.0).to(tl.float32)
    tl.store(sums + part * width + column, tl.sum(total, 0), column < width)


def column_sums(x: Tensor) -> Tensor:
    """The sum of each column, in float32, in an order that is always the same.  x: # (rows, width); gives (width,)"""
    rows, width = x.shape
    blocks = triton.cdiv(width, _COLUMNS)
    share = triton.cdiv(rows, max(1, _SUMMING // blocks))
    parts = triton.cdiv(rows, share)
    sums = torch.empty(parts, width, dtype=torch.float32, device=x.device)
    _columns[(blocks, parts)](
        x.contiguous(), sums, rows, width, share, block_rows=64, block_columns=_COLUMNS, num_warps=8
    )
    return sums.sum(dim=0)


class _Product(torch.autograd.Function):
    """x Wᵀ + b."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        context.save_for_backward(x, weight)
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Any, ...]:
        x, weight = context.saved_tensors
        rows = slope.reshape(-1, slope.shape[-1])
        wanted = context.needs_input_grad
        back = (rows @ weight).view_as(x) if wanted[0] else None
        weight_slope = rows.T @ x.reshape(len(rows), -1) if wanted[1] else None
        return back, weight_slope, column_sums(rows).to(slope.dtype) if wanted[2] else None


class _Products(torch.autograd.Function):
    """Several products of the same x. What flows back to x is summed within the products that make it."""

    @staticmethod
    def forward(context: Any, x: Tensor, *parts: Tensor | None) -> tuple[Tensor, ...]:
        weights, biases = parts[::2], parts[1::2]
        context.save_for_backward(x, *weights)
        return tuple(functional.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True))  # type: ignore[arg-type]

    @staticmethod
    @once_differentiable
    def backward(context: Any, *slopes: Tensor) -> tuple[Any, ...]:
        x, *weights = context.saved_tensors
        flat = x.reshape(-1, x.shape[-1])
        back: Tensor | None = None
        found: list[Tensor | None] = []
        for number, (slope, weight) in enumerate(zip(slopes, weights, strict=True)):
            rows = slope.reshape(len(flat), -1)
            if context.needs_input_grad[0]:
                back = rows @ weight if back is None else back.addmm_(rows, weight)
            found.append(rows.T @ flat)
            found.append(column_sums(rows).to(rows.dtype) if context.needs_input_grad[2 + 2 * number] else None)
        return None if back is None else back.view_as(x), *found


def products(x: Tensor, *parts: tuple[Tensor, Tensor | None]) -> tuple[Tensor, ...]:
    """x Wᵀ + b for several W and b.  x: # (…, width)"""
    made: tuple[Tensor, ...] = _Products.apply(x, *(each for part in parts for each in part))  # type: ignore[no-untyped-call]
    return made


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b.  x: # (…, width); weight: # (wide, width)"""
    if bias is None:
        return functional.linear(x, weight)
    made: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return made
