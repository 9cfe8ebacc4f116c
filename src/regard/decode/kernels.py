"""Steps of searches, compiled for a CPU with numba: one pass over the scores of each row.

They do what `single.py` and `beam.py` do in the open, and tests hold the two against each other.
"""

from typing import Any, cast

import numpy as np
from numba import njit

from regard.fast.kept import kept
from regard.fast.kernels import Function, compiled, exp, inlined

_ZERO = np.float32(0)
_LOWEST = np.float32(-3e38)
_LANES = 64


def exactly(function: Function) -> Function:
    """Where infinities count, sums may not be rearranged as if there were none."""
    return cast(Function, kept(njit(cache=True, nogil=True, error_model="numpy")(function)))


@compiled
def best_tokens(logits: Any, best: Any, tokens: Any, sums: Any) -> None:
    """The greatest scores of each row with their tokens, greatest first, and log Σ exp of all.

    logits: # (rows, vocabulary), at least 64 wide; best, tokens: # (rows, count); sums: # (rows,)

    A row is seen as 64 lanes. Only lanes whose greatest score is among the `count` greatest can hold one of them.
    """
    size, count = logits.shape[1], best.shape[1]
    lanes, high = np.empty(_LANES, np.float32), np.empty(count, np.float32)
    for row in range(logits.shape[0]):
        scores = logits[row]
        sums[row] = _log_sum(scores, lanes)
        high[:] = _LOWEST
        for lane in range(_LANES):
            if lanes[lane] > high[count - 1]:
                place = count - 1
                while place > 0 and high[place - 1] < lanes[lane]:
                    high[place] = high[place - 1]
                    place -= 1
                high[place] = lanes[lane]
        mine, names = best[row], tokens[row]
        mine[:] = _LOWEST
        for lane in range(_LANES):
            if lanes[lane] < high[count - 1]:
                continue
            for token in range(lane, size, _LANES):
                if scores[token] > mine[count - 1]:
                    place = count - 1
                    while place > 0 and mine[place - 1] < scores[token]:
                        mine[place], names[place] = mine[place - 1], names[place - 1]
                        place -= 1
                    mine[place], names[place] = scores[token], token


@compiled
def write_likeliest(
    logits: Any, tokens: Any, gains: Any, lengths: Any, limits: Any, done: Any, end: Any, chosen: Any
) -> None:
    """One step of greedy search: the likeliest token of each row is written down, unless the row is done.

    logits: # (rows, vocabulary); tokens, gains: # (rows, room), int64 and float64; the others # (rows,)
    """
    lanes = np.empty(_LANES, np.float32)
    for row in range(logits.shape[0]):
        chosen[row] = end
        if done[row]:
            continue
        scores = logits[row]
        total = _log_sum(scores, lanes)
        greatest = lanes[0]
        for lane in range(_LANES):
            greatest = max(greatest, lanes[lane])
        best = scores.shape[0]
        for lane in range(_LANES):
            if lanes[lane] == greatest:
                token = lane
                while scores[token] != greatest:
                    token += _LANES
                best = min(best, token)
        here = lengths[row]
        tokens[row, here], gains[row, here] = best, np.float64(greatest - total)
        lengths[row] = here + 1
        done[row] = best == end or here + 1 >= limits[row]
        chosen[row] = best


@exactly
def advance_beams(
    logits: Any,
    totals: Any,
    tokens: Any,
    gains: Any,
    lengths: Any,
    limits: Any,
    largest: Any,
    penalties: Any,
    scores: Any,
    found_totals: Any,
    found_tokens: Any,
    found_gains: Any,
    found_lengths: Any,
    ended: Any,
    end: Any,
    rows: Any,
    chosen: Any,
    settled: Any,
) -> None:
    """One step of beam search in every slot, as `decode.beam.Beams` describes it; changes what it is given.

    totals: # (slots, width); tokens, gains: # (slots, width, room); of what is alive, and found_… of what has ended
    scores, found_lengths, ended: # (slots, width); lengths, limits, largest, settled: # (slots,)
    penalties: # (room + 2,); rows, chosen: # (slots · width,), the rows that rows go on from and their tokens
    """
    slots, width = totals.shape
    room = tokens.shape[2]
    count = min(2 * width, logits.shape[1])
    best, names = np.empty((slots * width, count), np.float32), np.zeros((slots * width, count), np.int64)
    sums = np.empty(slots * width, np.float32)
    best_tokens(logits, best, names, sums)
    merits, places, picks = (
        np.empty(2 * width, np.float64),
        np.zeros(2 * width, np.int64),
        np.zeros(2 * width, np.int64),
    )
    steps = np.zeros(2 * width, np.float64)
    old_tokens, old_gains = np.empty((width, room), np.int64), np.empty((width, room), np.float64)
    for slot in range(slots):
        size = lengths[slot]
        old_tokens[:, :size], old_gains[:, :size] = tokens[slot, :, :size], gains[slot, :, :size]
        merits[:] = -np.inf
        for place in range(width):
            if totals[slot, place] == -np.inf:
                continue
            row = slot * width + place
            for number in range(count):
                gain = np.float64(best[row, number] - sums[row])
                merit = totals[slot, place] + gain
                if not merit > merits[2 * width - 1]:
                    break  # a row's candidates come best first
                at = 2 * width - 1
                while at > 0 and merits[at - 1] < merit:
                    merits[at], places[at], picks[at], steps[at] = (
                        merits[at - 1],
                        places[at - 1],
                        picks[at - 1],
                        steps[at - 1],
                    )
                    at -= 1
                merits[at], places[at], picks[at], steps[at] = merit, place, names[row, number], gain
        kept = 0
        for candidate in range(2 * width):
            if merits[candidate] == -np.inf:
                break
            place, token = places[candidate], picks[candidate]
            if token == end:
                score = merits[candidate] / penalties[min(size + 1, room + 1)]
                at = _make_place(
                    score,
                    scores[slot],
                    found_totals[slot],
                    found_tokens[slot],
                    found_gains[slot],
                    found_lengths[slot],
                    ended[slot],
                )
                if at >= 0:
                    scores[slot, at], found_totals[slot, at] = score, merits[candidate]
                    found_lengths[slot, at], ended[slot, at] = size + 1, True
                    found_tokens[slot, at, :size], found_gains[slot, at, :size] = (
                        old_tokens[place, :size],
                        old_gains[place, :size],
                    )
                    found_tokens[slot, at, size], found_gains[slot, at, size] = token, steps[candidate]
            elif kept < width:
                totals[slot, kept] = merits[candidate]
                tokens[slot, kept, :size], gains[slot, kept, :size] = old_tokens[place, :size], old_gains[place, :size]
                tokens[slot, kept, size], gains[slot, kept, size] = token, steps[candidate]
                rows[slot * width + kept], chosen[slot * width + kept] = slot * width + place, token
                kept += 1
        for place in range(kept, width):
            totals[slot, place] = -np.inf
            rows[slot * width + place], chosen[slot * width + place] = slot * width, end
        size += 1
        lengths[slot] = size
        if size >= limits[slot]:
            for place in range(width):
                if totals[slot, place] == -np.inf:
                    continue
                score = totals[slot, place] / penalties[min(size, room + 1)]
                at = _make_place(
                    score,
                    scores[slot],
                    found_totals[slot],
                    found_tokens[slot],
                    found_gains[slot],
                    found_lengths[slot],
                    ended[slot],
                )
                if at >= 0:
                    scores[slot, at], found_totals[slot, at] = score, totals[slot, place]
                    found_lengths[slot, at], ended[slot, at] = size, False
                    found_tokens[slot, at, :size], found_gains[slot, at, :size] = (
                        tokens[slot, place, :size],
                        gains[slot, place, :size],
                    )
            totals[slot, :] = -np.inf
        greatest = totals[slot, 0]
        for place in range(width):
            greatest = max(greatest, totals[slot, place])
        reachable = greatest / max(largest[slot], penalties[min(size + 1, room + 1)])
        settled[slot] = greatest == -np.inf or scores[slot, width - 1] >= reachable


@exactly
def _make_place(score: Any, scores: Any, totals: Any, tokens: Any, gains: Any, lengths: Any, ended: Any) -> Any:
    """Where an output of this score belongs among those found: worse ones move down, the worst leaves. -1: nowhere."""
    width = scores.shape[0]
    if not score > scores[width - 1]:
        return -1
    at = width - 1
    while at > 0 and scores[at - 1] < score:
        scores[at], totals[at] = scores[at - 1], totals[at - 1]
        lengths[at], ended[at] = lengths[at - 1], ended[at - 1]
        tokens[at], gains[at] = tokens[at - 1], gains[at - 1]
        at -= 1
    return at


@inlined
def _raise(lanes: Any, scores: Any) -> None:
    for lane in range(_LANES):
        lanes[lane] = scores[lane] if scores[lane] > lanes[lane] else lanes[lane]


@compiled
def _log_sum(scores: Any, lanes: Any) -> Any:
    """log Σ exp; lane j becomes the greatest of scores j, j + 64, …"""
    size = scores.shape[0]
    for lane in range(_LANES):
        lanes[lane] = scores[lane]
    for block in range(size // _LANES):
        _raise(lanes, scores[block * _LANES : block * _LANES + _LANES])
    for token in range(size // _LANES * _LANES, size):
        lanes[token % _LANES] = max(lanes[token % _LANES], scores[token])
    greatest = lanes[0]
    for lane in range(_LANES):
        greatest = max(greatest, lanes[lane])
    total = _ZERO
    for token in range(size):
        total += exp(scores[token] - greatest)
    return greatest + np.log(total)
