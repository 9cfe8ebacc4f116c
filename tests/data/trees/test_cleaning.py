"""Treebank cleaning: function tags, indices and empty elements are removed."""

import gzip
import os

import pytest
from hypothesis import given

from regard.data.registry import find_dataset
from regard.data.trees.cleaning import clean_tree, strip_function_tags, with_root
from regard.data.trees.linearization import TreeVocabulary
from regard.data.trees.tree import Tree, read_trees
from tests.data.trees.support import trees


@pytest.mark.parametrize(
    "text", ["( (S (NN a)))", "(ROOT (S (NN a)))", "(S1 (S (NN a)))", "(TOP (S (NN a)))", "(S (NN a))"]
)
def test_with_root_replaces_other_roots(text: str) -> None:
    assert str(with_root(Tree.parse(text))) == "(TOP (S (NN a)))"


@pytest.mark.parametrize(
    ("label", "stripped"),
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
def test_function_tags_and_indices_are_stripped(label: str, stripped: str) -> None:
    assert strip_function_tags(label) == stripped


def test_empty_elements_are_removed() -> None:
    """Worked out by hand, after a sentence of the Penn Treebank's first file."""
    raw = (
        "(TOP (S (NP-SBJ-1 (DT the) (NN loss)) (VP (VBD was) (VP (VBN cut) (NP (-NONE- *-1)) (SBAR (-NONE- 0) "
        "(S (-NONE- *T*-2))))) (-RRB- -RRB-)))"
    )
    assert (
        str(clean_tree(Tree.parse(raw)))
        == "(TOP (S (NP (DT the) (NN loss)) (VP (VBD was) (VP (VBN cut))) (-RRB- -RRB-)))"
    )
    assert clean_tree(Tree.parse("(TOP (S (NP (-NONE- *))))")) is None


@given(trees)
def test_cleaning_is_idempotent(tree: Tree) -> None:
    once = clean_tree(tree)
    assert once is None or clean_tree(once) == once


@pytest.mark.parametrize("part", ["train", "dev", "test"])
@pytest.mark.parametrize("name", ["gum", "ptb-sample"])
def test_cleaned_treebanks_equal_their_clean_files(name: str, part: str) -> None:
    folder = find_dataset(name) if os.environ.get("REGARD_DATA") else None
    if folder is None:
        pytest.skip("REGARD_DATA has no such treebank")
    expected = list(read_trees(folder / f"{part}.clean.gz"))
    assert [clean_tree(tree) for tree in read_trees(folder / f"{part}.raw.gz")] == expected
    with gzip.open(folder / f"{part}.clean.gz", "rt", encoding="utf-8", newline="\n") as file:
        assert [str(tree) for tree in expected] == file.read().split("\n")[: len(expected)]
    vocabulary = TreeVocabulary.from_trees(expected)
    for tree in expected:
        assert vocabulary.decode_tree(vocabulary.encode_tree(tree), tree.words()) == tree
