"""Looking words up, and on the way back adding up what flows to each word, written in Triton for a GPU.

A word's gradient is the sum over all places where it stands. Places are sorted by word and cut into stretches, one for
each program. What begins and ends within a stretch is done there. A word that goes on behind its stretch leaves a sum,
and a second kernel adds those up from stretch to stretch. So sums are in float32 and always in the same order, and
every number that flows back is read once.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_STRETCH, _COLUMNS = 32, 1024
"""Places, and columns at most, that a program adds up."""


@triton.jit(do_not_specialize=["places"])
def _add_up(
    slopes, words, order, out, heads, tails, places, width, stretch: tl.constexpr, block: tl.constexpr
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
            tl.store(out + word * width + at, total.to(out.dtype.element_ty), inside)
        elif ends | (place + 1 == first + stretch):
            tl.store(tl.where(begins, tails, heads) + program * width + at, total, inside)
        total = tl.where(ends, 0.0, total)
        begins = begins | ends


@triton.jit(do_not_specialize=["places"])
def _join_up(words, out, heads, tails, places, width, stretch: tl.constexpr, block: tl.constexpr):
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
        tl.store(out + word * width + at, total.to(out.dtype.element_ty), inside)


@triton.jit
def _goes_on(words, word, stretch_number, places, stretch: tl.constexpr):
    """Whether a word goes on behind a stretch."""
    after = (stretch_number + 1) * stretch
    known = after < places
    return (tl.load(words + after - 1, known, -1) == word) & (tl.load(words + after, known, -1) == word)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, ids: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(ids)
        context.size = len(weight)
        return functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slopes: Tensor) -> tuple[None, Tensor]:
        (ids,) = context.saved_tensors
        slopes = slopes.contiguous()
        width, places = slopes.shape[-1], ids.numel()
        out = slopes.new_zeros(context.size, width)
        words, order = ids.flatten().sort(stable=True)
        stretches, block = triton.cdiv(places, _STRETCH), min(_COLUMNS, triton.next_power_of_2(width))
        heads, tails = torch.empty(2, stretches, width, device=slopes.device)
        grid = (stretches, triton.cdiv(width, block))
        settings = {"stretch": _STRETCH, "block": block, "num_warps": max(1, min(4, block // 128))}
        _add_up[grid](slopes, words, order, out, heads, tails, places, width, **settings)
        _join_up[grid](words, out, heads, tails, places, width, **settings)
        return None, out


def lookup(ids: Tensor, weight: Tensor) -> Tensor:
    """The vectors of words.  ids: # (…); weight: # (vocabulary, width); gives (…, width)"""
    found: Tensor = _Lookup.apply(ids, weight)  # type: ignore[no-untyped-call]
    return found
