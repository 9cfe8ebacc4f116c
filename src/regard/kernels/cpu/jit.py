"""Decorators for functions that numba compiles, with the on-disk cache of `jit_cache.py` in place of numba's own.

numba's cache does not notice when a function in another file changes that was compiled into the cached one, fails on
damaged files and full disks, and mixes up its entries when several processes write at the same moment.
"""

import hashlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, cast

from numba import njit
from numba.core import event
from numba.core.caching import NullCache
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps, loads
from numba.core.sigutils import normalize_signature

from regard.kernels.cpu import jit_cache

Function = Callable[..., Any]

jit_cache.source_digest()  # now, since an update while this process runs does not change what it has imported


def jit(function: Function) -> Function:
    """Compile at first use, without Python's lock, so that threads can work on different rows at the same time."""
    return _cached(njit(nogil=True, fastmath=True, error_model="numpy")(function), function)


def jit_inline(function: Function) -> Function:
    """Like `jit`, for a function that becomes part of each function that calls it."""
    return _cached(njit(nogil=True, fastmath=True, error_model="numpy", inline="always")(function), function)


def jit_strict(function: Function) -> Function:
    """Like `jit` without fast math, which assumes that there are no infinities and reorders sums."""
    return _cached(njit(nogil=True, error_model="numpy")(function), function)


def c_function(signature: str) -> Callable[[Function], Any]:
    """Compile at once to a C function of this signature, which has an `address`."""

    def decorate(function: Function) -> Any:
        compiled: Any = CFunc(function, normalize_signature(signature), locals={}, options={})
        compiled._cache = DiskCache(function)
        compiled.compile()
        return compiled

    return decorate


class DiskCache(NullCache):  # type: ignore[misc]
    """The compiled forms of one function on disk. numba calls it by these names."""

    def __init__(self, function: Function) -> None:
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}".translate({60: None, 62: None})
        code = function.__code__
        self._function_key = code.co_firstlineno, code.co_code, _file_digest(code.co_filename)

    @property
    def cache_path(self) -> str | None:
        folder = jit_cache.cache_folder()
        return None if folder is None else str(folder)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled function for these argument types; None if it must be compiled."""
        target_context.refresh()
        data = jit_cache.load(self.entry_name(signature, target_context.codegen()))
        if data is None:
            return None
        try:
            return CompileResult._rebuild(target_context, *loads(data))
        except Exception:  # intact, but not for this numba: whatever it stumbles over, it can compile
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep the compiled function for the next process."""
        if not compiled.library.has_dynamic_globals:  # addresses of this process
            jit_cache.save(self.entry_name(signature, compiled.codegen), dumps(compiled._reduce()))

    def entry_name(self, signature: Any, codegen: Any) -> str:
        """A name that depends on the function, its argument types and the CPU."""
        key = repr((self._function_key, signature, codegen.magic_tuple()))
        return f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:20]}"


class CompilationPhases(event.Listener):  # type: ignore[misc]
    """Shows compilations as a phase; kernels compiled one after the other are counted together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._depth = 0  # a function is compiled while one that calls it is
        self._compiled, self._start, self._end = 0, 0.0, 0.0

    def on_start(self, event: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        if time.monotonic() - self._end > 1:
            self._compiled, self._start = 0, time.monotonic()
        current = self._stack.enter_context(jit_cache.compilation_phase())
        current.done, current.start = self._compiled, self._start

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._compiled, self._end = self._compiled + 1, time.monotonic()
            self._stack.close()


event.register("numba:compile", CompilationPhases())


@cache
def _file_digest(path: str) -> str:
    """For functions outside of this package, whose files are not in `jit_cache.source_digest`."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _cached(compiled: Any, function: Function) -> Function:
    compiled._cache = DiskCache(function)
    return cast(Function, compiled)
