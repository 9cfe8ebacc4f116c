"""Tests of word vectors: similarities of word pairs against people's judgments, and analogies.

Both count only what the vectors know, so a score says how much that was, and two sets of vectors are compared on what
both know. Words are compared without regard to letter case; of several spellings the most frequent counts, as in
gensim's `evaluate_word_pairs` and `evaluate_word_analogies`, which these functions agree with.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.registry import get_dataset, is_obtainable
from regard.data.text.lines import read_lines
from regard.errors import UserError
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.model.before.word_vectors.neighbors import unit_rows
from regard.progress import phase

Pairs = Sequence[tuple[str, str, float]]
"""Two words and how similar people find them."""
Analogies = Mapping[str, Sequence[tuple[str, str, str, str]]]
"""Questions by section: a is to b as c is to d."""

PAIR_SETS = {
    "wordsim-353": "EN-WS-353-ALL.txt",
    "simlex-999": "EN-SIMLEX-999.txt",
    "men": "EN-MEN-TR-3k.txt",
}
"""The files of the dataset `wordsim` (Finkelstein et al. 2002; Hill, Reichart and Korhonen 2015; Bruni et al. 2014)."""
ANALOGIES_FILE = "gensim_questions-words.txt"
ANALOGY_SETS: dict[str, int | None] = {"analogies-30000": 30_000, "analogies": None}
"""Google's analogies (Mikolov et al. 2013) among the 30,000 most frequent words, as word2vec.c tests, and among all."""
SETS = (*PAIR_SETS, *ANALOGY_SETS)
_SYNTACTIC = "gram"
"""What the names of sections about grammar begin with."""
_QUESTIONS = 2048


@dataclass(frozen=True, repr=False)
class WordSimilarityScore:
    """How the cosines of word pairs agree with people's judgments."""

    spearman: float
    """The rank correlation; NaN if fewer than two pairs are known."""
    pearson: float
    pairs: int
    known: int
    """The pairs that were compared: both words have a vector."""

    @property
    def coverage(self) -> float:
        return self.known / self.pairs if self.pairs else 0.0

    def __str__(self) -> str:
        value = "–" if np.isnan(self.spearman) else f"{self.spearman:.3f}"
        return f"Spearman {value} on {self.known:,} of {self.pairs:,} pairs ({self.coverage:.1%} known)"

    __repr__ = __str__

    def rounded(self) -> dict[str, Any]:
        correlations = {name: getattr(self, name) for name in ("spearman", "pearson")}
        record: dict[str, Any] = {
            name: None if np.isnan(value) else round(value, 4) for name, value in correlations.items()
        }
        return record | {"pairs": self.pairs, "known": self.known, "coverage": round(self.coverage, 4)}


@dataclass(frozen=True, repr=False)
class AnalogyScore:
    """How many analogies were answered correctly."""

    sections: dict[str, tuple[int, int, int]]
    """By section: the correct answers, the questions whose four words are all candidates, and all questions."""

    def counts(self, *, syntactic: bool | None = None) -> tuple[int, int, int]:
        """The sums over all sections, or over those about grammar, or those about the world."""
        chosen = [
            counts
            for name, counts in self.sections.items()
            if syntactic is None or name.startswith(_SYNTACTIC) == syntactic
        ]
        correct, known, questions = (sum(column) for column in zip((0, 0, 0), *chosen, strict=True))
        return correct, known, questions

    def describe_sections(self) -> str:
        """The sections that were asked about, a line each."""
        rows = [(name, counts) for name, counts in self.sections.items() if counts[1]]
        return "\n".join(f"  {name}: {_percent(*counts)} of {counts[1]:,}" for name, counts in rows)

    @property
    def accuracy(self) -> float:
        """Percent of the questions with known words."""
        correct, known, _ = self.counts()
        return 100 * correct / known if known else float("nan")

    def __str__(self) -> str:
        _, known, questions = self.counts()
        parts = [f"{_percent(*self.counts())} of {known:,} of {questions:,} analogies"]
        for name, syntactic in (("semantic", False), ("syntactic", True)):
            if (counts := self.counts(syntactic=syntactic))[2] not in (0, questions):
                parts.append(f"{name} {_percent(*counts)}")
        return f"{parts[0]} ({known / questions if questions else 0:.1%} known)" + "".join(f", {p}" for p in parts[1:])

    __repr__ = __str__

    def rounded(self) -> dict[str, Any]:
        correct, known, questions = self.counts()
        record: dict[str, Any] = {"accuracy": round(self.accuracy, 2) if known else None}
        record |= {"correct": correct, "known": known, "questions": questions}
        names = ("correct", "known", "questions")
        return record | {
            "sections": {name: dict(zip(names, counts, strict=True)) for name, counts in self.sections.items()}
        }


WordVectorScore = WordSimilarityScore | AnalogyScore


def available_sets() -> list[str]:
    """The sets that are on this machine or can be downloaded."""
    return [name for name in SETS if is_obtainable("wordsim", [PAIR_SETS.get(name, ANALOGIES_FILE)])]


def score_word_vectors(
    keyed: KeyedVectors, sets: Iterable[str] | None = None, shared_with: Sequence[KeyedVectors] = ()
) -> dict[str, WordVectorScore]:
    """The scores on named sets of the dataset `wordsim`, or on all that are available.

    Questions that one of `shared_with` does not know are left out, so that several vectors can be compared.
    """
    scores: dict[str, WordVectorScore] = {}
    for name in available_sets() if sets is None else sets:
        if name not in SETS:
            raise UserError(f"There is no test of word vectors named {name!r}; there are {', '.join(SETS)}.")
        if name in PAIR_SETS:
            pairs = read_word_pairs(get_dataset("wordsim", [PAIR_SETS[name]]) / PAIR_SETS[name])
            scores[name] = score_word_pairs(keyed, pairs, shared_with)
        else:
            analogies = read_analogies(get_dataset("wordsim", [ANALOGIES_FILE]) / ANALOGIES_FILE)
            scores[name] = score_analogies(keyed, analogies, ANALOGY_SETS[name], shared_with)
    return scores


def score_word_pairs(
    keyed: KeyedVectors, pairs: Pairs, shared_with: Sequence[KeyedVectors] = ()
) -> WordSimilarityScore:
    """Compare cosines with judgments. Words without a vector are composed of their subwords if the model has them."""
    lookups = [_Lookup(one) for one in (keyed, *shared_with)]
    known = [pair for pair in pairs if all(one.has(pair[0]) and one.has(pair[1]) for one in lookups)]
    if len(known) < 2:
        return WordSimilarityScore(float("nan"), float("nan"), len(pairs), len(known))
    first = unit_rows(lookups[0].vectors([one for one, _, _ in known]))
    second = unit_rows(lookups[0].vectors([other for _, other, _ in known]))
    cosines = np.einsum("ij,ij->i", first, second).astype(np.float64)
    judged = np.array([pair[2] for pair in known])
    spearman = correlation(ranks(cosines), ranks(judged))
    return WordSimilarityScore(spearman, correlation(cosines, judged), len(pairs), len(known))


def score_analogies(
    keyed: KeyedVectors, analogies: Analogies, limit: int | None = None, shared_with: Sequence[KeyedVectors] = ()
) -> AnalogyScore:
    """Answer analogies among the first `limit` words (3CosAdd over vectors of length 1, without the three words of the
    question). A question with a word that is not among them is left out."""
    lookups = [_Lookup(one, limit) for one in (keyed, *shared_with)]
    own = lookups[0].rows
    found: dict[str, tuple[int, int, int]] = {}
    asked = sum(map(len, analogies.values()))
    with phase("Answering analogies", "questions", asked) as progress:
        for section, questions in analogies.items():
            known = [one for one in questions if all(each.knows(word) for each in lookups for word in one)]
            correct = 0
            for start in range(0, len(known), _QUESTIONS):
                block = known[start : start + _QUESTIONS]
                rows = np.array([[own[word.upper()] for word in question] for question in block])
                answers = _answer(keyed, rows, lookups[0], limit)
                correct += int((answers == rows[:, 3]).sum())
            found[section] = (correct, len(known), len(questions))
            progress.update(progress.done + len(questions))
    return AnalogyScore(found)


def read_word_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Lines of two words and a number, between tabs or spaces; lines that begin with # are left out."""
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t") if line.count("\t") >= 2 else line.split()
        if not fields or line.startswith("#"):
            continue
        try:
            first, second, judged = fields
            pairs.append((first.strip(), second.strip(), float(judged)))
        except ValueError:
            raise UserError(f"{path}, line {number}: expected two words and a number, found {line[:60]!r}.") from None
    if not pairs:
        raise UserError(f"{path} has no pairs of words; expected two words and a number per line.")
    return pairs


def read_analogies(path: Path) -> dict[str, list[tuple[str, str, str, str]]]:
    """Lines of four words, in sections that begin with a line `: name`."""
    sections: dict[str, list[tuple[str, str, str, str]]] = {}
    section = "questions"
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split()
        if line.startswith(":"):
            section = line[1:].strip()
        elif len(fields) == 4:
            a, b, c, d = fields
            sections.setdefault(section, []).append((a, b, c, d))
        elif fields:
            raise UserError(f"{path}, line {number}: expected four words or `: section`, found {line[:60]!r}.")
    if not sections:
        raise UserError(f"{path} has no analogies; expected four words per line.")
    return sections


def ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ranks of values from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse]
    return means


def correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Pearson's correlation; NaN if a side is constant."""
    one, other = one - one.mean(), other - other.mean()
    size = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / size if size else float("nan")


class _Lookup:
    """Words without regard to letter case: of several spellings the first, which is the most frequent, counts."""

    def __init__(self, keyed: KeyedVectors, limit: int | None = None) -> None:
        self.keyed = keyed
        self.rows: dict[str, int] = {}
        self.same: dict[int, list[int]] = {}
        """The other spellings of a row."""
        for row, word in enumerate(keyed.words if limit is None else keyed.words[:limit]):
            first = self.rows.setdefault(word.upper(), row)
            if first != row:
                self.same.setdefault(first, []).append(row)

    def knows(self, word: str) -> bool:
        return word.upper() in self.rows

    def has(self, word: str) -> bool:
        """Whether a word has a vector, its own or a composed one."""
        return self.knows(word) or (self.keyed.compose is not None and self.keyed.compose(word) is not None)

    def vectors(self, words: Sequence[str]) -> NDArray[np.float32]:
        rows = [self.rows.get(word.upper()) for word in words]
        return np.stack([self.keyed[self.keyed.words[row] if row is not None else word]
                         for word, row in zip(words, rows, strict=True)])  # fmt: skip


def _answer(keyed: KeyedVectors, rows: NDArray[np.int64], lookup: _Lookup, limit: int | None) -> NDArray[np.int64]:
    """The row of the best answer to each question; any spelling of a word is the word.  rows: # (questions, 4)"""
    units = [keyed.search.unit(rows[:, column]) for column in range(3)]
    excluded = [
        {row for given in question[:3] for row in (given, *lookup.same.get(given, ()))} for question in rows.tolist()
    ]
    best = keyed.search.nearest(units[1] - units[0] + units[2], 1, excluded, limit).rows[:, 0]
    return np.array([lookup.rows[keyed.words[row].upper()] if row >= 0 else -1 for row in best.tolist()])


def _percent(correct: int, known: int, questions: int) -> str:
    return f"{100 * correct / known:.1f} %" if known else "–"
