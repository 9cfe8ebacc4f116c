"""Decorators for functions that numba compiles, with an on-disk cache that several processes can share.

For each function numba keeps an index on disk that maps argument types to numbered files of machine code. Two processes
that add different types at the same moment both take the next number, and then the index of one points to the file of
the other: code for the wrong types, in every process from then on. A process that is killed between writing the file
and the index can leave the same behind. With file names that no other process uses, the worst case is a missing file,
which is compiled again.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast
from uuid import uuid4

from numba import njit

Function = Callable[..., Any]
Compiled = TypeVar("Compiled")

_NUMBER = "{number:d}"
_process_id = uuid4().hex[:16]


def jit(function: Function) -> Function:
    """Compile at first use, without Python's lock, so that threads can work on different rows at the same time."""
    return cast(
        Function, process_safe_cache(njit(cache=True, nogil=True, fastmath=True, error_model="numpy")(function))
    )


def jit_inline(function: Function) -> Function:
    """Like `jit`, for a function that becomes part of each function that calls it."""
    compiled = njit(cache=True, nogil=True, fastmath=True, error_model="numpy", inline="always")(function)
    return cast(Function, process_safe_cache(compiled))


def jit_strict(function: Function) -> Function:
    """Like `jit` without fast math, which assumes that there are no infinities and reorders sums."""
    return cast(Function, process_safe_cache(njit(cache=True, nogil=True, error_model="numpy")(function)))


def process_safe_cache(compiled: Compiled) -> Compiled:
    """Give the cache files of a numba function names that are unique to this process."""
    files = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if files is not None:
        files._data_name_pattern = files._data_name_pattern.replace(_NUMBER, f"{_NUMBER}-{_process_id}")
    return compiled
