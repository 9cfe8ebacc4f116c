"""What a step of decoding does besides matrix products, compiled for a CPU with numba.

One token of each row at a time is too little work for general kernels: starting them and walking through memory several
times costs more than the arithmetic. Each function here is one pass. They let go of Python's lock, so that threads can
work on different rows. All arrays are float32 unless said otherwise; everything is compiled at first use and kept on
disk.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import njit

from regard.fast.kept import kept

Function = Callable[..., Any]


def compiled(function: Function) -> Function:
    return cast(Function, kept(njit(cache=True, nogil=True, fastmath=True, error_model="numpy")(function)))


def inlined(function: Function) -> Function:
    made = njit(cache=True, nogil=True, fastmath=True, error_model="numpy", inline="always")(function)
    return cast(Function, kept(made))


_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)
_LOG2E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@compiled
def embed(tokens: Any, lengths: Any, table: Any, codes: Any, factor: Any, x: Any) -> None:
    """Word vectors at their positions.  tokens, lengths: # (rows,), int64; codes: # (positions, width), or none"""
    for row in range(x.shape[0]):
        word = table[tokens[row]]
        for i in range(x.shape[1]):
            x[row, i] = word[i] * factor
        if codes.shape[0]:
            code = codes[lengths[row]]
            for i in range(x.shape[1]):
                x[row, i] += code[i]


@compiled
def normalise(x: Any, weight: Any, bias: Any, epsilon: Any, centred: Any, out: Any) -> None:
    """Layer normalisation where rows are `centred`, else by their root mean square.  x, out: # (rows, width)"""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = _ZERO
        if centred:
            for i in range(width):
                total += x[row, i]
        mean = total / np.float32(width)
        square = _ZERO
        for i in range(width):
            away = x[row, i] - mean
            square += away * away
        scale = _ONE / np.sqrt(square / np.float32(width) + epsilon)
        for i in range(width):
            out[row, i] = (x[row, i] - mean) * scale * weight[i] + bias[i]


@compiled
def turn(made: Any, positions: Any, turns: Any, width: Any) -> None:
    """Turn each pair of numbers in queries and keys by the angle that its row's position has for it.

    made: # (rows, query + key + value width), queries `width` wide; positions: # (rows,), int64
    turns: # (positions, 2, half a head's width), cosine and sine
    """
    half = turns.shape[2]
    narrow = (made.shape[1] - width) // 2
    for row in range(made.shape[0]):
        cosine, sine = turns[positions[row], 0], turns[positions[row], 1]
        for first in range(0, width + narrow, 2 * half):
            for i in range(half):
                one, other = made[row, first + i], made[row, first + half + i]
                made[row, first + i] = one * cosine[i] - other * sine[i]
                made[row, first + half + i] = other * cosine[i] + one * sine[i]


@compiled
def attend_past(
    made: Any, keys: Any, values: Any, origin: Any, lengths: Any, heads: Any, scale: Any, scores: Any, out: Any
) -> None:
    """Each row's new token looks at those before it and at itself.

    made: # (rows, query + key + value width), the new token's; its key and value are written at its position
    keys, values: # (positions, rows, key heads · head width)
    origin: # (positions, rows), int64: which row wrote the token that stands at this position of this row's text
    scores: # (heads, positions), to work in
    """
    width, narrow = out.shape[1], keys.shape[2]
    size = width // heads
    share = width // narrow  # query heads that share a key head
    for row in range(out.shape[0]):
        here = lengths[row]
        for i in range(narrow):
            keys[here, row, i] = made[row, width + i]
            values[here, row, i] = made[row, width + narrow + i]
        origin[here, row] = row
    for row in range(out.shape[0]):
        count = lengths[row] + 1
        for j in range(count):
            key = keys[j, origin[j, row]]
            for head in range(heads):
                first = head // share * size
                scores[head, j] = scale * _dot(made[row, head * size : head * size + size], key[first : first + size])
        for head in range(heads):
            softmax(scores[head], count)
        for j in range(count):
            value = values[j, origin[j, row]]
            for head in range(heads):
                first = head // share * size
                mixed = out[row, head * size : head * size + size]
                _mix(scores[head, j], value[first : first + size], mixed, j == 0)


@compiled
def attend_memory(
    query: Any, keys: Any, values: Any, lengths: Any, heads: Any, scale: Any, scores: Any, out: Any
) -> None:
    """Each row looks at its source; rows of one source stand side by side.

    query, out: # (rows, width); keys, values: # (sources, positions, key heads · head width); lengths: # (sources,)
    """
    width, narrow = out.shape[1], keys.shape[2]
    size = width // heads
    share, group = width // narrow, out.shape[0] // keys.shape[0]
    for row in range(out.shape[0]):
        source = row // group
        count = lengths[source]
        for head in range(heads):
            asked = query[row, head * size : head * size + size]
            mixed = out[row, head * size : head * size + size]
            first = head // share * size
            for j in range(count):
                scores[head, j] = scale * _dot(asked, keys[source, j, first : first + size])
            softmax(scores[head], count)
            for j in range(count):
                _mix(scores[head, j], values[source, j, first : first + size], mixed, j == 0)


@compiled
def move_origins(origin: Any, rows: Any, count: Any, spare: Any) -> None:
    """Let row i's text be what row `rows[i]`'s was, in its first `count` positions.  spare: # (rows,), to work in"""
    for j in range(count):
        for row in range(rows.shape[0]):
            spare[row] = origin[j, rows[row]]
        for row in range(rows.shape[0]):
            origin[j, row] = spare[row]


@inlined
def exp(x: Any) -> Any:
    """eˣ by a polynomial, which is computed for many numbers at once; the library's own is called for each."""
    x = max(x, np.float32(-87))
    n = np.floor(x * _LOG2E + _HALF)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = _P0
    p = p * r + _P1
    p = p * r + _P2
    p = p * r + _P3
    p = p * r + _P4
    p = p * r + _P5
    p = p * r * r + r + _ONE
    return p * np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)


@inlined
def _dot(a: Any, b: Any) -> Any:
    total = _ZERO
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@inlined
def _mix(weight: Any, value: Any, out: Any, first: Any) -> None:
    if first:
        for i in range(out.shape[0]):
            out[i] = weight * value[i]
    else:
        for i in range(out.shape[0]):
            out[i] += weight * value[i]


@inlined
def softmax(scores: Any, count: Any) -> None:
    greatest = scores[0]
    for j in range(1, count):
        greatest = max(greatest, scores[j])
    total = _ZERO
    for j in range(count):
        weight = exp(scores[j] - greatest)
        scores[j] = weight
        total += weight
    total = _ONE / total
    for j in range(count):
        scores[j] *= total
