"""Runs compiled kernels in parallel on the OpenMP threads that PyTorch already has.

Between two operations PyTorch's threads spin on their cores. Threads of our own would compete with them, so kernels run
on the same threads, through the same library (OpenMP; GCC calls its entry point GOMP_parallel). Where PyTorch is linked
with another library, the caller runs the whole kernel alone. `threads.py` says how threads wait on a busy machine.

Work is cut into chunks by its shape alone. Each thread takes the next chunk when it has finished one (OpenMP's dynamic
schedule), and no result depends on which thread took which chunk: the bits are the same for any number of threads.

A kernel receives one array of int64: addresses, sizes, and floats by their bits.
"""

import struct
from typing import Any, cast

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, njit, types
from numba.extending import intrinsic
from torch import Tensor

from regard.kernels.cpu.jit import Function, c_function
from regard.kernels.cpu.threads import gomp_parallel

ARGS = 2
"""Index of a kernel's first own argument. Before it are the number of the next chunk and the count of chunks."""
_MAX_ARGS = 40
_INT64 = ir.IntType(64)


def parallel_for(kernel: Any, chunks: int, *args: Tensor | int | float | None) -> None:
    """Run all chunks of a kernel. Tensors are passed by address and must be contiguous; None is address 0."""
    if chunks < 1:
        return
    table = np.array([0, chunks, *map(_as_int64, args)], dtype=np.int64)
    assert len(table) <= _MAX_ARGS
    threads = min(chunks, torch.get_num_threads())
    parallel = gomp_parallel() if threads > 1 else None
    if parallel is None:
        kernel.ctypes(table.ctypes.data)
    else:
        parallel(kernel.address, table.ctypes.data, threads, 0)


def openmp_kernel(function: Function) -> Any:
    """Compile a function of one argument, the address of its `kernel_args`, that takes chunks until none is left."""
    return c_function("void(int64)")(function)


def kernel_function(function: Function) -> Function:
    """Compile a function that kernels call; it is inlined into each of them.

    It is not cached on disk by itself. Otherwise a call would go to whichever copy the process loaded first, its own or
    a kernel's, and since the compiler orders the sums of each copy as it likes, bits would depend on what was compiled
    before.
    """
    flags = {"nogil": True, "fastmath": True, "error_model": "numpy", "forceinline": True}
    return cast(Function, njit(**flags)(function))


def _as_int64(value: Tensor | int | float | None) -> int:
    if isinstance(value, Tensor):
        assert value.is_contiguous()
        return value.data_ptr()
    if isinstance(value, float):
        return int(struct.unpack("q", struct.pack("d", value))[0])
    return 0 if value is None else int(value)


@intrinsic  # type: ignore[untyped-decorator]
def next_chunk(typing: Any, address: Any) -> Any:
    """Take the next chunk that no thread has taken yet, and return its number."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        counter = builder.inttoptr(args[0], _INT64.as_pointer())
        return builder.atomic_rmw("add", counter, ir.Constant(_INT64, 1), "monotonic")

    return types.int64(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _float32_pointer(typing: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), build


@intrinsic  # type: ignore[untyped-decorator]
def _int64_pointer(typing: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], _INT64.as_pointer())

    return types.CPointer(types.int64)(types.int64), build


@kernel_function
def kernel_args(address: Any) -> Any:
    """The array that `parallel_for` passes."""
    return carray(_int64_pointer(address), (_MAX_ARGS,))


@kernel_function
def matrix(address: Any, rows: Any, width: Any) -> Any:
    """The float32 array at an address.  # (rows, width)"""
    return carray(_float32_pointer(address), (rows, width))


@kernel_function
def vector(address: Any, size: Any) -> Any:
    """The float32 array at an address.  # (size,)"""
    return carray(_float32_pointer(address), (size,))


@kernel_function
def int64_vector(address: Any, size: Any) -> Any:
    return carray(_int64_pointer(address), (size,))


@kernel_function
def float32_arg(bits: Any) -> Any:
    """A float argument from its bits."""
    return np.float32(np.int64(bits).view(np.float64))
