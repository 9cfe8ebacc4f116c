"""Small functions that other numba kernels inline: exp, softmax, dot product and weighted sum. All are float32."""

from typing import Any

import numpy as np

from regard.kernels.cpu.jit import jit_inline

_ZERO, _ONE, _HALF, _MIN = np.float32(0), np.float32(1), np.float32(0.5), np.float32(-87)
_LOG2E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_P0, _P1, _P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
_P3, _P4, _P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


@jit_inline
def exp(x: Any) -> Any:
    """eˣ for x ≤ 0 by a polynomial, which vectorizes; the C library's exp is called once for each number.

    NaN stays NaN, unless the caller is compiled with flags that assume there is none.
    """
    x = _MIN if x < _MIN else x
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


@jit_inline
def softmax(scores: Any, count: Any) -> None:
    """Softmax of the first `count` scores, in place."""
    maximum = scores[0]
    for j in range(1, count):
        maximum = max(maximum, scores[j])
    total = _ZERO
    for j in range(count):
        weight = exp(scores[j] - maximum)
        scores[j] = weight
        total += weight
    total = _ONE / total
    for j in range(count):
        scores[j] *= total


@jit_inline
def dot(a: Any, b: Any) -> Any:
    total = _ZERO
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


@jit_inline
def add_weighted(weight: Any, value: Any, out: Any, first: Any) -> None:
    """Add weight · value to `out`, or overwrite it with that if this is the first."""
    if first:
        for i in range(out.shape[0]):
            out[i] = weight * value[i]
    else:
        for i in range(out.shape[0]):
            out[i] += weight * value[i]
