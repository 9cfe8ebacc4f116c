"""Cross-entropy with label smoothing and its gradient on a CPU, in one pass over each row of logits.

`LinearCrossEntropy` computes the logits too: some rows at a time, in memory that the next rows reuse. The logits of the
whole batch never exist, and the gradients of the output projection are computed in the forward pass. The kernels are
compiled by numba without the fast-math flags that assume finite numbers, so that a diverged loss shows.
"""

from typing import Any, cast

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.cpu.jit import Function
from regard.kernels.cpu.linear import onednn_linear
from regard.kernels.cpu.openmp import (
    ARGS,
    float32_arg,
    int64_vector,
    kernel_args,
    kernel_function,
    matrix,
    next_chunk,
    openmp_kernel,
    parallel_for,
)
from regard.kernels.cpu.vector_math import exp

_CHUNK_ROWS = 8
_BLOCK = 1 << 22
"""Logits computed at once by `LinearCrossEntropy`: they stay in the cache that all cores share."""
_ZERO, _ONE = np.float32(0), np.float32(1)


class CrossEntropy(torch.autograd.Function):
    """Two sums over the rows: the loss with label smoothing, and the negative log-likelihood (NLL)."""

    @staticmethod
    def forward(
        context: Any, logits: Tensor, targets: Tensor, smoothing: float, overwrite: bool
    ) -> tuple[Tensor, Tensor]:
        """logits: # (rows, vocab_size), float32; targets: # (rows,), int64, -1 for rows that do not count

        `overwrite`: the gradient may be written over the logits
        """
        logits = logits.contiguous()
        sums = torch.empty(len(targets), 2)
        grad = None
        if context.needs_input_grad[0]:
            grad = logits if overwrite else torch.empty_like(logits)
        _cross_entropy(logits, grad, targets.contiguous(), smoothing, sums)
        loss, nll = sums.sum(dim=0)
        context.save_for_backward(grad)
        context.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(context: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = context.saved_tensors
        return grad.mul_(loss_grad), None, None, None


class LinearCrossEntropy(torch.autograd.Function):
    """The same two sums from the input of the output projection."""

    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        smoothing: float,
        compute_grads: bool,
    ) -> tuple[Tensor, Tensor]:
        """x: # (rows, width); weight: # (vocab_size, width); targets: # (rows,), int64, -1 for rows that do not
        count"""
        x, targets = x.contiguous(), targets.contiguous()
        rows, vocab_size = len(targets), len(weight)
        needs_grad = [compute_grads and needed for needed in context.needs_input_grad[:3]]
        sums = torch.empty(rows, 2)
        x_grad = torch.empty_like(x) if needs_grad[0] else None
        weight_grad = torch.zeros_like(weight) if needs_grad[1] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and needs_grad[2] else None
        step = max(_CHUNK_ROWS, _BLOCK // vocab_size // _CHUNK_ROWS * _CHUNK_ROWS)
        for first in range(0, rows, step):
            block = slice(first, first + step)
            logits = onednn_linear(x[block], weight, bias)
            _cross_entropy(logits, logits if any(needs_grad) else None, targets[block], smoothing, sums[block])
            if x_grad is not None:
                x_grad[block] = onednn_linear(logits, weight.t())
            if weight_grad is not None:
                weight_grad.addmm_(logits.t(), x[block])
            if bias_grad is not None:
                bias_grad += logits.sum(dim=0)
        loss, nll = sums.sum(dim=0)
        context.save_for_backward(x_grad, weight_grad, bias_grad)
        context.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(context: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = [None if grad is None else grad.mul_(loss_grad) for grad in context.saved_tensors]
        return grads[0], grads[1], grads[2], None, None, None


def _cross_entropy(logits: Tensor, grad: Tensor | None, targets: Tensor, smoothing: float, sums: Tensor) -> None:
    """Fill the sums of each row, and the gradient of the logits if there is one, which may be the logits themselves."""
    rows, vocab_size = logits.shape
    out = logits if grad is None else grad
    parallel_for(
        cross_entropy_kernel, -(-rows // _CHUNK_ROWS), rows, vocab_size, logits, out, targets, sums,
        float(smoothing), grad is not None,
    )  # fmt: skip


def _nan_safe(function: Function) -> Function:
    """As `kernel_function`, but infinities and NaN count: sums may be reordered, and no number is assumed finite."""
    flags = {"reassoc", "contract", "arcp", "nsz"}
    return cast(Function, njit(nogil=True, fastmath=flags, error_model="numpy", forceinline=True)(function))


@_nan_safe
def _cross_entropy_rows(args: Any, chunk: Any) -> None:
    rows, vocab_size = args[ARGS], args[ARGS + 1]
    logits, out = matrix(args[ARGS + 2], rows, vocab_size), matrix(args[ARGS + 3], rows, vocab_size)
    targets, sums = int64_vector(args[ARGS + 4], rows), matrix(args[ARGS + 5], rows, 2)
    smoothing, needs_grad = float32_arg(args[ARGS + 6]), args[ARGS + 7]
    in_place = args[ARGS + 2] == args[ARGS + 3]
    for row in range(chunk * _CHUNK_ROWS, min(rows, chunk * _CHUNK_ROWS + _CHUNK_ROWS)):
        x, target = out[row], targets[row]
        if target < 0:
            sums[row, 0] = sums[row, 1] = _ZERO
            if needs_grad:
                for i in range(vocab_size):
                    x[i] = _ZERO
            continue
        if not in_place:
            logits_row = logits[row]
            for i in range(vocab_size):
                x[i] = logits_row[i]
        maximum, logit_sum, target_logit = _maximum(x), _ZERO, x[target]
        for i in range(vocab_size):
            logit_sum += x[i]
        total = _ZERO
        if needs_grad:
            for i in range(vocab_size):
                exponential = exp(x[i] - maximum)
                x[i] = exponential
                total += exponential
        else:
            for i in range(vocab_size):
                total += exp(x[i] - maximum)
        logsumexp = maximum + np.log(total)
        nll = logsumexp - target_logit
        sums[row, 1] = nll
        if smoothing > _ZERO:
            sums[row, 0] = nll + smoothing * (target_logit - logit_sum / np.float32(vocab_size))
        else:
            sums[row, 0] = nll
        if needs_grad:
            # The gradient of cross-entropy is the softmax minus the target distribution.
            factor, uniform = _ONE / total, smoothing / np.float32(vocab_size)
            for i in range(vocab_size):
                x[i] = x[i] * factor - uniform
            x[target] -= _ONE - smoothing


@kernel_function
def _maximum(x: Any) -> Any:
    """The maximum; NaN is passed over here, and shows in the sums."""
    maximum = x[0]
    for i in range(x.shape[0]):
        maximum = max(maximum, x[i])
    return maximum


@openmp_kernel
def cross_entropy_kernel(address: Any) -> None:
    """Arguments: rows, vocab_size, logits, their gradient (may be the logits), targets (-1: does not count), sums of
    loss and NLL # (rows, 2), smoothing, whether the gradient is needed."""
    args = kernel_args(address)
    chunk = next_chunk(address)
    while chunk < args[1]:
        _cross_entropy_rows(args, chunk)
        chunk = next_chunk(address)
