"""Looking words up and telling them where they stand, written in Triton for a GPU: forward and backward.

A word's gradient is the sum over all places where it stands. Places are sorted by word and cut into stretches, one for
each program. What begins and ends within a stretch is done there. A word that goes on behind its stretch leaves a sum,
and a second kernel adds those up from stretch to stretch. So sums are in float32 and always in the same order, and
every number that flows back is read once. A table that also scores words has a gradient from there, which comes first:
sums are then added to it where it lies.

What is done to a word's vector before the first layer (scaled, a code of its position added, some of it dropped) is one
trip through memory. What was dropped is drawn again on the way back.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.fast.triton_chance import Chance, stays

_STRETCH, _COLUMNS = 32, 1024
"""Places, and columns at most, that a program adds up."""


@triton.jit
def _store(at, total, inside, onto: tl.constexpr):
    if onto:
        total += tl.load(at, inside, 0.0).to(tl.float32)
    tl.store(at, total.to(at.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["places"])
def _add_up(
    slopes, words, order, out, heads, tails, places, width,
    onto: tl.constexpr, stretch: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    first = program * stretch
    # Whether the word that is added up stands first in this stretch.
    begins = tl.load(words + first - 1, first > 0, -1) != tl.load(words + first)
    total = tl.zeros([block], tl.float32)
    for place in range(first, tl.minimum(first + stretch, places)):
        word = tl.load(words + place)
        row = tl.load(order + place)
        total += tl.load(slopes + row * width + at, inside, 0.0).to(tl.float32)
        ends = tl.load(words + place + 1, place + 1 < places, -1) != word
        if ends & begins:
            _store(out + word.to(tl.int64) * width + at, total, inside, onto)
        elif ends | (place + 1 == first + stretch):
            tl.store(tl.where(begins, tails, heads) + program * width + at, total, inside)
        total = tl.where(ends, 0.0, total)
        begins = begins | ends


@triton.jit(do_not_specialize=["places"])
def _join_up(
    words, out, heads, tails, places, width, onto: tl.constexpr, stretch: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Words that go on behind the stretch in which they begin."""
    program = tl.program_id(0)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < width
    first, after = program * stretch, (program + 1) * stretch
    word = tl.load(words + after, after < places, -1)
    here = tl.load(words + after - 1, after < places, -2) == word
    if here & (tl.load(words + first - 1, first > 0, -1) != word):
        total = tl.load(tails + program * width + at, inside, 0.0)
        other = program + 1
        total += tl.load(heads + other * width + at, inside, 0.0)
        while _goes_on(words, word, other, places, stretch):
            other += 1
            total += tl.load(heads + other * width + at, inside, 0.0)
        _store(out + word.to(tl.int64) * width + at, total, inside, onto)


@triton.jit
def _goes_on(words, word, stretch_number, places, stretch: tl.constexpr):
    """Whether a word goes on behind a stretch."""
    after = (stretch_number + 1) * stretch
    known = after < places
    return (tl.load(words + after - 1, known, -1) == word) & (tl.load(words + after, known, -1) == word)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        context.save_for_backward(ids)
        context.size = len(weight)
        context.set_materialize_grads(False)
        return functional.embedding(ids, weight), weight

    @staticmethod
    @once_differentiable
    def backward(context: Any, slopes: Tensor | None, scored: Tensor | None) -> tuple[None, Tensor | None]:
        (ids,) = context.saved_tensors
        if slopes is None:
            return None, scored
        slopes = slopes.contiguous()
        width, places = slopes.shape[-1], ids.numel()
        out = slopes.new_zeros(context.size, width) if scored is None else scored.contiguous()
        words, order = ids.flatten().int().sort(stable=True)  # in half the rounds that longer numbers take
        stretches, block = triton.cdiv(places, _STRETCH), min(_COLUMNS, triton.next_power_of_2(width))
        heads, tails = torch.empty(2, stretches, width, device=slopes.device)
        grid = (stretches, triton.cdiv(width, block))
        settings = {"stretch": _STRETCH, "block": block, "num_warps": max(1, min(4, block // 128))}
        settings["onto"] = scored is not None
        _add_up[grid](slopes, words, order, out, heads, tails, places, width, **settings)
        _join_up[grid](words, out, heads, tails, places, width, **settings)
        return None, out


def lookup(ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors of words, and the weight again, for whoever scores words with it.

    What flows back to that comes here, and is overwritten with the sum of both.
    ids: # (…); weight: # (vocabulary, width); gives (…, width)
    """
    found: tuple[Tensor, Tensor] = _Lookup.apply(ids, weight)  # type: ignore[no-untyped-call]
    return found


@triton.jit(do_not_specialize=["call", "codes"])
def _place(
    x, code, out, seed, call, share, factor, codes, width,
    coded: tl.constexpr, dropped: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < width
    found = tl.load(x + row * width + at, inside, 0.0).to(tl.float32) * factor
    if coded:
        found += tl.load(code + row % codes * width + at, inside, 0.0).to(tl.float32)
    if dropped:
        found *= stays(seed, call, row * width + at, share)
    tl.store(out + row * width + at, found.to(out.dtype.element_ty), inside)


class _Placed(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, code: Tensor, factor: float, chance: Chance | None) -> Tensor:
        context.factor, context.drop = factor, None if chance is None else (chance.share, chance.call)
        context.code = (code.shape, code.dtype)
        context.save_for_backward(*(() if chance is None else (chance.seed,)))
        return _placed(x.contiguous(), code.contiguous(), factor, chance)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        seeds = context.saved_tensors
        chance = Chance(context.drop[0], seeds[0], context.drop[1]) if seeds else None
        scaled, unscaled = slope, slope
        if context.needs_input_grad[0] and (chance is not None or context.factor != 1):
            scaled = _placed(slope.contiguous(), None, context.factor, chance)
        code_slope = None
        if context.needs_input_grad[1]:
            shape, dtype = context.code
            if chance is not None:
                unscaled = _placed(slope.contiguous(), None, 1.0, chance)
            code_slope = unscaled.sum_to_size(shape).to(dtype)
        return scaled if context.needs_input_grad[0] else None, code_slope, None, None


def _placed(x: Tensor, code: Tensor | None, factor: float, chance: Chance | None) -> Tensor:
    width = x.shape[-1]
    rows, block = x.numel() // width, triton.next_power_of_2(width)
    out = torch.empty_like(x)
    share, seed, call = chance or (0.0, x, 0)
    _place[(rows,)](
        x, x if code is None else code, out, seed, call, share, factor, 1 if code is None else code.numel() // width,
        width, coded=code is not None, dropped=chance is not None, block=block,
        num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
    return out


def place(x: Tensor, code: Tensor, factor: float, chance: Chance | None) -> Tensor:
    """Vectors times a factor, with a code of their place added, and some dropped.

    x: # (rows, words, width); code: # (words, width) or (rows, words, width)
    """
    made: Tensor = _Placed.apply(x, code, factor, chance)  # type: ignore[no-untyped-call]
    return made
