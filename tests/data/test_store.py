"""Tokenised text on disk: what goes in comes out, what is damaged is noticed, and writers do not disturb each other."""

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
from regard.data import store as module
from regard.data import store_writer
from regard.data.store import DamagedStoreError, TokenStore, cached, write

Pairs = list[tuple[list[int], ...]]

PAIRS: Pairs = [([1, 2, 3], [4, 5]), ([], [6]), ([7], []), ([8, 9], [10, 11, 12, 13])]
SIDES = ("source", "target")


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return write(tmp_path / "store", iter(PAIRS), SIDES, "key", 100)


def plain(store: TokenStore) -> Pairs:
    return [tuple(side.tolist() for side in item) for item in store]


def test_what_was_written_is_read_back(store: TokenStore) -> None:
    assert plain(store) == PAIRS


@given(st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=9)), max_size=20), st.integers(1, 30))
def test_any_items_survive_chunks_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, items: Pairs, chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_writer, "CHUNK", chunk)
        store = write(tmp_path_factory.mktemp("any") / "store", items, ["text"], "key", 100)
    assert plain(store) == items


def test_numpy_arrays_are_taken_as_items(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [(np.array([1, 2], dtype=np.int32),)], ["text"], "key", 3)
    assert plain(store) == [([1, 2],)]


def test_a_negative_number_counts_from_the_end(store: TokenStore) -> None:
    assert [side.tolist() for side in store[-1]] == [[8, 9], [10, 11, 12, 13]]


@pytest.mark.parametrize("item", [4, -5])
def test_an_item_that_is_not_there_is_an_index_error(store: TokenStore, item: int) -> None:
    with pytest.raises(IndexError, match=f"item {item} of a store of 4"):
        store[item]


def test_lengths_are_those_of_the_items(store: TokenStore) -> None:
    assert [store.lengths(side).tolist() for side in SIDES] == [[3, 0, 1, 2], [2, 1, 0, 4]]


@pytest.mark.parametrize(("vocabulary", "width"), [(65_536, 2), (65_537, 4)])
def test_ids_take_two_bytes_where_they_fit(tmp_path: Path, vocabulary: int, width: int) -> None:
    store = write(tmp_path / "store", [([0, vocabulary - 1],)], ["text"], "key", vocabulary)
    assert (store.path / "text.tokens").stat().st_size == 2 * width
    assert plain(store) == [([0, vocabulary - 1],)]


def test_each_side_may_have_its_own_vocabulary(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [([9], [70_000])], SIDES, "key", {"target": 70_001, "source": 10})
    assert store.vocabulary == {"source": 10, "target": 70_001}
    assert plain(store) == [([9], [70_000])]


def test_a_store_may_be_empty(tmp_path: Path) -> None:
    assert plain(write(tmp_path / "store", [], SIDES, "key", 10)) == []


def test_padded_rows_hold_the_items_then_padding_then_empty_rows(store: TokenStore) -> None:
    ids, lengths = store.padded("source", np.array([3, 0]), rows=3, length=4, padding=55)
    assert ids.tolist() == [[8, 9, 55, 55], [1, 2, 3, 55], [55, 55, 55, 55]]
    assert lengths.tolist() == [2, 3, 0]


def test_a_row_is_never_cut(store: TokenStore) -> None:
    with pytest.raises(ValueError, match="3 tokens does not fit a row of 2"):
        store.padded("source", np.array([0]), rows=1, length=2, padding=0)


def test_a_worker_gets_the_path_and_not_the_tokens(tmp_path: Path) -> None:
    store = write(tmp_path / "store", [([1] * 100_000,)], ["text"], "key", 10)
    sent = ForkingPickler.dumps(store)
    assert len(sent) < 1000
    assert plain(ForkingPickler.loads(sent)) == plain(store)


def test_writing_and_reading_take_the_memory_of_a_chunk(tmp_path: Path) -> None:
    row = list(range(1000))
    tracemalloc.start()
    try:
        store = write(tmp_path / "store", ((row,) for _ in range(5000)), ["text"], "key", 1000)
        assert all(len(item[0]) == 1000 for item in store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (store.path / "text.tokens").stat().st_size == 10_000_000
    assert peak < 9_000_000  # a chunk of 262,144 ids in a few copies; twice the items need no more


# What is wrong with the items


@pytest.mark.parametrize(("wrong", "item"), [(100, 2), (-1, 2)])
@pytest.mark.parametrize("chunk", [1, 2, 1000])
def test_an_id_out_of_range_is_named_with_its_item_and_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: int, item: int, chunk: int
) -> None:
    monkeypatch.setattr(store_writer, "CHUNK", chunk)
    items = [([1], [1, 2]), ([], []), ([3], [4, wrong]), ([1], [1])]
    with pytest.raises(UserError, match=f"Item {item}, target: the id {wrong} is not in a vocabulary of 100"):
        write(tmp_path / "store", items, SIDES, "key", 100)


@pytest.mark.parametrize("ids", [[1.5], [[1]], ["a"], [1 << 70], np.ones((2, 2), dtype=np.int64), np.ones(2), 7])
def test_ids_that_are_no_row_of_whole_numbers_are_refused(tmp_path: Path, ids: object) -> None:
    with pytest.raises(UserError, match="Item 0, text: ids must be one row of whole numbers"):
        write(tmp_path / "store", [(ids,)], ["text"], "key", 100)  # type: ignore[list-item]


def test_an_item_with_too_few_sides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Item 1 has 1 sides; the store has 2"):
        write(tmp_path / "store", [([1], [2]), ([3],)], SIDES, "key", 100)


@pytest.mark.parametrize("sides", [[], ["a", "a"], ["../a"], ["A"]])
def test_sides_need_plain_names(tmp_path: Path, sides: list[str]) -> None:
    with pytest.raises(UserError, match="Sides need different names"):
        write(tmp_path / "store", [], sides, "key", 100)


@pytest.mark.parametrize("size", [0, (1 << 31) + 1])
def test_a_vocabulary_without_a_sensible_size_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(UserError, match=f"vocabulary of text has {size} ids"):
        write(tmp_path / "store", [], ["text"], "key", size)


def test_an_error_of_the_items_passes_unchanged_and_leaves_nothing(tmp_path: Path) -> None:
    def vanishing() -> Iterator[tuple[list[int], ...]]:
        yield [1], [2]
        raise FileNotFoundError("the corpus is gone")

    with pytest.raises(FileNotFoundError, match="the corpus is gone"):
        write(tmp_path / "store", vanishing(), SIDES, "key", 100)
    assert list(tmp_path.iterdir()) == []


# What is wrong with the disk


def test_a_store_that_exists_is_left_alone(store: TokenStore) -> None:
    with pytest.raises(UserError, match="exists already"):
        write(store.path, [], SIDES, "other", 100)
    assert plain(TokenStore(store.path)) == PAIRS


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_writer.SideWriter, "_put", full)
    with pytest.raises(UserError, match=r"No space left on device.*Make room"):
        write(tmp_path / "store", PAIRS, SIDES, "key", 100)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write there.*choose another folder"):
        write(tmp_path / "file" / "store", PAIRS, SIDES, "key", 100)


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        TokenStore(tmp_path / "nowhere")


# Damage

FILES = ["header.json", "source.tokens", "source.offsets", "target.tokens", "target.offsets"]


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_is_noticed(store: TokenStore, name: str) -> None:
    path = store.path / name
    os.truncate(path, path.stat().st_size - 2)
    with pytest.raises(DamagedStoreError, match=name):
        TokenStore(store.path)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_noticed(store: TokenStore, name: str) -> None:
    (store.path / name).unlink()
    with pytest.raises(DamagedStoreError, match=name):
        TokenStore(store.path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "\x00" * 40])
def test_a_header_that_is_something_else_is_noticed(store: TokenStore, text: str) -> None:
    (store.path / "header.json").write_text(text, encoding="utf-8")
    with pytest.raises(DamagedStoreError, match=r"header\.json cannot be read"):
        TokenStore(store.path)


@pytest.mark.parametrize("change", [{"items": 3}, {"key": "other"}, {"format": 2}, {"checksum": "0"}])
def test_a_changed_header_is_noticed(store: TokenStore, change: dict[str, object]) -> None:
    path = store.path / "header.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")
    with pytest.raises(DamagedStoreError, match="its checksum differs"):
        TokenStore(store.path)


def test_a_format_of_another_version_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write(tmp_path / "store", PAIRS, SIDES, "key", 100)
    monkeypatch.setattr(module, "FORMAT", 2)
    with pytest.raises(DamagedStoreError, match="has format 1; this version reads 2"):
        TokenStore(store.path)


@pytest.mark.parametrize("name", FILES[1:])
def test_a_flipped_byte_is_found_by_verify(store: TokenStore, name: str) -> None:
    store.verify()
    path = store.path / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedStoreError, match=f"{name} is damaged"):
        store.verify()


# The cache


def never() -> Pairs:
    raise AssertionError("the cache should have had it")


def test_the_cache_makes_a_store_once(tmp_path: Path) -> None:
    first = cached(tmp_path, "key", lambda: PAIRS, SIDES, 100)
    assert plain(cached(tmp_path, "key", never, SIDES, 100)) == plain(first) == PAIRS


@pytest.mark.parametrize(
    ("key", "sides", "vocabulary"), [("new", SIDES, 100), ("key", ("a", "b"), 100), ("key", SIDES, 101)]
)
def test_another_key_side_or_vocabulary_is_another_store(
    tmp_path: Path, key: str, sides: tuple[str, ...], vocabulary: int
) -> None:
    cached(tmp_path, "key", lambda: PAIRS, SIDES, 100)
    assert plain(cached(tmp_path, key, lambda: PAIRS[:1], sides, vocabulary)) == PAIRS[:1]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_store_is_made_again_with_a_message(tmp_path: Path, name: str) -> None:
    path = cached(tmp_path, "key", lambda: PAIRS, SIDES, 100).path / name
    os.truncate(path, 1)
    messages: list[str] = []
    again = cached(tmp_path, "key", lambda: PAIRS, SIDES, 100, messages.append)
    assert plain(again) == PAIRS
    assert len(messages) == 1
    assert name in messages[0]
    assert messages[0].endswith("It is made again.")


def test_nothing_is_left_beside_the_store(tmp_path: Path) -> None:
    path = cached(tmp_path, "key", lambda: PAIRS, SIDES, 100).path
    os.truncate(path / "header.json", 1)
    cached(tmp_path, "key", lambda: PAIRS, SIDES, 100)
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed_after_a_day(tmp_path: Path) -> None:
    place = cached(tmp_path, "key", lambda: PAIRS, SIDES, 100).path
    os.truncate(place / "header.json", 1)
    for name, age in (("old", 2), ("young", 0.5)):
        left = tmp_path / f".{place.name}.{name}"
        left.mkdir()
        (left / "source.tokens").touch()
        then = time.time() - age * module.DAY
        os.utime(left / "source.tokens", (then, then))
        os.utime(left, (then, then))
    cached(tmp_path, "key", lambda: PAIRS, SIDES, 100)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f".{place.name}.young", place.name])


def test_a_store_that_is_never_whole_ends_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_checksum", lambda header: str(time.perf_counter_ns()))
    with pytest.raises(UserError, match="damaged each time it is written; check the disk"):
        cached(tmp_path, "key", lambda: PAIRS, SIDES, 100)


def test_the_slower_of_two_writers_uses_the_store_of_the_faster(tmp_path: Path) -> None:
    def overtaken() -> Pairs:
        cached(tmp_path, "key", lambda: PAIRS[:2], SIDES, 100)
        return PAIRS

    assert plain(cached(tmp_path, "key", overtaken, SIDES, 100)) == PAIRS[:2]


def fill(folder: Path, ready: Barrier, answers: "multiprocessing.Queue[bool]") -> None:
    for number in range(20):
        ready.wait(60)
        items = [([number] * 50, [number])] * 50
        answers.put(plain(cached(folder, f"key {number}", lambda items=items: items, SIDES, 100)) == items)


def test_processes_that_ask_at_once_all_get_whole_stores(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, answers = context.Barrier(2), context.Queue()
    processes = [context.Process(target=fill, args=(tmp_path, ready, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in range(40)]
    for process in processes:
        process.join()
    assert all(found)
    assert len(list(tmp_path.iterdir())) == 20
