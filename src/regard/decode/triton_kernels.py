"""What a search does with scores, written in Triton for a GPU: the greatest of each row, and a step of its beams.

PyTorch sorts to find the greatest few and walks through all scores five more times to normalise them. Here every score
is looked at once, to note the greatest of each group of neighbours and to sum exponentials. The `count` greatest of all
stand in the `count` groups whose greatest are greatest, so only those are looked at again.

A step of beam search is a few comparisons and a text moved here or there, in PyTorch about eighty kernels. Here it is
one, with a program for each slot, and it changes the tensors it is given where they are.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_GROUP = 64
_PART, _SMALL_PART, _MANY_ROWS = 4096, 1024, 32
_TILE, _CHUNK = 256, 128
"""Tokens of a slot that are moved at once, and of one text."""
_NOWHERE = tl.constexpr(2**31 - 1)


@triton.jit
def _parts(logits, maxima, tops, sums, size, groups, parts, members: tl.constexpr, group: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    number = part * members + tl.arange(0, members)
    at = number[:, None] * group + tl.arange(0, group)[None, :]
    scores = tl.load(logits + row.to(tl.int64) * size + at, at < size, float("-inf")).to(tl.float32)
    greatest = tl.max(scores, 1)
    tl.store(maxima + row * groups + number, greatest, number < groups)
    top = tl.max(greatest, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    tl.store(tops + row * parts + part, top)
    tl.store(sums + row * parts + part, tl.sum(tl.exp(scores - shift)))


@triton.jit
def _whole(
    logits, maxima, tops, sums, best, tokens, normaliser, size, groups, parts,
    count: tl.constexpr, many: tl.constexpr, block: tl.constexpr, some: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    part = tl.arange(0, some)
    top = tl.load(tops + row * parts + part, part < parts, float("-inf"))
    part_sums = tl.load(sums + row * parts + part, part < parts, 0.0)
    at = tl.arange(0, block)
    high = tl.load(maxima + row * groups + at, at < groups, float("-inf"))
    greatest = tl.max(top, 0)
    shift = tl.where(greatest == float("-inf"), 0.0, greatest)
    tl.store(normaliser + row, shift + tl.log(tl.sum(part_sums * tl.exp(top - shift), 0)))
    # Which groups to look into. One that is taken keeps no name, so that none is taken twice where all are -inf.
    names = tl.where(at < groups, at, _NOWHERE)
    each = tl.arange(0, many)
    chosen = tl.full([many], _NOWHERE, tl.int32)
    for number in range(count):
        which = tl.min(tl.where(high == tl.max(high, 0), names, _NOWHERE), 0)
        chosen = tl.where(each == number, which, chosen)
        high = tl.where(at == which, float("-inf"), high)
        names = tl.where(at == which, _NOWHERE, names)
    place = tl.where(chosen < groups, chosen, 0)[:, None] * group + tl.arange(0, group)[None, :]
    inside = (chosen < groups)[:, None] & (place < size)
    scores = tl.load(logits + row.to(tl.int64) * size + place, inside, float("-inf")).to(tl.float32)
    words = tl.where(inside, place, _NOWHERE)
    for number in range(count):
        value = tl.max(scores)
        word = tl.min(tl.where(scores == value, words, _NOWHERE))
        tl.store(best + row * count + number, value)
        tl.store(tokens + row * count + number, tl.minimum(word, size - 1).to(tl.int64))  # a score may be no number
        scores = tl.where(words == word, float("-inf"), scores)
        words = tl.where(words == word, _NOWHERE, words)


@triton.jit
def _gains(best, sums, first, which, there, count: tl.constexpr):
    """Log-probabilities of some candidates of a slot, by their numbers."""
    scores = tl.load(best + first * count + which, there, 0.0)
    return (scores - tl.load(sums + first + which // count, there, 0.0)).to(tl.float64)


@triton.jit
def _merits(totals, best, sums, first, which, there, count: tl.constexpr):
    """The same, each with the sum of what stands before it."""
    before = tl.load(totals + first + which // count, there, float("-inf"))
    return before + _gains(best, sums, first, which, there, count)


@triton.jit(do_not_specialize=["end"])
def _advance(
    best, names, sums, totals, tokens, gains, lengths, limits, largest, penalties, scores,
    found_totals, found_tokens, found_gains, found_lengths, ended, rows, next_tokens, over, end, room,
    width: tl.constexpr, count: tl.constexpr,
    beams: tl.constexpr, many: tl.constexpr, some: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    first = slot * width
    place = tl.arange(0, beams)
    there = place < width
    mine = first + place
    size = tl.load(lengths + slot).to(tl.int32)
    last = tl.minimum(size, room - 1)
    cut = tl.where(size + 1 < tl.load(limits + slot), 0, width)  # how many of those alive
    penalty = tl.load(penalties + tl.minimum(size + 1, room + 1))
    bound = tl.maximum(tl.load(largest + slot), tl.load(penalties + tl.minimum(size + 2, room + 1)))
    old_scores = tl.load(scores + mine, there, float("-inf"))

    # The best candidates of the slot in order, by their numbers. A row's stand side by side.
    at = tl.arange(0, some)
    merits = _merits(totals, best, sums, first, at, at < width * count, count)
    merits = tl.where((at < width * count) & (merits == merits), merits, float("-inf"))
    each = tl.arange(0, many)
    order = tl.full([many], -1, tl.int32)
    for number in range(2 * width):
        top = tl.max(merits, 0)
        which = tl.min(tl.where(merits == top, at, _NOWHERE), 0)
        order = tl.where(each == number, tl.where(top > float("-inf"), which, -1), order)
        merits = tl.where(at == which, float("-inf"), merits)
    real = order >= 0
    words = tl.load(names + first * count + order, real, 0)
    ends = real & (words == end)
    lives = real & (words != end)

    # Those that go on: the first `width` that do not end.
    behind = tl.cumsum(lives.to(tl.int32), 0) - 1
    matches = lives[:, None] & (behind[:, None] == place[None, :]) & there[None, :]
    kept = tl.sum(tl.where(matches, order[:, None] + 1, 0), 0) - 1
    goes = kept >= 0
    source = tl.where(goes, kept // count, 0)
    kept_totals = _merits(totals, best, sums, first, kept, goes, count)
    kept_gains = _gains(best, sums, first, kept, goes, count)
    kept_words = tl.load(names + first * count + kept, goes, 0)

    # Those that are found: each counts how many stand before it. Of equal ones the older come first, then what ended.
    new_scores = old_scores
    joins = ends | (lives & (behind < cut))
    if tl.sum(joins.to(tl.int32), 0) > 0:
        ranks = tl.where(joins, _merits(totals, best, sums, first, order, joins, count) / penalty, float("-inf"))
        turn = each + tl.where(ends, 0, many)
        older = (old_scores[:, None] >= ranks[None, :]) & there[:, None]
        higher = ranks[:, None] > ranks[None, :]
        alike = (ranks[:, None] == ranks[None, :]) & (turn[:, None] < turn[None, :])
        before = tl.sum(older.to(tl.int32), 0) + tl.sum((higher | alike).to(tl.int32), 0)
        passed = tl.sum(((old_scores[:, None] < ranks[None, :]) & joins[None, :]).to(tl.int32), 1)
        stays = there[:, None] & ((place + passed)[:, None] == place[None, :]) & there[None, :]
        old = tl.sum(tl.where(stays, place[:, None] + 1, 0), 0) - 1
        comes = joins[:, None] & (before[:, None] == place[None, :]) & there[None, :]
        new = tl.sum(tl.where(comes, order[:, None] + 1, 0), 0) - 1
        is_new = new >= 0
        is_moved = (old >= 0) & (old != place) & there
        new_totals = _merits(totals, best, sums, first, new, is_new, count)
        new_gains = _gains(best, sums, first, new, is_new, count)
        new_words = tl.load(names + first * count + new, is_new, 0)
        from_old = first + tl.where(is_moved, old, 0)
        new_scores = tl.where(is_new, new_totals / penalty, tl.load(scores + from_old, is_moved, 0.0))
        new_scores = tl.where(is_new | is_moved, new_scores, old_scores)
        new_totals = tl.where(is_new, new_totals, tl.load(found_totals + from_old, is_moved, 0.0))
        new_lengths = tl.where(is_new, size + 1, tl.load(found_lengths + from_old, is_moved, 0))
        new_ended = tl.where(is_new, new_words == end, tl.load(ended + from_old, is_moved, 0) != 0)
        changes = is_new | is_moved
        from_alive = (first + tl.where(is_new, new // count, 0)).to(tl.int64) * room
        from_found, to = from_old.to(tl.int64) * room, mine.to(tl.int64) * room
        tl.debug_barrier()
        tl.store(scores + mine, new_scores, changes)
        tl.store(found_totals + mine, new_totals, changes)
        tl.store(found_lengths + mine, new_lengths, changes)
        tl.store(ended + mine, new_ended, changes)
        for begin in range(0, size, chunk):
            position = begin + tl.arange(0, chunk)
            written = (position < last)[None, :]
            alive, moved = is_new[:, None] & written, is_moved[:, None] & written
            of_alive, of_found = from_alive[:, None] + position[None, :], from_found[:, None] + position[None, :]
            alive_words, alive_gains = tl.load(tokens + of_alive, alive, 0), tl.load(gains + of_alive, alive, 0.0)
            moved_words = tl.load(found_tokens + of_found, moved, 0)
            moved_gains = tl.load(found_gains + of_found, moved, 0.0)
            tl.debug_barrier()
            where = to[:, None] + position[None, :]
            tl.store(found_tokens + where, tl.where(alive, alive_words, moved_words), alive | moved)
            tl.store(found_gains + where, tl.where(alive, alive_gains, moved_gains), alive | moved)
        tl.store(found_tokens + to + last, new_words, is_new)
        tl.store(found_gains + to + last, new_gains, is_new)

    # What goes on takes its text along, unless it stays where it is.
    moves = goes & (source != place)
    origin, to = (first + source).to(tl.int64) * room, mine.to(tl.int64) * room
    if tl.sum(moves.to(tl.int32), 0) > 0:
        for begin in range(0, size, chunk):
            position = begin + tl.arange(0, chunk)
            moved = moves[:, None] & (position < last)[None, :]
            whence = origin[:, None] + position[None, :]
            moved_words, moved_gains = tl.load(tokens + whence, moved, 0), tl.load(gains + whence, moved, 0.0)
            tl.debug_barrier()
            where = to[:, None] + position[None, :]
            tl.store(tokens + where, moved_words, moved)
            tl.store(gains + where, moved_gains, moved)
    tl.debug_barrier()
    tl.store(tokens + to + last, kept_words, goes)
    tl.store(gains + to + last, kept_gains, goes)
    kept_totals = tl.where(goes & (place >= cut), kept_totals, float("-inf"))
    tl.store(totals + mine, kept_totals, there)
    tl.store(rows + mine, (first + source).to(tl.int64), there)
    tl.store(next_tokens + mine, tl.where(goes, kept_words, end), there)
    tl.store(lengths + slot, (size + 1).to(tl.int64))
    greatest = tl.max(kept_totals, 0)
    worst = tl.min(tl.where(there, new_scores, float("inf")), 0)
    tl.store(over + slot, (greatest == float("-inf")) | (worst >= greatest / bound))


def best_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores and tokens, greatest first (of equal ones the first), and log Σ exp of all.

    logits: # (rows, vocabulary), float32; gives (rows, count) twice, (rows, 1)
    """
    rows, size = logits.shape
    part = min(_PART if rows >= _MANY_ROWS else _SMALL_PART, max(_GROUP, triton.next_power_of_2(size)))
    parts, groups = -(-size // part), -(-size // _GROUP)
    maxima, tops, sums = (logits.new_empty(rows, many) for many in (groups, parts, parts))
    best, normaliser = logits.new_empty(rows, count), logits.new_empty(rows, 1)
    tokens = torch.empty(rows, count, dtype=torch.long, device=logits.device)
    _parts[(rows, parts)](
        logits, maxima, tops, sums, size, groups, parts, members=part // _GROUP, group=_GROUP, num_warps=4
    )
    block = triton.next_power_of_2(groups)
    _whole[(rows,)](
        logits, maxima, tops, sums, best, tokens, normaliser, size, groups, parts,
        count=count, many=triton.next_power_of_2(count), block=block, some=triton.next_power_of_2(parts), group=_GROUP,
        num_warps=1 if block <= 1024 and count <= 16 else 4,
    )  # fmt: skip
    return best, tokens, normaliser


def advance_beams(
    candidates: tuple[Tensor, Tensor, Tensor], facts: Sequence[Tensor], end: int, made: Sequence[Tensor]
) -> None:
    """One step of beam search in every slot, as `decode.kernels.advance_beams` takes it; changes what it is given.

    candidates: what `best_tokens` gives for 2 · width tokens; facts: all that stands between the scores and the end in
    the list of that function, in its order; made: rows, next tokens and which slots are settled
    """
    width, room = facts[1].shape[1:]
    count = candidates[0].shape[1]
    beams = triton.next_power_of_2(width)
    _advance[(facts[1].shape[0],)](
        *candidates, *facts, *made, end, room,
        width=width, count=count, beams=beams, many=triton.next_power_of_2(2 * width),
        some=triton.next_power_of_2(width * count),
        chunk=min(_CHUNK, max(16, _TILE // beams), triton.next_power_of_2(room)), num_warps=1,
    )  # fmt: skip


@triton.jit
def _write(best, found, normalisers, tokens, gains, lengths, limits, done, chosen, end, room):
    slot = tl.program_id(0)
    going = tl.load(done + slot) == 0
    length = tl.load(lengths + slot)
    token = tl.load(found + slot)
    gain = (tl.load(best + slot) - tl.load(normalisers + slot)).to(tl.float64)
    at = slot * room + tl.minimum(length, room - 1)
    tl.store(tokens + at, token, going)
    tl.store(gains + at, gain, going)
    token = tl.where(going, token, end)
    length += going.to(tl.int64)
    tl.store(lengths + slot, length)
    tl.store(done + slot, (token == end) | (length >= tl.load(limits + slot)) | (going == 0))
    tl.store(chosen + slot, token)


def write_likeliest(
    candidates: tuple[Tensor, Tensor, Tensor], facts: Sequence[Tensor], end: int, chosen: Tensor
) -> None:
    """One step of greedy search in every slot, as `decode.kernels.write_likeliest` takes it; changes what it is given.

    candidates: what `best_tokens` gives for one token; facts: tokens, gains, lengths, limits, done
    """
    slots, room = facts[0].shape
    _write[(slots,)](*candidates, *facts, chosen, end, room, num_warps=1)
