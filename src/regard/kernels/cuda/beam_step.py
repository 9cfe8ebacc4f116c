"""Steps of greedy and beam search, written in Triton for a GPU.

A step of beam search is a few comparisons and some hypotheses copied here or there, in PyTorch about eighty kernels.
Here it is one, with a program for each slot, and it updates its tensors in place.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from regard.kernels.cuda.topk import NO_INDEX

_SLOT_TOKENS, _HYPOTHESIS_TOKENS = 256, 128
"""Tokens of a slot, and of one hypothesis, that are copied at once."""


@triton.jit
def _logprobs(values, logsumexps, first, candidate, mask, k: tl.constexpr):
    """Log-probabilities of some candidates of a slot, by their numbers."""
    logits = tl.load(values + first * k + candidate, mask, 0.0)
    return (logits - tl.load(logsumexps + first + candidate // k, mask, 0.0)).to(tl.float64)


@triton.jit
def _totals(totals, values, logsumexps, first, candidate, mask, k: tl.constexpr):
    """The same, plus the log-probability of the hypothesis that each continues."""
    before = tl.load(totals + first + candidate // k, mask, float("-inf"))
    return before + _logprobs(values, logsumexps, first, candidate, mask, k)


@triton.jit(do_not_specialize=["eos"])
def _exclude(
    values, best_tokens, tokens, lengths, eos, capacity,
    beam_size: tl.constexpr, k: tl.constexpr, block_k: tl.constexpr, block_back: tl.constexpr,
    min_length: tl.constexpr, max_repeats: tl.constexpr, max_period: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    length = tl.minimum(tl.load(lengths + row // beam_size).to(tl.int32), capacity)
    number = tl.arange(0, block_k)
    token = tl.load(best_tokens + row * k + number, number < k, -1)
    value = tl.load(values + row * k + number, number < k, float("-inf"))
    value = tl.where((token == eos) & (length < min_length), float("-inf"), value)
    if max_repeats > 0:
        # The shortest n-gram that the row ends with `max_repeats` times: each of its tokens equals the one n earlier.
        start = tokens + row.to(tl.int64) * capacity + length
        back = tl.arange(0, block_back) + 1
        shortest = tl.full([1], max_period + 1, tl.int32)
        for period in tl.static_range(max_period, 0, -1):
            compared = back <= tl.where(length >= max_repeats * period, (max_repeats - 1) * period, 0)
            newer = tl.load(start - back, compared, 0)
            older = tl.load(start - back - period, compared, 0)
            equal = tl.sum((compared & (newer == older)).to(tl.int32), 0)
            shortest = tl.where(equal == (max_repeats - 1) * period, period, shortest)
        repeated = tl.load(start - shortest, shortest <= max_period, -1)  # (1,)
        value = tl.where(token == repeated, float("-inf"), value)
    tl.store(values + row * k + number, value, number < k)


def exclude(
    candidates: tuple[Tensor, Tensor, Tensor], tokens: Tensor, lengths: Tensor, eos: int, limits: tuple[int, int],
    max_period: int,
) -> None:  # fmt: skip
    """Set the logits of candidates to -inf that the limits exclude: `decode.logits_processors.apply_limits`.

    candidates: what `topk_logsumexp` gives; tokens: # (…, capacity), one row for each row of the candidates; lengths:
    # (slots,), of all rows of a slot; limits: `decode.strategy.OutputLimits`
    """
    min_length, max_repeats = limits
    if not min_length and not max_repeats:
        return
    rows, k = candidates[0].shape
    _exclude[(rows,)](
        candidates[0], candidates[1], tokens, lengths, eos, tokens.shape[-1],
        beam_size=rows // lengths.shape[0], k=k, block_k=triton.next_power_of_2(k),
        block_back=triton.next_power_of_2(max(1, (max_repeats - 1) * max_period)),
        min_length=min_length, max_repeats=max_repeats, max_period=max_period, num_warps=1,
    )  # fmt: skip


@triton.jit(do_not_specialize=["eos", "nbest"])
def _beam_step(
    values, top_tokens, logsumexps, totals, tokens, logprobs, lengths, max_lengths, max_penalty, penalties,
    finished_scores, finished_totals, finished_tokens, finished_logprobs, finished_lengths, ended,
    beam_indices, next_tokens, done, eos, nbest, capacity,
    beam_size: tl.constexpr, k: tl.constexpr,
    block_beams: tl.constexpr, block_best: tl.constexpr, block_candidates: tl.constexpr, chunk: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    first = slot * beam_size
    beam = tl.arange(0, block_beams)
    beam_mask = beam < beam_size
    rows = first + beam
    length = tl.load(lengths + slot).to(tl.int32)
    last = tl.minimum(length, capacity - 1)
    cut = tl.where(length + 1 < tl.load(max_lengths + slot), 0, beam_size)  # how many live ones are cut off here
    penalty = tl.load(penalties + tl.minimum(length + 1, capacity + 1))
    bound = tl.maximum(tl.load(max_penalty + slot), tl.load(penalties + tl.minimum(length + 2, capacity + 1)))
    old_scores = tl.load(finished_scores + rows, beam_mask, float("-inf"))

    # The best candidates of the slot in order, by their numbers. Those of a row are adjacent.
    candidate = tl.arange(0, block_candidates)
    candidate_mask = candidate < beam_size * k
    candidate_totals = _totals(totals, values, logsumexps, first, candidate, candidate_mask, k)
    is_number = candidate_mask & (candidate_totals == candidate_totals)
    candidate_totals = tl.where(is_number, candidate_totals, float("-inf"))
    rank = tl.arange(0, block_best)
    best = tl.full([block_best], -1, tl.int32)
    for number in range(2 * beam_size):
        maximum = tl.max(candidate_totals, 0)
        which = tl.min(tl.where(candidate_totals == maximum, candidate, NO_INDEX), 0)
        best = tl.where(rank == number, tl.where(maximum > float("-inf"), which, -1), best)
        candidate_totals = tl.where(candidate == which, float("-inf"), candidate_totals)
    exists = best >= 0
    best_tokens = tl.load(top_tokens + first * k + best, exists, 0)
    ends = exists & (best_tokens == eos)
    lives = exists & (best_tokens != eos)

    # The live ones: the first `beam_size` that do not end.
    live_rank = tl.cumsum(lives.to(tl.int32), 0) - 1
    matches = lives[:, None] & (live_rank[:, None] == beam[None, :]) & beam_mask[None, :]
    live = tl.sum(tl.where(matches, best[:, None] + 1, 0), 0) - 1
    is_live = live >= 0
    parent = tl.where(is_live, live // k, 0)
    live_totals = _totals(totals, values, logsumexps, first, live, is_live, k)
    live_logprobs = _logprobs(values, logsumexps, first, live, is_live, k)
    live_tokens = tl.load(top_tokens + first * k + live, is_live, 0)

    # The finished ones: the rank of each is how many come before it. Of equal ones the older come first, then those
    # that ended.
    new_scores = old_scores
    finishes = ends | (lives & (live_rank < cut))
    if tl.sum(finishes.to(tl.int32), 0) > 0:
        best_totals = _totals(totals, values, logsumexps, first, best, finishes, k)
        scores = tl.where(finishes, best_totals / penalty, float("-inf"))
        order = rank + tl.where(ends, 0, block_best)
        older = (old_scores[:, None] >= scores[None, :]) & beam_mask[:, None]
        higher = scores[:, None] > scores[None, :]
        equal = (scores[:, None] == scores[None, :]) & (order[:, None] < order[None, :])
        before = tl.sum(older.to(tl.int32), 0) + tl.sum((higher | equal).to(tl.int32), 0)
        passed = tl.sum(((old_scores[:, None] < scores[None, :]) & finishes[None, :]).to(tl.int32), 1)
        old_matches = beam_mask[:, None] & ((beam + passed)[:, None] == beam[None, :]) & beam_mask[None, :]
        old = tl.sum(tl.where(old_matches, beam[:, None] + 1, 0), 0) - 1
        new_matches = finishes[:, None] & (before[:, None] == beam[None, :]) & beam_mask[None, :]
        new = tl.sum(tl.where(new_matches, best[:, None] + 1, 0), 0) - 1
        is_new = new >= 0
        is_moved = (old >= 0) & (old != beam) & beam_mask
        new_totals = _totals(totals, values, logsumexps, first, new, is_new, k)
        new_logprobs = _logprobs(values, logsumexps, first, new, is_new, k)
        new_tokens = tl.load(top_tokens + first * k + new, is_new, 0)
        old_rows = first + tl.where(is_moved, old, 0)
        new_scores = tl.where(is_new, new_totals / penalty, tl.load(finished_scores + old_rows, is_moved, 0.0))
        new_scores = tl.where(is_new | is_moved, new_scores, old_scores)
        new_totals = tl.where(is_new, new_totals, tl.load(finished_totals + old_rows, is_moved, 0.0))
        new_lengths = tl.where(is_new, length + 1, tl.load(finished_lengths + old_rows, is_moved, 0))
        new_ended = tl.where(is_new, new_tokens == eos, tl.load(ended + old_rows, is_moved, 0) != 0)
        changes = is_new | is_moved
        from_live = (first + tl.where(is_new, new // k, 0)).to(tl.int64) * capacity
        from_finished, to = old_rows.to(tl.int64) * capacity, rows.to(tl.int64) * capacity
        tl.debug_barrier()
        tl.store(finished_scores + rows, new_scores, changes)
        tl.store(finished_totals + rows, new_totals, changes)
        tl.store(finished_lengths + rows, new_lengths, changes)
        tl.store(ended + rows, new_ended, changes)
        for begin in range(0, length, chunk):
            position = begin + tl.arange(0, chunk)
            written = (position < last)[None, :]
            copies, moves = is_new[:, None] & written, is_moved[:, None] & written
            live_index = from_live[:, None] + position[None, :]
            finished_index = from_finished[:, None] + position[None, :]
            copied_tokens = tl.load(tokens + live_index, copies, 0)
            copied_logprobs = tl.load(logprobs + live_index, copies, 0.0)
            moved_tokens = tl.load(finished_tokens + finished_index, moves, 0)
            moved_logprobs = tl.load(finished_logprobs + finished_index, moves, 0.0)
            tl.debug_barrier()
            index = to[:, None] + position[None, :]
            tl.store(finished_tokens + index, tl.where(copies, copied_tokens, moved_tokens), copies | moves)
            tl.store(finished_logprobs + index, tl.where(copies, copied_logprobs, moved_logprobs), copies | moves)
        tl.store(finished_tokens + to + last, new_tokens, is_new)
        tl.store(finished_logprobs + to + last, new_logprobs, is_new)

    # Copy the tokens of the live ones, unless they stay in their row.
    moves = is_live & (parent != beam)
    parent_start, to = (first + parent).to(tl.int64) * capacity, rows.to(tl.int64) * capacity
    if tl.sum(moves.to(tl.int32), 0) > 0:
        for begin in range(0, length, chunk):
            position = begin + tl.arange(0, chunk)
            moved = moves[:, None] & (position < last)[None, :]
            parent_index = parent_start[:, None] + position[None, :]
            moved_tokens = tl.load(tokens + parent_index, moved, 0)
            moved_logprobs = tl.load(logprobs + parent_index, moved, 0.0)
            tl.debug_barrier()
            index = to[:, None] + position[None, :]
            tl.store(tokens + index, moved_tokens, moved)
            tl.store(logprobs + index, moved_logprobs, moved)
    tl.debug_barrier()
    tl.store(tokens + to + last, live_tokens, is_live)
    tl.store(logprobs + to + last, live_logprobs, is_live)
    live_totals = tl.where(is_live & (beam >= cut), live_totals, float("-inf"))
    tl.store(totals + rows, live_totals, beam_mask)
    tl.store(beam_indices + rows, (first + parent).to(tl.int64), beam_mask)
    tl.store(next_tokens + rows, tl.where(is_live, live_tokens, eos), beam_mask)
    tl.store(lengths + slot, (length + 1).to(tl.int64))
    best_live = tl.max(live_totals, 0)
    last_finished = tl.sum(tl.where(beam == nbest - 1, new_scores, 0.0), 0)  # of those that are asked for
    tl.store(done + slot, (best_live == float("-inf")) | (last_finished >= best_live / bound))


def beam_step(
    candidates: tuple[Tensor, Tensor, Tensor], state: Sequence[Tensor], eos: int, nbest: int, outputs: Sequence[Tensor]
) -> None:
    """One step of beam search in every slot, as `kernels.cpu.beam_step.beam_step`; the tensors are updated. Live
    hypotheses that cannot become one of the `nbest` stay, since a GPU computes all rows anyway.

    candidates: what `topk_logsumexp` gives for 2 · beam_size tokens; state: the arguments of that function between the
    logits and eos, in their order; outputs: beam_indices, next_tokens and done
    """
    beam_size, capacity = state[1].shape[1:]
    k = candidates[0].shape[1]
    block_beams = triton.next_power_of_2(beam_size)
    _beam_step[(state[1].shape[0],)](
        *candidates, *state, *outputs, eos, nbest, capacity,
        beam_size=beam_size, k=k, block_beams=block_beams, block_best=triton.next_power_of_2(2 * beam_size),
        block_candidates=triton.next_power_of_2(beam_size * k),
        chunk=min(_HYPOTHESIS_TOKENS, max(16, _SLOT_TOKENS // block_beams), triton.next_power_of_2(capacity)),
        num_warps=1,
    )  # fmt: skip


@triton.jit
def _greedy_step(
    values, best_tokens, logsumexps, tokens, logprobs, lengths, max_lengths, done, next_tokens, eos, capacity,
    k: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    is_live = tl.load(done + slot) == 0
    length = tl.load(lengths + slot)
    number = tl.arange(0, block_k)
    logits = tl.load(values + slot * k + number, number < k, float("-inf"))
    first = tl.min(tl.where(logits == tl.max(logits, 0), number, k - 1), 0)
    token = tl.load(best_tokens + slot * k + first)
    logprob = (tl.load(values + slot * k + first) - tl.load(logsumexps + slot)).to(tl.float64)
    index = slot * capacity + tl.minimum(length, capacity - 1)
    tl.store(tokens + index, token, is_live)
    tl.store(logprobs + index, logprob, is_live)
    token = tl.where(is_live, token, eos)
    length += is_live.to(tl.int64)
    tl.store(lengths + slot, length)
    tl.store(done + slot, (token == eos) | (length >= tl.load(max_lengths + slot)) | (is_live == 0))
    tl.store(next_tokens + slot, token)


def greedy_step(
    candidates: tuple[Tensor, Tensor, Tensor], state: Sequence[Tensor], eos: int, next_tokens: Tensor
) -> None:
    """One step of greedy search in every slot, as `kernels.cpu.beam_step.greedy_step`; the tensors are updated.

    candidates: what `topk_logsumexp` gives, of which the first of the best is chosen; state: tokens, logprobs, lengths,
    max_lengths, done
    """
    (slots, capacity), k = state[0].shape, candidates[0].shape[1]
    block_k = triton.next_power_of_2(k)
    _greedy_step[(slots,)](*candidates, *state, next_tokens, eos, capacity, k=k, block_k=block_k, num_warps=1)
