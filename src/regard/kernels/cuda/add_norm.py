"""Residual sum and norm in one kernel, written in Triton for a GPU: with dropout for training, without for decoding.

PyTorch makes one pass over memory for each of dropout, sum and norm. Here it is one for all, and the backward pass
draws the dropout mask again (`dropout_rng.py`) instead of reading it. Sums are computed in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.cuda.dropout_rng import keep_scale
from regard.kernels.cuda.linear import reduce_partial_sums
from regard.kernels.params import Dropout

_BACKWARD_PROGRAMS, _NARROW = 528, 1024
"""Programs that share the rows in the backward pass, each with partial sums of its own, and the widest rows of which a
program holds several at once. Found by trying, as the other sizes are."""


@triton.jit
def normalize_row(x, weight, bias, cols, mask, eps, width, centered: tl.constexpr):
    """Layer normalization of one row if `centered`, RMSNorm otherwise."""
    mean = tl.sum(x, 0) / width if centered else 0.0
    difference = tl.where(mask, x - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(difference * difference, 0) / width + eps)
    w = tl.load(weight + cols, mask, 0.0).to(tl.float32)
    b = tl.load(bias + cols, mask, 0.0).to(tl.float32)
    return difference * rstd * w + b


@triton.jit
def _add_norm(
    residual, sublayer_out, out, weight, bias, eps, width,
    pre_norm: tl.constexpr, centered: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, block)
    mask = cols < width
    index = row * width + cols
    total = tl.load(residual + index, mask, 0.0) + tl.load(sublayer_out + index, mask, 0.0).to(tl.float32)
    normed = normalize_row(total, weight, bias, cols, mask, eps, width, centered)
    tl.store(residual + index, total if pre_norm else normed, mask)
    tl.store(out + index, normed.to(out.dtype.element_ty), mask)


def add_norm(residual: Tensor, sublayer_out: Tensor, norm: Any, *, pre_norm: bool) -> Tensor:
    """Add a sublayer's output to the residual, in place, and return the norm of the sum: the next sublayer's input.

    In post-norm layers the residual becomes the norm of the sum.
    residual: # (rows, width), float32; sublayer_out: # (rows, width); norm: its weight, bias, eps and centered
    """
    rows, width = residual.shape
    out = sublayer_out.new_empty(rows, width)
    _add_norm[(rows,)](
        residual, sublayer_out, out, norm.weight, norm.bias, norm.eps, width,
        pre_norm=pre_norm, centered=norm.centered, block=triton.next_power_of_2(width),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["offset"])
def _dropout_add_norm_forward(
    residual, sublayer_out, total_out, residual_out, normed_out, means, rstds, weight, bias, seed, offset, p, eps,
    width, has_sublayer: tl.constexpr, has_dropout: tl.constexpr, pre_norm: tl.constexpr, centered: tl.constexpr,
    has_bias: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, block)
    mask = cols < width
    index = row * width + cols
    total = tl.load(residual + index, mask, 0.0).to(tl.float32)
    if has_sublayer:
        added = tl.load(sublayer_out + index, mask, 0.0).to(tl.float32)
        if has_dropout:
            added = added * keep_scale(seed, offset, index, p)
        total = (total + added).to(residual.dtype.element_ty).to(tl.float32)
    mean = tl.sum(total, 0) / width if centered else 0.0
    difference = tl.where(mask, total - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(difference * difference, 0) / width + eps)
    normed = difference * rstd * tl.load(weight + cols, mask, 0.0).to(tl.float32)
    if has_bias:
        normed += tl.load(bias + cols, mask, 0.0).to(tl.float32)
    dtype = residual.dtype.element_ty
    if centered:
        tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    tl.store(normed_out + index, normed.to(dtype), mask)
    if pre_norm:
        if has_sublayer:
            tl.store(residual_out + index, total.to(dtype), mask)
    else:
        tl.store(total_out + index, total.to(dtype), mask)
        tl.store(residual_out + index, normed.to(dtype), mask)


@triton.jit(do_not_specialize=["offset", "rows"])
def _dropout_add_norm_backward(
    residual_out_grad, normed_grad, total, means, rstds, weight, seed, offset, p,
    residual_grad, sublayer_grad, weight_grads, bias_grads, rows, width,
    has_dropout: tl.constexpr, pre_norm: tl.constexpr, has_residual_out_grad: tl.constexpr, centered: tl.constexpr,
    has_bias: tl.constexpr, group: tl.constexpr, block: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    first, step = tl.program_id(0) * group, tl.num_programs(0) * group
    cols = tl.arange(0, block)[None, :]
    w = tl.load(weight + cols, cols < width, 0.0).to(tl.float32)
    weight_sum = tl.zeros([group, block], tl.float32)
    bias_sum = tl.zeros([group, block], tl.float32)
    for start in tl.range(first, rows, step, num_stages=stages):
        row = (start + tl.arange(0, group)).to(tl.int64)[:, None]
        mask = (row < rows) & (cols < width)
        index = row * width + cols
        grad = tl.load(normed_grad + index, mask, 0.0).to(tl.float32)
        x = tl.load(total + index, mask, 0.0).to(tl.float32)
        rstd = tl.load(rstds + row, row < rows, 0.0)
        if has_residual_out_grad:
            other = tl.load(residual_out_grad + index, mask, 0.0).to(tl.float32)
            if not pre_norm:
                grad += other
        if centered:
            x = x - tl.load(means + row, row < rows, 0.0)
        x_hat = tl.where(mask, x, 0.0) * rstd
        weight_sum += grad * x_hat
        if has_bias:
            bias_sum += grad
        grad = grad * w
        correlation = tl.sum(grad * x_hat, 1)[:, None] / width
        if centered:
            grad = grad - tl.sum(grad, 1)[:, None] / width
        x_grad = (grad - x_hat * correlation) * rstd
        if has_residual_out_grad and pre_norm:
            x_grad += other
        dtype = total.dtype.element_ty
        tl.store(residual_grad + index, x_grad.to(dtype), mask)
        if has_dropout:
            tl.store(sublayer_grad + index, (x_grad * keep_scale(seed, offset, index, p)).to(dtype), mask)
    cols = tl.arange(0, block)
    tl.store(weight_grads + tl.program_id(0) * width + cols, tl.sum(weight_sum, 0), cols < width)
    if has_bias:
        tl.store(bias_grads + tl.program_id(0) * width + cols, tl.sum(bias_sum, 0), cols < width)


class _DropoutAddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        residual: Tensor,
        sublayer_out: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        eps: float,
        pre_norm: bool,
        centered: bool,
        dropout: Dropout[Tensor] | None,
    ) -> tuple[Tensor, Tensor]:
        residual = residual.contiguous()
        sublayer_out = None if sublayer_out is None else sublayer_out.contiguous()
        width = residual.shape[-1]
        rows = residual.numel() // width
        norm_only = pre_norm and sublayer_out is None
        residual_out = residual if norm_only else torch.empty_like(residual)
        normed = torch.empty_like(residual)
        total = residual if norm_only else residual_out if pre_norm else torch.empty_like(residual)
        means, rstds = torch.empty(2, rows, device=residual.device)
        p, seed, offset = dropout or (0.0, rstds, 0)
        _dropout_add_norm_forward[(rows,)](
            residual, residual if sublayer_out is None else sublayer_out, total, residual_out, normed, means, rstds,
            weight, weight if bias is None else bias, seed, offset, p, eps, width,
            has_sublayer=sublayer_out is not None, has_dropout=dropout is not None, pre_norm=pre_norm,
            centered=centered, has_bias=bias is not None, **_row_blocks(width),
        )  # fmt: skip
        context.save_for_backward(total, means, rstds, weight, *(() if dropout is None else (seed,)))
        context.settings = (sublayer_out is not None, bias is not None, pre_norm, centered, p, offset)
        context.set_materialize_grads(False)
        return residual_out, normed

    @staticmethod
    @once_differentiable
    def backward(context: Any, residual_out_grad: Tensor | None, normed_grad: Tensor | None) -> tuple[Any, ...]:
        total, means, rstds, weight, *seeds = context.saved_tensors
        has_sublayer, has_bias, pre_norm, centered, p, offset = context.settings
        rows, width = rstds.shape[0], total.shape[-1]
        if normed_grad is None:
            normed_grad = torch.zeros_like(total)
        normed_grad = normed_grad.contiguous()
        residual_out_grad = None if residual_out_grad is None else residual_out_grad.contiguous()
        group, stages = (2, 3) if width <= _NARROW else (1, 1)  # what is in flight has to fit into the cache
        programs = min(triton.cdiv(rows, group), _BACKWARD_PROGRAMS)
        residual_grad = torch.empty_like(total)
        sublayer_grad = torch.empty_like(total) if seeds else residual_grad
        sums = total.new_empty(1 + has_bias, programs, width, dtype=torch.float32)
        _dropout_add_norm_backward[(programs,)](
            normed_grad if residual_out_grad is None else residual_out_grad, normed_grad, total, means, rstds, weight,
            seeds[0] if seeds else rstds, offset, p, residual_grad, sublayer_grad, sums[0], sums[-1], rows, width,
            has_dropout=bool(seeds), pre_norm=pre_norm, has_residual_out_grad=residual_out_grad is not None,
            centered=centered, has_bias=has_bias, group=group, stages=stages, **_row_blocks(width),
        )  # fmt: skip
        grads = reduce_partial_sums(sums, weight.dtype)
        return (
            residual_grad,
            sublayer_grad if has_sublayer else None,
            grads[0],
            grads[1] if has_bias else None,
            None,
            None,
            None,
            None,
        )


def _row_blocks(width: int) -> dict[str, int]:
    """One block for a row, with so many warps that each thread reads 16 bytes of bfloat16 at once."""
    block = triton.next_power_of_2(width)
    return {"block": block, "num_warps": min(8, max(1, block // 256))}


def dropout_add_norm(
    residual: Tensor,
    sublayer_out: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    *,
    pre_norm: bool,
    centered: bool,
    dropout: Dropout[Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """The new residual, and the next sublayer's input.

    In pre-norm layers these are the sum residual + dropout(sublayer_out) and its norm, in post-norm layers twice the
    norm of the sum. Without a sublayer's output only the norm is computed. The norm is layer normalization if
    `centered`, RMSNorm otherwise.  residual, sublayer_out: # (…, width)
    """
    outputs: tuple[Tensor, Tensor] = _DropoutAddNorm.apply(  # type: ignore[no-untyped-call]
        residual, sublayer_out, weight, bias, eps, pre_norm, centered, dropout
    )
    return outputs
