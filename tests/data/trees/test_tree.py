"""Trees in bracket format: any layout is read, errors name line and column, writing is exact."""

import gzip
import lzma
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.trees.cleaning import clean_tree
from regard.data.trees.linearization import delinearize, linearize
from regard.data.trees.tree import (
    Leaf,
    Tree,
    escape_brackets,
    parse_trees,
    read_trees,
    unescape_brackets,
)
from tests.data.trees.support import LINE, TREE, deep, trees


def test_tree_is_parsed_and_written() -> None:
    assert Tree.parse(LINE) == TREE
    assert str(TREE) == LINE
    assert repr(TREE) == f"Tree.parse({LINE!r})"
    assert TREE.words() == ("the", "cat", "slept", ".")
    assert TREE.tags() == ("DT", "NN", "VBD", ".")


@given(trees)
def test_written_tree_is_parsed_as_the_same_tree(tree: Tree) -> None:
    again = Tree.parse(str(tree))
    assert again == tree
    assert hash(again) == hash(tree)
    assert str(again) == str(tree)


@given(trees, trees)
def test_trees_are_equal_iff_written_alike(one: Tree, other: Tree) -> None:
    assert (one == other) == (str(one) == str(other))
    assert one != str(one)


LAYOUTS = {
    "one per line": f"{LINE}\n{LINE}\n",
    "no line end": f"{LINE}\n{LINE}",
    "two per line": f"{LINE} {LINE}",
    "no space": f"{LINE}{LINE}",
    "blank lines": f"\n\n  {LINE}\n\n\t\n{LINE}\n\n",
    "carriage returns": f"{LINE}\r\n{LINE}\r\n",
    "over several lines": "(TOP\n  (S\n    (NP (DT the)\n        (NN cat))\n    (VP (VBD slept))\n    (. .)\n  )\n)\n"
    * 2,
    "spaces everywhere": (LINE.replace("(", " ( ").replace(")", "\n)\n").replace(" ", "\n ") + "\n") * 2,
    "tabs": LINE.replace(" ", "\t") * 2,
}


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_any_layout_is_parsed(text: str) -> None:
    assert list(parse_trees(text.split("\n"), "x")) == [TREE, TREE]


@pytest.mark.parametrize("text", ["( (S (NN a)) )", "((S (NN a)))", "(\n(S (NN a)))"])
def test_outermost_bracket_may_have_no_label(text: str) -> None:
    tree = Tree.parse(text)
    assert tree == Tree("", (Tree("S", (Leaf("NN", "a"),)),))
    assert str(tree) == "( (S (NN a)))"


def test_non_ascii_white_space_is_part_of_a_word() -> None:
    assert Tree.parse("(NP (CD 10\u00a0000) (NN\ta\u2028b))").words() == ("10\u00a0000", "a\u2028b")


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard.ZstdCompressor().compress)],
)
def test_compressed_files_are_read(tmp_path: Path, suffix: str, compress) -> None:
    path = tmp_path / f"trees.mrg{suffix}"
    path.write_bytes(compress(("\ufeff" + LAYOUTS["over several lines"]).encode()))
    assert list(read_trees(path)) == [TREE, TREE]


def test_trees_are_read_lazily(tmp_path: Path) -> None:
    path = tmp_path / "trees"
    path.write_text(f"{LINE}\n{LINE}\n)\n")
    found = read_trees(path)
    assert [next(found), next(found)] == [TREE, TREE]
    with pytest.raises(UserError, match="line 3, column 1"):
        next(found)


WRONG = {
    "extra closing bracket": ("(S (NN a)))", 1, 11, "closes nothing"),
    "extra closing bracket on a later line": (f"{LINE}\n(S\n (NN a)) )", 3, 10, "closes nothing"),
    "never closed": (
        f"{LINE}\n  (S (NP (NN a))\n",
        2,
        3,
        r"`\(S` is never closed; .* line 2 with 1 open",
    ),
    "unclosed among others": (f"{LINE}\n{LINE[:-1]}\n{LINE}\n", 2, 1, r"`\(TOP` is never closed"),
    "empty bracket": ("(S (NN a) ())", 1, 12, "is empty"),
    "an empty constituent": ("(S (NP) (NN a))", 1, 7, r"`\(NP` is empty"),
    "empty tree": ("()", 1, 2, "is empty"),
    "a word beside leaves": ("(NP (DT the) cat)", 1, 14, "'cat' is a word without a tag"),
    "two words under a tag": ("(S (NP the cat))", 1, 12, "'cat' is a word without a tag"),
    "a word before constituents": ("(S (NP the (NN cat)))", 1, 12, "beside the word 'the'"),
    "a word before others": ("(S (NP the (PP (IN of))))", 1, 12, "beside the word 'the'"),
    "a word in the outermost": ("( (S (NN a)) b)", 1, 14, "'b' is a word without a tag"),
    "text between trees": (f"{LINE}\nTOP {LINE}", 2, 1, "'TOP' is outside of any bracket"),
    "no label inside": ("(S ((NN a)))", 1, 5, "of line 1, column 4, has no label"),
    "no label inside, deeper": ("(S ( (NP (NN a))))", 1, 6, "of line 1, column 4, has no label"),
    "a word alone": ("(NN dog)", 1, 1, r"\(NN dog\) is a word and not a tree"),
    "a word alone over lines": ("(NN\ndog\n)", 3, 1, r"\(NN dog\) is a word and not a tree"),
}


@pytest.mark.parametrize(("text", "line", "column", "message"), WRONG.values(), ids=WRONG.keys())
def test_errors_name_line_and_column(tmp_path: Path, text: str, line: int, column: int, message: str) -> None:
    path = tmp_path / "bad.mrg"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        list(read_trees(path))
    assert str(caught.value).startswith(f"{path}, line {line}, column {column}: ")
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="() \nab", max_size=30))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    found, refused = [], ""
    try:
        found = list(parse_trees(text.split("\n"), "x"))
    except UserError as error:
        refused = str(error)
    assert not refused or refused.startswith("x, line ")
    for tree in found:
        assert Tree.parse(str(tree)) == tree
    if not refused:
        count = sum(str(tree).count("(") for tree in found)
        assert (text.count("("), text.count(")")) == (count, count)


@pytest.mark.parametrize("text", ["", f"{LINE} {LINE}"])
def test_parse_expects_one_tree(text: str) -> None:
    with pytest.raises(UserError, match="expected one"):
        Tree.parse(text)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.gz: there is no such file"):
        list(read_trees(tmp_path / "none.gz"))


def test_constituent_is_immutable_and_not_empty() -> None:
    with pytest.raises(UserError, match="'NP' is empty"):
        Tree("NP", ())
    with pytest.raises(AttributeError):
        TREE.label = "S"  # type: ignore[misc]


def test_very_deep_trees_work() -> None:
    tree = deep(20_000)
    assert Tree.parse(str(tree)) == tree
    assert delinearize(linearize(tree), ["cat"]) == tree
    assert clean_tree(tree) == tree
    assert hash(tree) == hash(deep(20_000))


@pytest.mark.parametrize(
    ("escaped", "plain"),
    [
        ("-LRB-", "("),
        ("-RRB-", ")"),
        ("Re-LRB-a-RRB-d", "Re(a)d"),
        (":--RRB-", ":-)"),
        ("-LRB-RRB-", "(RRB-"),
        ("[", "["),
        ("cat", "cat"),
    ],
)
def test_escaping_brackets(escaped: str, plain: str) -> None:
    assert unescape_brackets(escaped) == plain
    assert escape_brackets(plain) == escaped


@given(
    st.text(st.characters(blacklist_characters="LR"), max_size=8).map(
        lambda text: text.replace("!", "(").replace("?", ")")
    )
)
def test_escaped_words_round_trip(word: str) -> None:
    assert unescape_brackets(escape_brackets(word)) == word
    assert not {"(", ")"} & set(escape_brackets(word))
