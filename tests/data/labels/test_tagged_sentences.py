"""Reading tagged sentences from treebanks, lines of word/TAG, and columns; errors name the line."""

import gzip
from pathlib import Path

import pytest

from regard import UserError
from regard.data.labels.tagged_sentences import TaggedConfig, TaggedSentence, read_tagged

TREES = "(TOP (S (NP (DT the) (NN cat)) (VP (VBD slept) (-LRB- -LRB-) (NP (-NONE- *)))))\n(TOP (NP (NN mouse)))\n"
SLASHES = "the/DT cat/NN slept/VBD\n\n 1/2/CD either/or/CC //SYM\n"
COLUMNS = "# a comment\nthe\tDT\tx\ncat\tNN\tx\n\n\nslept VBD\n# NN\n"


def read(folder: Path, text: str, **settings: object) -> list[TaggedSentence]:
    path = folder / "tagged.txt"
    path.write_text(text, encoding="utf-8")
    return list(read_tagged(TaggedConfig(path=str(path), **settings)))


def test_treebank_leaves_have_unescaped_brackets(tmp_path: Path) -> None:
    first, second = read(tmp_path, TREES)
    assert first == (["the", "cat", "slept", "("], ["DT", "NN", "VBD", "-LRB-"])
    assert second == (["mouse"], ["NN"])


def test_tag_follows_the_last_slash(tmp_path: Path) -> None:
    first, second = read(tmp_path, SLASHES, format="slashes")
    assert first == (["the", "cat", "slept"], ["DT", "NN", "VBD"])
    assert second == (["1/2", "either/or", "/"], ["CD", "CC", "SYM"])


def test_columns_are_separated_by_tabs_or_blanks(tmp_path: Path) -> None:
    first, second = read(tmp_path, COLUMNS, format="columns")
    assert first == (["the", "cat"], ["DT", "NN"])
    assert second == (["slept", "#"], ["VBD", "NN"])
    (other,) = read(tmp_path, "x\tDT\tthe\nx\tNN\tcat\n", format="columns", columns=(2, 3))
    assert other == (["DT", "NN"], ["the", "cat"])


@pytest.mark.parametrize(
    ("text", "format"),
    [
        (TREES, "trees"),
        ("(\n (S (NN cat)))\n", "trees"),
        ("( (S (NN cat)) )\n", "trees"),
        (SLASHES, "slashes"),
        (COLUMNS, "columns"),
        ("(\tPUNCT\ncat\tNN\n", "columns"),
        ("1/2\tCD\n", "columns"),
        ("\n( (S\n    (NN cat)))\n", "trees"),
        ("(/-LRB- cat/NN\n", "slashes"),
        ("( -LRB-\nand/or CC\n", "columns"),
    ],
)
def test_first_line_tells_the_format(text: str, format: str, tmp_path: Path) -> None:
    assert read(tmp_path, text) == read(tmp_path, text, format=format)


def test_compressed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tagged.txt.gz"
    path.write_bytes(gzip.compress(SLASHES.encode()))
    assert len(list(read_tagged(TaggedConfig(path=str(path), format="slashes")))) == 2


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("the/DT cat\n", {"format": "slashes"}, "line 1: found 2 words and 1 tags; 'cat' has no tag"),
        ("a/DT\nthe/ cat/NN\n", {"format": "slashes"}, "line 2: found 2 words and 1 tags; 'the' has no tag"),
        ("the\tDT\ncat\n", {"format": "columns"}, "line 2: found 1 columns; expected a word in column 1"),
        ("the\tDT\n", {"format": "columns", "columns": (1, 4)}, "line 1: found 2 columns; .* its tag in column 4"),
        ("(TOP (NN", {}, "line 1, column 1: the bracket"),
        ("# a text\nHello\n", {}, "line 2: found 'Hello' without a tag"),
        ("a/DT cat/NN slept\n", {}, "line 1: found 3 words and 2 tags; 'slept' has no tag"),
        ("\n", {}, "there are no tagged sentences in it"),
        ("\n", {"format": "slashes"}, "there are no tagged sentences in it"),
    ],
)
def test_errors_name_the_line(text: str, settings: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, text, **settings)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.txt"):
        list(read_tagged(TaggedConfig(path=str(tmp_path / "nowhere.txt"))))
