"""Constituency trees: read strictly from Penn brackets, cleaned, and written as a list of symbols that a model learns.

A file holds trees as `(S (NP (DT the) (NN cat)) (VP (VBD slept)))`, in any layout: one a line, several, or one over
many lines, with or without an unlabelled bracket or TOP around it. What is wrong is said with its line and column.
Words have no brackets in files: there `(` is `-LRB-` and `)` is `-RRB-`.

A tree as symbols (Vinyals et al. 2015) is `(S (NP DT NN ) (VP VBD ) )`: a constituent opens, a leaf is its tag, `)`
closes. Words are not among the symbols, for they are known. Without tags every leaf is `XX`.

Nothing here calls itself for the next level down, so a tree may be as deep as a bad model makes it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from regard.data.text import check_file, read_lines
from regard.errors import UserError
from regard.files import new_file

NO_TAG = "XX"
"""The symbol of every leaf, and the tag of every word, where tags are left out."""
EMPTY = "-NONE-"
"""The tag of what is not there: traces and other empty elements."""
ROOTS = frozenset({"", "TOP", "ROOT", "S1", "VROOT"})
"""Labels that treebanks put around a whole tree."""


class Leaf(NamedTuple):
    """A word with its part of speech."""

    tag: str
    word: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tree:
    """A constituent over other constituents and words. The outermost may be without a label, as in Penn's own files."""

    label: str
    children: tuple["Tree | Leaf", ...]

    def __post_init__(self) -> None:
        if not self.children:
            raise UserError(f"The constituent {self.label!r} has nothing in it; give it a word or leave it out.")

    @classmethod
    def of(cls, text: str) -> "Tree":
        """The one tree that a text holds."""
        trees = list(trees_in(text.split("\n"), "the text"))
        if len(trees) != 1:
            raise UserError(f"The text holds {len(trees)} trees; expected one.")
        return trees[0]

    def walk(self) -> Iterator["Tree | Leaf | None"]:
        """Every constituent where it opens, every leaf, and None wherever a constituent closes."""
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
        """The tree on one line, as files have it."""
        parts: list[str] = []
        for node in self.walk():
            if node is None:
                parts.append(")")
            elif isinstance(node, Leaf):
                parts.append(f" ({node.tag} {node.word})")
            else:
                parts.append(f" ({node.label}")
        return "".join(parts)[1:]

    def __repr__(self) -> str:
        return f"Tree.of({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return list(self._flat()) == list(other._flat()) if isinstance(other, Tree) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._flat()))

    def _flat(self) -> Iterator[str | Leaf | None]:
        return (node.label if isinstance(node, Tree) else node for node in self.walk())


def read_trees(path: str | Path) -> Iterator[Tree]:
    """The trees of a UTF-8 file, one at a time; its suffix says whether it is .gz, .xz or .zst."""
    return trees_in(read_lines(path), str(path))


def trees_in(lines: Iterable[str], name: str) -> Iterator[Tree]:
    """The trees that lines hold, one at a time; errors call the lines by `name`."""
    open_nodes: list[_Node] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        for found in _TOKEN.finditer(line):
            kind = found.lastgroup
            try:
                if kind == "word":
                    if not open_nodes:
                        raise _WrongError(_ALONE.format(found["tag"], found["word"]))
                    open_nodes[-1].add(Leaf(found["tag"], found["word"]), inner=len(open_nodes) > 1)
                elif kind == "label":
                    if open_nodes:
                        open_nodes[-1].check_inside(inner=len(open_nodes) > 1)
                    open_nodes.append(_Node(found["label"], number, found.start() + 1))
                elif kind == "stray":
                    if not open_nodes:
                        raise _WrongError(f"{found['stray']!r} stands outside of any bracket; a tree begins with `(`.")
                    open_nodes[-1].name(found["stray"])
                else:
                    if not open_nodes:
                        raise _WrongError("this `)` closes nothing; take it away, or open its bracket before it.")
                    made = open_nodes.pop().made()
                    if open_nodes:
                        open_nodes[-1].children.append(made)
                    elif isinstance(made, Tree):
                        yield made
                    else:
                        raise _WrongError(_ALONE.format(*made))
            except _WrongError as wrong:
                raise UserError(f"{name}, line {number}, column {found.start() + 1}: {wrong}") from None
    if open_nodes:
        first = open_nodes[0]
        raise UserError(
            f"{name}, line {first.line}, column {first.column}: the bracket `({first.label}` that opens here is never "
            f"closed; the text ends after line {number} with {len(open_nodes)} open."
        )


_TOKEN = re.compile(
    r"\(\s*(?P<tag>[^\s()]+)\s+(?P<word>[^\s()]+)\s*\) | \(\s*(?P<label>[^\s()]*) | \) | (?P<stray>[^\s()]+)",
    re.ASCII | re.VERBOSE,  # other white space than ASCII's can be part of a word
)
_ALONE = "({} {}) is a word and no tree; put a constituent around it, such as (TOP …)."


class _WrongError(Exception):
    """What is wrong, without its place."""


class _Node:
    """A bracket that is open, and what is in it so far."""

    __slots__ = ("children", "column", "label", "line", "word")

    def __init__(self, label: str, line: int, column: int) -> None:
        self.label, self.line, self.column = label, line, column
        self.word = ""
        self.children: list[Tree | Leaf] = []

    def add(self, leaf: Leaf, inner: bool) -> None:
        self.check_inside(inner)
        self.children.append(leaf)

    def check_inside(self, inner: bool) -> None:
        """Refuse a bracket inside this one."""
        if self.word:
            raise _WrongError(
                f"a bracket opens beside the word {self.word!r}; a word has a bracket with its tag to itself."
            )
        if inner and not self.label:
            raise _WrongError(
                f"the bracket around this, of line {self.line}, column {self.column}, has no label; only the outermost "
                "may be without."
            )

    def name(self, text: str) -> None:
        """Take a text for the label, which may stand on a line of its own, or for the word behind it."""
        if not self.label and not self.children:
            self.label = text
        elif self.word or self.children:
            raise _WrongError(f"{text!r} is a word without a tag; write it as (TAG {text}).")
        else:
            self.word = text

    def made(self) -> "Tree | Leaf":
        if self.word:
            return Leaf(self.label, self.word)
        if not self.children:
            raise _WrongError(f"the bracket `({self.label}` closes with nothing in it; give it a word or take it away.")
        return Tree(self.label, tuple(self.children))


def clean(tree: Tree) -> Tree | None:
    """The tree without function tags, indices, empty elements and what they leave empty; None if nothing is left.

    `(NP-SBJ-1 (-NONE- *))` vanishes and `NP-SBJ-1` becomes `NP`. The tags of words stay as they are.
    """
    builder = _Builder()
    for node in tree.walk():
        if node is None:
            builder.close()
        elif isinstance(node, Tree):
            builder.open(cut_label(node.label))
        elif node.tag != EMPTY:
            builder.add(node)
    return builder.root


def rooted(tree: Tree, label: str = "TOP") -> Tree:
    """The tree with this label around it, in place of another treebank's or none."""
    return Tree(label, tree.children if tree.label in ROOTS else (tree,))


def cut_label(label: str) -> str:
    """A phrase's label without functions and indices: `NP` of `NP-SBJ-1` and of `NP=2`."""
    return label if label.startswith("-") else _FUNCTION.split(label, maxsplit=1)[0]


_FUNCTION = re.compile(r"[-=|]")


class _Builder:
    """A tree made from what comes one after another."""

    def __init__(self) -> None:
        self.levels: list[tuple[str, list[Tree | Leaf]]] = []
        self.root: Tree | None = None

    def open(self, label: str) -> None:
        self.levels.append((label, []))

    def add(self, node: "Tree | Leaf") -> None:
        self.levels[-1][1].append(node)

    def close(self) -> None:
        """What is empty vanishes."""
        label, children = self.levels.pop()
        if not children:
            return
        made = Tree(label, tuple(children))
        if self.levels:
            self.add(made)
        else:
            self.root = made


def word_for_people(word: str) -> str:
    """A word of a file as people write it: `(` for `-LRB-`, `)` for `-RRB-`."""
    return re.sub("-LRB-|-RRB-", lambda found: "(" if found[0] == "-LRB-" else ")", word)


def word_for_file(word: str) -> str:
    """A word that people write as files have it: `-LRB-` for `(`, `-RRB-` for `)`."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def linearise(tree: Tree, tags: bool = True) -> list[str]:
    """The tree as symbols: `(NP` opens, `)` closes, a leaf is its tag, or `XX` where `tags` are not wanted."""
    symbols = []
    for node in tree.walk():
        if node is None:
            symbols.append(CLOSE)
        elif isinstance(node, Tree):
            symbols.append(f"({node.label}")
        else:
            symbols.append(node.tag if tags else NO_TAG)
    return symbols


def rebuild(symbols: Sequence[str], words: Sequence[str]) -> Tree:
    """The tree that symbols and words make together; they must fit each other exactly."""
    builder, left = _Builder(), iter(words)
    for number, symbol in enumerate(symbols, start=1):
        try:
            _place(symbol, builder, left)
        except _WrongError as wrong:
            raise UserError(f"Symbol {number} of {len(symbols)}, {symbol!r}, {wrong}.") from None
    if builder.root is None:
        raise UserError(
            f"After {len(symbols)} symbols the tree has not closed; {len(builder.levels)} brackets are open."
        )
    if unused := list(left):
        raise UserError(f"The tree has {len(words) - len(unused)} leaves for {len(words)} words; they must be as many.")
    return builder.root


def _place(symbol: str, builder: _Builder, words: Iterator[str]) -> None:
    if builder.root is not None:
        raise _WrongError("comes after the tree has closed")
    if symbol.startswith("("):
        builder.open(symbol[1:])
    elif not builder.levels:
        raise _WrongError("stands outside of the tree; symbols begin with a constituent")
    elif symbol != CLOSE:
        word = next(words, None)
        if word is None:
            raise _WrongError("is a leaf for which there is no word left")
        builder.add(Leaf(symbol, word))
    elif not builder.levels[-1][1]:
        raise _WrongError(f"closes ({builder.levels[-1][0]} with nothing in it")
    else:
        builder.close()


CLOSE = ")"
PADDING, START, END = 0, 1, 2
_SPECIALS = ("<pad>", "<start>", "<end>")
_FORMAT = 1


@dataclass(frozen=True)
class TreeSymbols:
    """The symbols of a treebank in the order of their ids: specials, those that open, the one that closes, leaves."""

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.symbols[:3] != _SPECIALS:
            raise UserError(f"Symbols of trees begin with {', '.join(_SPECIALS)}; found {', '.join(self.symbols[:3])}.")
        if twice := [symbol for symbol, count in Counter(self.symbols).items() if count > 1]:
            raise UserError(f"The symbol {twice[0]!r} is there more than once; each has one id.")
        if CLOSE not in self.symbols:
            raise UserError(f"Among the symbols of trees there is no {CLOSE!r}, which closes constituents.")
        for number in range(3, len(self.symbols)):
            symbol = self.symbols[number]
            if symbol.startswith("(") != (number < self.close) or not _SYMBOL.fullmatch(symbol):
                raise UserError(
                    f"The symbol {number}, {symbol!r}, is not in its place: those that begin with ( come first, then "
                    "), then tags."
                )
        if not self.opens or not self.leaves:
            raise UserError("Symbols of trees need at least one that opens a constituent and one leaf.")

    @classmethod
    def of(cls, trees: Iterable[Tree], tags: bool = True) -> Self:
        """All that these trees need, the most frequent first."""
        counts = Counter(symbol for tree in trees for symbol in linearise(tree, tags))
        if not counts:
            raise UserError("There are no trees to take symbols from.")
        ordered = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        opens = [symbol for symbol in ordered if symbol.startswith("(")]
        leaves = [symbol for symbol in ordered if not symbol.startswith("(") and symbol != CLOSE]
        return cls((*_SPECIALS, *opens, CLOSE, *leaves))

    def __len__(self) -> int:
        return len(self.symbols)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._ids

    @cached_property
    def close(self) -> int:
        """The id that closes a constituent."""
        return self.symbols.index(CLOSE)

    @property
    def opens(self) -> range:
        """The ids that open a constituent."""
        return range(3, self.close)

    @property
    def leaves(self) -> range:
        """The ids that stand for a word."""
        return range(self.close + 1, len(self.symbols))

    @property
    def tagged(self) -> bool:
        """Whether leaves are tags, or one symbol for every word."""
        return self.symbols[self.close + 1 :] != (NO_TAG,)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        try:
            return [self._ids[symbol] for symbol in symbols]
        except KeyError as error:
            raise UserError(f"The symbol {error.args[0]!r} is not among the {len(self)} known ones.") from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The symbols of these ids; specials are left out."""
        found = []
        for number in ids:
            if not 0 <= number < len(self):
                raise UserError(f"There is no symbol with the id {number}; ids go from 0 to {len(self) - 1}.")
            if number >= len(_SPECIALS):
                found.append(self.symbols[number])
        return found

    def encode_tree(self, tree: Tree) -> list[int]:
        """The tree as ids, without start and end."""
        return self.encode(linearise(tree, self.tagged))

    def decode_tree(self, ids: Iterable[int], words: Sequence[str]) -> Tree:
        """The tree that ids and words make together."""
        return rebuild(self.decode(ids), words)

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        content = {"kind": "tree symbols", "format": _FORMAT, "symbols": self.symbols}
        with new_file(Path(path)) as place:
            place.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        check_file(Path(path))
        try:
            content: Any = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be read as JSON ({error}).") from None
        if not isinstance(content, dict) or content.get("kind") != "tree symbols":
            raise UserError(f'{path} holds no symbols of trees: there is no "kind": "tree symbols" in it.')
        if content.get("format") != _FORMAT:
            raise UserError(f"{path} has the format {content.get('format')!r}; this version of regard reads {_FORMAT}.")
        symbols = content.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise UserError(f'{path}: "symbols" must be a list of texts.')
        try:
            return cls(tuple(symbols))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}


_SYMBOL = re.compile(r"\([^\s()]*|\)|[^\s()]+", re.ASCII)
