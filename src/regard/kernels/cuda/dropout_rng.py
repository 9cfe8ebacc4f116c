"""Dropout masks on a GPU that can be drawn again, written in Triton.

They come from a seed on the device that is new for every forward pass, from the offset of the dropout layer and from
the index of the number. So a replayed CUDA graph draws a new mask each time, and the backward pass draws the mask of
the forward pass.
"""

import triton
import triton.language as tl


@triton.jit
def _hash(x):
    """32 bits, each of which depends on every bit of x (a mixer found by Wellons' search, 2018)."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def keep_scale(seed, offset, index, p):
    """1 / (1 − p) where a number is kept, 0 where it is dropped.

    That is a few operations per number: a better generator would cost more than the computation around it.
    """
    key = _hash(_hash(tl.load(seed).to(tl.uint32)) + offset)
    bits = _hash(_hash(index.to(tl.uint32) + key) ^ key)
    return tl.where((bits >> 8).to(tl.float32) * (1.0 / 16777216.0) >= p, 1.0 / (1.0 - p), 0.0)
