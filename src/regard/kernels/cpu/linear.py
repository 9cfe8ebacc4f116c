"""Linear layers and the ReLU feed-forward on a CPU: products by oneDNN, the rest by numba.

PyTorch calls another library (MKL) for products of float32 matrices, although it comes with oneDNN. On CPUs of other
makers MKL takes about a tenth longer, and more than that on several busy cores. For the gradients of weights it is as
good.

**Unpadding.** For training the tokens of a batch are concatenated to one long row ("unpadded", or "varlen" in
FlashAttention). A few padding tokens stay at the end, so that the number of rows is a multiple of 64. If every batch
had a count of its own, each would allocate tensors of sizes that no batch before had, and oneDNN would generate new
code for each of its products; a process would grow by gigabytes. What is computed for that padding is finite, and no
gradient flows to it.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.kernels.cpu.add_norm import CHUNK_ROWS, dropout_args, dropout_into, row_chunks
from regard.kernels.cpu.openmp import (
    ARGS,
    float32_arg,
    kernel_args,
    kernel_function,
    matrix,
    next_chunk,
    openmp_kernel,
    parallel_for,
)
from regard.kernels.dispatch import has_onednn
from regard.kernels.params import Dropout

_ZERO = np.float32(0)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b.  x: # (rows, width); weight: # (size, width)"""
    return cast(Tensor, _Linear.apply(x.contiguous(), weight, bias))  # type: ignore[no-untyped-call]


def relu_feed_forward(
    x: Tensor,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
    dropout: Dropout[int] | None,
) -> Tensor:
    """dropout(relu(x Uᵀ + b)) Dᵀ + c.  x: # (rows, width); up: # (hidden, width); down: # (width, hidden)"""
    return cast(Tensor, _ReluFeedForward.apply(x, up, up_bias, down, down_bias, dropout))  # type: ignore[no-untyped-call]


def linear_wgrad(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of a weight.  grad: # (rows, size); x: # (rows, width)"""
    return grad.t() @ x


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        context.save_for_backward(x, weight)
        return onednn_linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = context.saved_tensors
        needs_grad = context.needs_input_grad
        grad = grad.contiguous()
        return (
            onednn_linear(grad, weight.t()) if needs_grad[0] else None,
            linear_wgrad(grad, x) if needs_grad[1] else None,
            grad.sum(dim=0) if needs_grad[2] else None,
        )


class _ReluFeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        up: Tensor,
        up_bias: Tensor | None,
        down: Tensor,
        down_bias: Tensor | None,
        dropout: Dropout[int] | None,
    ) -> Tensor:
        hidden = onednn_linear(x, up, up_bias, "relu")
        if dropout is not None:
            dropout_into(hidden, hidden, dropout)
        context.save_for_backward(x, hidden, up, down)
        context.keep_scale = dropout_args(dropout)[3]
        return onednn_linear(hidden, down, down_bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, hidden, up, down = context.saved_tensors
        needs_grad = context.needs_input_grad
        grad = grad.contiguous()
        hidden_grad = onednn_linear(grad, down.t())
        rows, width = hidden.shape
        chunks = row_chunks(rows)
        bias_sums = torch.empty(chunks, width)
        # A hidden unit that is not zero was neither cut off by ReLU nor dropped.
        parallel_for(relu_backward_kernel, chunks, rows, width, hidden, hidden_grad, context.keep_scale, bias_sums)
        return (
            onednn_linear(hidden_grad, up.t()) if needs_grad[0] else None,
            linear_wgrad(hidden_grad, x) if needs_grad[1] else None,
            bias_sums.sum(dim=0) if needs_grad[2] else None,
            linear_wgrad(grad, hidden) if needs_grad[3] else None,
            grad.sum(dim=0) if needs_grad[4] else None,
            None,
        )


@kernel_function
def _relu_backward_rows(args: Any, chunk: Any) -> None:
    rows, width = args[ARGS], args[ARGS + 1]
    hidden, grad = matrix(args[ARGS + 2], rows, width), matrix(args[ARGS + 3], rows, width)
    keep_scale = float32_arg(args[ARGS + 4])
    bias_sum = matrix(args[ARGS + 5], args[1], width)[chunk]
    for i in range(width):
        bias_sum[i] = _ZERO
    for row in range(chunk * CHUNK_ROWS, min(rows, chunk * CHUNK_ROWS + CHUNK_ROWS)):
        hidden_row, grad_row = hidden[row], grad[row]
        for i in range(width):
            value = grad_row[i] * keep_scale if hidden_row[i] > _ZERO else _ZERO
            grad_row[i] = value
            bias_sum[i] += value


@openmp_kernel
def relu_backward_kernel(address: Any) -> None:
    """Arguments: rows, width, hidden, its gradient (updated in place), keep_scale, bias gradients # (chunks, width)."""
    args = kernel_args(address)
    chunk = next_chunk(address)
    while chunk < args[1]:
        _relu_backward_rows(args, chunk)
        chunk = next_chunk(address)


_PACKED_ROWS = 64
"""Weights are packed for about so many rows."""


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """x Wᵀ + b without autograd, in float32; `activation` may be "relu".

    x: # (rows, width); weight: # (size, width); either may be a transposed view
    """
    if has_onednn() and x.numel():
        return cast(Tensor, torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], ""))
    out = functional.linear(x, weight, bias)
    return out.relu_() if activation == "relu" else out


class PackedLinear:
    """x Wᵀ + b in float32, with the weight packed in oneDNN's own layout where oneDNN can be used."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight, bias
        self.packed = _pack(weight)
        if self.packed is not None:
            self.linear = torch.ops.mkldnn._linear_pointwise.default
            self.linear_add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """The product, plus `add`.  x: # (rows, width); add: # (rows, size), may be overwritten"""
        if self.packed is None:
            product = functional.linear(x, self.weight, self.bias)
            return product if add is None else product.add_(add)
        rows = x.shape[0]
        padding = _round_up(rows) - rows
        if padding:
            x = functional.pad(x, (0, 0, 0, padding))
            add = None if add is None else functional.pad(add, (0, 0, 0, padding))
        out: Tensor
        if add is not None:
            out = self.linear_add(x, add, self.packed, self.bias, "add")
        else:
            out = self.linear(x, self.packed, self.bias, "none", [], "")
        return out[:rows] if padding else out


def _round_up(rows: int) -> int:
    """A count of rows not much larger. oneDNN keeps code for every count it meets, so there are to be few of them."""
    if rows <= 32:
        return rows
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step


def _pack(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout; None where this PyTorch cannot do that."""
    if not has_onednn():
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_ROWS)
        torch.ops.mkldnn._linear_pointwise(weight[:1], packed, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return None
    return packed


_MULTIPLE = 64


def pad_to_multiple(mask: Tensor) -> Tensor:
    """Indices of the tokens in the mask, followed by those of some others, so that their count is a multiple of 64.

    mask: # (tokens,), true for tokens that are not padding
    """
    indices = mask.nonzero()[:, 0]
    missing = -len(indices) % _MULTIPLE
    return torch.cat((indices, (~mask).nonzero()[:missing, 0])) if missing else indices


class UnpaddedLayout:
    """Where the tokens of a batch are: in rows padded on the right, and in one unpadded row.

    There are `count` tokens. Unpadded tensors may have more rows: some padding, after all tokens.
    """

    def __init__(self, batch: int, padded_length: int, lengths: Tensor | None) -> None:
        """lengths: # (batch,); None if there is no padding"""
        self.batch, self.padded_length = batch, padded_length
        full = torch.full((batch,), padded_length) if lengths is None else lengths.clamp(0, padded_length)
        self.lengths = full.to(torch.int64)  # (batch,)
        self.starts = torch.zeros(batch + 1, dtype=torch.int64)  # cumulative lengths
        torch.cumsum(self.lengths, 0, out=self.starts[1:])
        self.count = int(self.starts[-1])
        self.max_length = int(self.lengths.max())
        self.indices: Tensor | None = None  # (unpadded rows,), None if there is no padding
        if self.count < batch * padded_length:
            self.indices = pad_to_multiple((torch.arange(padded_length) < self.lengths[:, None]).flatten())

    def unpad(self, x: Tensor) -> Tensor:
        """(batch, padded length, width) → (unpadded rows, width)"""
        flat = x.reshape(-1, x.shape[-1])
        if self.indices is None:
            return flat
        return cast(Tensor, _Unpad.apply(flat, self.indices))  # type: ignore[no-untyped-call]

    def pad(self, x: Tensor) -> Tensor:
        """(unpadded rows, width) → (batch, padded length, width), with zeros for padding"""
        if self.indices is not None:
            x = cast(Tensor, _Pad.apply(x, self.indices, self.batch * self.padded_length))  # type: ignore[no-untyped-call]
        return x.view(self.batch, self.padded_length, x.shape[-1])


class _Unpad(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, indices: Tensor) -> Tensor:
        context.save_for_backward(indices)
        context.count = x.shape[0]
        return x.index_select(0, indices)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (indices,) = context.saved_tensors
        return grad.new_zeros(context.count, grad.shape[1]).index_copy_(0, indices, grad), None


class _Pad(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, indices: Tensor, count: int) -> Tensor:
        context.save_for_backward(indices)
        return x.new_zeros(count, x.shape[1]).index_copy_(0, indices, x)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (indices,) = context.saved_tensors
        return grad.index_select(0, indices), None, None
