"""The loss over a vocabulary and its gradient in as few trips through memory as can be, written in Triton for a GPU.

Where the loss makes the scores itself, a row is read, judged and replaced by its gradient while it is in the cache, and
the gradients of the product follow at once, so that scores never wait for the way back. Where it is given them,
forward reads the scores once (twice where two passes are compared) and keeps a few numbers of each row. Backward reads
them again and writes their gradient, times what flows back; where it may, over the scores themselves, which are the
largest tensor of a small model and are not needed any more.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.fast import cublas_lt

_BLOCK = 4096
_WHOLE, _LONG = 8192, 32768
"""Where a row is judged and replaced: scores that a program takes at once, and those beyond which a row is long."""
_UNDER_WAY, _LONG_UNDER_WAY = (1056, 8), (264, 32)
"""Programs and the warps of each, for other rows and for long ones. Found by trying."""
_CELLS = 1 << 30
"""Scores held at once, where the product that makes them is part of the loss."""


@triton.jit
def _sums(scores, start, size, block: tl.constexpr):
    """log Σ exp and the sum of a row's scores."""
    top = float("-inf")
    raised = 0.0
    total = 0.0
    for first in range(0, size, block):
        at = first + tl.arange(0, block)
        inside = at < size
        x = tl.load(scores + start + at, inside, float("-inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, 0))
        raised = raised * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), 0)
        total += tl.sum(tl.where(inside, x, 0.0), 0)
        top = higher
    return top + tl.log(raised), total


@triton.jit(do_not_specialize=["rows"])
def _forward(
    scores, words, real, normalisers, apart, totals, plains, rows, size, smoothing, consistency,
    passes: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    there = tl.load(real + row) != 0
    word = tl.load(words + row)
    start = row.to(tl.int64) * size
    normaliser, total = _sums(scores, start, size, block)
    plain = normaliser - tl.load(scores + start + word).to(tl.float32)
    loss = plain + smoothing * (normaliser - total / size - plain)
    tl.store(normalisers + row, normaliser)
    if passes == 2:
        other = (row + rows).to(tl.int64) * size
        second, total = _sums(scores, other, size, block)
        more = second - tl.load(scores + other + word).to(tl.float32)
        loss = (loss + more + smoothing * (second - total / size - more)) / 2
        plain = (plain + more) / 2
        tl.store(normalisers + rows + row, second)
        along, against = 0.0, 0.0
        for first in range(0, size, block):
            at = first + tl.arange(0, block)
            inside = at < size
            log_p = tl.load(scores + start + at, inside, 0.0).to(tl.float32) - normaliser
            log_q = tl.load(scores + other + at, inside, 0.0).to(tl.float32) - second
            away = tl.where(inside, log_p - log_q, 0.0)
            along += tl.sum(tl.exp(log_p) * away, 0)
            against += tl.sum(tl.exp(log_q) * away, 0)
        tl.store(apart + row, along)
        tl.store(apart + rows + row, against)
        loss += consistency * (along - against)
    tl.store(totals + row, tl.where(there, loss, 0.0))
    tl.store(plains + row, tl.where(there, plain, 0.0))


@triton.jit(do_not_specialize=["rows"])
def _backward(
    scores, words, real, normalisers, apart, flowing, gradient, rows, size, smoothing, consistency,
    passes: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    factor = tl.where(tl.load(real + row) != 0, tl.load(flowing), 0.0)
    word = tl.load(words + row)
    start = row.to(tl.int64) * size
    normaliser = tl.load(normalisers + row)
    kind = gradient.dtype.element_ty
    if passes == 2:
        other = (row + rows).to(tl.int64) * size
        second = tl.load(normalisers + rows + row)
        along, against = tl.load(apart + row), tl.load(apart + rows + row)
    for first in range(0, size, block):
        at = first + tl.arange(0, block)
        inside = at < size
        wanted = smoothing / size + tl.where(at == word, 1.0 - smoothing, 0.0)
        log_p = tl.load(scores + start + at, inside, 0.0).to(tl.float32) - normaliser
        p = tl.exp(log_p)
        if passes == 1:
            tl.store(gradient + start + at, ((p - wanted) * factor).to(kind), inside)
        else:
            log_q = tl.load(scores + other + at, inside, 0.0).to(tl.float32) - second
            q, away = tl.exp(log_q), log_p - log_q
            slope_p = (p - wanted) / 2 + consistency * (p * (away - along) + p - q)
            slope_q = (q - wanted) / 2 + consistency * (q * (against - away) + q - p)
            tl.store(gradient + start + at, (slope_p * factor).to(kind), inside)
            tl.store(gradient + other + at, (slope_q * factor).to(kind), inside)


class DeviceSums(torch.autograd.Function):
    """The sums of `_Sums` in train/loss.py, and their gradient."""

    @staticmethod
    def forward(
        context: Any,
        scores: Tensor,
        words: Tensor,
        real: Tensor,
        smoothing: float,
        consistency: float,
        overwrite: bool,
    ) -> tuple[Tensor, Tensor]:
        """scores: # (passes, rows, vocabulary); words, real: # (rows,)"""
        scores = scores.contiguous()
        passes, rows, size = scores.shape
        normalisers, apart = torch.empty(2, passes, rows, device=scores.device)
        totals, plains = torch.empty(2, rows, device=scores.device)
        settings = (rows, size, smoothing, consistency / 4)
        block = min(_BLOCK, triton.next_power_of_2(size))
        _forward[(rows,)](
            scores, words, real, normalisers, apart, totals, plains, *settings, passes=passes, block=block, num_warps=8
        )
        context.save_for_backward(scores, words, real, normalisers, apart)
        context.settings, context.block, context.overwrite = settings, block, overwrite
        total, plain = totals.sum(), plains.sum()
        context.mark_non_differentiable(plain)
        return total, plain

    @staticmethod
    @once_differentiable
    def backward(context: Any, flowing: Tensor, plain: Tensor) -> tuple[Tensor | None, ...]:
        scores, words, real, normalisers, apart = context.saved_tensors
        gradient = scores if context.overwrite else torch.empty_like(scores)
        _backward[(scores.shape[1],)](
            scores, words, real, normalisers, apart, flowing.contiguous(), gradient, *context.settings,
            passes=scores.shape[0], block=context.block, num_warps=8,
        )  # fmt: skip
        return gradient, None, None, None, None, None


@triton.jit(do_not_specialize=["rows"])
def _judge(
    scores, words, real, totals, plains, rows, size, smoothing,
    smoothed: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The loss of rows, and the gradient of their sum in the place of the scores."""
    log2e: tl.constexpr = 1.4426950408889634
    at = tl.arange(0, block)
    begin, programs = tl.program_id(0), tl.num_programs(0)
    for number in range(tl.cdiv(rows - begin, programs)):
        row = begin.to(tl.int64) + number * programs
        start = scores + row * size
        there = tl.load(real + row) != 0
        word = tl.load(words + row)
        mine = tl.load(start + word).to(tl.float32)
        # Every eight scores, which one thread holds, have a maximum of their own, so that threads need not wait for
        # each other.
        top = tl.full([block // 8], -1e30, tl.float32)
        raised = tl.zeros([block // 8], tl.float32)
        added = tl.zeros([block // 8], tl.float32)
        for first in range(0, size, block):
            inside = at < size - first
            x = tl.load(start + first + at, inside, float("-inf"), eviction_policy="evict_last").to(tl.float32)
            if smoothed:
                added += tl.sum(tl.reshape(tl.where(inside, x, 0.0), (block // 8, 8)), 1)
            x = tl.reshape(x, (block // 8, 8)) * log2e
            higher = tl.maximum(top, tl.max(x, 1))
            raised = raised * tl.exp2(top - higher) + tl.sum(tl.exp2(x - higher[:, None]), 1)
            top = higher
        highest = tl.max(top, 0)
        normaliser = (highest + tl.log2(tl.sum(raised * tl.exp2(top - highest), 0))) / log2e
        plain = normaliser - mine
        loss = plain
        if smoothed:
            loss += smoothing * (normaliser - tl.sum(added, 0) / size - plain)
        tl.store(totals + row, tl.where(there, loss, 0.0))
        tl.store(plains + row, tl.where(there, plain, 0.0))
        factor = tl.where(there, 1.0, 0.0)
        spread = factor * smoothing / size
        for first in range(0, size, block):
            inside = at < size - first
            x = tl.load(start + first + at, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
            slopes = (tl.exp2(x * log2e - normaliser * log2e) * factor - spread).to(scores.dtype.element_ty)
            tl.store(start + first + at, slopes, inside, eviction_policy="evict_first")
        tl.debug_barrier()  # the word itself is written once more
        slope = (tl.exp2((mine - normaliser) * log2e) - 1.0 + smoothing) * factor - spread
        tl.store(start + word, slope.to(scores.dtype.element_ty))


class DeviceLateSums(torch.autograd.Function):
    """Both sums of words that are yet to be scored, and the gradients of the product that scores them."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, real: Tensor, smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """x: # (rows, width); weight: # (vocabulary, width); words, real: # (rows,)"""
        rows, size = len(x), len(weight)
        totals, plains = torch.empty(2, rows, device=x.device)
        x_slope, weight_slope = torch.empty_like(x), None
        bias_slope = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        step = triton.cdiv(rows, triton.cdiv(rows * size, _CELLS))
        programs, warps = _LONG_UNDER_WAY if size > _LONG else _UNDER_WAY
        block = max(8, min(_WHOLE, triton.next_power_of_2(size)))
        for first in range(0, rows, step):
            part = slice(first, first + step)
            scores = cublas_lt.product(x[part], weight, bias)
            _judge[(min(len(scores), programs),)](
                scores, words[part], real[part], totals[part], plains[part], len(scores), size, smoothing,
                smoothed=smoothing > 0, block=block, num_warps=warps,
            )  # fmt: skip
            torch.mm(scores, weight, out=x_slope[part])
            if weight_slope is None:
                weight_slope = scores.T @ x[part]
            else:
                weight_slope.addmm_(scores.T, x[part])
            if bias_slope is not None:
                bias_slope += scores.sum(dim=0, dtype=torch.float32)
            del scores
        context.save_for_backward(x_slope, weight_slope, bias_slope)
        total, plain = totals.sum(), plains.sum()
        context.mark_non_differentiable(plain)
        return total, plain

    @staticmethod
    @once_differentiable
    def backward(context: Any, flowing: Tensor, plain: Tensor) -> tuple[Tensor | None, ...]:
        x_slope, weight_slope, bias_slope = context.saved_tensors
        if bias_slope is not None:
            bias_slope = (bias_slope * flowing).to(x_slope.dtype)
        return _scaled(x_slope, flowing), _scaled(weight_slope, flowing), bias_slope, None, None, None


@triton.jit
def _scale(x, factor, count, block: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * block
    at = tl.arange(0, block)
    inside = at < count - first
    scaled = tl.load(x + first + at, inside, 0.0).to(tl.float32) * tl.load(factor)
    tl.store(x + first + at, scaled.to(x.dtype.element_ty), inside)


def _scaled(x: Tensor, factor: Tensor) -> Tensor:
    """x times a number on the device, in place.  factor: # (), float32"""
    _scale[(triton.cdiv(x.numel(), 2048),)](x, factor, x.numel(), block=2048)
    return x
