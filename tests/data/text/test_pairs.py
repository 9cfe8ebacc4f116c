"""Reading sentence pairs: every file format gives the same pairs, and errors name the file and line."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.text import pairs as module
from regard.data.text.pairs import Pair, read_aligned, read_pairs, read_record_pairs, read_table
from tests.data.text.support import write_lines

PAIRS = [Pair("The cat ate the mouse.", "Kedi fareyi yedi."), Pair("", "Boş."), Pair("No?", ""), Pair("ıİ", "i̇I")]

cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\t\ufeff"))
some_pairs = st.lists(st.builds(Pair, cells, cells), min_size=1, max_size=5)


def write_aligned(folder: Path, pairs: list[Pair]) -> tuple[Path, Path]:
    source = write_lines(folder / "text.en", [pair.source for pair in pairs])
    return source, write_lines(folder / "text.tr", [pair.target for pair in pairs])


def write_table(path: Path, pairs: list[Pair]) -> Path:
    return write_lines(path, ["\t".join(pair) for pair in pairs])


@given(pairs=some_pairs)
def test_aligned_files_round_trip(pairs: list[Pair]) -> None:
    with TemporaryDirectory() as folder:
        assert list(read_pairs(*write_aligned(Path(folder), pairs))) == pairs


@given(pairs=some_pairs)
def test_table_round_trips(pairs: list[Pair]) -> None:
    with TemporaryDirectory() as folder:
        assert list(read_pairs(write_table(Path(folder) / "text.tsv", pairs))) == pairs


@given(pairs=some_pairs, plain=st.booleans())
def test_json_lines_round_trip(pairs: list[Pair], plain: bool) -> None:
    with TemporaryDirectory() as folder:
        lines = [json.dumps(pair._asdict(), ensure_ascii=not plain) for pair in pairs]
        assert list(read_pairs(write_lines(Path(folder) / "text.jsonl", lines))) == pairs


def test_empty_sides_are_kept(tmp_path: Path) -> None:
    assert list(read_aligned(*write_aligned(tmp_path, PAIRS))) == PAIRS


def test_columns_count_from_one(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.tsv", ["7\tone\t8\tbir\tmore", "9\ttwo\t10\tiki"])
    assert list(read_table(path, (4, 2))) == [("bir", "one"), ("iki", "two")]


def test_column_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="counted from 1; found 0 and 1"):
        list(read_table(write_table(tmp_path / "text.tsv", PAIRS), (0, 1)))


def test_quotation_marks_are_plain_text(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.tsv", ['"one\t"bir""'])
    assert list(read_table(path)) == [('"one', '"bir""')]


@pytest.mark.parametrize(("line", "found"), [("alone", "1 column "), ("", "1 column "), ("a\tb", "2 columns ")])
def test_too_few_columns_name_file_and_line(tmp_path: Path, line: str, found: str) -> None:
    path = write_lines(tmp_path / "text.tsv", ["a\tb\tc", line])
    with pytest.raises(UserError, match=rf"text\.tsv, line 2: found {found}separated by tabs; columns 1 and 3"):
        list(read_table(path, (1, 3)))


def test_nested_keys_are_separated_by_dots(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.jsonl", ['{"translation": {"en": "one", "tr": "bir"}}'])
    assert list(read_record_pairs(path, ("translation.en", "translation.tr"))) == [("one", "bir")]


def test_key_containing_a_dot_takes_precedence(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.jsonl", ['{"a.b": "one", "a": {"b": "no"}, "c": "bir"}'])
    assert list(read_record_pairs(path, ("a.b", "c"))) == [("one", "bir")]


def test_blank_json_lines_are_skipped(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.jsonl", ["", '{"source": "one", "target": "bir"}', " "])
    assert list(read_record_pairs(path)) == [("one", "bir")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "one"', "not a JSON object .*column 17"),
        ("one\tbir", "not a JSON object"),
        ("[" * 200_000, "not a JSON object"),
        ("9" * 5000, "not a JSON object"),
        ('["one", "bir"]', "expected an object with the key 'source', found a list"),
        ('{"source": "one"}', "there is no key 'target'; the keys are 'source'"),
        ('{"source": "one", "target": 1}', "expected a string at the key 'target', found a number"),
        ('{"source": "one", "target": null}', "expected a string at the key 'target', found null"),
        ('{"source": "\\ud800", "target": "bir"}', "the text at the key 'source' has half of a surrogate pair"),
    ],
)
def test_invalid_json_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = write_lines(tmp_path / "text.jsonl", ['{"source": "one", "target": "bir"}', line])
    with pytest.raises(UserError, match=rf"text\.jsonl, line 2: {message}"):
        list(read_record_pairs(path))


def test_nested_key_into_a_string_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "text.jsonl", ['{"en": "one"}'])
    with pytest.raises(UserError, match=r"line 1: expected an object with the key 'en\.text', found a string"):
        list(read_record_pairs(path, ("en.text", "tr")))


def test_folder_is_read_in_sorted_order(tmp_path: Path) -> None:
    write_lines(tmp_path / "b.jsonl", ['{"source": "two", "target": "iki"}'])
    write_lines(tmp_path / "c.tsv", ["three\tüç"])
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"one\tbir\n"))
    write_lines(tmp_path / "SOURCE.txt", ["Where this is from."])
    write_lines(tmp_path / ".hidden.tsv", ["no"])
    (tmp_path / "d.tsv").mkdir()
    assert [pair.source for pair in read_pairs(tmp_path)] == ["one", "two", "three"]


def test_aligned_files_in_a_folder_are_found_by_suffix(tmp_path: Path) -> None:
    (tmp_path / "b.en.gz").write_bytes(gzip.compress(b"two\n"))
    write_lines(tmp_path / "b.tr", ["iki"])
    write_lines(tmp_path / "a.en", ["one"])
    write_lines(tmp_path / "a.tr", ["bir"])
    write_lines(tmp_path / "a.de", ["eins"])
    assert list(read_pairs(tmp_path, suffixes=("en", "tr"))) == [("one", "bir"), ("two", "iki")]


@pytest.mark.parametrize(("existing", "missing"), [("a.en", r"a\.tr"), ("a.tr.gz", r"a\.en")])
def test_aligned_file_without_partner_is_named(tmp_path: Path, existing: str, missing: str) -> None:
    write_lines(tmp_path / existing, ["one"])
    with pytest.raises(UserError, match=rf"{re.escape(existing)} has no partner {missing}"):
        list(read_pairs(tmp_path, suffixes=("en", "tr")))


def test_two_versions_of_a_text_are_refused(tmp_path: Path) -> None:
    for name in ("a.en", "a.en.gz", "a.tr"):
        write_lines(tmp_path / name, ["one"])
    with pytest.raises(UserError, match=r"a\.en\.gz and a\.en are two versions of the same text"):
        list(read_pairs(tmp_path, suffixes=("en", "tr")))


def test_folder_without_pairs_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "notes.txt", ["one"])
    with pytest.raises(UserError, match=r"has no \.tsv, \.csv, \.jsonl or \.parquet files to read"):
        list(read_pairs(tmp_path))


def test_unknown_suffix_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"text\.en: the suffix is unknown; expected \.tsv"):
        list(read_pairs(write_lines(tmp_path / "text.en", ["one"])))


def test_missing_aligned_file_is_named_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.tr: there is no such file"):
        next(read_pairs(write_lines(tmp_path / "text.en", ["one"]), tmp_path / "nowhere.tr"))


def test_pairs_are_read_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def recorded(path: str) -> Iterator[str]:
        for number in range(1000):
            read.append(f"{path}{number}")
            yield f"{path}{number}"

    monkeypatch.setattr(module, "read_lines", recorded)
    pairs = read_aligned("a", "b")
    next(pairs)
    next(pairs)
    assert read == ["a0", "b0", "a1", "b1"]
