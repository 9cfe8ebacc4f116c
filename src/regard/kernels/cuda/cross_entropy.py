"""Cross-entropy over a vocabulary and its gradient in as few passes over memory as possible, in Triton for a GPU.

`LinearCrossEntropy` computes the logits itself: a row is read, its loss computed and the row replaced by its gradient
while it is in the cache, and the gradients of the output projection follow at once, so that logits never wait for the
backward pass. `CrossEntropy` is given the logits: its forward pass reads them once (twice for R-Drop, which compares
two passes) and keeps a few numbers per row. Its backward pass reads them again and writes their gradient; where it may,
over the logits themselves, which are the largest tensor of a small model and are not needed any more.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.cuda import cublaslt

_BLOCK = 4096
_FUSED_BLOCK, _LONG = 8192, 32768
"""Logits that a program of `LinearCrossEntropy` takes at once, and those from which on a row is long."""
_PROGRAMS, _LONG_PROGRAMS = (1056, 8), (264, 32)
"""Programs and the warps of each, for short rows and for long ones. Found by trying."""
_MAX_LOGITS = 1 << 30
"""Logits that `LinearCrossEntropy` holds at once."""


@triton.jit
def _row_sums(logits, start, vocab_size, block: tl.constexpr):
    """log Σ exp and the sum of a row's logits."""
    maximum = float("-inf")
    exponentials = 0.0
    total = 0.0
    for first in range(0, vocab_size, block):
        cols = first + tl.arange(0, block)
        mask = cols < vocab_size
        x = tl.load(logits + start + cols, mask, float("-inf")).to(tl.float32)
        new_maximum = tl.maximum(maximum, tl.max(x, 0))
        exponentials = exponentials * tl.exp(maximum - new_maximum) + tl.sum(tl.exp(x - new_maximum), 0)
        total += tl.sum(tl.where(mask, x, 0.0), 0)
        maximum = new_maximum
    return maximum + tl.log(exponentials), total


@triton.jit(do_not_specialize=["rows"])
def _cross_entropy_forward(
    logits, targets, mask, logsumexps, kl_terms, losses, nlls, rows, vocab_size, smoothing, r_drop,
    passes: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    counts = tl.load(mask + row) != 0
    target = tl.load(targets + row)
    start = row.to(tl.int64) * vocab_size
    logsumexp, total = _row_sums(logits, start, vocab_size, block)
    nll = logsumexp - tl.load(logits + start + target).to(tl.float32)
    loss = nll + smoothing * (logsumexp - total / vocab_size - nll)
    tl.store(logsumexps + row, logsumexp)
    if passes == 2:
        start2 = (row + rows).to(tl.int64) * vocab_size
        logsumexp2, total = _row_sums(logits, start2, vocab_size, block)
        nll2 = logsumexp2 - tl.load(logits + start2 + target).to(tl.float32)
        loss = (loss + nll2 + smoothing * (logsumexp2 - total / vocab_size - nll2)) / 2
        nll = (nll + nll2) / 2
        tl.store(logsumexps + rows + row, logsumexp2)
        p_term, q_term = 0.0, 0.0
        for first in range(0, vocab_size, block):
            cols = first + tl.arange(0, block)
            inside = cols < vocab_size
            log_p = tl.load(logits + start + cols, inside, 0.0).to(tl.float32) - logsumexp
            log_q = tl.load(logits + start2 + cols, inside, 0.0).to(tl.float32) - logsumexp2
            difference = tl.where(inside, log_p - log_q, 0.0)
            p_term += tl.sum(tl.exp(log_p) * difference, 0)
            q_term += tl.sum(tl.exp(log_q) * difference, 0)
        tl.store(kl_terms + row, p_term)
        tl.store(kl_terms + rows + row, q_term)
        loss += r_drop * (p_term - q_term)
    tl.store(losses + row, tl.where(counts, loss, 0.0))
    tl.store(nlls + row, tl.where(counts, nll, 0.0))


@triton.jit(do_not_specialize=["rows"])
def _cross_entropy_backward(
    logits, targets, mask, logsumexps, kl_terms, loss_grad, grad, rows, vocab_size, smoothing, r_drop,
    passes: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    factor = tl.where(tl.load(mask + row) != 0, tl.load(loss_grad), 0.0)
    target = tl.load(targets + row)
    start = row.to(tl.int64) * vocab_size
    logsumexp = tl.load(logsumexps + row)
    dtype = grad.dtype.element_ty
    if passes == 2:
        start2 = (row + rows).to(tl.int64) * vocab_size
        logsumexp2 = tl.load(logsumexps + rows + row)
        p_term, q_term = tl.load(kl_terms + row), tl.load(kl_terms + rows + row)
    for first in range(0, vocab_size, block):
        cols = first + tl.arange(0, block)
        inside = cols < vocab_size
        target_p = smoothing / vocab_size + tl.where(cols == target, 1.0 - smoothing, 0.0)
        log_p = tl.load(logits + start + cols, inside, 0.0).to(tl.float32) - logsumexp
        p = tl.exp(log_p)
        if passes == 1:
            tl.store(grad + start + cols, ((p - target_p) * factor).to(dtype), inside)
        else:
            log_q = tl.load(logits + start2 + cols, inside, 0.0).to(tl.float32) - logsumexp2
            q, difference = tl.exp(log_q), log_p - log_q
            grad_p = (p - target_p) / 2 + r_drop * (p * (difference - p_term) + p - q)
            grad_q = (q - target_p) / 2 + r_drop * (q * (q_term - difference) + q - p)
            tl.store(grad + start + cols, (grad_p * factor).to(dtype), inside)
            tl.store(grad + start2 + cols, (grad_q * factor).to(dtype), inside)


class CrossEntropy(torch.autograd.Function):
    """Two sums over the rows, as in train/loss.py: the loss with label smoothing and R-Drop, and the NLL."""

    @staticmethod
    def forward(
        context: Any,
        logits: Tensor,
        targets: Tensor,
        mask: Tensor,
        smoothing: float,
        r_drop: float,
        overwrite: bool,
    ) -> tuple[Tensor, Tensor]:
        """logits: # (passes, rows, vocab_size); targets, mask: # (rows,), true for rows that count

        `overwrite`: the gradient may be written over the logits
        """
        logits = logits.contiguous()
        passes, rows, vocab_size = logits.shape
        logsumexps, kl_terms = torch.empty(2, passes, rows, device=logits.device)
        losses, nlls = torch.empty(2, rows, device=logits.device)
        settings = (rows, vocab_size, smoothing, r_drop / 4)
        block = min(_BLOCK, triton.next_power_of_2(vocab_size))
        _cross_entropy_forward[(rows,)](
            logits, targets, mask, logsumexps, kl_terms, losses, nlls, *settings,
            passes=passes, block=block, num_warps=8,
        )  # fmt: skip
        context.save_for_backward(logits, targets, mask, logsumexps, kl_terms)
        context.settings, context.block, context.overwrite = settings, block, overwrite
        loss, nll = losses.sum(), nlls.sum()
        context.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(context: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, mask, logsumexps, kl_terms = context.saved_tensors
        grad = logits if context.overwrite else torch.empty_like(logits)
        _cross_entropy_backward[(logits.shape[1],)](
            logits, targets, mask, logsumexps, kl_terms, loss_grad.contiguous(), grad, *context.settings,
            passes=logits.shape[0], block=context.block, num_warps=8,
        )  # fmt: skip
        return grad, None, None, None, None, None


@triton.jit(do_not_specialize=["rows"])
def _cross_entropy_forward_backward(
    logits, targets, mask, losses, nlls, rows, vocab_size, smoothing,
    has_smoothing: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The loss of each row; its logits are replaced by the gradient of the summed loss."""
    log2e: tl.constexpr = 1.4426950408889634
    cols = tl.arange(0, block)
    begin, programs = tl.program_id(0), tl.num_programs(0)
    for number in range(tl.cdiv(rows - begin, programs)):
        row = begin.to(tl.int64) + number * programs
        start = logits + row * vocab_size
        counts = tl.load(mask + row) != 0
        target = tl.load(targets + row)
        target_logit = tl.load(start + target).to(tl.float32)
        # Every eight logits, which one thread holds, have a maximum of their own, so that threads need not wait for
        # each other.
        maximum = tl.full([block // 8], -1e30, tl.float32)
        exponentials = tl.zeros([block // 8], tl.float32)
        logit_sum = tl.zeros([block // 8], tl.float32)
        for first in range(0, vocab_size, block):
            inside = cols < vocab_size - first
            x = tl.load(start + first + cols, inside, float("-inf"), eviction_policy="evict_last").to(tl.float32)
            if has_smoothing:
                logit_sum += tl.sum(tl.reshape(tl.where(inside, x, 0.0), (block // 8, 8)), 1)
            x = tl.reshape(x, (block // 8, 8)) * log2e
            new_maximum = tl.maximum(maximum, tl.max(x, 1))
            exponentials = exponentials * tl.exp2(maximum - new_maximum) + tl.sum(tl.exp2(x - new_maximum[:, None]), 1)
            maximum = new_maximum
        row_maximum = tl.max(maximum, 0)
        logsumexp = (row_maximum + tl.log2(tl.sum(exponentials * tl.exp2(maximum - row_maximum), 0))) / log2e
        nll = logsumexp - target_logit
        loss = nll
        if has_smoothing:
            loss += smoothing * (logsumexp - tl.sum(logit_sum, 0) / vocab_size - nll)
        tl.store(losses + row, tl.where(counts, loss, 0.0))
        tl.store(nlls + row, tl.where(counts, nll, 0.0))
        factor = tl.where(counts, 1.0, 0.0)
        uniform = factor * smoothing / vocab_size
        for first in range(0, vocab_size, block):
            inside = cols < vocab_size - first
            x = tl.load(start + first + cols, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
            grad = (tl.exp2(x * log2e - logsumexp * log2e) * factor - uniform).to(logits.dtype.element_ty)
            tl.store(start + first + cols, grad, inside, eviction_policy="evict_first")
        tl.debug_barrier()  # the target is written once more
        target_grad = (tl.exp2((target_logit - logsumexp) * log2e) - 1.0 + smoothing) * factor - uniform
        tl.store(start + target, target_grad.to(logits.dtype.element_ty))


class LinearCrossEntropy(torch.autograd.Function):
    """The same two sums from the input of the output projection, without R-Drop."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, mask: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """x: # (rows, width); weight: # (vocab_size, width); targets, mask: # (rows,)"""
        rows, vocab_size = len(x), len(weight)
        losses, nlls = torch.empty(2, rows, device=x.device)
        x_grad, weight_grad = torch.empty_like(x), None
        bias_grad = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        step = triton.cdiv(rows, triton.cdiv(rows * vocab_size, _MAX_LOGITS))
        programs, warps = _LONG_PROGRAMS if vocab_size > _LONG else _PROGRAMS
        block = max(8, min(_FUSED_BLOCK, triton.next_power_of_2(vocab_size)))
        for first in range(0, rows, step):
            part = slice(first, first + step)
            logits = cublaslt.linear(x[part], weight, bias)
            _cross_entropy_forward_backward[(min(len(logits), programs),)](
                logits, targets[part], mask[part], losses[part], nlls[part], len(logits), vocab_size, smoothing,
                has_smoothing=smoothing > 0, block=block, num_warps=warps,
            )  # fmt: skip
            torch.mm(logits, weight, out=x_grad[part])
            if weight_grad is None:
                weight_grad = logits.T @ x[part]
            else:
                weight_grad.addmm_(logits.T, x[part])
            if bias_grad is not None:
                bias_grad += logits.sum(dim=0, dtype=torch.float32)
            del logits
        context.save_for_backward(x_grad, weight_grad, bias_grad)
        loss, nll = losses.sum(), nlls.sum()
        context.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(context: Any, loss_grad: Tensor, nll_grad: Tensor) -> tuple[Tensor | None, ...]:
        x_grad, weight_grad, bias_grad = context.saved_tensors
        if bias_grad is not None:
            bias_grad = (bias_grad * loss_grad).to(x_grad.dtype)
        return _scale_in_place(x_grad, loss_grad), _scale_in_place(weight_grad, loss_grad), bias_grad, None, None, None


@triton.jit
def _scale(x, factor, count, block: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * block
    cols = tl.arange(0, block)
    mask = cols < count - first
    scaled = tl.load(x + first + cols, mask, 0.0).to(tl.float32) * tl.load(factor)
    tl.store(x + first + cols, scaled.to(x.dtype.element_ty), mask)


def _scale_in_place(x: Tensor, factor: Tensor) -> Tensor:
    """x times a number on the device.  factor: # (), float32"""
    _scale[(triton.cdiv(x.numel(), 2048),)](x, factor, x.numel(), block=2048)
    return x
