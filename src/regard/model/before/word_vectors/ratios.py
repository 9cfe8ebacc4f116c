"""What GloVe starts from: the ratio of the probabilities that a word occurs near one word and near another.

P(k|i) = X_ik / X_i is the share of k in all that occurs near i. *Water* is about as likely near *ice* as near *steam*,
and so is *fashion*; *solid* is likelier near ice and *gas* near steam, so their ratios are far from 1 (Pennington et
al. 2014, Table 1). Nothing is smoothed: few occurrences say little, so their counts stand beside the probabilities.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from regard.data.cooccurrence import Cooccurrences
from regard.data.text.vocabulary import Vocabulary
from regard.errors import UserError
from regard.model.before.word_vectors.spelling import nearest_spellings


@dataclass(frozen=True)
class NearWord:
    """What is near one of the two words: all of it, or one word's share."""

    count: float
    """Occurrences weighted by distance: one d words away counts 1/d."""
    probability: float
    """The share in all that occurs near the word."""


@dataclass(frozen=True)
class Ratio:
    """A line of the table: how likely a word is near the first word and near the second."""

    word: str
    first: NearWord
    second: NearWord

    @property
    def value(self) -> float | None:
        """P(k|i) / P(k|j); None if the word never occurs near the second."""
        return self.first.probability / self.second.probability if self.second.count else None


@dataclass(frozen=True)
class RatioTable:
    """The probabilities of some words near two words, and their ratios."""

    first: str
    second: str
    occurrences: tuple[int, int]
    """How often the two words occur in the text."""
    window: int
    """The most words between which two words count as near."""
    ratios: tuple[Ratio, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        ratios = [{**asdict(ratio), "ratio": ratio.value} for ratio in self.ratios]
        return {**asdict(self), "occurrences": list(self.occurrences), "ratios": ratios}

    def __str__(self) -> str:
        """The table as text, with the counts in parentheses."""
        header = ["k", f"P(k|{self.first})", f"P(k|{self.second})", "ratio"]
        cells = [
            [one.word, _cell(one.first), _cell(one.second), "–" if one.value is None else f"{one.value:.3g}"]
            for one in self.ratios
        ]
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *cells)]
        first, second = self.occurrences
        lines.append(
            f"In parentheses: how often the two words occur within {self.window} words of each other, one that is d "
            f"words away counted as 1/d. {self.first} occurs {first:,} times, {self.second} {second:,} times."
        )
        return "\n".join(lines)


def cooccurrence_ratios(
    counts: Cooccurrences, vocabulary: Vocabulary, first: str, second: str, words: Sequence[str]
) -> RatioTable:
    """The table P(k|first), P(k|second) and their ratio for each k of `words`, from the counts of a text.

    Words of the text that are not in the vocabulary, because they are rare, are as if they were not there.
    """
    if not words:
        raise UserError(f"Give the words to compare near {first} and {second}, such as: ratios ice steam solid gas.")
    i, j, *others = (_id(word, vocabulary) for word in (first, second, *words))
    near_first, near_second = _near(counts, i, others), _near(counts, j, others)
    occurrences = int(vocabulary.counts[i]), int(vocabulary.counts[j])
    ratios = tuple(map(Ratio, words, near_first, near_second))
    return RatioTable(first, second, occurrences, counts.window, ratios)


def _near(counts: Cooccurrences, word: int, others: Sequence[int]) -> list[NearWord]:
    columns, values = counts.row(word)
    total = float(values.sum(dtype=np.float64))
    places = np.searchsorted(columns, others)
    found = []
    for other, place in zip(others, places.tolist(), strict=True):
        count = float(values[place]) if place < len(columns) and columns[place] == other else 0.0
        found.append(NearWord(count, count / total if total else 0.0))
    return found


def _id(word: str, vocabulary: Vocabulary) -> int:
    number = vocabulary.ids.get(word)
    if number is None:
        near = nearest_spellings(word, vocabulary.ids, vocabulary.words)
        hint = f"did you mean {', '.join(near)}?" if near else "it occurs nowhere, or too rarely to be counted."
        raise UserError(f"The vocabulary has no word {word!r}; {hint}")
    return number


def _cell(near: NearWord) -> str:
    return f"{near.probability:.1e} ({near.count:,.1f})" if near.count else "0 (0)"
