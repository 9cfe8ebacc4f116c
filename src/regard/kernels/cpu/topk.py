"""The highest logits of each row and their log-sum-exp in one pass over the vocabulary, compiled with numba."""

from typing import Any

import numpy as np

from regard.kernels.cpu.jit import jit, jit_inline
from regard.kernels.cpu.vector_math import exp

_ZERO = np.float32(0)
_LOWEST = np.float32(-3e38)
LANES = 64


@jit
def topk_logsumexp(logits: Any, values: Any, tokens: Any, logsumexps: Any) -> None:
    """The highest logits of each row, highest first, their tokens, and log Σ exp of the row.

    logits: # (rows, vocab_size), with a vocabulary of at least 64; values, tokens: # (rows, k); logsumexps: # (rows,)

    A row is cut into 64 interleaved lanes. Only lanes whose maximum is among the k highest can hold one of the k.
    """
    vocab_size, k = logits.shape[1], values.shape[1]
    lane_maxima, top_maxima = np.empty(LANES, np.float32), np.empty(k, np.float32)
    for row in range(logits.shape[0]):
        scores = logits[row]
        logsumexps[row] = logsumexp(scores, lane_maxima)
        top_maxima[:] = _LOWEST
        for lane in range(LANES):
            if lane_maxima[lane] > top_maxima[k - 1]:
                rank = k - 1
                while rank > 0 and top_maxima[rank - 1] < lane_maxima[lane]:
                    top_maxima[rank] = top_maxima[rank - 1]
                    rank -= 1
                top_maxima[rank] = lane_maxima[lane]
        row_values, row_tokens = values[row], tokens[row]
        row_values[:] = _LOWEST
        for lane in range(LANES):
            if lane_maxima[lane] < top_maxima[k - 1]:
                continue
            for token in range(lane, vocab_size, LANES):
                if scores[token] > row_values[k - 1]:
                    rank = k - 1
                    while rank > 0 and row_values[rank - 1] < scores[token]:
                        row_values[rank], row_tokens[rank] = row_values[rank - 1], row_tokens[rank - 1]
                        rank -= 1
                    row_values[rank], row_tokens[rank] = scores[token], token


@jit
def logsumexp(scores: Any, lane_maxima: Any) -> Any:
    """log Σ exp of a row; the maximum of each lane (scores j, j + 64, …) is written to `lane_maxima`."""
    vocab_size = scores.shape[0]
    for lane in range(LANES):
        lane_maxima[lane] = scores[lane]
    for block in range(vocab_size // LANES):
        _update_maxima(lane_maxima, scores[block * LANES : block * LANES + LANES])
    for token in range(vocab_size // LANES * LANES, vocab_size):
        lane_maxima[token % LANES] = max(lane_maxima[token % LANES], scores[token])
    maximum = lane_maxima[0]
    for lane in range(LANES):
        maximum = max(maximum, lane_maxima[lane])
    total = _ZERO
    for token in range(vocab_size):
        total += exp(scores[token] - maximum)
    return maximum + np.log(total)


@jit_inline
def _update_maxima(maxima: Any, scores: Any) -> None:
    for lane in range(LANES):
        maxima[lane] = scores[lane] if scores[lane] > maxima[lane] else maxima[lane]
