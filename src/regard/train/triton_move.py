"""Adam's move of all parameters in one trip through memory, written in Triton for a GPU.

A model has hundreds of tensors. Where each of them lies is in tables, and a program of a kernel looks up which stretch
of which tensor is its own; so one launch moves all. A stretch of a gradient is read in the precision in which it was
made, clipped, and the parameter is written twice: as it is, and in the lower precision in which the next pass reads it.
"""

import triton
import triton.language as tl

STRETCH = 1024
"""Numbers that a program moves."""


@triton.jit
def _read(start, at, left, block: tl.constexpr):
    """The next `block` numbers, or what is left of them. Whole stretches need no mask, and are read several at once."""
    if left >= block:  # noqa: SIM108 (an expression would take both ways)
        found = tl.load(start + at)
    else:
        found = tl.load(start + at, at < left, 0.0)
    return found.to(tl.float32)


@triton.jit
def _write(start, at, numbers, left, block: tl.constexpr):
    kept = numbers.to(start.dtype.element_ty)
    if left >= block:
        tl.store(start + at, kept)
    else:
        tl.store(start + at, kept, at < left)


@triton.jit
def sum_squares(gradients, tensors, firsts, counts, sums, kind: tl.constexpr, block: tl.constexpr):
    """Each stretch's sum of squared gradients."""
    program = tl.program_id(0)
    number = tl.load(tensors + program)
    first = tl.load(firsts + program)
    at = tl.arange(0, block)
    left = tl.load(counts + number) - first
    start = tl.multiple_of(tl.load(gradients + number).to(tl.pointer_type(kind)) + first, 16)
    slope = _read(start, at, left, block)
    tl.store(sums + program, tl.sum(slope * slope, 0))


@triton.jit
def move(
    places, gradients, tensors, firsts, counts, decays, total, steps, rate, clip, beta, other_beta, epsilon,
    kind: tl.constexpr, lowered: tl.constexpr, clipped: tl.constexpr, apart: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Adam's step (Kingma and Ba 2015, algorithm 1), as PyTorch takes it.

    `places` has four columns: parameters, both of Adam's averages, and copies of parameters in lower precision. With
    `apart` weights decay by themselves (AdamW), else through the gradient.
    """
    program = tl.program_id(0)
    number = tl.load(tensors + program)
    first = tl.load(firsts + program)
    at = tl.arange(0, block)
    left = tl.load(counts + number) - first
    decay = tl.load(decays + number)
    long = tl.pointer_type(tl.float32)
    weight_at = tl.multiple_of(tl.load(places + 4 * number).to(long) + first, 16)
    mean_at = tl.multiple_of(tl.load(places + 4 * number + 1).to(long) + first, 16)
    square_at = tl.multiple_of(tl.load(places + 4 * number + 2).to(long) + first, 16)
    copy_at = tl.multiple_of(tl.load(places + 4 * number + 3).to(tl.pointer_type(lowered)) + first, 16)
    slope_at = tl.multiple_of(tl.load(gradients + number).to(tl.pointer_type(kind)) + first, 16)
    slope = _read(slope_at, at, left, block)
    weight = _read(weight_at, at, left, block)
    mean = _read(mean_at, at, left, block)
    square = _read(square_at, at, left, block)
    if clipped:
        # As PyTorch clips: by the norm of all gradients together.
        factor = clip / (tl.sqrt(tl.load(total)) + 1e-6)
        slope = slope * tl.where(factor < 1.0, factor, tl.where(factor >= 1.0, 1.0, factor))  # what is no number stays
    if apart:
        weight = weight * (1.0 - rate * decay)
    else:
        slope = slope + decay * weight
    mean = mean + (1.0 - beta) * (slope - mean)
    square = other_beta * square + (1.0 - other_beta) * slope * slope
    taken = tl.load(steps)
    so_far = 1.0 - tl.exp(taken * tl.log(beta))
    other_so_far = 1.0 - tl.exp(taken * tl.log(other_beta))
    below = tl.sqrt(square) / tl.sqrt(other_so_far) + epsilon
    weight = weight - rate / so_far * mean / below
    _write(weight_at, at, weight, left, block)
    _write(mean_at, at, mean, left, block)
    _write(square_at, at, square, left, block)
    _write(copy_at, at, weight, left, block)
