"""What training does besides matrix products, written in Triton for a GPU: forward and backward.

Between two products lie a dropout, a sum and a norm, or a softmax over few words. PyTorch takes one trip through
memory for each of them; here it is one for all, and nothing is kept for the way back that can be made again: what was
dropped is drawn again from the same numbers (`triton_chance.py`), and weights of attention are computed again
(`triton_attention.py`). Products are cuBLAS's, and their biases are summed here on the way back (`triton_products.py`).
What others need of these is to be had from here.

Sums are made in float32. With the environment variable TRITON_INTERPRET=1 everything runs on a CPU, slowly, which is
how it is tested.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.fast.triton_attention import LONGEST, Shape, attend_other, attend_self
from regard.fast.triton_chance import Chance, stays
from regard.fast.triton_lookup import place
from regard.fast.triton_products import added, feed_forward, product, products, stacked

__all__ = [
    "BENDS",
    "LONGEST",
    "Chance",
    "Shape",
    "attend_other",
    "attend_self",
    "bend",
    "feed_forward",
    "join",
    "place",
    "product",
    "products",
    "stacked",
]

_ELEMENTS = 2048
"""Numbers that a program bends."""
_PROGRAMS, _NARROW = 528, 1024
"""Programs that share the rows on the way back of a norm, each with sums of its own, and the widest rows of which a
program holds several at once. Found by trying, as the others."""
BENDS = ("relu", "gelu", "gelu-tanh", "silu")
"""What a feed-forward's middle can be bent by here."""


@triton.jit(do_not_specialize=["call"])
def _join_forward(
    x, change, total_out, x_out, normed_out, means, scales, weight, bias, seed, call, share, epsilon, width,
    joined: tl.constexpr, dropped: tl.constexpr, before: tl.constexpr, centred: tl.constexpr, shifted: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < width
    place = row * width + at
    total = tl.load(x + place, inside, 0.0).to(tl.float32)
    if joined:
        added = tl.load(change + place, inside, 0.0).to(tl.float32)
        if dropped:
            added = added * stays(seed, call, place, share)
        total = (total + added).to(x.dtype.element_ty).to(tl.float32)
    mean = tl.sum(total, 0) / width if centred else 0.0
    away = tl.where(inside, total - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(away * away, 0) / width + epsilon)
    normed = away * scale * tl.load(weight + at, inside, 0.0).to(tl.float32)
    if shifted:
        normed += tl.load(bias + at, inside, 0.0).to(tl.float32)
    kind = x.dtype.element_ty
    if centred:
        tl.store(means + row, mean)
    tl.store(scales + row, scale)
    tl.store(normed_out + place, normed.to(kind), inside)
    if before:
        if joined:
            tl.store(x_out + place, total.to(kind), inside)
    else:
        tl.store(total_out + place, total.to(kind), inside)
        tl.store(x_out + place, normed.to(kind), inside)


@triton.jit(do_not_specialize=["call", "rows"])
def _join_backward(
    slope_x, slope_normed, total, means, scales, weight, seed, call, share,
    x_slope, change_slope, weight_slopes, bias_slopes, rows, width,
    dropped: tl.constexpr, before: tl.constexpr, later: tl.constexpr, centred: tl.constexpr, shifted: tl.constexpr,
    group: tl.constexpr, block: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    first, programs = tl.program_id(0) * group, tl.num_programs(0) * group
    at = tl.arange(0, block)[None, :]
    factor = tl.load(weight + at, at < width, 0.0).to(tl.float32)
    weight_sum = tl.zeros([group, block], tl.float32)
    bias_sum = tl.zeros([group, block], tl.float32)
    for start in tl.range(first, rows, programs, num_stages=stages):
        row = (start + tl.arange(0, group)).to(tl.int64)[:, None]
        inside = (row < rows) & (at < width)
        place = row * width + at
        slope = tl.load(slope_normed + place, inside, 0.0).to(tl.float32)
        x = tl.load(total + place, inside, 0.0).to(tl.float32)
        scale = tl.load(scales + row, row < rows, 0.0)
        if later:
            other = tl.load(slope_x + place, inside, 0.0).to(tl.float32)
            if not before:
                slope += other
        if centred:
            x = x - tl.load(means + row, row < rows, 0.0)
        away = tl.where(inside, x, 0.0) * scale
        weight_sum += slope * away
        if shifted:
            bias_sum += slope
        slope = slope * factor
        along = tl.sum(slope * away, 1)[:, None] / width
        if centred:
            slope = slope - tl.sum(slope, 1)[:, None] / width
        back = (slope - away * along) * scale
        if later and before:
            back += other
        kind = total.dtype.element_ty
        tl.store(x_slope + place, back.to(kind), inside)
        if dropped:
            tl.store(change_slope + place, (back * stays(seed, call, place, share)).to(kind), inside)
    at = tl.arange(0, block)
    tl.store(weight_slopes + tl.program_id(0) * width + at, tl.sum(weight_sum, 0), at < width)
    if shifted:
        tl.store(bias_slopes + tl.program_id(0) * width + at, tl.sum(bias_sum, 0), at < width)


class _Join(torch.autograd.Function):
    """x + dropped change, and its norm."""

    @staticmethod
    def forward(
        context: Any,
        x: Tensor,
        change: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        epsilon: float,
        before: bool,
        centred: bool,
        chance: Chance | None,
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        change = None if change is None else change.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        alone = before and change is None  # only a norm
        x_out = x if alone else torch.empty_like(x)
        normed = torch.empty_like(x)
        total = x if alone else x_out if before else torch.empty_like(x)
        means, scales = torch.empty(2, rows, device=x.device)
        share, seed, call = chance or (0.0, scales, 0)
        _join_forward[(rows,)](
            x, x if change is None else change, total, x_out, normed, means, scales, weight,
            weight if bias is None else bias, seed, call, share, epsilon, width,
            joined=change is not None, dropped=chance is not None, before=before, centred=centred,
            shifted=bias is not None, **_row_of(width),
        )  # fmt: skip
        context.save_for_backward(total, means, scales, weight, *(() if chance is None else (seed,)))
        context.facts = (change is not None, bias is not None, before, centred, share, call)
        context.set_materialize_grads(False)
        return x_out, normed

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope_x: Tensor | None, slope_normed: Tensor | None) -> tuple[Any, ...]:
        total, means, scales, weight, *seeds = context.saved_tensors
        joined, shifted, before, centred, share, call = context.facts
        rows, width = scales.shape[0], total.shape[-1]
        if slope_normed is None:
            slope_normed = torch.zeros_like(total)
        slope_normed = slope_normed.contiguous()
        slope_x = None if slope_x is None else slope_x.contiguous()
        group, stages = (2, 3) if width <= _NARROW else (1, 1)  # what is under way has to fit into a cache
        programs = min(triton.cdiv(rows, group), _PROGRAMS)
        back = torch.empty_like(total)
        change_back = torch.empty_like(total) if seeds else back
        sums = total.new_empty(1 + shifted, programs, width, dtype=torch.float32)
        _join_backward[(programs,)](
            slope_normed if slope_x is None else slope_x, slope_normed, total, means, scales, weight,
            seeds[0] if seeds else scales, call, share, back, change_back, sums[0], sums[-1], rows, width,
            dropped=bool(seeds), before=before, later=slope_x is not None, centred=centred, shifted=shifted,
            group=group, stages=stages, **_row_of(width),
        )  # fmt: skip
        slopes = added(sums, weight.dtype)
        return (
            back,
            change_back if joined else None,
            slopes[0],
            slopes[1] if shifted else None,
            None,
            None,
            None,
            None,
        )


def _row_of(width: int) -> dict[str, int]:
    """A row in one go, with so many warps that a thread reads 16 bytes of bf16 at once."""
    block = triton.next_power_of_2(width)
    return {"block": block, "num_warps": min(8, max(1, block // 256))}


def join(
    x: Tensor,
    change: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    epsilon: float,
    *,
    before: bool,
    centred: bool,
    chance: Chance | None,
) -> tuple[Tensor, Tensor]:
    """x with a sublayer's change added, some of it dropped; and what the next sublayer takes.

    Where norms stand `before` sublayers these are the sum and its norm, else twice the norm of the sum. Without a
    change only the norm is new. `centred` is layer normalisation, else RMS.  x, change: # (…, width)
    """
    made: tuple[Tensor, Tensor] = _Join.apply(x, change, weight, bias, epsilon, before, centred, chance)  # type: ignore[no-untyped-call]
    return made


@triton.jit
def _bent(x, kind: tl.constexpr):
    """x bent, and how steep that is there."""
    if kind == "relu":
        bent, steep = tl.maximum(x, 0.0), tl.where(x > 0.0, 1.0, 0.0)
    elif kind == "gelu":
        # Φ by Abramowitz and Stegun 7.1.26, within 1e-7; its exponential is the density's.
        raised = tl.exp(-0.5 * x * x)
        t = 1.0 / (1.0 + 0.2316418881662 * tl.abs(x))
        tail = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * raised
        below = tl.where(x > 0.0, 1.0 - 0.5 * tail, 0.5 * tail)
        bent, steep = x * below, below + x * 0.3989422804014327 * raised
    elif kind == "gelu-tanh":
        # (1 + tanh u) / 2 is the logistic function of 2 u.
        below = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        inner = 1.5957691216057308 * (1.0 + 0.134145 * x * x)
        bent, steep = x * below, below + x * below * (1.0 - below) * inner
    else:
        below = tl.sigmoid(x)
        bent, steep = x * below, below * (1.0 + x * (1.0 - below))
    return bent, steep


@triton.jit(do_not_specialize=["call"])
def _bend_forward(x, out, seed, call, share, count, kind: tl.constexpr, dropped: tl.constexpr, block: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * block
    at = tl.arange(0, block)
    inside = at < count - first
    bent, _ = _bent(tl.load(x + first + at, inside, 0.0).to(tl.float32), kind)
    if dropped:
        bent = bent * stays(seed, call, first.to(tl.uint32) + at.to(tl.uint32), share)
    tl.store(out + first + at, bent.to(out.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["call"])
def _bend_backward(
    x, slope, back, seed, call, share, count,
    kind: tl.constexpr, dropped: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * block
    at = tl.arange(0, block)
    inside = at < count - first
    flowing = tl.load(slope + first + at, inside, 0.0).to(tl.float32)
    _, steep = _bent(tl.load(x + first + at, inside, 0.0).to(tl.float32), kind)
    flowing = flowing * steep
    if kind == "relu":
        flowing = flowing * (1.0 / (1.0 - share))  # x is what came out: what was dropped is zero there
    elif dropped:
        flowing = flowing * stays(seed, call, first.to(tl.uint32) + at.to(tl.uint32), share)
    tl.store(back + first + at, flowing.to(back.dtype.element_ty), inside)


class _Bend(torch.autograd.Function):
    """x bent, some of it dropped. Of ReLU only what came out is kept: gradients flow through what is above zero."""

    @staticmethod
    def forward(context: Any, x: Tensor, kind: str, chance: Chance | None) -> Tensor:
        share, seed, call = chance or (0.0, x, 0)
        x = x.contiguous()
        out = torch.empty_like(x)
        _bend_forward[(triton.cdiv(x.numel(), _ELEMENTS),)](
            x, out, seed, call, share, x.numel(), kind=kind, dropped=chance is not None, block=_ELEMENTS
        )
        context.save_for_backward(out if kind == "relu" else x, *(() if chance is None else (seed,)))
        context.facts = kind, share, call
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Any, ...]:
        x, *seeds = context.saved_tensors
        kind, share, call = context.facts
        slope = slope.contiguous()
        back = torch.empty_like(slope)
        _bend_backward[(triton.cdiv(x.numel(), _ELEMENTS),)](
            x, slope, back, seeds[0] if seeds else x, call, share, x.numel(),
            kind=kind, dropped=bool(seeds), block=_ELEMENTS,
        )  # fmt: skip
        return back, None, None


def bend(x: Tensor, kind: str, chance: Chance | None) -> Tensor:
    """x bent by one of `BENDS`, some of it dropped.  x: # (…, hidden)"""
    bent: Tensor = _Bend.apply(x, kind, chance)  # type: ignore[no-untyped-call]
    return bent
