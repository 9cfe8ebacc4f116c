"""Products for training on a GPU, and the sums over rows on their way back, written in Triton.

The products themselves are cuBLAS's (`cublas_lt.py`). The gradient of a bias is the sum of each column. PyTorch takes
longer for it than for the gradient of the weights. Here many programs sum some rows each, in float32 and always in the
same order, so that the same step gives the same numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.fast import cublas_lt

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


@triton.jit(do_not_specialize=["parts"])
def _add(sums, out, parts, width, block_parts: tl.constexpr, block_columns: tl.constexpr):
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    start = tl.program_id(1) * parts * width
    total = tl.zeros([block_parts, block_columns], tl.float32)
    for first in range(0, parts, block_parts):
        part = first + tl.arange(0, block_parts)
        inside = (part < parts)[:, None] & (column < width)[None, :]
        total += tl.load(sums + start + part[:, None] * width + column[None, :], inside, 0.0)
    at = tl.program_id(1) * width + column
    tl.store(out + at, tl.sum(total, 0).to(out.dtype.element_ty), column < width)


def added(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """What several programs have summed, added up in a fixed order and rounded.

    sums: # (tensors, parts, width), float32; gives (tensors, width)
    """
    tensors, parts, width = sums.shape
    out = torch.empty(tensors, width, dtype=dtype, device=sums.device)
    columns, block = 8, min(64, triton.next_power_of_2(parts))
    _add[(triton.cdiv(width, columns), tensors)](
        sums, out, parts, width, block_parts=block, block_columns=columns, num_warps=8
    )
    return out


def column_sums(x: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The sum of each column, made in float32, always in the same order.  x: # (rows, width); gives (width,)"""
    rows, width = x.shape
    blocks = triton.cdiv(width, _COLUMNS)
    share = triton.cdiv(rows, max(1, _SUMMING // blocks))
    parts = triton.cdiv(rows, share)
    sums = torch.empty(1, parts, width, dtype=torch.float32, device=x.device)
    _columns[(blocks, parts)](
        x.contiguous(), sums, rows, width, share, block_rows=64, block_columns=_COLUMNS, num_warps=8
    )
    return added(sums, dtype)[0]


class _Product(torch.autograd.Function):
    """x Wᵀ + b."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(x, weight)
        return cublas_lt.product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Any, ...]:
        x, weight = context.saved_tensors
        rows = slope.reshape(-1, slope.shape[-1])
        wanted = context.needs_input_grad
        back = cublas_lt.product_back(rows, weight).view_as(x) if wanted[0] else None
        weight_slope = rows.T @ x.reshape(len(rows), -1) if wanted[1] else None
        return back, weight_slope, column_sums(rows, slope.dtype) if wanted[2] else None


class _Products(torch.autograd.Function):
    """Several products of the same x. What flows back to x is summed within the products that make it."""

    @staticmethod
    def forward(context: Any, x: Tensor, *parts: Tensor | None) -> tuple[Tensor, ...]:
        weights = [part for part in parts[::2] if part is not None]
        biases = [part for part in parts[1::2] if part is not None]
        context.save_for_backward(x, *weights)
        if 0 < len(biases) < len(weights):
            return tuple(cublas_lt.product(x, *each) for each in zip(parts[::2], parts[1::2], strict=True))  # type: ignore[arg-type]
        made = cublas_lt.product(x, _stacked(weights), _stacked(biases) if biases else None)
        return tuple(made.split([len(weight) for weight in weights], dim=-1))

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
                back = cublas_lt.product_back(rows, weight, back)
            found.append(rows.T @ flat)
            found.append(column_sums(rows, rows.dtype) if context.needs_input_grad[2 + 2 * number] else None)
        return None if back is None else back.view_as(x), *found


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors below each other, without a copy where they lie so already.  parts: # (rows, …) each"""
    first = parts[0]
    place = first.data_ptr()
    for part in parts:
        beside = part.is_contiguous() and part.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not beside or part.data_ptr() != place or part.shape[1:] != first.shape[1:]:
            return torch.cat(tuple(parts))
        place += part.nbytes
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())


class _Stacked(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, *parts: Tensor) -> Tensor:
        context.sizes = [len(part) for part in parts]
        return _stacked(parts)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor, ...]:
        return tuple(slope.split(context.sizes))


class _Bent(torch.autograd.Function):
    """GELU (x Wᵀ + b) Vᵀ + c, with GELU inside of the products around it."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, widen: Tensor, widen_bias: Tensor | None, narrow: Tensor, narrow_bias: Tensor | None
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        bent, before = cublas_lt.bent_product(rows, widen, widen_bias)
        context.save_for_backward(rows, bent, before, widen, narrow)
        return cublas_lt.product(bent, narrow, narrow_bias).view_as(x)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Any, ...]:
        x, bent, before, widen, narrow = context.saved_tensors
        wanted = context.needs_input_grad
        rows = slope.reshape(-1, slope.shape[-1]).contiguous()
        back = cublas_lt.product_bent_back(rows, narrow, before)
        return (
            cublas_lt.product_back(back, widen).view_as(slope),
            back.T @ x,
            column_sums(back, back.dtype) if wanted[2] else None,
            rows.T @ bent,
            column_sums(rows, rows.dtype) if wanted[4] else None,
        )


def feed_forward(
    x: Tensor, widen: Tensor, widen_bias: Tensor | None, narrow: Tensor, narrow_bias: Tensor | None
) -> Tensor | None:
    """Widened, bent by GELU's tanh form, narrowed; None where that cannot be done in one.  x: # (…, width)"""
    if not cublas_lt.knows(x, widen, widen_bias, narrow):
        return None
    made: Tensor = _Bent.apply(x, widen, widen_bias, narrow, narrow_bias)  # type: ignore[no-untyped-call]
    return made


def products(x: Tensor, *parts: tuple[Tensor, Tensor | None]) -> tuple[Tensor, ...]:
    """x Wᵀ + b for several W and b.  x: # (…, width)"""
    made: tuple[Tensor, ...] = _Products.apply(x, *(each for part in parts for each in part))  # type: ignore[no-untyped-call]
    return made


def stacked(*parts: Tensor) -> Tensor:
    """Weights below each other, without a copy where they lie so already.  parts: # (rows, …) each"""
    made: Tensor = _Stacked.apply(*parts)  # type: ignore[no-untyped-call]
    return made


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b.  x: # (…, width); weight: # (wide, width)"""
    made: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return made
