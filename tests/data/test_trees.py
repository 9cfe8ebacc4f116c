"""Trees are read strictly, written back exactly, cleaned as treebanks are, and turned into symbols and back."""

import gzip
import json
import lzma
import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.data.registry import find
from regard.data.trees import (
    END,
    PADDING,
    START,
    Leaf,
    Tree,
    TreeSymbols,
    clean,
    cut_label,
    linearise,
    read_trees,
    rebuild,
    rooted,
    trees_in,
    word_for_file,
    word_for_people,
)

LINE = "(TOP (S (NP (DT the) (NN cat)) (VP (VBD slept)) (. .)))"
SYMBOLS = ["(TOP", "(S", "(NP", "DT", "NN", ")", "(VP", "VBD", ")", ".", ")", ")"]
TREE = Tree(
    "TOP",
    (
        Tree(
            "S",
            (
                Tree("NP", (Leaf("DT", "the"), Leaf("NN", "cat"))),
                Tree("VP", (Leaf("VBD", "slept"),)),
                Leaf(".", "."),
            ),
        ),
    ),
)

texts = st.text(
    st.characters(blacklist_characters=" \t\n\r\f\v()<", blacklist_categories=("Cs",)), min_size=1, max_size=5
)
labels = st.one_of(st.sampled_from(["S", "NP", "VP", "ADVP", "X"]), texts)
tags = st.one_of(st.sampled_from(["NN", "DT", ",", "''", "-LRB-", "$"]), texts)
leaves = st.builds(Leaf, tags, texts)
trees = st.recursive(
    st.builds(Tree, labels, st.lists(leaves, min_size=1, max_size=4).map(tuple)),
    lambda parts: st.builds(Tree, labels, st.lists(st.one_of(leaves, parts), min_size=1, max_size=4).map(tuple)),
    max_leaves=12,
)


def deep(levels: int) -> Tree:
    tree = Tree("NP", (Leaf("NN", "cat"),))
    for _ in range(levels):
        tree = Tree("NP", (tree,))
    return tree


def test_a_line_becomes_a_tree_and_the_same_line_again() -> None:
    assert Tree.of(LINE) == TREE
    assert str(TREE) == LINE
    assert repr(TREE) == f"Tree.of({LINE!r})"
    assert TREE.words() == ("the", "cat", "slept", ".")
    assert TREE.tags() == ("DT", "NN", "VBD", ".")


@given(trees)
def test_what_is_written_reads_as_the_same_tree(tree: Tree) -> None:
    again = Tree.of(str(tree))
    assert again == tree
    assert hash(again) == hash(tree)
    assert str(again) == str(tree)


@given(trees, trees)
def test_trees_are_equal_where_they_are_written_alike(one: Tree, other: Tree) -> None:
    assert (one == other) == (str(one) == str(other))
    assert one != str(one)


LAYOUTS = {
    "one a line": f"{LINE}\n{LINE}\n",
    "no line end": f"{LINE}\n{LINE}",
    "two a line": f"{LINE} {LINE}",
    "no space": f"{LINE}{LINE}",
    "blank lines": f"\n\n  {LINE}\n\n\t\n{LINE}\n\n",
    "returns": f"{LINE}\r\n{LINE}\r\n",
    "over lines": "(TOP\n  (S\n    (NP (DT the)\n        (NN cat))\n    (VP (VBD slept))\n    (. .)\n  )\n)\n" * 2,
    "everywhere": (LINE.replace("(", " ( ").replace(")", "\n)\n").replace(" ", "\n ") + "\n") * 2,
    "tabs": LINE.replace(" ", "\t") * 2,
}


@pytest.mark.parametrize("text", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_any_layout_is_read(text: str) -> None:
    assert list(trees_in(text.split("\n"), "x")) == [TREE, TREE]


@pytest.mark.parametrize("text", ["( (S (NN a)) )", "((S (NN a)))", "(\n(S (NN a)))"])
def test_the_outermost_bracket_may_be_without_a_label(text: str) -> None:
    tree = Tree.of(text)
    assert tree == Tree("", (Tree("S", (Leaf("NN", "a"),)),))
    assert str(tree) == "( (S (NN a)))"


@pytest.mark.parametrize(
    "text", ["( (S (NN a)))", "(ROOT (S (NN a)))", "(S1 (S (NN a)))", "(TOP (S (NN a)))", "(S (NN a))"]
)
def test_every_tree_can_have_the_same_root(text: str) -> None:
    assert str(rooted(Tree.of(text))) == "(TOP (S (NN a)))"


def test_other_white_space_than_asciis_is_part_of_a_word() -> None:
    assert Tree.of("(NP (CD 10\u00a0000) (NN\ta\u2028b))").words() == ("10\u00a0000", "a\u2028b")


@pytest.mark.parametrize(
    ("suffix", "squeeze"),
    [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress), (".zst", zstandard.ZstdCompressor().compress)],
)
def test_files_are_read_compressed_or_not(tmp_path: Path, suffix: str, squeeze) -> None:
    path = tmp_path / f"trees.mrg{suffix}"
    path.write_bytes(squeeze(("\ufeff" + LAYOUTS["over lines"]).encode()))
    assert list(read_trees(path)) == [TREE, TREE]


def test_trees_come_before_the_file_is_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trees"
    path.write_text(f"{LINE}\n{LINE}\n)\n")
    found = read_trees(path)
    assert [next(found), next(found)] == [TREE, TREE]
    with pytest.raises(UserError, match="line 3, column 1"):
        next(found)


WRONG = {
    "closes too much": ("(S (NN a)))", 1, 11, "closes nothing"),
    "on a later line": (f"{LINE}\n(S\n (NN a)) )", 3, 10, "closes nothing"),
    "never closed": (
        f"{LINE}\n  (S (NP (NN a))\n",
        2,
        3,
        r"`\(S` that opens here is never closed; .* line 2 with 1 open",
    ),
    "unclosed among others": (f"{LINE}\n{LINE[:-1]}\n{LINE}\n", 2, 1, r"`\(TOP` that opens here is never closed"),
    "nothing at all in it": ("(S (NN a) ())", 1, 12, "closes with nothing in it"),
    "an empty constituent": ("(S (NP) (NN a))", 1, 7, r"`\(NP` closes with nothing in it"),
    "an empty line of brackets": ("()", 1, 2, "closes with nothing in it"),
    "a word beside words": ("(NP (DT the) cat)", 1, 14, "'cat' is a word without a tag"),
    "two words under a tag": ("(S (NP the cat))", 1, 12, "'cat' is a word without a tag"),
    "a word before constituents": ("(S (NP the (NN cat)))", 1, 12, "beside the word 'the'"),
    "a word before others": ("(S (NP the (PP (IN of))))", 1, 12, "beside the word 'the'"),
    "a word in the outermost": ("( (S (NN a)) b)", 1, 14, "'b' is a word without a tag"),
    "text between trees": (f"{LINE}\nTOP {LINE}", 2, 1, "'TOP' stands outside of any bracket"),
    "no label inside": ("(S ((NN a)))", 1, 5, "of line 1, column 4, has no label"),
    "no label inside, deeper": ("(S ( (NP (NN a))))", 1, 6, "of line 1, column 4, has no label"),
    "a word alone": ("(NN dog)", 1, 1, r"\(NN dog\) is a word and no tree"),
    "a word alone over lines": ("(NN\ndog\n)", 3, 1, r"\(NN dog\) is a word and no tree"),
}


@pytest.mark.parametrize(("text", "line", "column", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, line: int, column: int, message: str) -> None:
    path = tmp_path / "bad.mrg"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        list(read_trees(path))
    assert str(caught.value).startswith(f"{path}, line {line}, column {column}: ")
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="() \nab", max_size=30))
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    found, refused = [], ""
    try:
        found = list(trees_in(text.split("\n"), "x"))
    except UserError as error:
        refused = str(error)
    assert not refused or refused.startswith("x, line ")
    for tree in found:
        assert Tree.of(str(tree)) == tree
    if not refused:
        count = sum(str(tree).count("(") for tree in found)
        assert (text.count("("), text.count(")")) == (count, count)


@pytest.mark.parametrize("text", ["", f"{LINE} {LINE}"])
def test_one_tree_is_one_tree(text: str) -> None:
    with pytest.raises(UserError, match="expected one"):
        Tree.of(text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.gz: there is no such file"):
        list(read_trees(tmp_path / "none.gz"))


def test_a_constituent_has_something_in_it_and_stays_as_it_is() -> None:
    with pytest.raises(UserError, match="'NP' has nothing in it"):
        Tree("NP", ())
    with pytest.raises(AttributeError):
        TREE.label = "S"  # type: ignore[misc]


def test_a_tree_may_be_deeper_than_python_calls() -> None:
    tree = deep(20_000)
    assert Tree.of(str(tree)) == tree
    assert rebuild(linearise(tree), ["cat"]) == tree
    assert clean(tree) == tree
    assert hash(tree) == hash(deep(20_000))


@pytest.mark.parametrize(
    ("label", "cut"),
    [
        ("NP-SBJ-1", "NP"),
        ("NP=2", "NP"),
        ("ADVP-PRD-LOC=3", "ADVP"),
        ("ADVP|PRT", "ADVP"),
        ("NP", "NP"),
        ("-NONE-", "-NONE-"),
        ("", ""),
    ],
)
def test_functions_and_indices_are_cut(label: str, cut: str) -> None:
    assert cut_label(label) == cut


def test_cleaning_takes_out_what_is_not_there() -> None:
    """Worked by hand after a sentence of the Penn Treebank's first file."""
    raw = (
        "(TOP (S (NP-SBJ-1 (DT the) (NN loss)) (VP (VBD was) (VP (VBN cut) (NP (-NONE- *-1)) (SBAR (-NONE- 0) "
        "(S (-NONE- *T*-2))))) (-RRB- -RRB-)))"
    )
    assert str(clean(Tree.of(raw))) == "(TOP (S (NP (DT the) (NN loss)) (VP (VBD was) (VP (VBN cut))) (-RRB- -RRB-)))"
    assert clean(Tree.of("(TOP (S (NP (-NONE- *))))")) is None


@given(trees)
def test_cleaning_twice_changes_nothing_more(tree: Tree) -> None:
    once = clean(tree)
    assert once is None or clean(once) == once


@pytest.mark.parametrize("part", ["train", "dev", "test"])
@pytest.mark.parametrize("name", ["gum", "ptb-sample"])
def test_treebanks_are_cleaned_as_their_clean_files_were(name: str, part: str) -> None:
    folder = find(name) if os.environ.get("REGARD_DATA") else None
    if folder is None:
        pytest.skip("REGARD_DATA has no such treebank")
    wanted = list(read_trees(folder / f"{part}.clean.gz"))
    assert [clean(tree) for tree in read_trees(folder / f"{part}.raw.gz")] == wanted
    with gzip.open(folder / f"{part}.clean.gz", "rt", encoding="utf-8", newline="\n") as file:
        assert [str(tree) for tree in wanted] == file.read().split("\n")[: len(wanted)]
    symbols = TreeSymbols.of(wanted)
    for tree in wanted:
        assert symbols.decode_tree(symbols.encode_tree(tree), tree.words()) == tree


@pytest.mark.parametrize(
    ("file", "people"),
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
def test_brackets_in_words_have_names_in_files(file: str, people: str) -> None:
    assert word_for_people(file) == people
    assert word_for_file(people) == file


@given(
    st.text(st.characters(blacklist_characters="LR"), max_size=8).map(
        lambda text: text.replace("!", "(").replace("?", ")")
    )
)
def test_words_of_people_come_back_from_files(word: str) -> None:
    assert word_for_people(word_for_file(word)) == word
    assert not {"(", ")"} & set(word_for_file(word))


def test_a_tree_as_symbols() -> None:
    assert linearise(TREE) == SYMBOLS
    assert linearise(TREE, tags=False) == [symbol if symbol[0] in "()" else "XX" for symbol in SYMBOLS]


@given(trees)
def test_symbols_and_words_make_the_tree_again(tree: Tree) -> None:
    assert rebuild(linearise(tree), tree.words()) == tree


@given(trees)
def test_without_tags_all_but_the_tags_comes_back(tree: Tree) -> None:
    again = rebuild(linearise(tree, tags=False), tree.words())
    assert linearise(again, tags=False) == linearise(tree, tags=False)
    assert again.words() == tree.words()
    assert set(again.tags()) == {"XX"}


@pytest.mark.parametrize(
    ("symbols", "words", "message"),
    [
        ("(S NN ) NN", "a b", "Symbol 4 of 4, 'NN', comes after the tree has closed"),
        ("(S NN ) (S", "a b", "Symbol 4 of 4, '(S', comes after"),
        ("NN", "a", "Symbol 1 of 1, 'NN', stands outside of the tree"),
        (") NN", "a", "Symbol 1 of 2, ')', stands outside"),
        ("(S (NP ) NN )", "a", "Symbol 3 of 5, ')', closes (NP with nothing in it"),
        ("(S NN NN )", "a", "Symbol 3 of 4, 'NN', is a leaf for which there is no word left"),
        ("(S (NP NN )", "a", "After 4 symbols the tree has not closed; 1 brackets are open"),
        ("", "a", "After 0 symbols the tree has not closed"),
        ("(S NN )", "a b c", "The tree has 1 leaves for 3 words"),
    ],
)
def test_symbols_that_make_no_tree_are_refused(symbols: str, words: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        rebuild(symbols.split(), words.split())
    assert message in str(caught.value)


def test_the_symbols_of_a_treebank_have_ids() -> None:
    symbols = TreeSymbols.of([TREE, Tree.of("(NP (NN b))")])
    assert symbols.symbols == (
        *("<pad>", "<start>", "<end>"),
        *("(NP", "(S", "(TOP", "(VP"),
        ")",
        *("NN", ".", "DT", "VBD"),
    )
    assert (PADDING, START, END) == (0, 1, 2)
    assert (symbols.opens, symbols.close, symbols.leaves) == (range(3, 7), 7, range(8, 12))
    assert len(symbols) == 12
    assert "(NP" in symbols
    assert "(X" not in symbols
    assert symbols.tagged
    ids = symbols.encode_tree(TREE)
    assert ids == symbols.encode(SYMBOLS)
    assert symbols.decode([START, *ids, END, PADDING, PADDING]) == SYMBOLS
    assert symbols.decode_tree([*ids, END], TREE.words()) == TREE


def test_without_tags_there_is_one_leaf() -> None:
    symbols = TreeSymbols.of([TREE], tags=False)
    assert not symbols.tagged
    assert [symbols.symbols[leaf] for leaf in symbols.leaves] == ["XX"]
    again = symbols.decode_tree(symbols.encode_tree(TREE), TREE.words())
    assert again.words() == TREE.words()


@settings(max_examples=50)
@given(st.lists(trees, min_size=1, max_size=5), st.booleans())
def test_every_tree_that_gave_symbols_can_be_encoded(some: list[Tree], tags: bool) -> None:
    symbols = TreeSymbols.of(some, tags)
    for tree in some:
        assert symbols.decode(symbols.encode_tree(tree)) == linearise(tree, symbols.tagged)


def test_symbols_are_saved_and_loaded(tmp_path: Path) -> None:
    symbols = TreeSymbols.of([TREE, Tree.of("(NP (NN-é b))")])
    symbols.save(tmp_path / "symbols.json")
    assert TreeSymbols.load(tmp_path / "symbols.json") == symbols
    assert json.loads((tmp_path / "symbols.json").read_text(encoding="utf-8"))["symbols"] == list(symbols.symbols)


GOOD = ["<pad>", "<start>", "<end>", "(S", ")", "NN"]
BAD_FILES = {
    "no JSON": ("[1,", "cannot be read as JSON"),
    "too deep": ("[" * 100_000, "cannot be read as JSON"),
    "another kind": ({"symbols": GOOD}, 'there is no "kind": "tree symbols"'),
    "a list": (GOOD, 'there is no "kind": "tree symbols"'),
    "a later format": (
        {"kind": "tree symbols", "format": 2, "symbols": GOOD},
        "has the format 2; this version of regard reads 1",
    ),
    "no list": ({"kind": "tree symbols", "format": 1, "symbols": "abc"}, "must be a list of texts"),
    "numbers": ({"kind": "tree symbols", "format": 1, "symbols": [*GOOD, 3]}, "must be a list of texts"),
    "no specials": (
        {"kind": "tree symbols", "format": 1, "symbols": GOOD[1:]},
        "begin with <pad>, <start>, <end>; found <start>",
    ),
    "twice": ({"kind": "tree symbols", "format": 1, "symbols": [*GOOD, "NN"]}, "'NN' is there more than once"),
    "no close": ({"kind": "tree symbols", "format": 1, "symbols": [*GOOD[:4], "NN"]}, r"there is no '\)'"),
    "in disorder": (
        {"kind": "tree symbols", "format": 1, "symbols": [*GOOD, "(NP"]},
        r"symbol 6, '\(NP', is not in its place",
    ),
    "leaf among opens": (
        {"kind": "tree symbols", "format": 1, "symbols": [*GOOD[:3], "NN", *GOOD[3:5], "DT"]},
        "symbol 3, 'NN', is not in its place",
    ),
    "space in it": (
        {"kind": "tree symbols", "format": 1, "symbols": [*GOOD, "a b"]},
        "symbol 6, 'a b', is not in its place",
    ),
    "no leaf": ({"kind": "tree symbols", "format": 1, "symbols": GOOD[:5]}, "at least one that opens"),
    "no open": ({"kind": "tree symbols", "format": 1, "symbols": [*GOOD[:3], *GOOD[4:]]}, "at least one that opens"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_file_of_symbols_is_read_strictly(tmp_path: Path, content, message: str) -> None:
    path = tmp_path / "symbols.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=message) as caught:
        TreeSymbols.load(path)
    assert str(path) in str(caught.value)


def test_what_is_unknown_to_the_symbols_is_named() -> None:
    symbols = TreeSymbols.of([TREE])
    with pytest.raises(UserError, match=r"'\(PP' is not among the 12 known ones"):
        symbols.encode(["(PP"])
    with pytest.raises(UserError, match="no symbol with the id 12; ids go from 0 to 11"):
        symbols.decode([12])
    with pytest.raises(UserError, match="no symbol with the id -1"):
        symbols.decode([-1])
    with pytest.raises(UserError, match="no trees to take symbols from"):
        TreeSymbols.of([])
