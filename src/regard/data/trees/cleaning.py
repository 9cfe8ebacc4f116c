"""Treebank cleaning: function tags, indices and empty elements removed, one label for the root."""

import re

from regard.data.trees.tree import Tree, TreeBuilder

EMPTY = "-NONE-"
"""The tag of empty elements, such as traces."""
ROOTS = frozenset({"", "TOP", "ROOT", "S1", "VROOT"})
"""Root labels of treebanks."""

_FUNCTION = re.compile(r"[-=|]")


def clean_tree(tree: Tree) -> Tree | None:
    """The tree without function tags, indices, empty elements and constituents that become empty; None if all do.

    `(NP-SBJ-1 (-NONE- *))` is removed, and `NP-SBJ-1` becomes `NP`. The tags of words stay as they are.
    """
    builder = TreeBuilder()
    for node in tree.walk():
        if node is None:
            builder.close()
        elif isinstance(node, Tree):
            builder.open(strip_function_tags(node.label))
        elif node.tag != EMPTY:
            builder.add(node)
    return builder.root


def with_root(tree: Tree, label: str = "TOP") -> Tree:
    """The tree under a root of this label, which replaces another treebank's root if there is one."""
    return Tree(label, tree.children if tree.label in ROOTS else (tree,))


def strip_function_tags(label: str) -> str:
    """A constituent's label without function tags and indices: `NP` for `NP-SBJ-1` and `NP=2`."""
    return label if label.startswith("-") else _FUNCTION.split(label, maxsplit=1)[0]
