"""Adam's step for all parameters in one pass over memory, written in Triton for a GPU ("multi-tensor apply").

A model has hundreds of tensors. Their addresses are in tables, and each program looks up which chunk of which tensor it
updates, so one launch updates all. A chunk of a gradient is read in the precision in which it was computed and clipped,
and the parameter is written twice: in float32, and in the lower precision that the next forward pass reads.
"""

import triton
import triton.language as tl

CHUNK = 1024
"""Numbers that a program updates."""


@triton.jit
def _load(start, cols, left, block: tl.constexpr):
    """The next `block` numbers, or what is left of them. Full chunks need no mask, and are read several at once."""
    if left >= block:  # noqa: SIM108 (an expression would evaluate both branches)
        x = tl.load(start + cols)
    else:
        x = tl.load(start + cols, cols < left, 0.0)
    return x.to(tl.float32)


@triton.jit
def _store(start, cols, x, left, block: tl.constexpr):
    rounded = x.to(start.dtype.element_ty)
    if left >= block:
        tl.store(start + cols, rounded)
    else:
        tl.store(start + cols, rounded, cols < left)


@triton.jit
def sum_squares(grads, tensors, firsts, sizes, sums, grad_dtype: tl.constexpr, block: tl.constexpr):
    """Each chunk's sum of squared gradients."""
    program = tl.program_id(0)
    tensor = tl.load(tensors + program)
    first = tl.load(firsts + program)
    cols = tl.arange(0, block)
    left = tl.load(sizes + tensor) - first
    start = tl.multiple_of(tl.load(grads + tensor).to(tl.pointer_type(grad_dtype)) + first, 16)
    grad = _load(start, cols, left, block)
    tl.store(sums + program, tl.sum(grad * grad, 0))


@triton.jit
def adam_step(
    addresses, grads, tensors, firsts, sizes, weight_decays, square_sum, steps, lr, max_norm, beta1, beta2, eps,
    grad_dtype: tl.constexpr, copy_dtype: tl.constexpr, clip: tl.constexpr, decoupled: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Adam's step (Kingma and Ba 2015, algorithm 1), as PyTorch computes it.

    `addresses` has four columns: parameters, both of Adam's moments, and copies of parameters in lower precision. With
    `decoupled` weight decay is applied to the parameters (AdamW), otherwise to the gradient.
    """
    program = tl.program_id(0)
    tensor = tl.load(tensors + program)
    first = tl.load(firsts + program)
    cols = tl.arange(0, block)
    left = tl.load(sizes + tensor) - first
    weight_decay = tl.load(weight_decays + tensor)
    float_pointer = tl.pointer_type(tl.float32)
    weight_start = tl.multiple_of(tl.load(addresses + 4 * tensor).to(float_pointer) + first, 16)
    exp_avg_start = tl.multiple_of(tl.load(addresses + 4 * tensor + 1).to(float_pointer) + first, 16)
    exp_avg_sq_start = tl.multiple_of(tl.load(addresses + 4 * tensor + 2).to(float_pointer) + first, 16)
    copy_start = tl.multiple_of(tl.load(addresses + 4 * tensor + 3).to(tl.pointer_type(copy_dtype)) + first, 16)
    grad_start = tl.multiple_of(tl.load(grads + tensor).to(tl.pointer_type(grad_dtype)) + first, 16)
    grad = _load(grad_start, cols, left, block)
    weight = _load(weight_start, cols, left, block)
    exp_avg = _load(exp_avg_start, cols, left, block)
    exp_avg_sq = _load(exp_avg_sq_start, cols, left, block)
    if clip:
        # As PyTorch clips: by the norm of all gradients together. NaN stays NaN.
        factor = max_norm / (tl.sqrt(tl.load(square_sum)) + 1e-6)
        grad = grad * tl.where(factor < 1.0, factor, tl.where(factor >= 1.0, 1.0, factor))
    if decoupled:
        weight = weight * (1.0 - lr * weight_decay)
    else:
        grad = grad + weight_decay * weight
    exp_avg = exp_avg + (1.0 - beta1) * (grad - exp_avg)
    exp_avg_sq = beta2 * exp_avg_sq + (1.0 - beta2) * grad * grad
    step = tl.load(steps)
    bias_correction1 = 1.0 - tl.exp(step * tl.log(beta1))
    bias_correction2 = 1.0 - tl.exp(step * tl.log(beta2))
    denominator = tl.sqrt(exp_avg_sq) / tl.sqrt(bias_correction2) + eps
    weight = weight - lr / bias_correction1 * exp_avg / denominator
    _store(weight_start, cols, weight, left, block)
    _store(exp_avg_start, cols, exp_avg, left, block)
    _store(exp_avg_sq_start, cols, exp_avg_sq, left, block)
    _store(copy_start, cols, weight, left, block)
