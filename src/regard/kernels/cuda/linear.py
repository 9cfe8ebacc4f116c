"""Linear layers for training on a GPU: products by cuBLASLt, bias gradients in Triton.

The gradient of a bias is the sum of each column, for which PyTorch takes longer than for the gradient of the weight.
Here many programs sum some rows each, in float32 and always in the same order, so that the same step gives the same
numbers.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.cuda import cublaslt

_COLUMNS, _PROGRAMS = 64, 528
"""Columns that a program sums, and about how many programs there are. Found by trying."""


@triton.jit(do_not_specialize=["rows", "rows_per_program"])
def _sum_rows(x, sums, rows, width, rows_per_program, block_rows: tl.constexpr, block_columns: tl.constexpr):
    cols = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    part = tl.program_id(1)
    last = tl.minimum(rows, (part + 1) * rows_per_program)
    total = tl.zeros([block_rows, block_columns], tl.float32)
    for first in range(part * rows_per_program, last, block_rows):
        row = (first + tl.arange(0, block_rows)).to(tl.int64)
        mask = (row < last)[:, None] & (cols < width)[None, :]
        total += tl.load(x + row[:, None] * width + cols[None, :], mask, 0.0).to(tl.float32)
    tl.store(sums + part * width + cols, tl.sum(total, 0), cols < width)


@triton.jit(do_not_specialize=["parts"])
def _reduce(sums, out, parts, width, block_parts: tl.constexpr, block_columns: tl.constexpr):
    cols = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    start = tl.program_id(1) * parts * width
    total = tl.zeros([block_parts, block_columns], tl.float32)
    for first in range(0, parts, block_parts):
        part = first + tl.arange(0, block_parts)
        mask = (part < parts)[:, None] & (cols < width)[None, :]
        total += tl.load(sums + start + part[:, None] * width + cols[None, :], mask, 0.0)
    index = tl.program_id(1) * width + cols
    tl.store(out + index, tl.sum(total, 0).to(out.dtype.element_ty), cols < width)


def reduce_partial_sums(sums: Tensor, dtype: torch.dtype) -> Tensor:
    """Add up the partial sums of several programs in a fixed order, and round.

    sums: # (tensors, parts, width), float32; gives (tensors, width)
    """
    tensors, parts, width = sums.shape
    out = torch.empty(tensors, width, dtype=dtype, device=sums.device)
    columns, block = 8, min(64, triton.next_power_of_2(parts))
    _reduce[(triton.cdiv(width, columns), tensors)](
        sums, out, parts, width, block_parts=block, block_columns=columns, num_warps=8
    )
    return out


def bias_grad(grad: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """The sum of each column, computed in float32, always in the same order.  grad: # (rows, width); gives (width,)

    It is rounded to `dtype`, or to that of the gradient.
    """
    rows, width = grad.shape
    blocks = triton.cdiv(width, _COLUMNS)
    rows_per_program = triton.cdiv(rows, max(1, _PROGRAMS // blocks))
    parts = triton.cdiv(rows, rows_per_program)
    sums = torch.empty(1, parts, width, dtype=torch.float32, device=grad.device)
    _sum_rows[(blocks, parts)](
        grad.contiguous(), sums, rows, width, rows_per_program, block_rows=64, block_columns=_COLUMNS, num_warps=8
    )
    return reduce_partial_sums(sums, dtype or grad.dtype)[0]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(x, weight)
        return cublaslt.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = context.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        needs_grad = context.needs_input_grad
        x_grad = cublaslt.linear_dgrad(grad, weight).view_as(x) if needs_grad[0] else None
        weight_grad = grad.T @ x.reshape(len(grad), -1) if needs_grad[1] else None
        return x_grad, weight_grad, bias_grad(grad) if needs_grad[2] else None


class _Linears(torch.autograd.Function):
    """The gradient of x is accumulated by the products that compute it."""

    @staticmethod
    def forward(context: Any, x: Tensor, *weights_and_biases: Tensor | None) -> tuple[Tensor, ...]:
        weights = [weight for weight in weights_and_biases[::2] if weight is not None]
        biases = [bias for bias in weights_and_biases[1::2] if bias is not None]
        context.save_for_backward(x, *weights)
        if 0 < len(biases) < len(weights):
            pairs = zip(weights_and_biases[::2], weights_and_biases[1::2], strict=True)
            return tuple(cublaslt.linear(x, *pair) for pair in pairs)  # type: ignore[arg-type]
        out = cublaslt.linear(x, _concat(weights), _concat(biases) if biases else None)
        return tuple(out.split([len(weight) for weight in weights], dim=-1))

    @staticmethod
    @once_differentiable
    def backward(context: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, *weights = context.saved_tensors
        flat = x.reshape(-1, x.shape[-1])
        x_grad: Tensor | None = None
        weight_grads: list[Tensor | None] = []
        for number, (grad, weight) in enumerate(zip(grads, weights, strict=True)):
            grad = grad.reshape(len(flat), -1)
            if context.needs_input_grad[0]:
                x_grad = cublaslt.linear_dgrad(grad, weight, x_grad)
            weight_grads.append(grad.T @ flat)
            weight_grads.append(bias_grad(grad) if context.needs_input_grad[2 + 2 * number] else None)
        return None if x_grad is None else x_grad.view_as(x), *weight_grads


def _concat(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors below each other, without a copy where they already lie so in memory.  tensors: # (rows, …) each"""
    first = tensors[0]
    address = first.data_ptr()
    for tensor in tensors:
        same_storage = tensor.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        adjacent = tensor.is_contiguous() and same_storage and tensor.data_ptr() == address
        if not adjacent or tensor.shape[1:] != first.shape[1:]:
            return torch.cat(tuple(tensors))
        address += tensor.nbytes
    return first.as_strided((sum(len(tensor) for tensor in tensors), *first.shape[1:]), first.stride())


class _Concat(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, *tensors: Tensor) -> Tensor:
        context.sizes = [len(tensor) for tensor in tensors]
        return _concat(tensors)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor, ...]:
        return tuple(grad.split(context.sizes))


class _GeluFeedForward(torch.autograd.Function):
    """gelu(x Uᵀ + b) Dᵀ + c, with GELU and its derivative in the epilogues of the products."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None
    ) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        hidden, pre_activation = cublaslt.linear_gelu(rows, up, up_bias)
        context.save_for_backward(rows, hidden, pre_activation, up, down)
        return cublaslt.linear(hidden, down, down_bias).view_as(x)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Any, ...]:
        x, hidden, pre_activation, up, down = context.saved_tensors
        needs_grad = context.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1]).contiguous()
        hidden_grad = cublaslt.linear_dgrad_dgelu(rows, down, pre_activation)
        return (
            cublaslt.linear_dgrad(hidden_grad, up).view_as(grad),
            hidden_grad.T @ x,
            bias_grad(hidden_grad) if needs_grad[2] else None,
            rows.T @ hidden,
            bias_grad(rows) if needs_grad[4] else None,
        )


def gelu_feed_forward(
    x: Tensor, up: Tensor, up_bias: Tensor | None, down: Tensor, down_bias: Tensor | None
) -> Tensor | None:
    """gelu(x Uᵀ + b) Dᵀ + c with GELU's tanh form; None where cuBLASLt cannot compute it.  x: # (…, width)"""
    if not cublaslt.supports_linear_gelu(x, up, up_bias, down):
        return None
    out: Tensor = _GeluFeedForward.apply(x, up, up_bias, down, down_bias)  # type: ignore[no-untyped-call]
    return out


def linears(x: Tensor, *weights: tuple[Tensor, Tensor | None]) -> tuple[Tensor, ...]:
    """x Wᵀ + b for several W and b, in one product.  x: # (…, width)"""
    flat = (tensor for pair in weights for tensor in pair)
    outputs: tuple[Tensor, ...] = _Linears.apply(x, *flat)  # type: ignore[no-untyped-call]
    return outputs


def concat(*tensors: Tensor) -> Tensor:
    """Weights below each other, without a copy where they already lie so in memory.  tensors: # (rows, …) each"""
    out: Tensor = _Concat.apply(*tensors)  # type: ignore[no-untyped-call]
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b.  x: # (…, width); weight: # (size, width)"""
    out: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return out
