"""The loss of words and its gradient on a CPU, in one pass over each row of scores, compiled with numba.

`LateSums` makes the scores too: some rows at a time, in memory that is used again for the next ones. What all scores of
a batch would fill is never asked for, and on the way forward already gives the gradients of the last product. Flags of
the compiler that take every number to be finite are left out, so that a loss that ran away shows.
"""

from typing import Any, cast

import numpy as np
import torch
from numba import njit
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.fast.kernels import Function
from regard.fast.one_dnn import plain_product
from regard.fast.team import FIRST, fraction, integers, matrix, part_of_work, run, shared, table_at, take

_ROWS = 8
"""Rows of a part."""
_BLOCK = 1 << 22
"""Scores made at once: they stay in a cache that all cores share."""
_ZERO, _ONE, _HALF, _LOWEST = np.float32(0), np.float32(1), np.float32(0.5), np.float32(-87)
_LOG2E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


def _compiled(function: Function) -> Function:
    flags = {"reassoc", "contract", "arcp", "nsz"}
    return cast(Function, njit(nogil=True, fastmath=flags, error_model="numpy", forceinline=True)(function))


@_compiled
def _judge(table: Any, part: Any) -> None:
    rows, size = table[FIRST], table[FIRST + 1]
    scores, out = matrix(table[FIRST + 2], rows, size), matrix(table[FIRST + 3], rows, size)
    words, sums = integers(table[FIRST + 4], rows), matrix(table[FIRST + 5], rows, 2)
    smoothing, asked = fraction(table[FIRST + 6]), table[FIRST + 7]
    apart = table[FIRST + 2] != table[FIRST + 3]
    for row in range(part * _ROWS, min(rows, part * _ROWS + _ROWS)):
        x, word = out[row], words[row]
        if word < 0:
            sums[row, 0] = sums[row, 1] = _ZERO
            if asked:
                for i in range(size):
                    x[i] = _ZERO
            continue
        if apart:
            given = scores[row]
            for i in range(size):
                x[i] = given[i]
        most, level, came = _most(x), _ZERO, x[word]
        for i in range(size):
            level += x[i]
        total = _ZERO
        if asked:
            for i in range(size):
                raised = _exp(x[i] - most)
                x[i] = raised
                total += raised
        else:
            for i in range(size):
                total += _exp(x[i] - most)
        wide = most + np.log(total)
        plain = wide - came
        sums[row, 1] = plain
        sums[row, 0] = plain + smoothing * (came - level / np.float32(size)) if smoothing > _ZERO else plain
        if asked:
            # Cross-entropy falls by p less the wanted distribution.
            factor, spread = _ONE / total, smoothing / np.float32(size)
            for i in range(size):
                x[i] = x[i] * factor - spread
            x[word] -= _ONE - smoothing


@part_of_work
def _most(x: Any) -> Any:
    """The greatest; what is no number is passed over, and found later."""
    most = x[0]
    for i in range(x.shape[0]):
        most = max(most, x[i])
    return most


@njit(inline="always")  # type: ignore[untyped-decorator]
def _exp(x: Any) -> Any:
    """eˣ for x ≤ 0 by a polynomial; no number stays none."""
    x = _LOWEST if x < _LOWEST else x
    n = np.floor(x * _LOG2E + _HALF)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = _P0
    p = p * r + _P1
    p = p * r + _P2
    p = p * r + _P3
    p = p * r + _P4
    p = p * r + _P5
    p = p * r * r + r + _ONE
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@shared
def judge(address: Any) -> None:
    """rows, vocabulary, scores, their slope (may be the same), words (-1: does not count), sums, smoothing, whether the
    slope is asked for. sums: # (rows, 2): what is trained on, and the same without smoothing"""
    table = table_at(address)
    part = take(address)
    while part < table[1]:
        _judge(table, part)
        part = take(address)


def _judged(scores: Tensor, slope: Tensor | None, words: Tensor, smoothing: float, sums: Tensor) -> None:
    rows, size = scores.shape
    out = scores if slope is None else slope
    run(judge, -(-rows // _ROWS), rows, size, scores, out, words, sums, float(smoothing), slope is not None)


class MadeSums(torch.autograd.Function):
    """Both sums of scores that are there already."""

    @staticmethod
    def forward(
        context: Any, scores: Tensor, words: Tensor, smoothing: float, overwrite: bool
    ) -> tuple[Tensor, Tensor]:
        """scores: # (rows, vocabulary), float32; words: # (rows,), int64, -1 where none counts"""
        scores = scores.contiguous()
        sums = torch.empty(len(words), 2)
        slope = None
        if context.needs_input_grad[0]:
            slope = scores if overwrite else torch.empty_like(scores)
        _judged(scores, slope, words.contiguous(), smoothing, sums)
        total, plain = sums.sum(dim=0)
        context.save_for_backward(slope)
        context.mark_non_differentiable(plain)
        return total, plain

    @staticmethod
    @once_differentiable
    def backward(context: Any, total: Tensor, plain: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = context.saved_tensors
        return slope.mul_(total), None, None, None


class LateSums(torch.autograd.Function):
    """Both sums of words that are yet to be scored, and the gradients of the product that scores them."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, weight: Tensor, bias: Tensor | None, words: Tensor, smoothing: float, asked: bool
    ) -> tuple[Tensor, Tensor]:
        """x: # (rows, width); weight: # (vocabulary, width); words: # (rows,), int64, -1 where none counts

        `asked`: are there gradients?
        """
        x, words = x.contiguous(), words.contiguous()
        rows, size = len(words), len(weight)
        wanted = [asked and each for each in context.needs_input_grad[:3]]
        sums = torch.empty(rows, 2)
        x_slope = torch.empty_like(x) if wanted[0] else None
        weight_slope = torch.zeros_like(weight) if wanted[1] else None
        bias_slope = torch.zeros_like(bias) if bias is not None and wanted[2] else None
        step = max(_ROWS, _BLOCK // size // _ROWS * _ROWS)
        for first in range(0, rows, step):
            part = slice(first, first + step)
            scores = plain_product(x[part], weight, bias)
            _judged(scores, scores if any(wanted) else None, words[part], smoothing, sums[part])
            if x_slope is not None:
                x_slope[part] = plain_product(scores, weight.t())
            if weight_slope is not None:
                weight_slope.addmm_(scores.t(), x[part])
            if bias_slope is not None:
                bias_slope += scores.sum(dim=0)
        total, plain = sums.sum(dim=0)
        context.save_for_backward(x_slope, weight_slope, bias_slope)
        context.mark_non_differentiable(plain)
        return total, plain

    @staticmethod
    @once_differentiable
    def backward(context: Any, total: Tensor, plain: Tensor) -> tuple[Tensor | None, ...]:
        slopes = [None if slope is None else slope.mul_(total) for slope in context.saved_tensors]
        return slopes[0], slopes[1], slopes[2], None, None, None
