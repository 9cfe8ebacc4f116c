"""A small tree, and Hypothesis strategies for random trees."""

from hypothesis import strategies as st

from regard.data.trees.tree import Leaf, Tree

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
