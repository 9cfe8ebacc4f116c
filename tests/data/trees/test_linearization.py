"""Linearized trees: symbols and words give the tree back; vocabularies are checked when read."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.data.trees.linearization import BOS_ID, EOS_ID, PAD_ID, TreeVocabulary, delinearize, linearize
from regard.data.trees.tree import Tree
from tests.data.trees.support import SYMBOLS, TREE, trees


def test_linearized_tree() -> None:
    assert linearize(TREE) == SYMBOLS
    assert linearize(TREE, tags=False) == [symbol if symbol[0] in "()" else "XX" for symbol in SYMBOLS]


@given(trees)
def test_delinearize_inverts_linearize(tree: Tree) -> None:
    assert delinearize(linearize(tree), tree.words()) == tree


@given(trees)
def test_delinearize_without_tags(tree: Tree) -> None:
    again = delinearize(linearize(tree, tags=False), tree.words())
    assert linearize(again, tags=False) == linearize(tree, tags=False)
    assert again.words() == tree.words()
    assert set(again.tags()) == {"XX"}


@pytest.mark.parametrize(
    ("symbols", "words", "message"),
    [
        ("(S NN ) NN", "a b", "Symbol 4 of 4, 'NN', comes after the tree has closed"),
        ("(S NN ) (S", "a b", "Symbol 4 of 4, '(S', comes after"),
        ("NN", "a", "Symbol 1 of 1, 'NN', is outside of the tree"),
        (") NN", "a", "Symbol 1 of 2, ')', is outside"),
        ("(S (NP ) NN )", "a", "Symbol 3 of 5, ')', closes (NP, which is empty"),
        ("(S NN NN )", "a", "Symbol 3 of 4, 'NN', is a leaf, but no word is left"),
        ("(S (NP NN )", "a", "not closed after 4 symbols; 1 are open"),
        ("", "a", "not closed after 0 symbols"),
        ("(S NN )", "a b c", "The tree has 1 leaves, but there are 3 words"),
    ],
)
def test_symbols_that_are_not_a_tree_are_refused(symbols: str, words: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        delinearize(symbols.split(), words.split())
    assert message in str(caught.value)


def test_vocabulary_of_a_treebank() -> None:
    vocabulary = TreeVocabulary.from_trees([TREE, Tree.parse("(NP (NN b))")])
    assert vocabulary.symbols == (
        *("<pad>", "<bos>", "<eos>"),
        *("(NP", "(S", "(TOP", "(VP"),
        ")",
        *("NN", ".", "DT", "VBD"),
    )
    assert (PAD_ID, BOS_ID, EOS_ID) == (0, 1, 2)
    assert (vocabulary.open_ids, vocabulary.close_id, vocabulary.leaf_ids) == (range(3, 7), 7, range(8, 12))
    assert len(vocabulary) == 12
    assert "(NP" in vocabulary
    assert "(X" not in vocabulary
    assert vocabulary.has_tags
    ids = vocabulary.encode_tree(TREE)
    assert ids == vocabulary.encode(SYMBOLS)
    assert vocabulary.decode([BOS_ID, *ids, EOS_ID, PAD_ID, PAD_ID]) == SYMBOLS
    assert vocabulary.decode_tree([*ids, EOS_ID], TREE.words()) == TREE


def test_vocabulary_without_tags_has_one_leaf() -> None:
    vocabulary = TreeVocabulary.from_trees([TREE], tags=False)
    assert not vocabulary.has_tags
    assert [vocabulary.symbols[leaf] for leaf in vocabulary.leaf_ids] == ["XX"]
    again = vocabulary.decode_tree(vocabulary.encode_tree(TREE), TREE.words())
    assert again.words() == TREE.words()


@settings(max_examples=50)
@given(st.lists(trees, min_size=1, max_size=5), st.booleans())
def test_trees_of_the_vocabulary_can_be_encoded(treebank: list[Tree], tags: bool) -> None:
    vocabulary = TreeVocabulary.from_trees(treebank, tags)
    for tree in treebank:
        assert vocabulary.decode(vocabulary.encode_tree(tree)) == linearize(tree, vocabulary.has_tags)


def test_vocabulary_is_saved_and_loaded(tmp_path: Path) -> None:
    vocabulary = TreeVocabulary.from_trees([TREE, Tree.parse("(NP (NN-é b))")])
    vocabulary.save(tmp_path / "symbols.json")
    assert TreeVocabulary.load(tmp_path / "symbols.json") == vocabulary
    assert json.loads((tmp_path / "symbols.json").read_text(encoding="utf-8"))["symbols"] == list(vocabulary.symbols)


GOOD = ["<pad>", "<bos>", "<eos>", "(S", ")", "NN"]
BAD_FILES = {
    "no JSON": ("[1,", "cannot be read as JSON"),
    "too deep": ("[" * 100_000, "cannot be read as JSON"),
    "another kind": ({"symbols": GOOD}, 'its "kind" is not "tree vocabulary"'),
    "a list": (GOOD, 'its "kind" is not "tree vocabulary"'),
    "a later format": (
        {"kind": "tree vocabulary", "format": 2, "symbols": GOOD},
        "has the format 2; this version of regard reads 1",
    ),
    "no list": ({"kind": "tree vocabulary", "format": 1, "symbols": "abc"}, "must be a list of strings"),
    "numbers": ({"kind": "tree vocabulary", "format": 1, "symbols": [*GOOD, 3]}, "must be a list of strings"),
    "no specials": (
        {"kind": "tree vocabulary", "format": 1, "symbols": GOOD[1:]},
        "begins with <pad>, <bos>, <eos>; found <bos>",
    ),
    "duplicate": ({"kind": "tree vocabulary", "format": 1, "symbols": [*GOOD, "NN"]}, "'NN' occurs more than once"),
    "no close": (
        {"kind": "tree vocabulary", "format": 1, "symbols": [*GOOD[:4], "NN"]},
        r"The symbol '\)'.*is missing",
    ),
    "out of order": (
        {"kind": "tree vocabulary", "format": 1, "symbols": [*GOOD, "(NP"]},
        r"symbol 6, '\(NP', is out of order",
    ),
    "leaf among opens": (
        {"kind": "tree vocabulary", "format": 1, "symbols": [*GOOD[:3], "NN", *GOOD[3:5], "DT"]},
        "symbol 3, 'NN', is out of order",
    ),
    "space in a symbol": (
        {"kind": "tree vocabulary", "format": 1, "symbols": [*GOOD, "a b"]},
        "symbol 6, 'a b', is out of order",
    ),
    "no leaf": ({"kind": "tree vocabulary", "format": 1, "symbols": GOOD[:5]}, "at least one symbol that opens"),
    "no open": (
        {"kind": "tree vocabulary", "format": 1, "symbols": [*GOOD[:3], *GOOD[4:]]},
        "at least one symbol that opens",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_invalid_vocabulary_files_are_refused(tmp_path: Path, content, message: str) -> None:
    path = tmp_path / "symbols.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError, match=message) as caught:
        TreeVocabulary.load(path)
    assert str(path) in str(caught.value)


def test_unknown_symbols_and_ids_are_refused() -> None:
    vocabulary = TreeVocabulary.from_trees([TREE])
    with pytest.raises(UserError, match=r"'\(PP' is not in the vocabulary of 12 symbols"):
        vocabulary.encode(["(PP"])
    with pytest.raises(UserError, match="no symbol with the id 12; ids go from 0 to 11"):
        vocabulary.decode([12])
    with pytest.raises(UserError, match="no symbol with the id -1"):
        vocabulary.decode([-1])
    with pytest.raises(UserError, match="no trees to take symbols from"):
        TreeVocabulary.from_trees([])
