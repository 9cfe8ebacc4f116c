"""The hidden layer of a feed-forward, written in Triton for a GPU: the product and the bend behind it in one.

On the way there a tile of the product is bent while it is still in registers. On the way back the slopes of what was
bent are made by a product, and times how steep the bend is there before they are written. That saves two trips of the
widest tensor of a layer through memory. The product itself is a little slower than the vendor's, so this pays only
where there are many rows, which `pays` says.

Tiles are read by the bulk copies of Hopper chips, through descriptors.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from triton.tools.tensor_descriptor import TensorDescriptor

from regard.fast import triton_switch
from regard.fast.triton_chance import Chance, stays
from regard.fast.triton_training import bent_and_steep, column_sums


class Tiles(NamedTuple):
    """How a product is cut, found by trying."""

    rows: int = 128
    columns: int = 256
    depth: int = 64
    together: int = 8  # rows of tiles that are made side by side, so that what they read stays in the cache
    parts: int = 2  # in which a tile is bent and written
    stages: int = 3
    warps: int = 8


THERE, BACK = Tiles(), Tiles()
_FEWEST_ROWS = 4096


@triton.jit
def _place(tile, tiles_down, tiles_across, together: tl.constexpr):
    """Which tile comes when: in bands of some rows, column by column."""
    band = tile // (together * tiles_across)
    first = band * together
    height = tl.minimum(tiles_down - first, together)
    within = tile % (together * tiles_across)
    return first + within % height, within // height


@triton.jit
def _bend_part(
    made, row, column, bias, kept, out, seed, call, share, rows, hidden,
    back: tl.constexpr, kind: tl.constexpr, biased: tl.constexpr, dropped: tl.constexpr, keeps: tl.constexpr,
    tall: tl.constexpr, wide: tl.constexpr,
):  # fmt: skip
    """Bend a part of a tile, or go back through the bend, and write it."""
    across = column + tl.arange(0, wide)
    if back:
        x = kept.load([row, column]).to(tl.float32)
        _, steep = bent_and_steep(x, kind)
        made = made * steep
        if kind == "relu":
            made = made * (1.0 / (1.0 - share))  # x is what came out: what was dropped is zero there
    else:
        if biased:
            made += tl.load(bias + across, across < hidden, 0.0).to(tl.float32)[None, :]
        rounded = made.to(out.dtype)
        if keeps:
            kept.store([row, column], rounded)
        made, _ = bent_and_steep(rounded.to(tl.float32), kind)
    if dropped and not (back and kind == "relu"):
        down = row + tl.arange(0, tall)
        at = down.to(tl.uint32)[:, None] * hidden.to(tl.uint32) + across.to(tl.uint32)[None, :]
        made = made * stays(seed, call, at, share)
    out.store([row, column], made.to(out.dtype))


@triton.jit(do_not_specialize=["rows", "call"])
def _hidden(
    x, weight, bias, kept, out, seed, call, share, rows, hidden, width,
    back: tl.constexpr, kind: tl.constexpr, biased: tl.constexpr, dropped: tl.constexpr, keeps: tl.constexpr,
    tall: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, together: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    tiles_down, tiles_across = tl.cdiv(rows, tall), tl.cdiv(hidden, wide)
    for tile in tl.range(tl.program_id(0), tiles_down * tiles_across, tl.num_programs(0), flatten=True):
        down, across = _place(tile, tiles_down, tiles_across, together)
        row, column = down * tall, across * wide
        made = tl.zeros([tall, wide], tl.float32)
        for first in range(0, width, deep):
            left = x.load([row, first])
            if back:
                made = tl.dot(left, weight.load([first, column]), made)
            else:
                made = tl.dot(left, weight.load([column, first]).T, made)
        if parts == 2:
            half: tl.constexpr = wide // 2
            one, other = tl.split(tl.permute(tl.reshape(made, [tall, 2, half]), [0, 2, 1]))
            _bend_part(
                one, row, column, bias, kept, out, seed, call, share, rows, hidden,
                back, kind, biased, dropped, keeps, tall, half,
            )  # fmt: skip
            _bend_part(
                other, row, column + half, bias, kept, out, seed, call, share, rows, hidden,
                back, kind, biased, dropped, keeps, tall, half,
            )  # fmt: skip
        else:
            _bend_part(
                made, row, column, bias, kept, out, seed, call, share, rows, hidden,
                back, kind, biased, dropped, keeps, tall, wide,
            )  # fmt: skip


def _launch(
    x: Tensor, weight: Tensor, bias: Tensor | None, kept: Tensor | None, out: Tensor,
    kind: str, chance: Chance | None, tiles: Tiles, *, back: bool,
) -> None:  # fmt: skip
    """x: # (rows, width); weight: # (hidden, width), or (width, hidden) on the way back; kept, out: # (rows, hidden)"""
    share, seed, call = chance or (0.0, x, 0)
    rows, width = x.shape
    hidden = out.shape[1]
    piece = [tiles.rows, tiles.columns // tiles.parts]
    read = [tiles.depth, tiles.columns] if back else [tiles.columns, tiles.depth]
    count = triton.cdiv(rows, tiles.rows) * triton.cdiv(hidden, tiles.columns)
    _hidden[(min(count, _processors(x.device)),)](
        TensorDescriptor.from_tensor(x, [tiles.rows, tiles.depth]), TensorDescriptor.from_tensor(weight, read),
        x if bias is None else bias, TensorDescriptor.from_tensor(out if kept is None else kept, piece),
        TensorDescriptor.from_tensor(out, piece), seed, call, share, rows, hidden, width,
        back=back, kind=kind, biased=bias is not None, dropped=chance is not None, keeps=kept is not None,
        tall=tiles.rows, wide=tiles.columns, deep=tiles.depth, together=tiles.together, parts=tiles.parts,
        num_stages=tiles.stages, num_warps=tiles.warps,
    )  # fmt: skip


def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 3


class _Feed(torch.autograd.Function):
    """A whole feed-forward. Of ReLU only what came out is kept: gradients flow through what is above zero."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, widen: Tensor, widen_bias: Tensor | None, narrow: Tensor, narrow_bias: Tensor | None,
        kind: str, chance: Chance | None,
    ) -> Tensor:  # fmt: skip
        flat = x.reshape(-1, x.shape[-1])
        out = torch.empty(len(flat), len(widen), dtype=x.dtype, device=x.device)
        kept = None if kind == "relu" else torch.empty_like(out)
        _launch(flat, widen, widen_bias, kept, out, kind, chance, THERE, back=False)
        context.save_for_backward(x, widen, narrow, out, kept, *(() if chance is None else (chance.seed,)))
        context.facts = kind, chance and (chance.share, chance.call)
        return functional.linear(out.view(*x.shape[:-1], -1), narrow, narrow_bias)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Any, ...]:
        x, widen, narrow, out, kept, *seeds = context.saved_tensors
        kind, drawn = context.facts
        chance = Chance(drawn[0], seeds[0], drawn[1]) if drawn else None
        wanted = context.needs_input_grad
        rows, flat = slope.reshape(-1, slope.shape[-1]).contiguous(), x.reshape(-1, x.shape[-1])
        inner = torch.empty_like(out)
        _launch(rows, narrow, None, out if kept is None else kept, inner, kind, chance, BACK, back=True)
        return (
            (inner @ widen).view_as(x) if wanted[0] else None,
            inner.T @ flat if wanted[1] else None,
            column_sums(inner).to(slope.dtype) if wanted[2] else None,
            rows.T @ out if wanted[3] else None,
            column_sums(rows).to(slope.dtype) if wanted[4] else None,
            None,
            None,
        )


def pays(x: Tensor, hidden: int) -> bool:
    """Whether this is the faster way for x, and one there is.  x: # (…, width)"""
    if triton_switch.INTERPRETED:
        return x.shape[-1] % 8 == 0 and hidden % 8 == 0
    if x.dtype != torch.bfloat16 or x.shape[-1] % 64 or hidden % 256 or x.numel() < _FEWEST_ROWS * x.shape[-1]:
        return False
    return torch.cuda.get_device_capability(x.device) == (9, 0)


def feed(
    x: Tensor, widen: Tensor, widen_bias: Tensor | None, narrow: Tensor, narrow_bias: Tensor | None,
    kind: str, chance: Chance | None,
) -> Tensor:  # fmt: skip
    """A feed-forward: x widened, bent by one of `BENDS`, some of it dropped, narrowed.  x: # (…, width)"""
    made: Tensor = _Feed.apply(x, widen, widen_bias, narrow, narrow_bias, kind, chance)  # type: ignore[no-untyped-call]
    return made
