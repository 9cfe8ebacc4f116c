"""Dropout, and dropout, residual sum and norm in one pass, for training on a CPU, compiled with numba.

The random bits of dropout are a hash of a number's position and of two keys that are new for every use. That costs a
few operations, vectorized, and the backward pass draws the same mask again instead of storing it.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.cpu.jit import jit_inline
from regard.kernels.cpu.openmp import (
    ARGS,
    float32_arg,
    kernel_args,
    kernel_function,
    matrix,
    next_chunk,
    openmp_kernel,
    parallel_for,
    vector,
)
from regard.kernels.params import Dropout

CHUNK_ROWS = 32
"""Rows in a chunk of the kernels that work row by row."""
_UINT64 = (1 << 64) - 1
_ZERO, _ONE = np.float32(0), np.float32(1)
_A, _B, _C = np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_13, _15, _16 = np.uint32(13), np.uint32(15), np.uint32(16)


def dropout(x: Tensor, settings: Dropout[int] | None) -> Tensor:
    """Dropout, differentiable; None drops nothing.  x: # (…, width)"""
    return x if settings is None else cast(Tensor, _Dropout.apply(x, settings))  # type: ignore[no-untyped-call]


def dropout_into(out: Tensor, x: Tensor, settings: Dropout[int]) -> Tensor:
    """Dropout of x written to `out`, which may be x.  x, out: # (…, width)"""
    width = x.shape[-1]
    rows = x.numel() // width
    parallel_for(dropout_kernel, row_chunks(rows), rows, width, x, out, *dropout_args(settings))
    return out


def new_seed() -> int:
    """A seed from PyTorch's generator."""
    return int(torch.randint(1 << 62, ()))


def dropout_args(settings: Dropout[int] | None) -> tuple[int, int, int, float]:
    """Dropout as kernels take it: the threshold below which bits drop a number, two keys, and the scale of the rest.

    The keys come from the seed and the offset by SplitMix64 (Steele et al. 2014).
    """
    if settings is None:
        return 0, 0, 0, 1.0
    bits = (settings.seed + (settings.offset + 1) * 0x9E3779B97F4A7C15) & _UINT64
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _UINT64
    bits ^= bits >> 31
    threshold = max(1, min(round(settings.p * 2**32), 2**32 - 1))
    return threshold, bits & 0xFFFFFFFF, bits >> 32, 1 / (1 - settings.p)


def row_chunks(rows: int) -> int:
    return -(-rows // CHUNK_ROWS)


@jit_inline
def random_bits(position: Any, key0: Any, key1: Any) -> Any:
    """32 random bits (the finalizer of MurmurHash3, with a key before it and one within)."""
    bits = np.uint32(np.uint32(np.uint32(position) * _A) ^ key0)
    bits = np.uint32(bits ^ (bits >> _16))
    bits = np.uint32(np.uint32(bits * _B) + key1)
    bits = np.uint32(bits ^ (bits >> _13))
    bits = np.uint32(bits * _C)
    return np.uint32(bits ^ (bits >> _15))


@kernel_function
def _dropout_rows(args: Any, chunk: Any) -> None:
    rows, width = args[ARGS], args[ARGS + 1]
    x, out = matrix(args[ARGS + 2], rows, width), matrix(args[ARGS + 3], rows, width)
    threshold, key0, key1 = np.uint32(args[ARGS + 4]), np.uint32(args[ARGS + 5]), np.uint32(args[ARGS + 6])
    keep_scale = float32_arg(args[ARGS + 7])
    in_place = args[ARGS + 2] == args[ARGS + 3]  # the compiler vectorizes only if it knows
    for row in range(chunk * CHUNK_ROWS, min(rows, chunk * CHUNK_ROWS + CHUNK_ROWS)):
        x_row, out_row, first = x[row], out[row], row * width
        if not in_place:
            for i in range(width):
                factor = keep_scale if random_bits(first + i, key0, key1) >= threshold else _ZERO
                out_row[i] = x_row[i] * factor
        else:
            for i in range(width):
                factor = keep_scale if random_bits(first + i, key0, key1) >= threshold else _ZERO
                out_row[i] *= factor


@openmp_kernel
def dropout_kernel(address: Any) -> None:
    """Arguments: rows, width, x, out (may be x), threshold, keys (2), keep_scale."""
    args = kernel_args(address)
    chunk = next_chunk(address)
    while chunk < args[1]:
        _dropout_rows(args, chunk)
        chunk = next_chunk(address)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, settings: Dropout[int]) -> Tensor:
        context.settings = settings
        x = x.contiguous()
        return dropout_into(torch.empty_like(x), x, settings)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        return dropout_into(torch.empty_like(grad), grad, context.settings), None


def dropout_add_norm(
    residual: Tensor,
    sublayer_out: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    centered: bool,
    dropout: Dropout[int] | None,
) -> tuple[Tensor, Tensor]:
    """The sum residual + dropout(sublayer_out), and its norm.

    Without a sublayer's output the sum is the residual. The norm is layer normalization if `centered`, RMSNorm
    otherwise.  residual, sublayer_out: # (rows, width)
    """
    sublayer_out = None if sublayer_out is None else sublayer_out.contiguous()
    total, normed = _DropoutAddNorm.apply(residual.contiguous(), sublayer_out, weight, bias, eps, centered, dropout)  # type: ignore[no-untyped-call]
    return residual if sublayer_out is None else total, normed


class _DropoutAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        residual: Tensor,
        sublayer_out: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        centered: bool,
        dropout: Dropout[int] | None,
    ) -> tuple[Tensor, Tensor]:
        rows, width = residual.shape
        total = residual if sublayer_out is None else torch.empty_like(residual)
        normed, means, rstds = torch.empty_like(residual), torch.empty(rows), torch.empty(rows)
        parallel_for(
            dropout_add_norm_kernel, row_chunks(rows), rows, width, residual, sublayer_out, total, normed, means, rstds,
            weight, bias, centered, eps, *dropout_args(dropout),
        )  # fmt: skip
        context.save_for_backward(total, means, rstds, weight)
        context.settings = (sublayer_out is not None, bias is not None, centered, dropout)
        context.set_materialize_grads(False)
        if sublayer_out is None:
            total = residual.new_empty(0)
            context.mark_non_differentiable(total)
        return total, normed

    @staticmethod
    @once_differentiable
    def backward(context: Any, total_grad: Tensor | None, normed_grad: Tensor | None) -> tuple[Any, ...]:
        total, means, rstds, weight = context.saved_tensors
        has_sublayer, has_bias, centered, dropout = context.settings
        rows, width = total.shape
        normed_grad = torch.zeros_like(total) if normed_grad is None else normed_grad.contiguous()
        total_grad = None if total_grad is None else total_grad.contiguous()
        residual_grad = torch.empty_like(total)
        sublayer_grad = residual_grad if dropout is None else torch.empty_like(total)
        sums = torch.empty(row_chunks(rows), 2, width)
        parallel_for(
            dropout_add_norm_backward_kernel, row_chunks(rows), rows, width, total_grad, normed_grad, total, means,
            rstds, weight, residual_grad, None if dropout is None else sublayer_grad, sums, centered,
            *dropout_args(dropout),
        )  # fmt: skip
        weight_grad, bias_grad = sums.sum(dim=0)
        return (
            residual_grad,
            sublayer_grad if has_sublayer else None,
            weight_grad,
            bias_grad if has_bias else None,
            None,
            None,
            None,
        )


@kernel_function
def _dropout_add_norm_rows(args: Any, chunk: Any) -> None:
    rows, width = args[ARGS], args[ARGS + 1]
    residual, out = matrix(args[ARGS + 2], rows, width), matrix(args[ARGS + 5], rows, width)
    has_sublayer, centered, has_bias = args[ARGS + 3] != 0, args[ARGS + 10], args[ARGS + 9] != 0
    sublayer_out = matrix(args[ARGS + 3], rows, width)
    total = matrix(args[ARGS + 4], rows, width)
    means, rstds = vector(args[ARGS + 6], rows), vector(args[ARGS + 7], rows)
    weight, bias = vector(args[ARGS + 8], width), vector(args[ARGS + 9], width)
    eps = float32_arg(args[ARGS + 11])
    threshold, key0, key1 = np.uint32(args[ARGS + 12]), np.uint32(args[ARGS + 13]), np.uint32(args[ARGS + 14])
    keep_scale = float32_arg(args[ARGS + 15])
    inverse_width = _ONE / np.float32(width)
    for row in range(chunk * CHUNK_ROWS, min(rows, chunk * CHUNK_ROWS + CHUNK_ROWS)):
        total_row, out_row = total[row], out[row]
        if has_sublayer:
            residual_row, sublayer_row, first = residual[row], sublayer_out[row], row * width
            if threshold > 0:
                for i in range(width):
                    factor = keep_scale if random_bits(first + i, key0, key1) >= threshold else _ZERO
                    total_row[i] = residual_row[i] + sublayer_row[i] * factor
            else:
                for i in range(width):
                    total_row[i] = residual_row[i] + sublayer_row[i]
        mean = _ZERO
        if centered:
            for i in range(width):
                mean += total_row[i]
            mean *= inverse_width
        square_sum = _ZERO
        for i in range(width):
            difference = total_row[i] - mean
            square_sum += difference * difference
        rstd = _ONE / np.sqrt(square_sum * inverse_width + eps)
        if has_bias:
            for i in range(width):
                out_row[i] = (total_row[i] - mean) * rstd * weight[i] + bias[i]
        else:
            for i in range(width):
                out_row[i] = (total_row[i] - mean) * rstd * weight[i]
        means[row], rstds[row] = mean, rstd


@openmp_kernel
def dropout_add_norm_kernel(address: Any) -> None:
    """Arguments: rows, width, residual, sublayer_out or 0, total (the residual if there is no sublayer_out), normed,
    means, rstds, weight, bias or 0, centered, eps, threshold, keys (2), keep_scale."""
    args = kernel_args(address)
    chunk = next_chunk(address)
    while chunk < args[1]:
        _dropout_add_norm_rows(args, chunk)
        chunk = next_chunk(address)


@kernel_function
def _dropout_add_norm_backward_rows(args: Any, chunk: Any) -> None:
    rows, width = args[ARGS], args[ARGS + 1]
    has_total_grad, has_dropout, centered = args[ARGS + 2] != 0, args[ARGS + 9] != 0, args[ARGS + 11]
    total_grad, normed_grad = matrix(args[ARGS + 2], rows, width), matrix(args[ARGS + 3], rows, width)
    total = matrix(args[ARGS + 4], rows, width)
    means, rstds = vector(args[ARGS + 5], rows), vector(args[ARGS + 6], rows)
    weight = vector(args[ARGS + 7], width)
    residual_grad, sublayer_grad = matrix(args[ARGS + 8], rows, width), matrix(args[ARGS + 9], rows, width)
    sums = matrix(args[ARGS + 10], 2 * args[1], width)
    weight_sum, bias_sum = sums[2 * chunk], sums[2 * chunk + 1]
    threshold, key0, key1 = np.uint32(args[ARGS + 12]), np.uint32(args[ARGS + 13]), np.uint32(args[ARGS + 14])
    keep_scale = float32_arg(args[ARGS + 15])
    inverse_width = _ONE / np.float32(width)
    for i in range(width):
        weight_sum[i] = _ZERO
        bias_sum[i] = _ZERO
    for row in range(chunk * CHUNK_ROWS, min(rows, chunk * CHUNK_ROWS + CHUNK_ROWS)):
        grad_row, total_row, residual_grad_row = normed_grad[row], total[row], residual_grad[row]
        mean, rstd = means[row], rstds[row]
        correlation, grad_mean = _ZERO, _ZERO
        for i in range(width):
            x_hat = (total_row[i] - mean) * rstd
            weight_sum[i] += grad_row[i] * x_hat
            bias_sum[i] += grad_row[i]
            x_hat_grad = grad_row[i] * weight[i]
            correlation += x_hat_grad * x_hat
            grad_mean += x_hat_grad
        correlation *= inverse_width
        grad_mean = grad_mean * inverse_width if centered else _ZERO
        if has_total_grad:
            total_grad_row = total_grad[row]
            for i in range(width):
                residual_grad_row[i] = (
                    grad_row[i] * weight[i] - grad_mean - (total_row[i] - mean) * rstd * correlation
                ) * rstd + total_grad_row[i]
        else:
            for i in range(width):
                residual_grad_row[i] = (
                    grad_row[i] * weight[i] - grad_mean - (total_row[i] - mean) * rstd * correlation
                ) * rstd
        if has_dropout:
            sublayer_grad_row, first = sublayer_grad[row], row * width
            for i in range(width):
                factor = keep_scale if random_bits(first + i, key0, key1) >= threshold else _ZERO
                sublayer_grad_row[i] = residual_grad_row[i] * factor


@openmp_kernel
def dropout_add_norm_backward_kernel(address: Any) -> None:
    """Arguments: rows, width, gradient of the total or 0, gradient of the norm, total, means, rstds, weight, gradient
    of the residual, gradient of sublayer_out (0 if it is that of the residual), sums # (chunks, weight and bias,
    width), centered, threshold, keys (2), keep_scale."""
    args = kernel_args(address)
    chunk = next_chunk(address)
    while chunk < args[1]:
        _dropout_add_norm_backward_rows(args, chunk)
        chunk = next_chunk(address)
