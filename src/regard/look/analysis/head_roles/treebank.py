"""Sentences with the syntactic governor of each word: from CoNLL-U files, or from trees in brackets by head rules.

A constituent's head is the head of one of its children, chosen by the rules of Collins 1999 (appendix A). The heads of
all its other children are governed by it. Such a relation is named by both constituents: "NP in VP" is what a
dependency treebank calls an object.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.text.lines import read_lines
from regard.data.trees.tree import Leaf, Tree, unescape_brackets
from regard.errors import UserError

ROOT = -1
"""The governor of a word that has none."""


class GovernedSentence(NamedTuple):
    """The words of a sentence, the position of each one's governor, and their relation."""

    words: Sequence[str]
    governors: Sequence[int]
    relations: Sequence[str]
    """Empty for words that have no governor, and for punctuation."""
    spaces: Sequence[bool] | None = None
    """Whether a space follows each word, if it is known."""


def read_conllu(path: Path) -> Iterator[GovernedSentence]:
    """The sentences of a CoNLL-U file."""
    rows: list[list[str]] = []
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            if rows:
                yield _sentence(rows)
            rows = []
        elif not line.startswith("#"):
            fields = line.rstrip("\n").split("\t")
            if len(fields) != 10:
                raise UserError(f"{path}, line {number}: found {len(fields)} columns; a CoNLL-U file has 10.")
            rows.append(fields)
    if rows:
        yield _sentence(rows)


def _sentence(rows: Sequence[Sequence[str]]) -> GovernedSentence:
    """A sentence from its rows. A contraction such as "don't" is one row (2-3) over two words; it is split without a
    space, and empty nodes (5.1) are left out."""
    words = [row for row in rows if row[0].isdigit()]
    last_of_contraction = {row[0].split("-")[1]: row for row in rows if "-" in row[0]}
    inside = {str(n) for row in rows if "-" in row[0] for n in range(*map(int, row[0].split("-")))}
    spaces = [
        row[0] not in inside and "SpaceAfter=No" not in last_of_contraction.get(row[0], row)[9].split("|")
        for row in words
    ]
    return GovernedSentence(
        [row[1] for row in words],
        [int(row[6]) - 1 if row[6].isdigit() else ROOT for row in words],
        ["" if row[7] in ("punct", "root") else row[7].split(":")[0] for row in words],
        spaces,
    )


def governors_of(tree: Tree) -> GovernedSentence:
    """The governors in a tree of the Penn Treebank's labels."""
    leaves = tree.leaves()
    governors, relations = [ROOT] * len(leaves), [""] * len(leaves)
    open_nodes: list[tuple[str, list[_Child]]] = []
    position = 0
    for node in tree.walk():
        if isinstance(node, Tree):
            open_nodes.append((node.label, []))
        elif isinstance(node, Leaf):
            open_nodes[-1][1].append(_Child(node.tag, position))
            position += 1
        else:
            label, children = open_nodes.pop()
            head = _head_child(label, children)
            for child in children:
                if child is not head:
                    governors[child.head] = head.head
                    relations[child.head] = "" if _is_mark(child.label) else f"{child.label} in {label}"
            if open_nodes:
                open_nodes[-1][1].append(_Child(label, head.head))
    return GovernedSentence([unescape_brackets(leaf.word) for leaf in leaves], governors, relations)


def spaced_text(sentence: GovernedSentence, *, tokenized: bool) -> tuple[str, list[tuple[int, int]]]:
    """The text of a sentence, and the characters of each word in it.

    tokenized: with a space between all words, for models that read such text. Else as it was written; if that is not
    known, without spaces before punctuation marks and clitics.
    """
    text, spans = "", []
    for index, word in enumerate(sentence.words):
        spelled = word if tokenized else _QUOTES.get(word, word)
        if index > 0:
            before = sentence.words[index - 1]
            known = None if sentence.spaces is None else sentence.spaces[index - 1]
            is_apart = not (_ATTACHED_LEFT.fullmatch(word) or _ATTACHED_RIGHT.fullmatch(before))
            text += " " if tokenized or (is_apart if known is None else known) else ""
        spans.append((len(text), len(text) + len(spelled)))
        text += spelled
    return text, spans


_QUOTES = {"``": '"', "''": '"'}
_ATTACHED_LEFT = re.compile(r"[,.;:!?%)\]}…”]+|''|n['’]t|['’]\w*", re.IGNORECASE)
_ATTACHED_RIGHT = re.compile(r"[(\[{$#“]|``")


class _Child(NamedTuple):
    """A child of a constituent, and the position of its head word."""

    label: str
    head: int


def _head_child(label: str, children: Sequence[_Child]) -> _Child:
    """The child that has the head of a constituent."""
    candidates = [child for child in children if not _is_mark(child.label)] or list(children)
    from_left, labels = _RULES.get(label, (True, ""))
    for starts_left, wanted in (
        _NOUN_PHRASE if label in _NOUN_PHRASES else [(from_left, each) for each in labels.split()]
    ):
        for child in candidates if starts_left else reversed(candidates):
            if child.label in wanted.split():
                return child
    return candidates[0 if from_left else -1]


def _is_mark(label: str) -> bool:
    return label in {",", ".", ":", "``", "''", '"', "-LRB-", "-RRB-", "HYPH", "NFP"}


_NOUN_PHRASES = {"NP", "NX", "NML"}
_NOUN_PHRASE = [
    (False, "NN NNP NNPS NNS NX POS JJR"),
    (True, "NP NML"),
    (False, "$ ADJP PRN"),
    (False, "CD"),
    (False, "JJ JJS RB QP"),
]
"""Searched in turn, each from the left (True) or the right."""
_RULES = {
    "ADJP": (True, "NNS QP NN $ ADVP JJ VBN VBG ADJP JJR NP JJS DT FW RBR RBS SBAR RB"),
    "ADVP": (False, "RB RBR RBS FW ADVP TO CD JJR JJ IN NP JJS NN"),
    "CONJP": (False, "CC RB IN"),
    "FRAG": (False, ""),
    "LST": (False, "LS"),
    **dict.fromkeys(_NOUN_PHRASES, (False, "")),
    "NAC": (True, "NN NNS NNP NNPS NP NAC EX $ CD QP PRP VBG JJ JJS JJR ADJP FW"),
    "PP": (False, "IN TO VBG VBN RP FW"),
    "PRT": (False, "RP"),
    "QP": (True, "$ IN NNS NN JJ RB DT CD QP JJR JJS"),
    "RRC": (False, "VP NP ADVP ADJP PP"),
    "S": (True, "TO IN VP S SBAR ADJP UCP NP"),
    "SBAR": (True, "WHNP WHPP WHADVP WHADJP IN DT S SQ SINV SBAR FRAG"),
    "SBARQ": (True, "SQ S SINV SBARQ FRAG"),
    "SINV": (True, "VBZ VBD VBP VB MD VP S SINV ADJP NP"),
    "SQ": (True, "VBZ VBD VBP VB MD VP SQ"),
    "UCP": (False, ""),
    "VP": (True, "TO VBD VBN MD VBZ VB VBG VBP VP ADJP NN NNS NP"),
    "WHADJP": (True, "CC WRB JJ ADJP"),
    "WHADVP": (False, "CC WRB"),
    "WHNP": (True, "WDT WP WP$ WHADJP WHPP WHNP"),
    "WHPP": (False, "IN TO FW"),
}
"""For each constituent, whether its children are searched from the left, and the labels to look for, the best first."""
