"""Compiled work on the threads that PyTorch has already.

PyTorch computes on threads that wait for their next work without letting go of their core. Threads of our own beside
them would have to share cores with that waiting. So our work goes to the same threads, through the same library
(OpenMP, whose entry point GCC calls GOMP_parallel). Where there is none the caller works alone.

Work is cut into parts by its shape alone. Threads take the next part when they are done with one, and nothing that is
computed depends on who took which: the same bits come out on any number of threads.

A kernel gets one table of whole numbers: addresses, sizes, and numbers with fractions by their bits.
"""

import ctypes
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic
from torch import Tensor

from regard.fast.kept import kept
from regard.fast.kernels import Function

FIRST = 2
"""Where a kernel's own numbers begin in its table; before them stand the next part and the number of parts."""
_ROOM = 40
_WORD = ir.IntType(64)


def run(kernel: Any, parts: int, *values: Tensor | int | float | None) -> None:
    """All parts of a kernel's work. Tensors are given by address and must be dense; None is address 0."""
    if parts < 1:
        return
    table = np.array([0, parts, *map(_number, values)], dtype=np.int64)
    assert len(table) <= _ROOM
    threads = min(parts, torch.get_num_threads())
    parallel = _parallel() if threads > 1 else None
    if parallel is None:
        kernel.ctypes(table.ctypes.data)
    else:
        parallel(kernel.address, table.ctypes.data, threads, 0)


def shared(function: Function) -> Any:
    """A kernel from a function of (its table's address), which takes parts until there are none."""
    return kept(cfunc("void(int64)", cache=True)(function))


def part_of_work(function: Function) -> Function:
    """A function that kernels call; it becomes a part of each of them.

    It is not kept on disk by itself. A call would go to whichever copy of it a process came by first, its own or a
    kernel's, and compilers order sums in each as they like: bits would depend on what was compiled before.
    """
    flags = {"nogil": True, "fastmath": True, "error_model": "numpy", "forceinline": True}
    return cast(Function, njit(**flags)(function))


@lru_cache(maxsize=1)
def _parallel() -> Callable[[int, int, int, int], None] | None:
    try:
        found = ctypes.CDLL(torch._C.__file__).GOMP_parallel  # what PyTorch itself is linked with
    except (AttributeError, OSError):
        return None
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return cast(Callable[[int, int, int, int], None], found)


def _number(value: Tensor | int | float | None) -> int:
    if isinstance(value, Tensor):
        assert value.is_contiguous()
        return value.data_ptr()
    if isinstance(value, float):
        return int(struct.unpack("q", struct.pack("d", value))[0])
    return 0 if value is None else int(value)


@intrinsic  # type: ignore[untyped-decorator]
def take(typing: Any, address: Any) -> Any:
    """The number of the next part that nobody has taken."""

    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        place = builder.inttoptr(given[0], _WORD.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(_WORD, 1), "monotonic")

    return types.int64(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _to_floats(typing: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _to_integers(typing: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], _WORD.as_pointer())

    return types.CPointer(types.int64)(types.int64), build


@part_of_work
def matrix(address: Any, rows: Any, width: Any) -> Any:
    """Float32 numbers at an address.  # (rows, width)"""
    return carray(_to_floats(address), (rows, width))


@part_of_work
def vector(address: Any, size: Any) -> Any:
    return carray(_to_floats(address), (size,))


@part_of_work
def integers(address: Any, size: Any) -> Any:
    return carray(_to_integers(address), (size,))


@part_of_work
def table_at(address: Any) -> Any:
    return carray(_to_integers(address), (_ROOM,))


@part_of_work
def fraction(bits: Any) -> Any:
    """A number by its bits, in float32."""
    return np.float32(np.int64(bits).view(np.float64))
