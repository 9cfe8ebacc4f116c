"""Token stores: items round-trip, damage is detected, and concurrent writers do not disturb each other."""

import json
import multiprocessing
import os
import time
import tracemalloc
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.store import token_store as module
from regard.data.store import writer as store_writer
from regard.data.store.token_store import DamagedStoreError, TokenStore, cached_store, write_store

Pairs = list[tuple[list[int], ...]]

PAIRS: Pairs = [([1, 2, 3], [4, 5]), ([], [6]), ([7], []), ([8, 9], [10, 11, 12, 13])]
SIDES = ("source", "target")


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return write_store(tmp_path / "store", iter(PAIRS), SIDES, "key", 100)


def as_lists(store: TokenStore) -> Pairs:
    return [tuple(side.tolist() for side in item) for item in store]


def test_items_are_read_back(store: TokenStore) -> None:
    assert as_lists(store) == PAIRS


@given(st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=9)), max_size=20), st.integers(1, 30))
def test_items_round_trip_with_any_chunk_size(
    tmp_path_factory: pytest.TempPathFactory, items: Pairs, chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_writer, "CHUNK", chunk)
        store = write_store(tmp_path_factory.mktemp("any") / "store", items, ["text"], "key", 100)
    assert as_lists(store) == items


def test_items_may_be_numpy_arrays(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [(np.array([1, 2], dtype=np.int32),)], ["text"], "key", 3)
    assert as_lists(store) == [([1, 2],)]


def test_negative_index_counts_from_the_end(store: TokenStore) -> None:
    assert [side.tolist() for side in store[-1]] == [[8, 9], [10, 11, 12, 13]]


@pytest.mark.parametrize("item", [4, -5])
def test_index_out_of_range_is_an_index_error(store: TokenStore, item: int) -> None:
    with pytest.raises(IndexError, match=f"item {item} of a store of 4"):
        store[item]


def test_lengths(store: TokenStore) -> None:
    assert [store.lengths(side).tolist() for side in SIDES] == [[3, 0, 1, 2], [2, 1, 0, 4]]


@pytest.mark.parametrize(("vocab_size", "width"), [(65_536, 2), (65_537, 4)])
def test_ids_take_two_bytes_if_they_fit(tmp_path: Path, vocab_size: int, width: int) -> None:
    store = write_store(tmp_path / "store", [([0, vocab_size - 1],)], ["text"], "key", vocab_size)
    assert (store.path / "text.tokens").stat().st_size == 2 * width
    assert as_lists(store) == [([0, vocab_size - 1],)]


def test_sides_may_have_different_vocabulary_sizes(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [([9], [70_000])], SIDES, "key", {"target": 70_001, "source": 10})
    assert store.vocab_sizes == {"source": 10, "target": 70_001}
    assert as_lists(store) == [([9], [70_000])]


def test_empty_store(tmp_path: Path) -> None:
    assert as_lists(write_store(tmp_path / "store", [], SIDES, "key", 10)) == []


def test_padded_rows(store: TokenStore) -> None:
    ids, lengths = store.padded("source", np.array([3, 0]), rows=3, length=4, pad_id=55)
    assert ids.tolist() == [[8, 9, 55, 55], [1, 2, 3, 55], [55, 55, 55, 55]]
    assert lengths.tolist() == [2, 3, 0]


def test_too_long_item_is_never_truncated(store: TokenStore) -> None:
    with pytest.raises(ValueError, match="3 tokens does not fit into a row of 2"):
        store.padded("source", np.array([0]), rows=1, length=2, pad_id=0)


def test_pickle_contains_the_path_only(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", [([1] * 100_000,)], ["text"], "key", 10)
    sent = ForkingPickler.dumps(store)
    assert len(sent) < 1000
    assert as_lists(ForkingPickler.loads(sent)) == as_lists(store)


def test_memory_is_bounded_by_the_chunk_size(tmp_path: Path) -> None:
    row = list(range(1000))
    tracemalloc.start()
    try:
        store = write_store(tmp_path / "store", ((row,) for _ in range(5000)), ["text"], "key", 1000)
        assert all(len(item[0]) == 1000 for item in store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (store.path / "text.tokens").stat().st_size == 10_000_000
    assert peak < 9_000_000  # a few copies of a chunk of 262,144 ids; twice the items need no more


# Invalid items


@pytest.mark.parametrize(("wrong", "item"), [(100, 2), (-1, 2)])
@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_id_out_of_range_is_named_with_item_and_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int, item: int, chunk: int
) -> None:
    monkeypatch.setattr(store_writer, "CHUNK", chunk)
    items = [([1], [1, 2]), ([], []), ([3], [4, wrong]), ([1], [1])]
    with pytest.raises(UserError, match=f"Item {item}, target: the id {wrong} is outside the vocabulary of 100"):
        write_store(tmp_path / "store", items, SIDES, "key", 100)


@pytest.mark.parametrize("ids", [[1.5], [[1]], ["a"], [1 << 70], np.ones((2, 2), dtype=np.int64), np.ones(2), 7])
def test_ids_must_be_a_row_of_integers(tmp_path: Path, ids: object) -> None:
    with pytest.raises(UserError, match="Item 0, text: ids must be one row of integers"):
        write_store(tmp_path / "store", [(ids,)], ["text"], "key", 100)  # type: ignore[list-item]


def test_item_with_too_few_sides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Item 1 has 1 sides; the store has 2"):
        write_store(tmp_path / "store", [([1], [2]), ([3],)], SIDES, "key", 100)


@pytest.mark.parametrize("sides", [[], ["a", "a"], ["../a"], ["A"]])
def test_invalid_side_names_are_refused(tmp_path: Path, sides: list[str]) -> None:
    with pytest.raises(UserError, match="Sides need distinct"):
        write_store(tmp_path / "store", [], sides, "key", 100)


@pytest.mark.parametrize("size", [0, (1 << 31) + 1])
def test_invalid_vocabulary_size_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(UserError, match=f"vocabulary of text has {size} ids"):
        write_store(tmp_path / "store", [], ["text"], "key", size)


def test_error_raised_by_the_items_passes_through(tmp_path: Path) -> None:
    def vanishing() -> Iterator[tuple[list[int], ...]]:
        yield [1], [2]
        raise FileNotFoundError("the corpus is gone")

    with pytest.raises(FileNotFoundError, match="the corpus is gone"):
        write_store(tmp_path / "store", vanishing(), SIDES, "key", 100)
    assert list(tmp_path.iterdir()) == []


# Disk errors


def test_existing_store_is_not_overwritten(store: TokenStore) -> None:
    with pytest.raises(UserError, match="exists already"):
        write_store(store.path, [], SIDES, "other", 100)
    assert as_lists(TokenStore(store.path)) == PAIRS


def test_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_writer.SideWriter, "_write", full)
    with pytest.raises(UserError, match=r"No space left on device.*Make room"):
        write_store(tmp_path / "store", PAIRS, SIDES, "key", 100)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot be written.*choose another folder"):
        write_store(tmp_path / "file" / "store", PAIRS, SIDES, "key", 100)


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        TokenStore(tmp_path / "nowhere")


# Damaged files

FILES = ["header.json", "source.tokens", "source.offsets", "target.tokens", "target.offsets"]


@pytest.mark.parametrize("name", FILES)
def test_truncated_file_is_detected(store: TokenStore, name: str) -> None:
    path = store.path / name
    os.truncate(path, path.stat().st_size - 2)
    with pytest.raises(DamagedStoreError, match=name):
        TokenStore(store.path)


@pytest.mark.parametrize("name", FILES)
def test_missing_file_is_detected(store: TokenStore, name: str) -> None:
    (store.path / name).unlink()
    with pytest.raises(DamagedStoreError, match=name):
        TokenStore(store.path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "\x00" * 40])
def test_invalid_header_is_detected(store: TokenStore, text: str) -> None:
    (store.path / "header.json").write_text(text, encoding="utf-8")
    with pytest.raises(DamagedStoreError, match=r"header\.json cannot be read"):
        TokenStore(store.path)


@pytest.mark.parametrize("change", [{"items": 3}, {"key": "other"}, {"format": 2}, {"checksum": "0"}])
def test_changed_header_is_detected(store: TokenStore, change: dict[str, object]) -> None:
    path = store.path / "header.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(DamagedStoreError, match="its checksum differs"):
        TokenStore(store.path)


def test_other_format_version_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(tmp_path / "store", PAIRS, SIDES, "key", 100)
    monkeypatch.setattr(module, "FORMAT", 2)
    with pytest.raises(DamagedStoreError, match="has format 1; this version reads 2"):
        TokenStore(store.path)


@pytest.mark.parametrize("name", FILES[1:])
def test_verify_finds_a_flipped_bit(store: TokenStore, name: str) -> None:
    store.verify()
    path = store.path / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedStoreError, match=f"{name} is damaged"):
        store.verify()


# Cached stores


def fail() -> Pairs:
    raise AssertionError("the store should have been cached")


def test_cached_store_is_written_once(tmp_path: Path) -> None:
    first = cached_store(tmp_path, "key", lambda: PAIRS, SIDES, 100)
    assert as_lists(cached_store(tmp_path, "key", fail, SIDES, 100)) == as_lists(first) == PAIRS


@pytest.mark.parametrize(
    ("key", "sides", "vocab_size"), [("new", SIDES, 100), ("key", ("a", "b"), 100), ("key", SIDES, 101)]
)
def test_other_key_side_or_vocabulary_is_another_store(
    tmp_path: Path, key: str, sides: tuple[str, ...], vocab_size: int
) -> None:
    cached_store(tmp_path, "key", lambda: PAIRS, SIDES, 100)
    assert as_lists(cached_store(tmp_path, key, lambda: PAIRS[:1], sides, vocab_size)) == PAIRS[:1]


@pytest.mark.parametrize("name", FILES)
def test_damaged_store_is_rewritten_with_a_message(tmp_path: Path, name: str) -> None:
    path = cached_store(tmp_path, "key", lambda: PAIRS, SIDES, 100).path / name
    os.truncate(path, 1)
    messages: list[str] = []
    again = cached_store(tmp_path, "key", lambda: PAIRS, SIDES, 100, messages.append)
    assert as_lists(again) == PAIRS
    assert len(messages) == 1
    assert name in messages[0]
    assert messages[0].endswith("Writing it again.")


def test_no_temporary_files_are_left(tmp_path: Path) -> None:
    path = cached_store(tmp_path, "key", lambda: PAIRS, SIDES, 100).path
    os.truncate(path / "header.json", 1)
    cached_store(tmp_path, "key", lambda: PAIRS, SIDES, 100)
    assert list(tmp_path.iterdir()) == [path]


def test_abandoned_temporary_folders_are_removed_after_a_day(tmp_path: Path) -> None:
    path = cached_store(tmp_path, "key", lambda: PAIRS, SIDES, 100).path
    os.truncate(path / "header.json", 1)
    for name, age in (("old", 2), ("young", 0.5)):
        left = tmp_path / f".{path.name}.{name}"
        left.mkdir()
        (left / "source.tokens").touch()
        then = time.time() - age * module.MAX_AGE
        os.utime(left / "source.tokens", (then, then))
        os.utime(left, (then, then))
    cached_store(tmp_path, "key", lambda: PAIRS, SIDES, 100)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([f".{path.name}.young", path.name])


def test_store_that_is_always_damaged_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_checksum", lambda header: str(time.perf_counter_ns()))
    with pytest.raises(UserError, match="damaged each time it is written; check the disk"):
        cached_store(tmp_path, "key", lambda: PAIRS, SIDES, 100)


def test_slower_writer_uses_the_store_of_the_faster_one(tmp_path: Path) -> None:
    def overtaken() -> Pairs:
        cached_store(tmp_path, "key", lambda: PAIRS[:2], SIDES, 100)
        return PAIRS

    assert as_lists(cached_store(tmp_path, "key", overtaken, SIDES, 100)) == PAIRS[:2]


def write_stores(folder: Path, ready: Barrier, results: "multiprocessing.Queue[bool]") -> None:
    for number in range(20):
        ready.wait(60)
        items = [([number] * 50, [number])] * 50
        results.put(as_lists(cached_store(folder, f"key {number}", lambda items=items: items, SIDES, 100)) == items)


def test_concurrent_processes_get_complete_stores(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=write_stores, args=(tmp_path, ready, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in range(40)]
    for process in processes:
        process.join()
    assert all(found)
    assert len(list(tmp_path.iterdir())) == 20
