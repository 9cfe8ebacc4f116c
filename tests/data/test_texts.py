"""Documents of text files: told apart as asked, cut at the very character, in passages that lose nothing."""

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
from regard.data.text import read_lines
from regard.data.texts import (
    Passage,
    TextConfig,
    TextCounts,
    Unit,
    count_text,
    encode_passages,
    fingerprint,
    read_passages,
    read_texts,
    text_files,
)
from regard.data.tokenizer_training import TokenizerConfig, train_tokenizer

VERSE = "First Citizen:\nBefore we proceed any further,\nhear me speak.\n\nAll:\nSpeak, speak.\n"

# Texts with what matters here: line ends of both kinds, blank lines, indented ones, letters of one to four bytes.
texts = st.text(st.sampled_from("ab Z9.,'\n\n\té中🙂"), min_size=1, max_size=60)


def config(folder: Path, text: str | bytes = VERSE, name: str = "a.txt", **settings: Any) -> TextConfig:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return TextConfig(path=str(path), **settings)


def test_a_file_is_a_document_as_it_stands(tmp_path: Path) -> None:
    assert list(read_texts(config(tmp_path))) == [VERSE]


@pytest.mark.parametrize(("end", "kept"), [("", ""), ("\n", "\n"), ("\n\n", "\n\n")])
def test_the_end_of_a_file_is_part_of_it(tmp_path: Path, end: str, kept: str) -> None:
    assert list(read_texts(config(tmp_path, f"a\nb{end}"))) == [f"a\nb{kept}"]


def test_a_line_is_a_document(tmp_path: Path) -> None:
    found = list(read_texts(config(tmp_path, "\none\n  \n two\r\n\nthree", unit="line")))
    assert found == ["one", " two", "three"]


def test_blank_lines_part_documents(tmp_path: Path) -> None:
    found = list(read_texts(config(tmp_path, "\n\none\n  more\n \t\n\ntwo\r\nmore\r\n", unit="blank")))
    assert found == ["one\n  more", "two\nmore"]


@pytest.mark.parametrize("unit", ["file", "line", "blank"])
def test_no_document_reaches_over_the_end_of_a_file(tmp_path: Path, unit: Unit) -> None:
    (tmp_path / "b.txt").write_text("two", encoding="utf-8")
    (tmp_path / "a.txt").write_text("one", encoding="utf-8")
    assert list(read_texts(TextConfig(path=str(tmp_path), unit=unit))) == ["one", "two"]


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard.compress)],
)
def test_files_may_be_compressed(tmp_path: Path, suffix: str, compress: Any) -> None:
    assert list(read_texts(config(tmp_path, compress(VERSE.encode()), f"a.txt{suffix}"))) == [VERSE]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    assert list(read_texts(config(tmp_path, "\ufeffone\n"))) == ["one\n"]


def test_lines_with_their_ends_have_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\r\n\nb\rc\nd")
    assert list(read_lines(path, ends=True)) == ["a\n", "\n", "b\rc\n", "d"]


def test_of_a_folder_only_visible_text_files_are_read(tmp_path: Path) -> None:
    for name in ("b.txt", "a.TXT.gz", "c.md", ".hidden.txt"):
        (tmp_path / name).write_bytes(gzip.compress(b"x") if name.endswith("gz") else b"x")
    (tmp_path / "inner.txt").mkdir()
    assert [path.name for path in text_files(tmp_path)] == ["a.TXT.gz", "b.txt"]


# Parts.


@given(text=texts, share=st.floats(0.01, 0.99))
def test_a_part_of_a_file_is_cut_as_nanogpt_cuts(text: str, share: float) -> None:
    with TemporaryDirectory() as folder:
        whole = config(Path(folder), text)
        place = int(len(text) * share)
        for wanted, given in ((text[:place], {"end": share}), (text[place:], {"begin": share})):
            if wanted:
                assert "".join(read_texts(whole.model_copy(update=given))) == wanted


def test_a_cut_may_fall_between_two_files(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(5 * name, encoding="utf-8")
    folder = str(tmp_path)
    assert list(read_texts(TextConfig(path=folder, end=0.5))) == ["aaaaa", "bb"]
    assert list(read_texts(TextConfig(path=folder, begin=0.5))) == ["bbb", "ccccc"]
    assert list(read_passages(TextConfig(path=folder, end=1 / 3))) == [Passage("aaaaa", True, True)]


@given(text=texts, unit=st.sampled_from(["line", "blank"]), cuts=st.lists(st.floats(0.01, 0.99), max_size=3))
def test_parts_that_meet_have_every_whole_document_once(text: str, unit: Unit, cuts: list[float]) -> None:
    with TemporaryDirectory() as folder:
        if not text.strip():
            return
        whole = config(Path(folder), text, unit=unit)
        found = []
        for begin, end in zip([0.0, *sorted(cuts)], [*sorted(cuts), 1.0], strict=True):
            if begin < end:
                with contextlib.suppress(UserError):  # a part may have no document
                    found += list(read_texts(whole.model_copy(update={"begin": begin, "end": end})))
        assert found == list(read_texts(whole))


def test_only_where_a_document_ends_it_ends(tmp_path: Path) -> None:
    whole = config(tmp_path, "abcdef")
    assert list(read_passages(whole.model_copy(update={"end": 0.5}))) == [Passage("abc", True, False)]
    assert list(read_passages(whole.model_copy(update={"begin": 0.5}))) == [Passage("def", True, True)]


# Passages.


@given(text=texts, unit=st.sampled_from(["file", "line", "blank"]), longest=st.integers(1, 20))
def test_passages_make_up_the_documents(text: str, unit: Unit, longest: int) -> None:
    with TemporaryDirectory() as folder:
        if not text.strip():
            return
        whole = config(Path(folder), text, unit=unit)
        documents: list[str] = []
        ended = True
        for passage in read_passages(whole, longest):
            assert passage.text
            assert passage.begins == ended
            if passage.begins:
                documents.append("")
            documents[-1] += passage.text
            ended = passage.ends
        assert ended
        assert documents == list(read_texts(whole))


def test_a_long_document_comes_in_short_passages(tmp_path: Path) -> None:
    long = config(tmp_path, 50 * VERSE)
    sizes = [len(passage.text) for passage in read_passages(long, 100)]
    assert len(sizes) > 30
    assert max(sizes) < 150


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "byte", "word"])
@given(text=texts, longest=st.integers(1, 20))
def test_passages_give_the_ids_that_the_document_gives(kind: Any, text: str, longest: int) -> None:
    tokenizer = TOKENIZERS.setdefault(
        kind, train_tokenizer(TokenizerConfig(kind=kind), [20 * (VERSE + "\n é中🙂'a\t")])
    )
    with TemporaryDirectory() as folder:
        passages = read_passages(config(Path(folder), text), longest)
        (ids,) = next(encode_passages(passages, tokenizer, end=2), ([2],))
        assert ids == [*tokenizer.encode(text), 2]


TOKENIZERS: dict[str, Any] = {}


def test_items_are_documents_with_an_end_or_passages(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    byte = {sign: tokenizer.encode(sign) for sign in "abcd\n"}
    blank = config(tmp_path, "a\nb\n\nc\nd\n", unit="blank")
    first, second = byte["a"] + byte["\n"] + byte["b"], byte["c"] + byte["\n"] + byte["d"]
    assert list(encode_passages(read_passages(blank), tokenizer)) == [(first,), (second,)]
    assert list(encode_passages(read_passages(blank), tokenizer, end=2)) == [([*first, 2],), ([*second, 2],)]
    passages = encode_passages(read_passages(blank, 1), tokenizer, end=2, whole=False)
    assert [ids for (ids,) in passages] == [
        byte["a"],
        [*byte["\n"], *byte["b"], 2],
        byte["c"],
        [*byte["\n"], *byte["d"], 2],
    ]


def test_a_cut_document_gets_no_end(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="byte"), [])
    half = config(tmp_path, "abcd", end=0.5)
    assert list(encode_passages(read_passages(half), tokenizer, end=2)) == [(tokenizer.encode("ab"),)]


def test_text_is_counted_in_documents_characters_and_bytes(tmp_path: Path) -> None:
    assert count_text(config(tmp_path, "é\n\n中a\n", unit="blank")) == TextCounts(2, 3, 6)
    assert str(count_text(config(tmp_path, "a"))) == "1 document of 1 character"


# Fingerprints.


def test_the_fingerprint_follows_content_and_reading_not_the_place(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one = fingerprint(config(tmp_path))
    assert fingerprint(config(tmp_path / "b", name="other.txt")) == one
    changed = [
        fingerprint(config(tmp_path, VERSE + "x")),
        fingerprint(config(tmp_path, unit="line")),
        fingerprint(config(tmp_path, end=0.9)),
        fingerprint(config(tmp_path, begin=0.9)),
    ]
    assert len({one, *changed}) == 5


# What is refused.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"begin": 0.9, "end": 0.9}, r"^end: found 0\.9, but the part begins at 0\.9"),
        ({"begin": 1.0}, r"^begin: found 1\.0; expected less than 1"),
        ({"end": 90}, r"^end: found 90; expected less than or equal to 1"),
        ({"unit": "page"}, r"^unit: found 'page'; expected 'file', 'line' or 'blank'"),
        ({"part": "first"}, r"^part: unknown key"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextConfig(path="a.txt", **settings)


@pytest.mark.parametrize("text", ["", "\ufeff"])
def test_a_file_without_text_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"a\.txt: there is no text; at least one character is needed"):
        list(read_texts(config(tmp_path, text)))


def test_a_part_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.txt: there is no text between 0\.0 and 0\.2 of it"):
        list(read_texts(config(tmp_path, "abc", end=0.2)))


def test_bytes_that_are_no_text_are_named_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.txt, line 2: byte 1 of the line \(0xff\) is not UTF-8"):
        list(read_texts(config(tmp_path, b"a\n\xff\n")))


def test_a_missing_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: there is no such file"):
        list(read_texts(TextConfig(path=str(tmp_path / "nowhere"))))
    with pytest.raises(UserError, match=r"nowhere: there is no such file"):
        fingerprint(TextConfig(path=str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match=r"holds no \.txt files"):
        list(read_texts(TextConfig(path=str(tmp_path))))


def test_the_same_text_twice_in_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(UserError, match=r"a\.txt\.gz and a\.txt stand for the same text"):
        text_files(tmp_path)


@pytest.mark.skipif("REGARD_DATA" not in os.environ, reason="REGARD_DATA has no copy of this set")
def test_tiny_shakespeare_is_cut_where_nanogpt_cuts_it() -> None:
    train = TextConfig(set="tinyshakespeare", path="input.txt.gz", end=0.9)
    valid = TextConfig(set="tinyshakespeare", path="input.txt.gz", begin=0.9)
    assert count_text(train) == TextCounts(1, 1_003_854, 1_003_854)
    assert count_text(valid) == TextCounts(1, 111_540, 111_540)
