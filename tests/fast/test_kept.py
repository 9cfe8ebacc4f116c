"""What numba keeps on the disk, where several processes write at once."""

from typing import Any

import pytest

pytest.importorskip("numba")

from numba import njit

from regard.decode.kernels import exactly
from regard.fast import kept as kept_module
from regard.fast.kept import kept
from regard.fast.kernels import compiled, inlined
from regard.fast.team import shared


def add(one: Any, other: Any) -> Any:
    return one + other


def nothing(table: Any) -> None: ...


def files_of(process: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What keeps the files of a function, in some process."""
    monkeypatch.setattr(kept_module, "_mine", process)
    made: Any = kept(njit(cache=True)(add))
    return made._cache._cache_file


def test_two_processes_that_add_at_the_same_moment_do_not_mix_up_their_files(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (files_of(process, monkeypatch) for process in ("one", "two"))
    for files in (first, second):
        files._cache_path = str(tmp_path)
        files._index_path = str(tmp_path / "add.nbi")
    first.save("whole numbers", "code of the first")
    (tmp_path / "add.nbi").rename(tmp_path / "list of the first")
    second.save("fractions", "code of the second")  # which has seen nothing of the first
    (tmp_path / "list of the first").rename(tmp_path / "add.nbi")
    assert second.load("whole numbers") == "code of the first"
    assert first.load("fractions") is None


def test_code_that_is_missing_is_compiled_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_of("one", monkeypatch)
    files._cache_path, files._index_path = str(tmp_path), str(tmp_path / "add.nbi")
    files.save("whole numbers", "code")
    for path in tmp_path.glob("*.nbc"):
        path.unlink()
    assert files.load("whole numbers") is None
    files.save("whole numbers", "code again")
    assert files.load("whole numbers") == "code again"


@pytest.mark.parametrize("keep", [compiled, inlined, exactly, shared], ids=lambda keep: keep.__name__)
def test_every_way_to_compile_keeps_so(keep: Any) -> None:
    made = keep(nothing)
    assert made._cache._cache_file._data_name(3).endswith(f".3-{kept_module._mine}.nbc")
