"""How well trees agree with a treebank's: labelled brackets as EVALB counts them (Sekine & Collins 1997, COLLINS.prm).

A bracket is a label and the words it spans. Before brackets are counted, punctuation and empty elements are taken out
of the spans, and brackets that are then empty vanish; so do those of the root; functions and indices are cut from
labels, and ADVP and PRT are one label. A bracket is right where the treebank has one of the same label and span, each
of its own where a chain has several. Counts are summed over all sentences before they are divided.

One thing is done differently. EVALB looks for punctuation by each side's own tags and leaves a sentence out if the two
disagree. Here the treebank's tags say for both sides which words count, so a wrong tag, or a parser without tags, loses
no sentence. Where all agree the numbers are EVALB's.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regard.data.trees import EMPTY, ROOTS, Leaf, Tree
from regard.errors import UserError

PUNCTUATION = frozenset({",", ":", "``", "''", "."})
"""Tags of words that do not count."""
Bracket = tuple[str, int, int]
"""A label and a span: from this word on, up to that."""


@dataclass(frozen=True)
class BracketScore:
    """What was counted; shares are from 0 to 100."""

    matched: int = 0
    """Brackets that both sides have."""
    predicted: int = 0
    gold: int = 0
    crossing: int = 0
    """Predicted brackets that overlap one of the treebank's without one being inside the other."""
    words: int = 0
    tags: int = 0
    """Words that have the right tag."""
    exact_sentences: int = 0
    """Sentences whose brackets are all right and all there."""
    uncrossed_sentences: int = 0
    """Sentences without a crossing bracket."""
    sentences: int = 0
    """Those that have a word that counts; others are left out of everything."""
    failed: int = 0
    """Sentences without a tree; all their brackets are missed."""

    @property
    def precision(self) -> float:
        return _share(self.matched, self.predicted)

    @property
    def recall(self) -> float:
        return _share(self.matched, self.gold)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _share(2 * self.matched, self.predicted + self.gold)

    @property
    def exact(self) -> float:
        return _share(self.exact_sentences, self.sentences)

    @property
    def tagging(self) -> float:
        return _share(self.tags, self.words)

    @property
    def uncrossed(self) -> float:
        return _share(self.uncrossed_sentences, self.sentences)

    def __str__(self) -> str:
        return f"F1 {self.f1:.2f} (precision {self.precision:.2f}, recall {self.recall:.2f})"

    def rounded(self) -> dict[str, Any]:
        """As plain data: the shares, to two decimals, and what was counted."""
        shares = ("f1", "precision", "recall", "exact", "tagging")
        return {name: round(getattr(self, name), 2) for name in shares} | asdict(self)

    def __add__(self, other: "BracketScore") -> "BracketScore":
        return BracketScore(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def score_brackets(predicted: Iterable[Tree | None], gold: Iterable[Tree]) -> BracketScore:
    """The score of a test set: trees that were predicted, None where there is none, and the treebank's."""
    mine, theirs = list(predicted), list(gold)
    if len(mine) != len(theirs):
        raise UserError(f"There are {len(mine)} predicted trees and {len(theirs)} of the treebank; give one for each.")
    pairs = enumerate(zip(mine, theirs, strict=True), start=1)
    return sum((_score(*pair, f"Sentence {number}") for number, pair in pairs), BracketScore())


def score_tree(predicted: Tree | None, gold: Tree) -> BracketScore:
    """The score of one sentence."""
    return _score(predicted, gold, "The sentence")


def brackets(tree: Tree, counts: Sequence[bool]) -> list[Bracket]:
    """The brackets of a tree, over the words that count; empty elements are not words."""
    found: list[Bracket] = []
    opened: list[tuple[str, int]] = []
    word = place = 0
    for node in tree.walk():
        if isinstance(node, Tree):
            opened.append((node.label, place))
        elif isinstance(node, Leaf):
            if node.tag != EMPTY:
                place += counts[word]
                word += 1
        else:
            label, begin = opened.pop()
            if begin < place and label not in ROOTS and (cut := _cut(label)) not in PUNCTUATION:
                found.append((_EQUAL.get(cut, cut), begin, place))
    return found


_EQUAL = {"PRT": "ADVP"}


def _cut(label: str) -> str:
    """EVALB's own: at the first - or =, wherever it stands."""
    return label.partition("-")[0].partition("=")[0]


def _score(predicted: Tree | None, gold: Tree, name: str) -> BracketScore:
    right = _words(gold)
    leaves = right if predicted is None else _words(predicted)
    _check_words([leaf.word for leaf in leaves], [leaf.word for leaf in right], name)
    counts = [leaf.tag not in PUNCTUATION for leaf in right]
    wanted = brackets(gold, counts)
    words = sum(counts)
    if words == 0:
        return BracketScore()
    if predicted is None:
        return BracketScore(gold=len(wanted), words=words, sentences=1, failed=1)
    found = brackets(predicted, counts)
    matched = (Counter(found) & Counter(wanted)).total()
    spans = {(begin, end) for _, begin, end in wanted}
    crossing = sum(any(_cross(begin, end, *span) for span in spans) for _, begin, end in found)
    pairs = zip(leaves, right, counts, strict=True)
    return BracketScore(
        matched=matched,
        predicted=len(found),
        gold=len(wanted),
        crossing=crossing,
        words=words,
        tags=sum(mine.tag == theirs.tag for mine, theirs, here in pairs if here),
        exact_sentences=int(matched == len(found) == len(wanted)),
        uncrossed_sentences=int(crossing == 0),
        sentences=1,
    )


def _words(tree: Tree) -> list[Leaf]:
    return [leaf for leaf in tree.leaves() if leaf.tag != EMPTY]


def _check_words(mine: list[str], theirs: list[str], name: str) -> None:
    if len(mine) != len(theirs):
        raise UserError(
            f"{name}: the predicted tree has {len(mine)} words and the treebank's {len(theirs)}; only trees over the "
            "same words can be compared."
        )
    for place, (one, other) in enumerate(zip(mine, theirs, strict=True), start=1):
        if one != other:
            raise UserError(
                f"{name}: word {place} is {one!r} in the predicted tree and {other!r} in the treebank's; only trees "
                "over the same words can be compared."
            )


def _cross(begin: int, end: int, other_begin: int, other_end: int) -> bool:
    return begin < other_begin < end < other_end or other_begin < begin < other_end < end


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
