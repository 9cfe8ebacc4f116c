"""Labeled bracket F1 of constituency trees, as EVALB computes it (Sekine & Collins 1997, COLLINS.prm).

A bracket is a label and the words it spans. Before brackets are counted, punctuation and empty elements are removed
from the spans, and so are brackets that become empty and those of the root; function tags and indices are stripped from
labels, and ADVP and PRT are one label. A predicted bracket is correct if the treebank has one of the same label and
span; in a unary chain each one can be matched once. Counts are summed over all sentences before they are divided.

There is one difference. EVALB finds punctuation by each side's own tags and skips a sentence if the two disagree. Here
the treebank's tags determine which words count on both sides, so that a wrong tag, or a parser without tags, skips no
sentence. If all tags agree, the numbers are EVALB's.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from regard.data.trees.cleaning import EMPTY, ROOTS
from regard.data.trees.tree import Leaf, Tree
from regard.errors import UserError

PUNCTUATION = frozenset({",", ":", "``", "''", "."})
"""Tags of words that are ignored."""
Bracket = tuple[str, int, int]
"""A label and a span of words; the end is exclusive."""


@dataclass(frozen=True, repr=False)
class BracketScore:
    """Counts, and percentages derived from them."""

    matched: int = 0
    """Predicted brackets that are in the treebank."""
    predicted: int = 0
    gold: int = 0
    crossing: int = 0
    """Predicted brackets that cross one of the treebank's: they overlap, and neither contains the other."""
    words: int = 0
    tags: int = 0
    """Words with the correct tag."""
    exact_sentences: int = 0
    """Sentences whose brackets match exactly."""
    uncrossed_sentences: int = 0
    """Sentences without crossing brackets."""
    sentences: int = 0
    """Sentences with at least one word that counts; others are ignored."""
    failed: int = 0
    """Sentences without a predicted tree; all their brackets are missed."""

    @property
    def precision(self) -> float:
        return _percent(self.matched, self.predicted)

    @property
    def recall(self) -> float:
        return _percent(self.matched, self.gold)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _percent(2 * self.matched, self.predicted + self.gold)

    @property
    def exact(self) -> float:
        return _percent(self.exact_sentences, self.sentences)

    @property
    def tagging(self) -> float:
        return _percent(self.tags, self.words)

    @property
    def uncrossed(self) -> float:
        return _percent(self.uncrossed_sentences, self.sentences)

    def __str__(self) -> str:
        return f"F1 {self.f1:.2f} (precision {self.precision:.2f}, recall {self.recall:.2f})"

    def __repr__(self) -> str:
        return f"BracketScore({self})"

    def rounded(self) -> dict[str, Any]:
        """As plain data: the percentages, to two decimals, and the counts."""
        percentages = ("f1", "precision", "recall", "exact", "tagging")
        return {name: round(getattr(self, name), 2) for name in percentages} | asdict(self)

    def __add__(self, other: "BracketScore") -> "BracketScore":
        return BracketScore(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))


def score_brackets(predicted: Iterable[Tree | None], gold: Iterable[Tree]) -> BracketScore:
    """The score of a test set: the predicted trees (None if there is none) and the treebank's."""
    predictions, golds = list(predicted), list(gold)
    if len(predictions) != len(golds):
        raise UserError(
            f"There are {len(predictions)} predicted trees and {len(golds)} gold trees; their numbers must be equal."
        )
    pairs = enumerate(zip(predictions, golds, strict=True), start=1)
    return sum((_score(*pair, f"Sentence {number}") for number, pair in pairs), BracketScore())


def score_tree(predicted: Tree | None, gold: Tree) -> BracketScore:
    """The score of one sentence."""
    return _score(predicted, gold, "The sentence")


def brackets(tree: Tree, counts: Sequence[bool]) -> list[Bracket]:
    """The brackets of a tree over the words that count; empty elements are not words."""
    found: list[Bracket] = []
    opened: list[tuple[str, int]] = []
    word = position = 0
    for node in tree.walk():
        if isinstance(node, Tree):
            opened.append((node.label, position))
        elif isinstance(node, Leaf):
            if node.tag != EMPTY:
                position += counts[word]
                word += 1
        else:
            label, begin = opened.pop()
            if begin < position and label not in ROOTS and (stripped := _strip(label)) not in PUNCTUATION:
                found.append((_EQUAL_LABELS.get(stripped, stripped), begin, position))
    return found


_EQUAL_LABELS = {"PRT": "ADVP"}


def _strip(label: str) -> str:
    """The label without function tags as EVALB strips them: from the first - or = on, even at the start."""
    return label.partition("-")[0].partition("=")[0]


def _score(predicted: Tree | None, gold: Tree, name: str) -> BracketScore:
    gold_leaves = _words(gold)
    leaves = gold_leaves if predicted is None else _words(predicted)
    _check_words([leaf.word for leaf in leaves], [leaf.word for leaf in gold_leaves], name)
    counts = [leaf.tag not in PUNCTUATION for leaf in gold_leaves]
    expected = brackets(gold, counts)
    words = sum(counts)
    if words == 0:
        return BracketScore()
    if predicted is None:
        return BracketScore(gold=len(expected), words=words, sentences=1, failed=1)
    found = brackets(predicted, counts)
    matched = (Counter(found) & Counter(expected)).total()
    spans = {(begin, end) for _, begin, end in expected}
    crossing = sum(any(_cross(begin, end, *span) for span in spans) for _, begin, end in found)
    pairs = zip(leaves, gold_leaves, counts, strict=True)
    return BracketScore(
        matched=matched,
        predicted=len(found),
        gold=len(expected),
        crossing=crossing,
        words=words,
        tags=sum(leaf.tag == gold_leaf.tag for leaf, gold_leaf, counted in pairs if counted),
        exact_sentences=int(matched == len(found) == len(expected)),
        uncrossed_sentences=int(crossing == 0),
        sentences=1,
    )


def _words(tree: Tree) -> list[Leaf]:
    return [leaf for leaf in tree.leaves() if leaf.tag != EMPTY]


def _check_words(words: list[str], gold_words: list[str], name: str) -> None:
    if len(words) != len(gold_words):
        raise UserError(
            f"{name}: the predicted tree has {len(words)} words and the gold tree {len(gold_words)}; only trees over "
            "the same words can be compared."
        )
    for number, (word, gold_word) in enumerate(zip(words, gold_words, strict=True), start=1):
        if word != gold_word:
            raise UserError(
                f"{name}: word {number} is {word!r} in the predicted tree and {gold_word!r} in the gold tree; only "
                "trees over the same words can be compared."
            )


def _cross(begin: int, end: int, other_begin: int, other_end: int) -> bool:
    return begin < other_begin < end < other_end or other_begin < begin < other_end < end


def _percent(part: int, total: int) -> float:
    return 100 * part / total if total else 0.0
