"""Compiled kernels and threads: a cache that is damaged or cannot be written, and absurd numbers of threads."""

import errno
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("numba")

from numba.core.serialize import dumps

from regard.decode.batch import thread_pool
from regard.errors import UserError
from regard.kernels.cpu import jit_cache
from tests.kernels.cpu.test_jit import Restart, entries, folder, is_loaded, restart
from tests.task.small import command

__all__ = ["folder", "restart"]  # fixtures

pytestmark = pytest.mark.start_early(13)


def with_checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest() + data


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "one bit": lambda content: content[:-1000] + bytes([content[-1000] ^ 1]) + content[-999:],
    "random": lambda content: bytes((7 * index * index + index) % 251 for index in range(len(content))),
    "not compiled code": lambda content: with_checksum(b"text"),
    "of another numba": lambda content: with_checksum(dumps(("another", "layout"))),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_code_is_compiled_again(folder: Path, restart: Restart, damage: str) -> None:
    assert restart()(1) == 20
    (entry,) = entries(folder)
    intact = entry.read_bytes()
    entry.write_bytes(damaged := DAMAGES[damage](intact))
    caller = restart()
    assert jit_cache.is_cached(caller._cache.name) == (damaged[:32] == hashlib.sha256(damaged[32:]).digest())
    assert caller(1) == 20
    assert not is_loaded(caller)
    (again := restart())(1)
    assert is_loaded(again), "the damaged file was not replaced"


def test_deleted_folder_is_made_again(folder: Path, restart: Restart) -> None:
    caller = restart()
    jit_cache.cache_folder().rmdir()  # type: ignore[union-attr]
    assert caller(1) == 20
    assert len(entries(folder)) == 1


def test_full_disk(folder: Path, restart: Restart, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_bytes(path: Path, data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    caller = restart()
    assert caller(1) == 20
    assert not any(path.suffix != ".pyc" for path in folder.glob("__pycache__/**/*") if path.is_file())


def test_no_folder_can_be_written(
    folder: Path, restart: Restart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    monkeypatch.setattr(jit_cache, "_locations", lambda: iter([blocked, blocked / "below"]))
    caller: Any = restart()
    assert caller(1) == 20
    assert jit_cache.cache_folder() is None
    assert not jit_cache.is_cached(caller._cache.name)


def test_read_only_installation_uses_the_cache_of_the_user(
    folder: Path, restart: Restart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "user"))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    (folder / "__pycache__").touch()  # a file in its place cannot be written to either
    caller = restart()
    assert caller(1) == 20
    assert jit_cache.is_cached(caller._cache.name)
    assert list((tmp_path / "user").rglob("caller_*.nbc"))


@pytest.mark.parametrize("args", [("train", "quick", "--out"), ("translate", "en-tr", "Hello.", "--output")])
def test_absurd_threads_are_refused_before_anything_is_written(args: tuple[str, ...], tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    done = command(*args, tmp_path / "out", "--device", "cpu", "--threads", 100_000)
    assert (done.code, "--threads" in done.err, "100000" in done.err, len(done.err.splitlines())) == (2, True, True, 1)
    assert not any(tmp_path.iterdir())
    assert torch.get_num_threads() == threads


def test_absurd_threads_are_refused_in_python() -> None:
    with pytest.raises(UserError, match=r"threads.*100000"):
        thread_pool(100_000)
