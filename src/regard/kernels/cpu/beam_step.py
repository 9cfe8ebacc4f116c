"""Steps of greedy and beam search over all rows of a batch, compiled for a CPU with numba.

They do what `decode.greedy` and `decode.beam` do in PyTorch, and tests compare the two.
"""

from typing import Any

import numpy as np

from regard.kernels.cpu.jit import jit, jit_strict
from regard.kernels.cpu.topk import LANES, logsumexp, topk_logsumexp


@jit
def greedy_step(
    logits: Any,
    rows: Any,
    tokens: Any,
    logprobs: Any,
    lengths: Any,
    max_lengths: Any,
    done: Any,
    eos: Any,
    min_length: Any,
    max_repeats: Any,
    max_period: Any,
    next_tokens: Any,
) -> None:
    """One step of greedy search: the likeliest token is appended to some rows, unless they are done.

    logits: # (some, vocab_size); rows: # (some,), int64: all others are done
    tokens, logprobs: # (all rows, capacity), int64 and float64; the others # (all rows,)
    min_length, max_repeats, max_period: limits of every output, see `decode.strategy.OutputLimits`
    """
    lane_maxima = np.empty(LANES, np.float32)
    next_tokens[:] = eos
    for number in range(logits.shape[0]):
        row, scores = rows[number], logits[number]
        if done[row]:
            continue
        total = logsumexp(scores, lane_maxima)
        maximum = lane_maxima[0]
        for lane in range(LANES):
            maximum = max(maximum, lane_maxima[lane])
        best = scores.shape[0]
        for lane in range(LANES):
            if lane_maxima[lane] == maximum:
                token = lane
                while scores[token] != maximum:
                    token += LANES
                best = min(best, token)
        position = lengths[row]
        early_eos = eos if position < min_length else -1
        repeated = _repeated_token(tokens, row, position, max_repeats, max_period) if max_repeats > 0 else -1
        if best in (early_eos, repeated):
            best = -1
            for token in range(scores.shape[0]):
                if token not in (early_eos, repeated) and (best < 0 or scores[token] > scores[best]):
                    best = token
        tokens[row, position], logprobs[row, position] = best, np.float64(scores[best] - total)
        lengths[row] = position + 1
        done[row] = best == eos or position + 1 >= max_lengths[row]
        next_tokens[row] = best


@jit_strict
def beam_step(
    logits: Any,
    rows: Any,
    totals: Any,
    tokens: Any,
    logprobs: Any,
    lengths: Any,
    max_lengths: Any,
    max_penalty: Any,
    penalties: Any,
    finished_scores: Any,
    finished_totals: Any,
    finished_tokens: Any,
    finished_logprobs: Any,
    finished_lengths: Any,
    ended: Any,
    eos: Any,
    min_length: Any,
    max_repeats: Any,
    max_period: Any,
    nbest: Any,
    beam_indices: Any,
    next_tokens: Any,
    done: Any,
) -> None:
    """One step of beam search in every slot, as `decode.beam.BeamSearch` describes it; the arguments are updated.

    logits: # (some, vocab_size); rows: # (some,), int64: all others have no live hypothesis
    totals: # (slots, beam_size), log-probabilities of the live hypotheses; tokens, logprobs: # (slots, beam_size,
    capacity) finished_…: the same of the finished hypotheses, best first; finished_scores: # (slots, beam_size),
    length-normalized finished_lengths, ended: # (slots, beam_size); lengths, max_lengths, max_penalty, done: # (slots,)
    penalties: # (capacity + 2,), the divisor for each length; max_penalty: the largest one a slot can reach
    beam_indices, next_tokens: # (slots · beam_size,), the rows that hypotheses continue, and their tokens
    min_length, max_repeats, max_period: limits of every output, see `decode.strategy.OutputLimits`
    nbest: how many finished hypotheses are asked for: a live one that cannot become one of them is dropped, and a slot
    without live ones is done
    """
    slots, beam_size = totals.shape
    capacity = tokens.shape[2]
    row_tokens = tokens.reshape(slots * beam_size, capacity)
    # A limit excludes at most one token that could have ranked among the 2 · beam_size best.
    k = min(2 * beam_size + (max_repeats > 0), logits.shape[1])
    top_values, top_tokens = np.empty((len(rows), k), np.float32), np.zeros((len(rows), k), np.int64)
    logsumexps, numbers = np.empty(len(rows), np.float32), np.zeros(slots * beam_size, np.int64)
    numbers[rows] = np.arange(len(rows))
    topk_logsumexp(logits, top_values, top_tokens, logsumexps)
    # The 2 · beam_size best candidates of a slot, best first.
    best_totals, best_beams, best_tokens = (
        np.empty(2 * beam_size, np.float64),
        np.zeros(2 * beam_size, np.int64),
        np.zeros(2 * beam_size, np.int64),
    )
    best_logprobs = np.zeros(2 * beam_size, np.float64)
    old_tokens, old_logprobs = np.empty((beam_size, capacity), np.int64), np.empty((beam_size, capacity), np.float64)
    for slot in range(slots):
        length = lengths[slot]
        old_tokens[:, :length], old_logprobs[:, :length] = tokens[slot, :, :length], logprobs[slot, :, :length]
        best_totals[:] = -np.inf
        for beam in range(beam_size):
            if totals[slot, beam] == -np.inf:
                continue
            row = slot * beam_size + beam
            early_eos = eos if length < min_length else -1
            repeated = _repeated_token(row_tokens, row, length, max_repeats, max_period) if max_repeats > 0 else -1
            number = numbers[row]
            for i in range(k):
                if top_tokens[number, i] in (early_eos, repeated):
                    continue
                logprob = np.float64(top_values[number, i] - logsumexps[number])
                total = totals[slot, beam] + logprob
                if not total > best_totals[2 * beam_size - 1]:
                    break  # a row's candidates come best first
                rank = 2 * beam_size - 1
                while rank > 0 and best_totals[rank - 1] < total:
                    best_totals[rank], best_beams[rank], best_tokens[rank], best_logprobs[rank] = (
                        best_totals[rank - 1],
                        best_beams[rank - 1],
                        best_tokens[rank - 1],
                        best_logprobs[rank - 1],
                    )
                    rank -= 1
                best_totals[rank], best_beams[rank] = total, beam
                best_tokens[rank], best_logprobs[rank] = top_tokens[number, i], logprob
        live = 0
        for candidate in range(2 * beam_size):
            if best_totals[candidate] == -np.inf:
                break
            beam, token = best_beams[candidate], best_tokens[candidate]
            if token == eos:
                score = best_totals[candidate] / penalties[min(length + 1, capacity + 1)]
                rank = _insert(
                    score,
                    finished_scores[slot],
                    finished_totals[slot],
                    finished_tokens[slot],
                    finished_logprobs[slot],
                    finished_lengths[slot],
                    ended[slot],
                )
                if rank >= 0:
                    finished_scores[slot, rank], finished_totals[slot, rank] = score, best_totals[candidate]
                    finished_lengths[slot, rank], ended[slot, rank] = length + 1, True
                    finished_tokens[slot, rank, :length], finished_logprobs[slot, rank, :length] = (
                        old_tokens[beam, :length],
                        old_logprobs[beam, :length],
                    )
                    finished_tokens[slot, rank, length] = token
                    finished_logprobs[slot, rank, length] = best_logprobs[candidate]
            elif live < beam_size:
                totals[slot, live] = best_totals[candidate]
                tokens[slot, live, :length], logprobs[slot, live, :length] = (
                    old_tokens[beam, :length],
                    old_logprobs[beam, :length],
                )
                tokens[slot, live, length], logprobs[slot, live, length] = token, best_logprobs[candidate]
                row = slot * beam_size + live
                beam_indices[row], next_tokens[row] = slot * beam_size + beam, token
                live += 1
        for beam in range(live, beam_size):
            totals[slot, beam] = -np.inf
            row = slot * beam_size + beam
            beam_indices[row], next_tokens[row] = slot * beam_size, eos
        length += 1
        lengths[slot] = length
        if length >= max_lengths[slot]:
            for beam in range(beam_size):
                if totals[slot, beam] == -np.inf:
                    continue
                score = totals[slot, beam] / penalties[min(length, capacity + 1)]
                rank = _insert(
                    score,
                    finished_scores[slot],
                    finished_totals[slot],
                    finished_tokens[slot],
                    finished_logprobs[slot],
                    finished_lengths[slot],
                    ended[slot],
                )
                if rank >= 0:
                    finished_scores[slot, rank], finished_totals[slot, rank] = score, totals[slot, beam]
                    finished_lengths[slot, rank], ended[slot, rank] = length, False
                    finished_tokens[slot, rank, :length], finished_logprobs[slot, rank, :length] = (
                        tokens[slot, beam, :length],
                        logprobs[slot, beam, :length],
                    )
            totals[slot, :] = -np.inf
        # What takes the place of a hypothesis that is dropped here is less probable, so it would be dropped as well.
        largest = max(max_penalty[slot], penalties[min(length + 1, capacity + 1)])
        done[slot] = True
        for beam in range(beam_size):
            if finished_scores[slot, nbest - 1] >= totals[slot, beam] / largest:
                totals[slot, beam] = -np.inf
            done[slot] = done[slot] and totals[slot, beam] == -np.inf


@jit_strict
def _repeated_token(tokens: Any, row: Any, length: Any, max_repeats: Any, max_period: Any) -> Any:
    """As `decode.logits_processors.repeated_tokens`, of one row; -1 if no token is excluded."""
    for period in range(1, min(max_period, length // max_repeats) + 1):
        position, first = length - 1, length - (max_repeats - 1) * period
        while position >= first and tokens[row, position] == tokens[row, position - period]:
            position -= 1
        if position < first:
            return tokens[row, length - period]
    return -1


@jit_strict
def _insert(score: Any, scores: Any, totals: Any, tokens: Any, logprobs: Any, lengths: Any, ended: Any) -> Any:
    """Make room for a hypothesis of this score among the finished ones and return its rank; -1 if it is too bad.

    Worse hypotheses move down, and the worst is dropped.
    """
    beam_size = scores.shape[0]
    if not score > scores[beam_size - 1]:
        return -1
    rank = beam_size - 1
    while rank > 0 and scores[rank - 1] < score:
        scores[rank], totals[rank] = scores[rank - 1], totals[rank - 1]
        lengths[rank], ended[rank] = lengths[rank - 1], ended[rank - 1]
        tokens[rank], logprobs[rank] = tokens[rank - 1], logprobs[rank - 1]
        rank -= 1
    return rank
