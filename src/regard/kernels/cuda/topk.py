"""The highest logits of each row and their log-sum-exp, written in Triton for a GPU.

PyTorch sorts to find the highest few, and walks through all logits five more times to normalize them. Here every logit
is read once, to store the maximum of each group of neighbors and to sum exponentials. The k highest of all are in the k
groups with the highest maxima, so only those are read again.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_GROUP = 64
_PART, _SMALL_PART, _MANY_ROWS = 4096, 1024, 32
"""Logits of a row that a program reads: where there are many rows, and where there are fewer."""
NO_INDEX = tl.constexpr(2**31 - 1)


@triton.jit
def _reduce_parts(
    logits, group_maxima, part_maxima, part_sums, vocab_size, groups, parts,
    groups_per_part: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0), tl.program_id(1)
    number = part * groups_per_part + tl.arange(0, groups_per_part)
    cols = number[:, None] * group + tl.arange(0, group)[None, :]
    x = tl.load(logits + row.to(tl.int64) * vocab_size + cols, cols < vocab_size, float("-inf")).to(tl.float32)
    maxima = tl.max(x, 1)
    tl.store(group_maxima + row * groups + number, maxima, number < groups)
    maximum = tl.max(maxima, 0)
    shift = tl.where(maximum == float("-inf"), 0.0, maximum)
    tl.store(part_maxima + row * parts + part, maximum)
    tl.store(part_sums + row * parts + part, tl.sum(tl.exp(x - shift)))


@triton.jit
def _select(
    logits, group_maxima, part_maxima, part_sums, values, tokens, logsumexps, vocab_size, groups, parts,
    k: tl.constexpr, block_k: tl.constexpr, block_groups: tl.constexpr, block_parts: tl.constexpr,
    group: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.arange(0, block_parts)
    maxima = tl.load(part_maxima + row * parts + part, part < parts, float("-inf"))
    sums = tl.load(part_sums + row * parts + part, part < parts, 0.0)
    index = tl.arange(0, block_groups)
    high = tl.load(group_maxima + row * groups + index, index < groups, float("-inf"))
    maximum = tl.max(maxima, 0)
    shift = tl.where(maximum == float("-inf"), 0.0, maximum)
    tl.store(logsumexps + row, shift + tl.log(tl.sum(sums * tl.exp(maxima - shift), 0)))
    # The groups to read. One that is selected loses its number, so that none is selected twice where all are -inf.
    numbers = tl.where(index < groups, index, NO_INDEX)
    rank = tl.arange(0, block_k)
    selected = tl.full([block_k], NO_INDEX, tl.int32)
    for number in range(k):
        best = tl.min(tl.where(high == tl.max(high, 0), numbers, NO_INDEX), 0)
        selected = tl.where(rank == number, best, selected)
        high = tl.where(index == best, float("-inf"), high)
        numbers = tl.where(index == best, NO_INDEX, numbers)
    cols = tl.where(selected < groups, selected, 0)[:, None] * group + tl.arange(0, group)[None, :]
    mask = (selected < groups)[:, None] & (cols < vocab_size)
    x = tl.load(logits + row.to(tl.int64) * vocab_size + cols, mask, float("-inf")).to(tl.float32)
    candidates = tl.where(mask, cols, NO_INDEX)
    for number in range(k):
        value = tl.max(x)
        token = tl.min(tl.where(x == value, candidates, NO_INDEX))
        tl.store(values + row * k + number, value)
        tl.store(tokens + row * k + number, tl.minimum(token, vocab_size - 1).to(tl.int64))  # a logit may be NaN
        x = tl.where(candidates == token, float("-inf"), x)
        candidates = tl.where(candidates == token, NO_INDEX, candidates)


def topk_logsumexp(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The highest logits of each row, highest first (of equal ones the first token), their tokens, and log Σ exp.

    logits: # (rows, vocab_size), float32; gives (rows, k) twice, (rows, 1)
    """
    rows, vocab_size = logits.shape
    part = min(_PART if rows >= _MANY_ROWS else _SMALL_PART, max(_GROUP, triton.next_power_of_2(vocab_size)))
    parts, groups = -(-vocab_size // part), -(-vocab_size // _GROUP)
    group_maxima, part_maxima, part_sums = (logits.new_empty(rows, count) for count in (groups, parts, parts))
    values, logsumexps = logits.new_empty(rows, k), logits.new_empty(rows, 1)
    tokens = torch.empty(rows, k, dtype=torch.long, device=logits.device)
    _reduce_parts[(rows, parts)](
        logits, group_maxima, part_maxima, part_sums, vocab_size, groups, parts,
        groups_per_part=part // _GROUP, group=_GROUP, num_warps=4,
    )  # fmt: skip
    block_groups = triton.next_power_of_2(groups)
    _select[(rows,)](
        logits, group_maxima, part_maxima, part_sums, values, tokens, logsumexps, vocab_size, groups, parts,
        k=k, block_k=triton.next_power_of_2(k), block_groups=block_groups,
        block_parts=triton.next_power_of_2(parts), group=_GROUP,
        num_warps=1 if block_groups <= 1024 and k <= 16 else 4,
    )  # fmt: skip
    return values, tokens, logsumexps
