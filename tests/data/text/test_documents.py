"""Documents in text files: split by the configured unit, exact to the character, read in passages without loss."""

import contextlib
import gzip
import lzma
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.config import ConfigError
from regard.data.text.documents import (
    Passage,
    TextConfig,
    TextCounts,
    Unit,
    count_text,
    encode_passages,
    read_passages,
    read_texts,
    text_files,
    text_fingerprint,
)
from regard.data.text.lines import read_lines
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer

VERSE = "First Citizen:\nBefore we proceed any further,\nhear me speak.\n\nAll:\nSpeak, speak.\n"

# Texts with line ends, blank and indented lines, and characters of one to four bytes.
texts = st.text(st.sampled_from("ab Z9.,'\n\n\té中🙂"), min_size=1, max_size=60)


def config(folder: Path, text: str | bytes = VERSE, name: str = "a.txt", **settings: Any) -> TextConfig:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return TextConfig(path=str(path), **settings)


def test_unit_file_gives_a_document_per_file(tmp_path: Path) -> None:
    assert list(read_texts(config(tmp_path))) == [VERSE]


@pytest.mark.parametrize(("end", "kept"), [("", ""), ("\n", "\n"), ("\n\n", "\n\n")])
def test_final_line_end_is_part_of_a_file(tmp_path: Path, end: str, kept: str) -> None:
    assert list(read_texts(config(tmp_path, f"a\nb{end}"))) == [f"a\nb{kept}"]


def test_unit_line_gives_a_document_per_line(tmp_path: Path) -> None:
    found = list(read_texts(config(tmp_path, "\none\n  \n two\r\n\nthree", unit="line")))
    assert found == ["one", " two", "three"]


def test_unit_paragraph_gives_a_document_per_paragraph(tmp_path: Path) -> None:
    found = list(read_texts(config(tmp_path, "\n\none\n  more\n \t\n\ntwo\r\nmore\r\n", unit="paragraph")))
    assert found == ["one\n  more", "two\nmore"]


@pytest.mark.parametrize("unit", ["file", "line", "paragraph"])
def test_documents_do_not_cross_files(tmp_path: Path, unit: Unit) -> None:
    (tmp_path / "b.txt").write_text("two", encoding="utf-8")
    (tmp_path / "a.txt").write_text("one", encoding="utf-8")
    assert list(read_texts(TextConfig(path=str(tmp_path), unit=unit))) == ["one", "two"]


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard.compress)],
)
def test_compressed_files_are_read(tmp_path: Path, suffix: str, compress: Any) -> None:
    assert list(read_texts(config(tmp_path, compress(VERSE.encode()), f"a.txt{suffix}"))) == [VERSE]


def test_byte_order_mark_is_removed(tmp_path: Path) -> None:
    assert list(read_texts(config(tmp_path, "\ufeffone\n"))) == ["one\n"]


def test_kept_line_ends_are_normalized(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\r\n\nb\rc\nd")
    assert list(read_lines(path, keepends=True)) == ["a\n", "\n", "b\rc\n", "d"]


def test_only_visible_text_files_of_a_folder_are_read(tmp_path: Path) -> None:
    for name in ("b.txt", "a.TXT.gz", "c.md", ".hidden.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"x") if name.endswith("gz") else b"x")
    (tmp_path / "inner.txt").mkdir()
    assert [path.name for path in text_files(tmp_path)] == ["a.TXT.gz", "b.txt"]


# Ranges


@given(text=texts, fraction=st.floats(0.01, 0.99))
def test_range_of_a_file_equals_nanogpts_split(text: str, fraction: float) -> None:
    with TemporaryDirectory() as folder:
        text_config = config(Path(folder), text)
        offset = int(len(text) * fraction)
        for expected, settings in ((text[:offset], {"end": fraction}), (text[offset:], {"begin": fraction})):
            if expected:
                assert "".join(read_texts(text_config.model_copy(update=settings))) == expected


def test_range_may_end_between_two_files(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(5 * name, encoding="utf-8")
    folder = str(tmp_path)
    assert list(read_texts(TextConfig(path=folder, end=0.5))) == ["aaaaa", "bb"]
    assert list(read_texts(TextConfig(path=folder, begin=0.5))) == ["bbb", "ccccc"]
    assert list(read_passages(TextConfig(path=folder, end=1 / 3))) == [Passage("aaaaa", True, True)]


@given(text=texts, unit=st.sampled_from(["line", "paragraph"]), cuts=st.lists(st.floats(0.01, 0.99), max_size=3))
def test_adjacent_ranges_partition_the_documents(text: str, unit: Unit, cuts: list[float]) -> None:
    with TemporaryDirectory() as folder:
        if not text.strip():
            return
        text_config = config(Path(folder), text, unit=unit)
        found = []
        for begin, end in zip([0.0, *sorted(cuts)], [*sorted(cuts), 1.0], strict=True):
            if begin < end:
                with contextlib.suppress(UserError):  # a range may have no document
                    found += list(read_texts(text_config.model_copy(update={"begin": begin, "end": end})))
        assert found == list(read_texts(text_config))


def test_ends_document_is_false_for_a_cut_document(tmp_path: Path) -> None:
    text_config = config(tmp_path, "abcdef")
    assert list(read_passages(text_config.model_copy(update={"end": 0.5}))) == [Passage("abc", True, False)]
    assert list(read_passages(text_config.model_copy(update={"begin": 0.5}))) == [Passage("def", True, True)]


# Passages


@given(text=texts, unit=st.sampled_from(["file", "line", "paragraph"]), min_length=st.integers(1, 20))
def test_concatenated_passages_are_the_documents(text: str, unit: Unit, min_length: int) -> None:
    with TemporaryDirectory() as folder:
        if not text.strip():
            return
        text_config = config(Path(folder), text, unit=unit)
        documents: list[str] = []
        ended = True
        for passage in read_passages(text_config, min_length):
            assert passage.text
            assert passage.starts_document == ended
            if passage.starts_document:
                documents.append("")
            documents[-1] += passage.text
            ended = passage.ends_document
        assert ended
        assert documents == list(read_texts(text_config))


def test_long_document_is_read_in_passages(tmp_path: Path) -> None:
    long = config(tmp_path, 50 * VERSE)
    sizes = [len(passage.text) for passage in read_passages(long, 100)]
    assert len(sizes) > 30
    assert max(sizes) < 150


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "byte", "word"])
@given(text=texts, min_length=st.integers(1, 20))
def test_ids_of_passages_equal_ids_of_the_document(kind: Any, text: str, min_length: int) -> None:
    tokenizer = TOKENIZERS.setdefault(
        kind, train_tokenizer(TokenizerConfig(kind=kind), [20 * (VERSE + "\n é中🙂'a\t")])
    )
    with TemporaryDirectory() as folder:
        passages = read_passages(config(Path(folder), text), min_length)
        (ids,) = next(encode_passages(passages, tokenizer, eos_id=2), ([2],))
        assert ids == [*tokenizer.encode(text), 2]


TOKENIZERS: dict[str, Any] = {}


def test_items_are_documents_with_eos_or_passages(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    byte = {character: tokenizer.encode(character) for character in "abcd\n"}
    paragraphs = config(tmp_path, "a\nb\n\nc\nd\n", unit="paragraph")
    first, second = byte["a"] + byte["\n"] + byte["b"], byte["c"] + byte["\n"] + byte["d"]
    assert list(encode_passages(read_passages(paragraphs), tokenizer)) == [(first,), (second,)]
    assert list(encode_passages(read_passages(paragraphs), tokenizer, eos_id=2)) == [([*first, 2],), ([*second, 2],)]
    passages = encode_passages(read_passages(paragraphs, 1), tokenizer, eos_id=2, by_document=False)
    assert [ids for (ids,) in passages] == [
        byte["a"],
        [*byte["\n"], *byte["b"], 2],
        byte["c"],
        [*byte["\n"], *byte["d"], 2],
    ]


def test_cut_document_has_no_eos(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    half = config(tmp_path, "abcd", end=0.5)
    assert list(encode_passages(read_passages(half), tokenizer, eos_id=2)) == [(tokenizer.encode("ab"),)]


def test_counts_of_documents_characters_and_bytes(tmp_path: Path) -> None:
    assert count_text(config(tmp_path, "é\n\n中a\n", unit="paragraph")) == TextCounts(2, 3, 6)
    assert str(count_text(config(tmp_path, "a"))) == "1 document of 1 character"


# Fingerprints


def test_fingerprint_depends_on_content_and_settings_only(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one = text_fingerprint(config(tmp_path))
    assert text_fingerprint(config(tmp_path / "b", name="other.txt")) == one
    changed = [
        text_fingerprint(config(tmp_path, VERSE + "x")),
        text_fingerprint(config(tmp_path, unit="line")),
        text_fingerprint(config(tmp_path, end=0.9)),
        text_fingerprint(config(tmp_path, begin=0.9)),
    ]
    assert len({one, *changed}) == 5


# Errors


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"begin": 0.9, "end": 0.9}, r"^end: found 0\.9, but the range begins at 0\.9"),
        ({"begin": 1.0}, r"^begin: found 1\.0; expected less than 1"),
        ({"end": 90}, r"^end: found 90; expected less than or equal to 1"),
        ({"unit": "page"}, r"^unit: found 'page'; expected 'file', 'line' or 'paragraph'"),
        ({"part": "first"}, r"^part: unknown key"),
    ],
)
def test_config_errors_name_the_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextConfig(path="a.txt", **settings)


@pytest.mark.parametrize("text", ["", "\ufeff"])
def test_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"a\.txt: there is no text; at least one character is needed"):
        list(read_texts(config(tmp_path, text)))


def test_empty_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.txt: there is no text between 0\.0 and 0\.2 of it"):
        list(read_texts(config(tmp_path, "abc", end=0.2)))


def test_invalid_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.txt, line 2: byte 1 of the line \(0xff\) is not UTF-8"):
        list(read_texts(config(tmp_path, b"a\n\xff\n")))


def test_missing_file_and_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: there is no such file"):
        list(read_texts(TextConfig(path=str(tmp_path / "nowhere"))))
    with pytest.raises(UserError, match=r"nowhere: there is no such file"):
        text_fingerprint(TextConfig(path=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match=r"has no \.txt files"):
        list(read_texts(TextConfig(path=str(tmp_path))))


def test_two_versions_of_a_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(UserError, match=r"a\.txt\.gz and a\.txt are two versions of the same text"):
        text_files(tmp_path)


@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="REGARD_DATA has no copy of this dataset")
def test_tiny_shakespeare_is_split_like_nanogpts() -> None:
    train = TextConfig(dataset="tinyshakespeare", path="input.txt.gz", end=0.9)
    valid = TextConfig(dataset="tinyshakespeare", path="input.txt.gz", begin=0.9)
    assert count_text(train) == TextCounts(1, 1_003_854, 1_003_854)
    assert count_text(valid) == TextCounts(1, 111_540, 111_540)


def test_column_of_a_table_with_tabs_is_read(tmp_path: Path) -> None:
    table = "One text.\tnews\nAnother.\tfiction\n"
    assert list(read_texts(config(tmp_path, table, "a.tsv", column=1))) == ["One text.", "Another."]
    assert list(read_texts(config(tmp_path, table, "a.tsv", column=2, begin=0.3))) == ["fiction"]
    named = config(tmp_path, f"text\tgenre\n{table}", "b.tsv", column="text")
    assert list(read_texts(named)) == ["One text.", "Another."]
    assert list(read_texts(config(tmp_path, table, "a.tsv"))) == [table]  # without a column, it is a plain text
    with pytest.raises(UserError, match=r"a.tsv, line 1: found 2 columns separated by tabs; column 3 is needed."):
        list(read_texts(config(tmp_path, table, "a.tsv", column=3)))
    with pytest.raises(UserError, match="there is no column 'words'"):
        list(read_texts(config(tmp_path, table, "a.tsv", column="words")))
