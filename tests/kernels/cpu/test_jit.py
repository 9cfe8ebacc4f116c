"""Compiled functions and their cache on disk: what invalidates it, and several processes that write it."""

import ast
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("numba")

from regard.kernels.cpu import jit_cache
from regard.kernels.cpu.jit import DiskCache, c_function, jit, jit_inline, jit_strict
from regard.kernels.cpu.openmp import openmp_kernel
from regard.progress import listen_to_phases

pytestmark = pytest.mark.start_early(13)

CALLEE = "from regard.kernels.cpu.jit import jit\n\n@jit\ndef callee(x):\n    return x + {}\n"
CALLER = (
    "from regard.kernels.cpu.jit import jit\nfrom {} import callee\n\n@jit\ndef caller(x):\n    return callee(x) * 10\n"
)
Restart = Callable[[], Any]


def do_nothing(address: Any) -> None: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of sources with a cache of its own."""
    sources = tmp_path / "kernels" / "cpu"
    sources.mkdir(parents=True)
    monkeypatch.setattr(jit_cache, "SOURCES", sources)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.syspath_prepend(str(sources))
    forget()
    yield sources
    forget()


def forget() -> None:
    """Forget what a process finds out once."""
    jit_cache.source_digest.cache_clear()
    jit_cache.cache_folder.cache_clear()


@pytest.fixture
def restart(folder: Path, request: pytest.FixtureRequest) -> Restart:
    """Imports a caller and its callee, each in a file, as a new process would."""
    names = [f"{part}_of_{request.node.name.partition('[')[0]}" for part in ("callee", "caller")]
    (folder / f"{names[0]}.py").write_text(CALLEE.format(1))
    (folder / f"{names[1]}.py").write_text(CALLER.format(names[0]))

    def restart() -> Any:
        forget()
        importlib.invalidate_caches()
        for name in names:
            sys.modules.pop(name, None)
        return importlib.import_module(names[1]).caller

    return restart


def entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("__pycache__/kernels-*/caller_*.nbc"))


def is_loaded(caller: Any) -> bool:
    """Whether numba found its only compiled form on disk."""
    return sum(caller.stats.cache_hits.values()) == 1 and not caller.stats.cache_misses


def test_code_of_another_file_that_changed_is_compiled_again(folder: Path, restart: Restart) -> None:
    assert restart()(1) == 20
    (again := restart())(1)
    assert is_loaded(again)
    callee = next(folder.glob("callee_*.py"))
    callee.write_text(CALLEE.format(22))
    assert restart()(1) == 230
    callee.write_text(CALLEE.format(1))
    assert restart()(1) == 20


def test_the_digest_covers_whatever_can_be_compiled_in() -> None:
    """A kernel file imports functions and constants only from files that are in the digest, or outside of regard."""
    covered = {path.stem for path in jit_cache.source_files()}
    assert {"vector_math", "packed_gemm", "dispatch", "params"} <= covered
    # never called by compiled code
    helpers = {"regard.files", "regard.errors", "regard.progress", "regard.data.registry.cache"}
    for path in jit_cache.SOURCES.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard.kernels"):
                names = {(node.module or "").rpartition(".")[2], *(alias.name for alias in node.names)}
                assert names & covered, (path, node.module)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard"):
                assert path.name == "jit_cache.py" or node.module == "regard.errors", (path, node.module)
                assert node.module in helpers


def test_compilation_is_one_phase_and_a_cached_kernel_none(restart: Restart) -> None:
    listener = mock.Mock()
    with listen_to_phases(listener):
        for _ in range(2):
            assert restart()(1) == 20  # callee is compiled while caller is
            assert (listener.on_phase_begin.call_count, listener.on_phase_end.call_count) == (1, 1)


def test_versions_of_the_compiler_are_part_of_the_digest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = jit_cache.source_digest()
    monkeypatch.setattr(jit_cache, "version", lambda package: "another")
    jit_cache.source_digest.cache_clear()
    assert jit_cache.source_digest() != before


def test_folders_of_other_versions_are_deleted_after_a_day(folder: Path) -> None:
    (folder / "kernel.py").write_text("")
    old, recent = (folder / "__pycache__" / f"kernels-{name}" for name in ("old", "recent"))
    for other in (old, recent):
        other.mkdir(parents=True)
        (other / "code.nbc").touch()
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    assert jit_cache.cache_folder() is not None
    assert not old.exists()
    assert recent.exists()


def test_is_cached_after_a_call(folder: Path, restart: Restart) -> None:
    caller = restart()
    assert not jit_cache.is_cached(caller._cache.name)
    caller(1)
    assert jit_cache.is_cached(caller._cache.name)
    assert entries(folder)[0].parent == jit_cache.cache_folder()


def test_entries_of_other_argument_types_have_other_names(folder: Path, restart: Restart) -> None:
    """Two processes that add different types at the same time write different files, and there is no index."""
    caller = restart()
    assert (caller(1), caller(1.5)) == (20, 25.0)
    assert len(entries(folder)) == 2
    again = restart()
    assert (again(1.5), again(1)) == (25.0, 20)
    assert not again.stats.cache_misses


@pytest.mark.parametrize("decorator", [jit, jit_inline, jit_strict], ids=lambda decorator: decorator.__name__)
def test_every_decorator_has_the_cache(decorator: Any) -> None:
    assert isinstance(decorator(do_nothing)._cache, DiskCache)


@pytest.mark.parametrize("decorator", [openmp_kernel, c_function("void(int64)")], ids=["openmp_kernel", "c_function"])
def test_functions_that_are_compiled_at_once_are_cached_too(folder: Path, decorator: Any) -> None:
    (folder / "kernel.py").write_text("")
    forget()
    first, second = decorator(do_nothing), decorator(do_nothing)
    assert (first.cache_hits, second.cache_hits) == (0, 1)
    assert first.address
