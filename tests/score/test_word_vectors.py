"""Tests of word vectors: correlations by their definitions, analogies by both protocols, and what is not known."""

import math
from pathlib import Path

import numpy as np
import pytest

from regard.data.registry import find_dataset
from regard.errors import UserError
from regard.model.before.word_vectors.keyed_vectors import KeyedVectors
from regard.score.word_vectors import (
    available_sets,
    correlation,
    ranks,
    read_analogies,
    read_word_pairs,
    score_analogies,
    score_word_pairs,
    score_word_vectors,
)

GRID = {
    "man": (1, 0, 0),
    "woman": (-1, 0, 0),
    "king": (1, 1, 0),
    "queen": (-1, 1, 0),
    "boy": (1, 0, 1),
    "girl": (-1, 0, 1),
}
ROYAL = {
    "family": [("man", "king", "woman", "queen"), ("woman", "girl", "man", "boy")],
    "gram1-x": [("a", "b", "c", "d")],
}


def keyed(words: dict[str, tuple[float, ...]] | None = None, **settings) -> KeyedVectors:
    words = words or GRID
    return KeyedVectors(list(words), np.array(list(words.values()), dtype=np.float32), **settings)


def test_ranks_of_equal_values_are_their_mean() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 2.0, 3.0])).tolist() == [4, 1, 4, 2, 4]


def test_correlation_follows_its_definition() -> None:
    one, other = np.random.default_rng(1).standard_normal((2, 50))
    assert correlation(one, other) == pytest.approx(np.corrcoef(one, other)[0, 1])
    assert math.isnan(correlation(one, np.ones(50)))


def test_pairs_are_ranked_by_their_cosines_and_coverage_is_stated() -> None:
    pairs = [("man", "king", 9.0), ("Man", "WOMAN", 0.0), ("king", "boy", 9.5), ("man", "unicorn", 5.0)]
    score = score_word_pairs(keyed(), pairs)
    cosines = np.array([2**-0.5, -1, 0.5])
    assert (score.known, score.pairs, score.coverage) == (3, 4, 0.75)
    assert score.spearman == pytest.approx(0.5)  # 1 − 6 · 2 / (3 · 8): two neighbors are swapped
    assert score.pearson == pytest.approx(correlation(cosines, np.array([9.0, 0, 9.5])))
    assert str(score).endswith("on 3 of 4 pairs (75.0% known)")
    assert score.rounded()["known"] == 3
    assert score_word_pairs(keyed(), pairs[3:]).rounded()["spearman"] is None


def test_unknown_words_are_composed_where_the_model_can() -> None:
    composing = keyed(compose=lambda word: np.ones(3, np.float32) if word == "unicorn" else None)
    assert score_word_pairs(composing, [("man", "unicorn", 1.0), ("king", "x", 2.0)]).known == 1


def test_scores_of_two_models_are_on_what_both_know() -> None:
    pairs = [("man", "king", 9.0), ("man", "woman", 0.0), ("girl", "woman", 8.0)]
    small = keyed({word: GRID[word] for word in ("man", "king", "woman", "queen")})
    assert score_word_pairs(keyed(), pairs, [small]).known == score_word_pairs(small, pairs, [keyed()]).known == 2
    assert score_analogies(keyed(), ROYAL, None, [small]).counts() == (1, 1, 3)


def test_analogies_are_answered_by_section() -> None:
    score = score_analogies(keyed(), ROYAL)
    assert score.sections == {"family": (2, 2, 2), "gram1-x": (0, 0, 1)}
    assert (score.counts(syntactic=False), score.counts(syntactic=True)) == ((2, 2, 2), (0, 0, 1))
    assert score.accuracy == 100
    assert str(score) == "100.0 % of 2 of 3 analogies (66.7% known), semantic 100.0 %, syntactic –"
    assert score.rounded()["sections"]["family"] == {"correct": 2, "known": 2, "questions": 2}


def test_only_the_first_words_are_candidates_and_asked_about() -> None:
    assert score_analogies(keyed(), ROYAL, limit=4).sections["family"] == (1, 1, 2)
    nearer = {**GRID, "empress": (-1.2, 1.8, 0)}  # beyond the limit
    assert score_analogies(keyed(nearer), ROYAL, limit=6).sections["family"] == (2, 2, 2)


def test_other_spellings_of_the_question_are_no_answers() -> None:
    """Of man, Man and MAN the first is the word; the others neither answer nor hide it."""
    words = {**GRID, "King": (-1, 1.2, 0), "QUEEN": (-1, 1.05, 0)}
    assert score_analogies(keyed(words), ROYAL).sections["family"] == (2, 2, 2)


@pytest.mark.parametrize(
    ("read", "text", "problem"),
    [
        (read_word_pairs, "# words\ncat dog\n", "line 2: expected two words and a number, found 'cat dog'"),
        (read_word_pairs, "cat\tdog\thigh\n", "line 1: expected two words and a number"),
        (read_word_pairs, "\n", "has no pairs"),
        (read_analogies, ": family\na b c\n", "line 2: expected four words"),
        (read_analogies, ": family\n", "has no analogies"),
    ],
)
def test_malformed_set_is_refused_by_line(read, text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "set.txt").write_text(text)
    with pytest.raises(UserError) as error:
        read(tmp_path / "set.txt")
    assert problem in str(error.value)


def test_public_sets_are_read() -> None:
    if find_dataset("wordsim") is None:
        pytest.skip("the test sets are not on this machine")
    scores = score_word_vectors(keyed())
    assert {name: score.rounded().get("pairs") for name, score in scores.items()} == {
        "wordsim-353": 353, "simlex-999": 999, "men": 3000, "analogies-30000": None, "analogies": None,
    }  # fmt: skip
    assert scores["analogies"].counts()[2] == 19_544
    assert len(scores["analogies"].sections) == 14
    assert available_sets() == list(scores)
    with pytest.raises(UserError, match="no test of word vectors named 'wordsim'; there are wordsim-353"):
        score_word_vectors(keyed(), ["wordsim"])


def test_sets_that_cannot_be_had_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    assert available_sets() == ["wordsim-353", "simlex-999", "men"]  # the analogies have no public address
