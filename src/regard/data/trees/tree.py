"""Constituency trees, and reading them from files in Penn bracket format.

A file holds trees as `(S (NP (DT the) (NN cat)) (VP (VBD slept)))`, in any layout: one per line, several, or one over
many lines, with or without an unlabeled bracket or TOP around it. Errors name the line and column. Words cannot have
brackets in files: there `(` is `-LRB-` and `)` is `-RRB-`.

Nothing is recursive, so trees of any depth work, such as those of a bad model.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regard.data.text.lines import read_lines
from regard.errors import UserError


class Leaf(NamedTuple):
    """A word with its part-of-speech tag."""

    tag: str
    word: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A constituent over other constituents and words. The outermost may have no label, as in Penn's own files."""

    label: str
    children: tuple["Tree | Leaf", ...]

    def __post_init__(self) -> None:
        if not self.children:
            raise UserError(f"The constituent {self.label!r} is empty; give it a word or leave it out.")

    @classmethod
    def parse(cls, text: str) -> "Tree":
        """The one tree in a text."""
        trees = list(parse_trees(text.split("\n"), "the text"))
        if len(trees) != 1:
            raise UserError(f"The text has {len(trees)} trees; expected one.")
        return trees[0]

    def walk(self) -> Iterator["Tree | Leaf | None"]:
        """Depth-first: every constituent where it opens, every leaf, and None wherever a constituent closes."""
        yield self
        levels = [iter(self.children)]
        while levels:
            for child in levels[-1]:
                yield child
                if isinstance(child, Tree):
                    levels.append(iter(child.children))
                    break
            else:
                levels.pop()
                yield None

    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(node for node in self.walk() if isinstance(node, Leaf))

    def words(self) -> tuple[str, ...]:
        return tuple(leaf.word for leaf in self.leaves())

    def tags(self) -> tuple[str, ...]:
        return tuple(leaf.tag for leaf in self.leaves())

    def __str__(self) -> str:
        """The tree in bracket format, on one line."""
        parts: list[str] = []
        for node in self.walk():
            if node is None:
                parts.append(")")
            elif isinstance(node, Leaf):
                parts.append(f" ({node.tag} {node.word})")
            else:
                parts.append(f" ({node.label}")
        return "".join(parts)[1:]

    def _repr_svg_(self) -> str:
        """The drawing that a notebook shows."""
        from regard.data.trees.drawing import tree_svg

        return tree_svg(self)

    def __repr__(self) -> str:
        return f"Tree.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return list(self._flat()) == list(other._flat()) if isinstance(other, Tree) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._flat()))

    def _flat(self) -> Iterator[str | Leaf | None]:
        return (node.label if isinstance(node, Tree) else node for node in self.walk())


class TreeBuilder:
    """Builds a tree from its nodes in depth-first order. Constituents that stay empty are left out."""

    def __init__(self) -> None:
        self.open_nodes: list[tuple[str, list[Tree | Leaf]]] = []
        self.root: Tree | None = None

    def open(self, label: str) -> None:
        self.open_nodes.append((label, []))

    def add(self, node: "Tree | Leaf") -> None:
        self.open_nodes[-1][1].append(node)

    def close(self) -> None:
        label, children = self.open_nodes.pop()
        if not children:
            return
        tree = Tree(label, tuple(children))
        if self.open_nodes:
            self.add(tree)
        else:
            self.root = tree


def read_trees(path: str | Path) -> Iterator[Tree]:
    """The trees of a UTF-8 file, one at a time; its suffix tells whether it is .gz, .xz or .zst."""
    return parse_trees(read_lines(path), str(path))


def parse_trees(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """The trees in some lines, one at a time; `name` stands for the lines in errors."""
    open_nodes: list[_OpenNode] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        for token in _TOKEN.finditer(line):
            try:
                tree = _parse_token(token, number, open_nodes)
            except _SyntaxError as error:
                raise UserError(f"{name}, line {number}, column {token.start() + 1}: {error}") from None
            if tree is not None:
                yield tree
    if open_nodes:
        first = open_nodes[0]
        raise UserError(
            f"{name}, line {first.line}, column {first.column}: the bracket `({first.label}` is never closed; the text "
            f"ends after line {number} with {len(open_nodes)} open."
        )


def unescape_brackets(word: str) -> str:
    """A word without bracket escapes: `(` for `-LRB-`, `)` for `-RRB-`."""
    return re.sub("-LRB-|-RRB-", lambda found: "(" if found[0] == "-LRB-" else ")", word)


def escape_brackets(word: str) -> str:
    """A word as it is written in files: `-LRB-` for `(`, `-RRB-` for `)`."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


_TOKEN = re.compile(
    r"\(\s*(?P<tag>[^\s()]+)\s+(?P<word>[^\s()]+)\s*\) | \(\s*(?P<label>[^\s()]*) | \) | (?P<text>[^\s()]+)",
    re.ASCII | re.VERBOSE,  # white space other than ASCII's can be part of a word
)
_NOT_A_TREE = "({} {}) is a word and not a tree; put a constituent around it, such as (TOP …)."


class _SyntaxError(Exception):
    """A syntax error, without line and column."""


class _OpenNode:
    """A bracket that is open, and its contents so far."""

    __slots__ = ("children", "column", "label", "line", "word")

    def __init__(self, label: str, line: int, column: int) -> None:
        self.label, self.line, self.column = label, line, column
        self.word = ""
        self.children: list[Tree | Leaf] = []

    def add(self, leaf: Leaf, nested: bool) -> None:
        self.check_child(nested)
        self.children.append(leaf)

    def check_child(self, nested: bool) -> None:
        """Refuse a bracket inside this one if it has a word, or if it is `nested` itself and has no label."""
        if self.word:
            raise _SyntaxError(f"a bracket opens beside the word {self.word!r}; a word and its tag need their own.")
        if nested and not self.label:
            raise _SyntaxError(
                f"the bracket around this one, of line {self.line}, column {self.column}, has no label; only the "
                "outermost may have none."
            )

    def add_text(self, text: str) -> None:
        """Take a text as the label, which may be on its own line, or as the word after it."""
        if not self.label and not self.children:
            self.label = text
        elif self.word or self.children:
            raise _SyntaxError(f"{text!r} is a word without a tag; write it as (TAG {text}).")
        else:
            self.word = text

    def close(self) -> "Tree | Leaf":
        if self.word:
            return Leaf(self.label, self.word)
        if not self.children:
            raise _SyntaxError(f"the bracket `({self.label}` is empty; give it a word or remove it.")
        return Tree(self.label, tuple(self.children))


def _parse_token(token: re.Match[str], line: int, open_nodes: list[_OpenNode]) -> Tree | None:
    """Apply one token to the open brackets; return the tree if it is complete."""
    nested = len(open_nodes) > 1
    if token.lastgroup == "word":
        if not open_nodes:
            raise _SyntaxError(_NOT_A_TREE.format(token["tag"], token["word"]))
        open_nodes[-1].add(Leaf(token["tag"], token["word"]), nested)
    elif token.lastgroup == "label":
        if open_nodes:
            open_nodes[-1].check_child(nested)
        open_nodes.append(_OpenNode(token["label"], line, token.start() + 1))
    elif token.lastgroup == "text":
        if not open_nodes:
            raise _SyntaxError(f"{token['text']!r} is outside of any bracket; a tree begins with `(`.")
        open_nodes[-1].add_text(token["text"])
    else:
        if not open_nodes:
            raise _SyntaxError("this `)` closes nothing; remove it, or open its bracket before it.")
        node = open_nodes.pop().close()
        if open_nodes:
            open_nodes[-1].children.append(node)
        elif isinstance(node, Tree):
            return node
        else:
            raise _SyntaxError(_NOT_A_TREE.format(*node))
    return None
