"""Sentence pairs: every form gives the same pairs, and a pair that cannot be right is named with its line."""

import gzip
import json
import os
import random
import re
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data import pairs as module
from regard.data.pairs import Pair, read_aligned, read_json_lines, read_pairs, read_table

PAIRS = [Pair("The cat ate the mouse.", "Kedi fareyi yedi."), Pair("", "Boş."), Pair("No?", ""), Pair("ıİ", "i̇I")]

cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t\ufeff"))
some_pairs = st.lists(st.builds(Pair, cells, cells), min_size=1, max_size=5)


def write_lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    return path


def write_aligned(folder: Path, pairs: list[Pair]) -> tuple[Path, Path]:
    source = write_lines(folder / "text.en", [pair.source for pair in pairs])
    return source, write_lines(folder / "text.tr", [pair.target for pair in pairs])


def write_table(path: Path, pairs: list[Pair]) -> Path:
    return write_lines(path, ["\t".join(pair) for pair in pairs])


@given(pairs=some_pairs)
def test_any_pairs_come_back_from_aligned_files(pairs: list[Pair]) -> None:
    with TemporaryDirectory() as folder:
        assert list(read_pairs(*write_aligned(Path(folder), pairs))) == pairs


@given(pairs=some_pairs)
def test_any_pairs_come_back_from_a_table(pairs: list[Pair]) -> None:
    with TemporaryDirectory() as folder:
        assert list(read_pairs(write_table(Path(folder) / "text.tsv", pairs))) == pairs


@given(pairs=some_pairs, plain=st.booleans())
def test_any_pairs_come_back_from_json_lines(pairs: list[Pair], plain: bool) -> None:
    with TemporaryDirectory() as folder:
        lines = [json.dumps(pair._asdict(), ensure_ascii=not plain) for pair in pairs]
        assert list(read_pairs(write_lines(Path(folder) / "text.jsonl", lines))) == pairs


def test_empty_sides_stay_in_their_place(tmp_path: Path) -> None:
    assert list(read_aligned(*write_aligned(tmp_path, PAIRS))) == PAIRS


def test_columns_are_chosen_and_counted_from_one(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.tsv", ["7\tone\t8\tbir\tmore", "9\ttwo\t10\tiki"])
    assert list(read_table(path, (4, 2))) == [("bir", "one"), ("iki", "two")]


def test_a_column_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="counted from 1; found 0 and 1"):
        list(read_table(write_table(tmp_path / "text.tsv", PAIRS), (0, 1)))


def test_quotation_marks_in_a_table_are_text(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.tsv", ['"one\t"bir""'])
    assert list(read_table(path)) == [('"one', '"bir""')]


@pytest.mark.parametrize(("line", "found"), [("alone", "1 column "), ("", "1 column "), ("a\tb", "2 columns ")])
def test_too_few_columns_are_named_with_file_and_line(tmp_path: Path, line: str, found: str) -> None:
    path = write_lines(tmp_path / "text.tsv", ["a\tb\tc", line])
    with pytest.raises(UserError, match=rf"text\.tsv, line 2: found {found}between tabs; columns 1 and 3 are wanted"):
        list(read_table(path, (1, 3)))


def test_nested_keys_are_followed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.jsonl", ['{"translation": {"en": "one", "tr": "bir"}}'])
    assert list(read_json_lines(path, ("translation.en", "translation.tr"))) == [("one", "bir")]


def test_a_key_with_a_dot_in_it_is_found_as_it_stands(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.jsonl", ['{"a.b": "one", "a": {"b": "no"}, "c": "bir"}'])
    assert list(read_json_lines(path, ("a.b", "c"))) == [("one", "bir")]


def test_blank_lines_between_json_objects_are_passed_over(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.jsonl", ["", '{"source": "one", "target": "bir"}', " "])
    assert list(read_json_lines(path)) == [("one", "bir")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "one"', "not a JSON object .*column 17"),
        ("one\tbir", "not a JSON object"),
        ("[" * 200_000, "not a JSON object"),
        ("9" * 5000, "not a JSON object"),
        ('["one", "bir"]', "expected an object with the key 'source', found a list"),
        ('{"source": "one"}', "there is no key 'target'; the keys here are: 'source'"),
        ('{"source": "one", "target": 1}', "expected text at the key 'target', found a number"),
        ('{"source": "one", "target": null}', "expected text at the key 'target', found null"),
        ('{"source": "\\ud800", "target": "bir"}', "the text at the key 'source' has half of a surrogate pair"),
    ],
)
def test_a_wrong_json_line_is_named_with_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = write_lines(tmp_path / "text.jsonl", ['{"source": "one", "target": "bir"}', line])
    with pytest.raises(UserError, match=rf"text\.jsonl, line 2: {message}"):
        list(read_json_lines(path))


def test_a_nested_key_that_leads_into_text_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.jsonl", ['{"en": "one"}'])
    with pytest.raises(UserError, match=r"line 1: expected an object with the key 'en\.text', found text"):
        list(read_json_lines(path, ("en.text", "tr")))


def test_a_folder_is_read_in_sorted_order_and_other_files_are_passed_over(tmp_path: Path) -> None:
    write_lines(tmp_path / "b.jsonl", ['{"source": "two", "target": "iki"}'])
    write_lines(tmp_path / "c.tsv", ["three\tüç"])
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"one\tbir\n"))
    write_lines(tmp_path / "SOURCE.txt", ["Where this is from."])
    write_lines(tmp_path / ".hidden.tsv", ["no"])
    (tmp_path / "d.tsv").mkdir()
    assert [pair.source for pair in read_pairs(tmp_path)] == ["one", "two", "three"]


def test_aligned_files_in_a_folder_are_found_by_their_endings(tmp_path: Path) -> None:
    (tmp_path / "b.en.gz").write_bytes(gzip.compress(b"two\n"))
    write_lines(tmp_path / "b.tr", ["iki"])
    write_lines(tmp_path / "a.en", ["one"])
    write_lines(tmp_path / "a.tr", ["bir"])
    write_lines(tmp_path / "a.de", ["eins"])
    assert list(read_pairs(tmp_path, endings=("en", "tr"))) == [("one", "bir"), ("two", "iki")]


@pytest.mark.parametrize(("there", "missing"), [("a.en", r"a\.tr"), ("a.tr.gz", r"a\.en")])
def test_an_aligned_file_without_its_partner_is_named(tmp_path: Path, there: str, missing: str) -> None:
    write_lines(tmp_path / there, ["one"])
    with pytest.raises(UserError, match=rf"{re.escape(there)} has no partner {missing} beside it"):
        list(read_pairs(tmp_path, endings=("en", "tr")))


def test_the_same_text_twice_in_a_folder_is_named(tmp_path: Path) -> None:
    for name in ("a.en", "a.en.gz", "a.tr"):
        write_lines(tmp_path / name, ["one"])
    with pytest.raises(UserError, match=r"a\.en\.gz and a\.en stand for the same text"):
        list(read_pairs(tmp_path, endings=("en", "tr")))


def test_a_folder_with_nothing_to_read_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "notes.txt", ["one"])
    with pytest.raises(UserError, match=r"holds no \.tsv or \.jsonl files; nothing"):
        list(read_pairs(tmp_path))


def test_a_single_file_of_an_unknown_kind_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"text\.en: the name does not say what is inside; expected \.tsv"):
        list(read_pairs(write_lines(tmp_path / "text.en", ["one"])))


def test_a_missing_file_of_two_is_named_before_any_pair(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.tr: there is no such file"):
        next(read_pairs(write_lines(tmp_path / "text.en", ["one"]), tmp_path / "nowhere.tr"))


def sentences(count: int, seed: int = 0) -> list[Pair]:
    """Made-up translations: lengths that go together, loosely, and some digits and marks."""
    dice = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = dice.randint(2, 20)
        end = dice.choice("...?!") if dice.random() < 0.9 else ""
        year = str(dice.randint(1, 2000)) if dice.random() < 0.1 else ""
        source = " ".join(["word"] * words) + year + end
        target = " ".join(["sözcük"] * max(1, words + dice.randint(-2, 1))) + year + end
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
def test_files_of_different_length_are_named_with_both_counts(tmp_path: Path, source: int, target: int) -> None:
    message = message_for(tmp_path, ["a"] * source, ["b"] * target)
    assert re.search(rf"text\.en has {source} lines? and \S*text\.tr has {target} lines?;", message)


def test_pairs_before_the_end_are_given_before_the_error(tmp_path: Path) -> None:
    pairs = read_aligned(write_lines(tmp_path / "a", ["one", "two"]), write_lines(tmp_path / "b", ["bir"]))
    assert next(pairs) == ("one", "bir")


@pytest.mark.parametrize("lost", [1, 40, 417, 960])
@pytest.mark.parametrize("side", [0, 1])
def test_the_line_where_one_was_lost_is_guessed_closely(tmp_path: Path, side: int, lost: int) -> None:
    columns = [list(column) for column in zip(*sentences(1000), strict=True)]
    del columns[side][lost - 1]
    assert abs(shifted_line(message_for(tmp_path, *columns)) - lost) <= 3


def test_the_first_of_several_lost_lines_is_guessed_closely(tmp_path: Path) -> None:
    source, target = ([*column] for column in zip(*sentences(1000), strict=True))
    for lost in (900, 650, 300):
        del target[lost - 1]
    assert abs(shifted_line(message_for(tmp_path, source, target)) - 300) <= 3


def test_several_lines_lost_in_one_place_are_guessed_closely(tmp_path: Path) -> None:
    source, target = ([*column] for column in zip(*sentences(1000), strict=True))
    del target[499:519]
    assert abs(shifted_line(message_for(tmp_path, source, target)) - 500) <= 3


@pytest.mark.parametrize("kept", [100, 900, 999])
def test_a_file_that_ends_too_early_is_told_from_a_shifted_one(tmp_path: Path, kept: int) -> None:
    source, target = ([*column] for column in zip(*sentences(1000), strict=True))
    assert "text.tr is cut short" in message_for(tmp_path, source, target[:kept])


@pytest.mark.parametrize("count", [3, 1000])
def test_no_line_is_named_where_none_stands_out(tmp_path: Path, count: int) -> None:
    message = message_for(tmp_path, ["The same."] * count, ["Hep aynı."] * (count + 1))
    assert "No line stands out" in message


def test_texts_that_have_nothing_to_do_with_each_other_are_not_called_shifted(tmp_path: Path) -> None:
    source, target = [pair.source for pair in sentences(1000)], [pair.target for pair in sentences(1001, seed=1)]
    assert "No line stands out" in message_for(tmp_path, source, target)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_of_different_length_are_counted_without_a_second_reading(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("one\ntwo\n", encoding="utf-8"))
    writer.start()
    with pytest.raises(UserError, match=r"has 2 lines and .* has 1 line; .* No line stands out"):
        list(read_aligned(pipe, write_lines(tmp_path / "text.tr", ["bir"])))
    writer.join()


def test_lines_are_read_only_as_pairs_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def watched(path: str) -> Iterator[str]:
        for number in range(1000):
            read.append(f"{path}{number}")
            yield f"{path}{number}"

    monkeypatch.setattr(module, "read_lines", watched)
    pairs = read_aligned("a", "b")
    next(pairs)
    next(pairs)
    assert read == ["a0", "b0", "a1", "b1"]


def test_files_of_different_length_are_never_held_in_memory(tmp_path: Path) -> None:
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
