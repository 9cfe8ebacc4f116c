"""The greatest scores of each row in one pass over the vocabulary, written in Triton for a GPU.

PyTorch sorts to find the greatest few and walks through all scores five more times to normalise them. Here every part
of a row is looked at once: its greatest are taken one after another out of registers, its exponentials are summed; a
second small kernel puts the parts together.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 32
"""More of the greatest are better found by sorting."""
_PART = 4096


@triton.jit
def _parts(logits, best, tokens, tops, sums, size, parts, count: tl.constexpr, block: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    at = part * block + tl.arange(0, block)
    scores = tl.load(logits + row.to(tl.int64) * size + at, at < size, float("-inf")).to(tl.float32)
    top = tl.max(scores, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    tl.store(tops + row * parts + part, top)
    tl.store(sums + row * parts + part, tl.sum(tl.exp(scores - shift), 0))
    place = (row * parts + part) * count
    for number in range(count):
        greatest = tl.max(scores, 0)
        which = tl.argmax(scores, 0)
        tl.store(best + place + number, greatest)
        tl.store(tokens + place + number, part * block + which)
        scores = tl.where(tl.arange(0, block) == which, float("-inf"), scores)


@triton.jit
def _whole(
    best, tokens, tops, sums, scores_out, tokens_out, normaliser, parts,
    count: tl.constexpr, some: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, block)
    real = at < parts
    top = tl.load(tops + row * parts + at, real, float("-inf"))
    greatest = tl.max(top, 0)
    shift = tl.where(greatest == float("-inf"), 0.0, greatest)
    total = tl.sum(tl.load(sums + row * parts + at, real, 0.0) * tl.exp(top - shift), 0)
    tl.store(normaliser + row, shift + tl.log(total))
    each = tl.arange(0, some)
    there = each < parts * count
    scores = tl.load(best + row * parts * count + each, there, float("-inf"))
    names = tl.load(tokens + row * parts * count + each, there, 0)
    for number in range(count):
        which = tl.argmax(scores, 0)
        tl.store(scores_out + row * count + number, tl.max(scores, 0))
        tl.store(tokens_out + row * count + number, tl.sum(tl.where(each == which, names, 0), 0).to(tl.int64))
        scores = tl.where(each == which, float("-inf"), scores)


def best_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and tokens, greatest first (of equal ones the first), and log Σ exp of all.

    logits: # (rows, vocabulary), float32; gives (rows, count) twice, (rows, 1)
    """
    rows, size = logits.shape
    block = min(_PART, triton.next_power_of_2(size))
    parts = -(-size // block)
    best, tops, sums = (logits.new_empty(rows * parts * many) for many in (count, 1, 1))
    tokens = torch.empty(rows * parts * count, dtype=torch.int32, device=logits.device)
    scores, normaliser = logits.new_empty(rows, count), logits.new_empty(rows, 1)
    found = torch.empty(rows, count, dtype=torch.long, device=logits.device)
    _parts[(rows, parts)](logits, best, tokens, tops, sums, size, parts, count=count, block=block, num_warps=8)
    _whole[(rows,)](
        best, tokens, tops, sums, scores, found, normaliser, parts,
        count=count, some=triton.next_power_of_2(parts * count), block=triton.next_power_of_2(parts),
    )  # fmt: skip
    return scores, found, normaliser
