"""The on-disk cache of compiled functions with concurrent writers."""

from typing import Any

import pytest

pytest.importorskip("numba")

from numba import njit

from regard.kernels.cpu import jit as module
from regard.kernels.cpu.jit import jit, jit_inline, jit_strict, process_safe_cache
from regard.kernels.cpu.openmp import openmp_kernel

pytestmark = pytest.mark.start_early(13)


def add(a: Any, b: Any) -> Any:
    return a + b


def do_nothing(address: Any) -> None: ...


def cache_files(process: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The cache files of a function, as another process would have them."""
    monkeypatch.setattr(module, "_process_id", process)
    compiled: Any = process_safe_cache(njit(cache=True)(add))
    return compiled._cache._cache_file


def test_concurrent_writers_do_not_mix_up_their_files(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (cache_files(process, monkeypatch) for process in ("one", "two"))
    for files in (first, second):
        files._cache_path = str(tmp_path)
        files._index_path = str(tmp_path / "add.nbi")
    first.save("int64", "code of the first")
    (tmp_path / "add.nbi").rename(tmp_path / "index of the first")
    second.save("float64", "code of the second")  # without the first one's entry
    (tmp_path / "index of the first").rename(tmp_path / "add.nbi")
    assert second.load("int64") == "code of the first"
    assert first.load("float64") is None


def test_missing_code_is_compiled_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = cache_files("one", monkeypatch)
    files._cache_path, files._index_path = str(tmp_path), str(tmp_path / "add.nbi")
    files.save("int64", "code")
    for path in tmp_path.glob("*.nbc"):
        path.unlink()
    assert files.load("int64") is None
    files.save("int64", "code again")
    assert files.load("int64") == "code again"


@pytest.mark.parametrize(
    "decorator", [jit, jit_inline, jit_strict, openmp_kernel], ids=lambda decorator: decorator.__name__
)
def test_every_decorator_has_a_process_safe_cache(decorator: Any) -> None:
    compiled = decorator(do_nothing)
    assert compiled._cache._cache_file._data_name(3).endswith(f".3-{module._process_id}.nbc")
