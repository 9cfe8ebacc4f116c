"""The cache: what is in it by kind, and clearing it without touching anything else."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from regard.cache import cache_contents, clear_cache
from regard.data.registry import list_datasets
from regard.data.store.token_store import TokenStore, cached_store
from regard.errors import UserError
from regard.kernels.cpu import jit_cache
from tests.task.small import command


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder with a token store, and compiled kernels beside it."""
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    kernels = tmp_path / "kernels" / f"kernels-{'0' * 16}"
    kernels.mkdir(parents=True)
    (kernels / "gemm-1.nbc").write_bytes(bytes(1000))
    monkeypatch.setattr(jit_cache, "cache_folder", lambda: kernels)
    write_store(tmp_path / "cache")
    return tmp_path / "cache"


def write_store(cache: Path) -> TokenStore:
    return cached_store(cache / "tokens", "key", lambda: [([1, 2, 3],), ([4],)], ("text",), 10)


def test_contents_by_kind_with_sizes(cache: Path) -> None:
    found = {kind.name: (len(kind.entries), kind.bytes) for kind in cache_contents()}
    size = sum(path.stat().st_size for path in (cache / "tokens").rglob("*") if path.is_file())
    nothing = dict.fromkeys(("cooccurrences", "images", "data", "vectors", "ctranslate2"), (0, 0))
    assert found == {"tokens": (1, size), "kernels": (1, 1000), **nothing}


def test_clearing_removes_only_what_regard_has_written(cache: Path) -> None:
    downloaded = next(one for one in list_datasets() if any(file.url for file in one.files))
    name = next(file.name for file in downloaded.files if file.url)
    ours = [cache / "data" / downloaded.name / name, cache / "ctranslate2" / ("0" * 64) / "model.bin"]
    users = [cache / "notes.txt", cache / "data" / "mine" / "a.txt", cache / "data" / downloaded.name / "b.txt"]
    users += [cache / "tokens" / "thesis" / "c.txt", cache / "images" / "d.png"]
    for path in (*ours, *users):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    os.symlink(cache / "data" / "mine", cache / "images" / ("1" * 32))
    assert sum(cleared.entries for cleared in clear_cache()) == 4  # those two, the store and the kernels
    assert not any(path.exists() for path in ours)
    assert all(path.exists() for path in users)
    assert all(not kind.entries for kind in cache_contents())


def test_training_goes_on_beside_it(cache: Path) -> None:
    store = write_store(cache)
    clear_cache(["tokens"])
    assert [item.tolist() for (item,) in store] == [[1, 2, 3], [4]]  # what is open stays readable
    assert not store.path.exists()
    np.testing.assert_array_equal(write_store(cache).lengths("text"), [3, 1])  # what is missing is written again


def test_store_that_is_being_written_is_left_alone(cache: Path) -> None:
    clear_cache()

    def items() -> list[tuple[list[int]]]:
        assert clear_cache()[0].entries == 0
        return [([1],)]

    assert len(cached_store(cache / "tokens", "other", items, ("text",), 10)) == 1


def test_unknown_kind_is_refused(cache: Path) -> None:
    with pytest.raises(UserError, match=r"'token'.*tokens, images"):
        clear_cache(["token"])
    assert write_store(cache).path.exists()


def test_commands(cache: Path) -> None:
    shown = command("cache")
    assert (shown.code, shown.err) == (0, "")
    assert str(cache) in shown.out.splitlines()[0]
    assert "tokens" in shown.out
    records = [json.loads(line) for line in command("cache", "--json").out.splitlines()]
    assert {record["kind"]: record["entries"] for record in records}["tokens"] == 1
    assert command("cache", "clear", "images").code == 0
    assert list((cache / "tokens").iterdir())
    assert command("cache", "clear").code == 0
    assert not list((cache / "tokens").iterdir())
    refused = command("cache", "clear", "everything")
    assert (refused.code, refused.out) == (2, "")
    assert "'everything'" in refused.err
