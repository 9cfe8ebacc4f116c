"""Linearized trees: a tree as a sequence of symbols that a model can predict (Vinyals et al. 2015).

`(S (NP (DT the) (NN cat)) (VP (VBD slept)))` becomes `(S (NP DT NN ) (VP VBD ) )`: `(NP` opens a constituent, `)`
closes it, and a leaf is its tag. Words are left out because the sentence is known. Without tags every leaf is `XX`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from regard.config import parse_json
from regard.data.text.lines import check_file
from regard.data.trees.tree import Leaf, Tree, TreeBuilder
from regard.errors import UserError
from regard.files import new_file

CLOSE = ")"
NO_TAG = "XX"
"""The symbol of every leaf, and the tag of every word, if tags are left out."""
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2

_SPECIAL = ("<pad>", "<bos>", "<eos>")
_FORMAT = 1
_KIND = "tree vocabulary"
_SYMBOL = re.compile(r"\([^\s()]*|\)|[^\s()]+", re.ASCII)


def linearize(tree: Tree, tags: bool = True) -> list[str]:
    """The tree as symbols; without `tags` every leaf is `XX`."""
    symbols = []
    for node in tree.walk():
        if node is None:
            symbols.append(CLOSE)
        elif isinstance(node, Tree):
            symbols.append(f"({node.label}")
        else:
            symbols.append(node.tag if tags else NO_TAG)
    return symbols


def delinearize(symbols: Sequence[str], words: Sequence[str]) -> Tree:
    """The tree of some symbols and words; they must match exactly."""
    builder, remaining = TreeBuilder(), iter(words)
    for number, symbol in enumerate(symbols, start=1):
        problem = _add_symbol(symbol, builder, remaining)
        if problem is not None:
            raise UserError(f"Symbol {number} of {len(symbols)}, {symbol!r}, {problem}.")
    if builder.root is None:
        raise UserError(f"The tree is not closed after {len(symbols)} symbols; {len(builder.open_nodes)} are open.")
    if unused := list(remaining):
        raise UserError(f"The tree has {len(words) - len(unused)} leaves, but there are {len(words)} words.")
    return builder.root


@dataclass(frozen=True)
class TreeVocabulary:
    """The symbols of a treebank, in the order of their ids: special, opening, closing and leaf symbols."""

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.symbols[:3] != _SPECIAL:
            raise UserError(
                f"A tree vocabulary begins with {', '.join(_SPECIAL)}; found {', '.join(self.symbols[:3])}."
            )
        if duplicates := [symbol for symbol, count in Counter(self.symbols).items() if count > 1]:
            raise UserError(f"The symbol {duplicates[0]!r} occurs more than once; symbols must be unique.")
        if CLOSE not in self.symbols:
            raise UserError(f"The symbol {CLOSE!r}, which closes constituents, is missing.")
        for number in range(3, len(self.symbols)):
            symbol = self.symbols[number]
            if symbol.startswith("(") != (number < self.close_id) or not _SYMBOL.fullmatch(symbol):
                raise UserError(
                    f"The symbol {number}, {symbol!r}, is out of order: those that begin with ( come first, then "
                    "), then tags."
                )
        if not self.open_ids or not self.leaf_ids:
            raise UserError("A tree vocabulary needs at least one symbol that opens a constituent and one leaf.")

    @classmethod
    def from_trees(cls, trees: Iterable[Tree], tags: bool = True) -> Self:
        """All symbols that these trees need, the most frequent first."""
        counts = Counter(symbol for tree in trees for symbol in linearize(tree, tags))
        if not counts:
            raise UserError("There are no trees to take symbols from.")
        ordered = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        opens = [symbol for symbol in ordered if symbol.startswith("(")]
        leaves = [symbol for symbol in ordered if not symbol.startswith("(") and symbol != CLOSE]
        return cls((*_SPECIAL, *opens, CLOSE, *leaves))

    def __len__(self) -> int:
        return len(self.symbols)

    def __contains__(self, symbol: str) -> bool:
        return symbol in self._ids

    @cached_property
    def close_id(self) -> int:
        """The id that closes a constituent."""
        return self.symbols.index(CLOSE)

    @property
    def open_ids(self) -> range:
        """The ids that open a constituent."""
        return range(3, self.close_id)

    @property
    def leaf_ids(self) -> range:
        """The ids that stand for a word."""
        return range(self.close_id + 1, len(self.symbols))

    @property
    def has_tags(self) -> bool:
        """Whether leaves are tags; otherwise one symbol stands for every word."""
        return self.symbols[self.close_id + 1 :] != (NO_TAG,)

    def encode(self, symbols: Iterable[str]) -> list[int]:
        try:
            return [self._ids[symbol] for symbol in symbols]
        except KeyError as error:
            raise UserError(f"The symbol {error.args[0]!r} is not in the vocabulary of {len(self)} symbols.") from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The symbols of these ids, without the special ones."""
        symbols = []
        for number in ids:
            if not 0 <= number < len(self):
                raise UserError(f"There is no symbol with the id {number}; ids go from 0 to {len(self) - 1}.")
            if number >= len(_SPECIAL):
                symbols.append(self.symbols[number])
        return symbols

    def encode_tree(self, tree: Tree) -> list[int]:
        """The tree as ids, without BOS and EOS."""
        return self.encode(linearize(tree, self.has_tags))

    def decode_tree(self, ids: Iterable[int], words: Sequence[str]) -> Tree:
        """The tree of some ids and words."""
        return delinearize(self.decode(ids), words)

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        content = {"kind": _KIND, "format": _FORMAT, "symbols": self.symbols}
        with new_file(Path(path)) as temporary:
            temporary.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `save` wrote."""
        check_file(Path(path))
        try:
            content: Any = parse_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read as JSON ({error}).") from None
        if not isinstance(content, dict) or content.get("kind") != _KIND:
            raise UserError(f'{path} is not a tree vocabulary: its "kind" is not "{_KIND}".')
        if content.get("format") != _FORMAT:
            raise UserError(f"{path} has the format {content.get('format')!r}; this version of regard reads {_FORMAT}.")
        symbols = content.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            raise UserError(f'{path}: "symbols" must be a list of strings.')
        try:
            return cls(tuple(symbols))
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}


def _add_symbol(symbol: str, builder: TreeBuilder, words: Iterator[str]) -> str | None:
    """Apply one symbol to an unfinished tree; return the problem if it does not fit."""
    if builder.root is not None:
        return "comes after the tree has closed"
    if symbol.startswith("("):
        builder.open(symbol[1:])
    elif not builder.open_nodes:
        return "is outside of the tree; symbols begin with a constituent"
    elif symbol != CLOSE:
        word = next(words, None)
        if word is None:
            return "is a leaf, but no word is left"
        builder.add(Leaf(symbol, word))
    elif not builder.open_nodes[-1][1]:
        return f"closes ({builder.open_nodes[-1][0]}, which is empty"
    else:
        builder.close()
    return None
