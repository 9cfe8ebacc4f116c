"""Compiled kernels on disk, so that each is compiled once per machine.

A kernel contains the machine code of the functions that it calls, and these may be in other files. So all compiled code
is in a folder that is named after a digest of every source file of the kernels and of the compiler's versions: code
from before an update is never found again, and its folder is deleted later.

Each entry is a file of its own, written atomically under a name that only the same function and argument types have, so
processes can compile at the same time. It begins with a checksum, and one that was cut off or damaged is as good as
missing. So is a folder that cannot be written: kernels are then compiled in memory by every process.

This module does not import numba, so that it is cheap to ask whether a kernel has been compiled.
"""

import contextlib
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from regard.errors import UserError
from regard.files import new_file
from regard.progress import Phase, phase

SOURCES = Path(__file__).parent
_PREFIX, _SUFFIX = "kernels-", ".nbc"
_CHECKSUM_BYTES = 32
_SWEEP_AFTER = 24 * 3600.0
"""Seconds that folders of other versions are kept at least: a process may still be using one."""


def is_cached(function: str) -> bool:
    """Whether the code of a function (MODULE.NAME) is on disk, for any argument types."""
    folder = cache_folder()
    return folder is not None and any(load(path.stem) for path in folder.glob(f"{function}-*{_SUFFIX}"))


def load(name: str) -> bytes | None:
    """The entry of this name; None if there is none, or if it is damaged."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        content = (folder / f"{name}{_SUFFIX}").read_bytes()
    except OSError:
        return None
    checksum, data = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
    return data if hashlib.sha256(data).digest() == checksum else None


def save(name: str, data: bytes) -> None:
    """Write an entry, or replace it. On a disk that is full or cannot be written nothing happens."""
    folder = cache_folder()
    if folder is None:
        return
    with contextlib.suppress(OSError, UserError):
        folder.mkdir(parents=True, exist_ok=True)  # another process may have deleted it
        with new_file(folder / f"{name}{_SUFFIX}") as unfinished:
            unfinished.write_bytes(hashlib.sha256(data).digest() + data)


def compilation_phase() -> contextlib.AbstractContextManager[Phase]:
    """The phase in which kernels are compiled that are not on disk yet."""
    return phase("Compiling CPU kernels, once on this machine", "kernels")


@cache
def cache_folder() -> Path | None:
    """The folder of compiled code for these sources: the first one that can be written, or None."""
    if not source_files():  # in a zip archive, for instance
        return None
    for parent in _locations():
        folder = parent / f"{_PREFIX}{source_digest()}"
        try:
            is_new = not folder.is_dir()
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            if is_new:
                _sweep(parent, folder)
            return folder
    return None


@cache
def source_digest() -> str:
    """A digest of everything that compiled code depends on, except for the CPU, which entries have in their names."""
    digest = hashlib.sha256(sys.implementation.cache_tag.encode())
    for package in ("numba", "llvmlite"):
        with contextlib.suppress(PackageNotFoundError):
            digest.update(f"{package} {version(package)}\n".encode())
    for path in source_files():
        digest.update(f"{path.name}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def source_files() -> list[Path]:
    """The files whose functions and constants can be part of compiled code."""
    return [*sorted(SOURCES.parent.glob("*.py")), *sorted(SOURCES.rglob("*.py"))]


def _locations() -> Iterator[Path]:
    """Where compiled code may be, in numba's order: $NUMBA_CACHE_DIR, beside the sources, in the user's cache."""
    own = f"regard-{hashlib.sha256(os.fsencode(SOURCES.absolute())).hexdigest()[:8]}"  # one folder per installation
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(given) / own
    yield SOURCES / "__pycache__"
    from regard.data.registry.cache import cache_folder as user_cache

    with contextlib.suppress(RuntimeError):  # a user without a home folder
        yield user_cache() / own


def _sweep(parent: Path, current: Path) -> None:
    """Delete the folders of other versions."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder != current and folder.stat().st_mtime < time.time() - _SWEEP_AFTER:
                shutil.rmtree(folder, ignore_errors=True)
