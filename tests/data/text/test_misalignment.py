"""Aligned files of different lengths: the error gives both counts and estimates where the alignment is lost."""

import os
import random
import re
import threading
import tracemalloc
from pathlib import Path

import pytest

from regard import UserError
from regard.data.text.pairs import Pair, read_aligned, read_pairs
from tests.data.text.support import write_lines


def synthetic_pairs(count: int, seed: int = 0) -> list[Pair]:
    """Synthetic translations with correlated lengths, and some digits and punctuation."""
    rng = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = rng.randint(2, 20)
        end = rng.choice("...?!") if rng.random() < 0.9 else ""
        year = str(rng.randint(1, 2000)) if rng.random() < 0.1 else ""
        source = " ".join(["word"] * words) + year + end
        target = " ".join(["sözcük"] * max(1, words + rng.randint(-2, 1))) + year + end
        pairs.append(Pair(source, target))
    return pairs


def message_for(folder: Path, source: list[str], target: list[str]) -> str:
    paths = write_lines(folder / "text.en", source), write_lines(folder / "text.tr", target)
    with pytest.raises(UserError) as caught:
        list(read_pairs(*paths))
    return str(caught.value)


def shifted_line(message: str) -> int:
    found = re.search(r"Line ([\d,]+) looks like the first that is shifted", message)
    assert found is not None, message
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize(("source", "target"), [(3, 2), (2, 3), (1, 0), (0, 1)])
def test_different_lengths_are_named_with_both_counts(tmp_path: Path, source: int, target: int) -> None:
    message = message_for(tmp_path, ["a"] * source, ["b"] * target)
    assert re.search(rf"text\.en has {source} lines? and \S*text\.tr has {target} lines?;", message)


def test_pairs_before_the_misalignment_error_are_yielded(tmp_path: Path) -> None:
    pairs = read_aligned(write_lines(tmp_path / "a", ["one", "two"]), write_lines(tmp_path / "b", ["bir"]))
    assert next(pairs) == ("one", "bir")


@pytest.mark.parametrize("lost", [1, 40, 417, 960])
@pytest.mark.parametrize("side", [0, 1])
def test_position_of_a_lost_line_is_estimated(tmp_path: Path, side: int, lost: int) -> None:
    columns = [list(column) for column in zip(*synthetic_pairs(1000), strict=True)]
    del columns[side][lost - 1]
    assert abs(shifted_line(message_for(tmp_path, *columns)) - lost) <= 3


def test_first_of_several_lost_lines_is_estimated(tmp_path: Path) -> None:
    source, target = ([*column] for column in zip(*synthetic_pairs(1000), strict=True))
    for lost in (900, 650, 300):
        del target[lost - 1]
    assert abs(shifted_line(message_for(tmp_path, source, target)) - 300) <= 3


def test_block_of_lost_lines_is_estimated(tmp_path: Path) -> None:
    source, target = ([*column] for column in zip(*synthetic_pairs(1000), strict=True))
    del target[499:519]
    assert abs(shifted_line(message_for(tmp_path, source, target)) - 500) <= 3


@pytest.mark.parametrize("lines", [100, 900, 999])
def test_truncated_file_is_distinguished_from_a_shifted_one(tmp_path: Path, lines: int) -> None:
    source, target = ([*column] for column in zip(*synthetic_pairs(1000), strict=True))
    assert "text.tr is truncated" in message_for(tmp_path, source, target[:lines])


@pytest.mark.parametrize("count", [3, 1000])
def test_insignificant_shift_is_not_reported(tmp_path: Path, count: int) -> None:
    message = message_for(tmp_path, ["The same."] * count, ["Hep aynı."] * (count + 1))
    assert "could not be determined" in message


def test_unrelated_texts_are_not_reported_as_shifted(tmp_path: Path) -> None:
    source, target = (
        [pair.source for pair in synthetic_pairs(1000)],
        [pair.target for pair in synthetic_pairs(1001, seed=1)],
    )
    assert "could not be determined" in message_for(tmp_path, source, target)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_are_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("one\ntwo\n", encoding="utf-8"))
    writer.start()
    with pytest.raises(UserError, match=r"has 2 lines and .* has 1 line; .* could not be determined"):
        list(read_aligned(pipe, write_lines(tmp_path / "text.tr", ["bir"])))
    writer.join()


def test_misalignment_check_needs_little_memory(tmp_path: Path) -> None:
    line = "The cat ate the mouse, and that was the end of it as far as the mouse was concerned."
    source = write_lines(tmp_path / "text.en", [line] * 20_001)
    target = write_lines(tmp_path / "text.tr", [line] * 20_000)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="20,001 lines"):
            sum(1 for _ in read_aligned(source, target))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000 < source.stat().st_size
