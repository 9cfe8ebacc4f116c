"""Word alignment equals a plain reimplementation, and the alignment error rate a hand-computed one."""

import math
import random
from collections import defaultdict

import pytest

from regard.look.analysis.head_roles.alignment import LinkCounts
from regard.look.analysis.head_roles.word_alignment import (
    NULL_PROBABILITY,
    TENSION,
    Aligner,
    Alignment,
    grow_diag_final_and,
)

Corpus = list[tuple[list[str], list[str]]]


def random_corpus(seed: int = 0) -> Corpus:
    rng = random.Random(seed)
    return [(rng.choices("abcdef", k=rng.randint(1, 6)), rng.choices("uvwxyz", k=rng.randint(1, 6))) for _ in range(40)]


def plain_model(corpus: Corpus, uniform: int, diagonal: int) -> dict[tuple[str, str], float]:
    """p(target | source) by loops over all words."""
    p: dict[tuple[str, str], float] = defaultdict(lambda: 1.0)
    for iteration in range(uniform + diagonal):
        counts: dict[tuple[str, str], float] = defaultdict(float)
        for source, target in corpus:
            for j, t in enumerate(target):
                near = [
                    math.exp(-TENSION * abs((i + 0.5) / len(source) - (j + 0.5) / len(target)))
                    for i in range(len(source))
                ]
                priors = [NULL_PROBABILITY, *((1 - NULL_PROBABILITY) * each / sum(near) for each in near)]
                if iteration < uniform:
                    priors = [1.0] * len(priors)
                words = ["", *source]
                total = sum(prior * p[s, t] for s, prior in zip(words, priors, strict=True))
                for s, prior in zip(words, priors, strict=True):
                    counts[s, t] += prior * p[s, t] / total
        totals: dict[str, float] = defaultdict(float)
        for (s, _), count in counts.items():
            totals[s] += count
        p = defaultdict(float, {pair: count / totals[pair[0]] for pair, count in counts.items()})
    return p


@pytest.mark.parametrize(("uniform", "diagonal"), [(3, 0), (2, 3)])
def test_probabilities_equal_a_plain_model(uniform: int, diagonal: int) -> None:
    corpus = random_corpus()
    aligner = Aligner(corpus)
    aligner.learn((uniform, diagonal))
    expected = plain_model(corpus, uniform, diagonal)
    found = {(s, t): aligner.probability(s, t) for s in ["", *"abcdef"] for t in "uvwxyz"}
    assert found == pytest.approx({pair: expected[pair] for pair in found})


def test_words_that_occur_together_are_aligned() -> None:
    """The classic corpus of Knight 1999, in any order of words and in any case."""
    pairs = [("das Haus", "the house"), ("das Buch", "the book"), ("ein Buch", "a book")]
    aligner = Aligner([(source.split(), target.split()) for source, target in pairs] * 3)
    aligner.learn()
    alignment = aligner.align(["ein", "haus"], ["House", "A"])
    assert alignment.sure == alignment.possible == {(0, 1), (1, 0)}
    assert aligner.align(["nie"], ["gesehen"]) == (frozenset(), frozenset())


def test_links_grow_from_those_of_both_directions() -> None:
    forward = {(0, 0), (1, 1), (1, 2), (5, 6), (3, 3)}
    backward = {(0, 0), (1, 1), (2, 2), (4, 3), (6, 6)}
    # (1, 2) and (2, 2) are next to (1, 1), (3, 3) to (2, 2), (4, 3) to (3, 3). (5, 6) links two unlinked words; then
    # (6, 6) does not.
    assert grow_diag_final_and(forward, backward) == {(0, 0), (1, 1), (1, 2), (2, 2), (5, 6), (3, 3), (4, 3)}


def test_error_rate_of_an_example() -> None:
    """Of three links two are sure and all but one possible; there are four sure links: 1 − (2 + 2) / (3 + 4)."""
    sure = frozenset({(0, 0), (1, 1), (2, 2), (3, 3)})
    alignment = Alignment(sure, sure | {(0, 1)})
    counts = LinkCounts()
    counts.add([(0, 0), (1, 1), (5, 2)], alignment)
    assert counts.error_rate == pytest.approx(1 - (2 + 2) / (3 + 4))
    counts.add([(0, 1)], alignment)  # possible, but not sure
    assert counts.error_rate == pytest.approx(1 - (2 + 3) / (4 + 8))
    nothing = LinkCounts()
    nothing.add([], alignment)
    assert nothing.error_rate == 1
