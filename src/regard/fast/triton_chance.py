"""Chance on a GPU that can be drawn again, written in Triton.

It comes from a number on the device, `seed`, that is drawn anew in every pass, from the number of the call and from the
place. So a recorded pass draws differently each time it is replayed, and the way back draws what the way there did.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Chance(NamedTuple):
    """How much is dropped, and what decides it."""

    share: float
    seed: Tensor  # (1,), int64
    call: int


@triton.jit
def mixed(x):
    """32 bits, each of which depends on every bit of x (a mixer found by Wellons' search, 2018)."""
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def stays(seed, call, at, share):
    """1 / (1 − share) where something stays, 0 where it is dropped.

    A few operations a number: a better source of chance would cost more than all that is computed around it.
    """
    key = mixed(mixed(tl.load(seed).to(tl.uint32)) + call)
    drawn = mixed(mixed(at.to(tl.uint32) + key) ^ key)
    return tl.where((drawn >> 8).to(tl.float32) * (1.0 / 16777216.0) >= share, 1.0 / (1.0 - share), 0.0)
