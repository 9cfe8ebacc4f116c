"""Layer normalization and RMSNorm for the decode step and the encoder on a CPU, compiled with numba."""

from typing import Any

import numpy as np

from regard.kernels.cpu.jit import jit

_ZERO, _ONE = np.float32(0), np.float32(1)


@jit
def normalize(x: Any, weight: Any, bias: Any, eps: Any, centered: Any, out: Any) -> None:
    """Layer normalization if `centered`, RMSNorm otherwise.  x, out: # (rows, width); out may be x"""
    width = x.shape[1]
    for row in range(x.shape[0]):
        total = _ZERO
        if centered:
            for i in range(width):
                total += x[row, i]
        mean = total / np.float32(width)
        square_sum = _ZERO
        for i in range(width):
            difference = x[row, i] - mean
            square_sum += difference * difference
        rstd = _ONE / np.sqrt(square_sum / np.float32(width) + eps)
        for i in range(width):
            out[row, i] = (x[row, i] - mean) * rstd * weight[i] + bias[i]
