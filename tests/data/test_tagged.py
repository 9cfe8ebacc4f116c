"""Tagged sentences come from treebanks, from words with slashes and from columns; errors name their line."""

import gzip
from pathlib import Path

import pytest

from regard import UserError
from regard.data.labelled import Tagged
from regard.data.tagged import TaggedConfig, read_tagged

TREES = "(TOP (S (NP (DT the) (NN cat)) (VP (VBD slept) (-LRB- -LRB-) (NP (-NONE- *)))))\n(TOP (NP (NN mouse)))\n"
SLASHES = "the/DT cat/NN slept/VBD\n\n 1/2/CD either/or/CC //SYM\n"
COLUMNS = "# a comment\nthe\tDT\tx\ncat\tNN\tx\n\n\nslept VBD\n# NN\n"


def read(place: Path, text: str, known: list[str] | None = None, **settings: object) -> list[Tagged]:
    path = place / "tagged.txt"
    path.write_text(text, encoding="utf-8")
    return list(read_tagged(TaggedConfig(path=str(path), **settings), known))


def test_a_treebank_gives_its_leaves_as_people_write_them(tmp_path: Path) -> None:
    first, second = read(tmp_path, TREES)
    assert first == (["the", "cat", "slept", "("], ["DT", "NN", "VBD", "-LRB-"])
    assert second == (["mouse"], ["NN"])


def test_the_last_slash_is_the_one_before_the_tag(tmp_path: Path) -> None:
    first, second = read(tmp_path, SLASHES, form="slashes")
    assert first == (["the", "cat", "slept"], ["DT", "NN", "VBD"])
    assert second == (["1/2", "either/or", "/"], ["CD", "CC", "SYM"])


def test_columns_are_between_tabs_or_blanks_and_sentences_between_empty_lines(tmp_path: Path) -> None:
    first, second = read(tmp_path, COLUMNS, form="columns")
    assert first == (["the", "cat"], ["DT", "NN"])
    assert second == (["slept", "#"], ["VBD", "NN"])
    (other,) = read(tmp_path, "x\tDT\tthe\nx\tNN\tcat\n", form="columns", columns=(2, 3))
    assert other == (["DT", "NN"], ["the", "cat"])


def test_a_file_may_be_compressed(tmp_path: Path) -> None:
    path = tmp_path / "tagged.txt.gz"
    path.write_bytes(gzip.compress(SLASHES.encode()))
    assert len(list(read_tagged(TaggedConfig(path=str(path), form="slashes")))) == 2


@pytest.mark.parametrize(
    ("text", "settings", "sentence"),
    [
        ("the/DT cat\n", {"form": "slashes"}, "line 1: found 2 words and 1 tags; 'cat' has none"),
        ("a/DT\nthe/ cat/NN\n", {"form": "slashes"}, "line 2: found 2 words and 1 tags; 'the' has none"),
        ("the\tDT\ncat\n", {"form": "columns"}, "line 2: found 1 columns; a word is expected in column 1"),
        ("the\tDT\n", {"form": "columns", "columns": (1, 4)}, "line 1: found 2 columns; .* its tag in column 4"),
        ("a/DT\n\nthe/XY\n", {"form": "slashes", "known": ["DT"]}, "line 3: the tag 'XY' of 'the' is unknown"),
        ("a DT\n\nthe XY\n", {"form": "columns", "known": ["DT"]}, "sentence from line 3 on: the tag 'XY'"),
        (TREES, {"known": ["NN"]}, "tree 1: the tag 'DT' of 'the' is unknown; known are NN"),
        ("(TOP (NN", {}, "line 1, column 1: the bracket"),
        ("\n", {"form": "slashes"}, "there are no tagged sentences in it"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, settings: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        read(tmp_path, text, **settings)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.txt"):
        list(read_tagged(TaggedConfig(path=str(tmp_path / "nowhere.txt"))))
