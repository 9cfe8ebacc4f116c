"""The table of ice and steam, from counts made by hand."""

from pathlib import Path

import numpy as np
import pytest

from regard.data.cooccurrence import CooccurrenceConfig, Cooccurrences, count_cooccurrences
from regard.data.text.vocabulary import Vocabulary
from regard.data.text.word_corpus import WordCorpus
from regard.errors import UserError
from regard.model.before.word_vectors.ratios import cooccurrence_ratios

LINES = ["ice solid water", "steam gas", "ice water solid ice", "steam water fashion steam"]
WORDS = ["ice", "steam", "solid", "water", "gas", "fashion"]


@pytest.fixture
def vocabulary() -> Vocabulary:
    text = " ".join(LINES).split()
    return Vocabulary(WORDS, np.array([text.count(word) for word in WORDS]))


@pytest.fixture
def counts(vocabulary: Vocabulary, tmp_path: Path) -> Cooccurrences:
    lines = [[vocabulary.ids[word] for word in line.split()] for line in LINES]
    offsets = np.cumsum([0, *map(len, lines)])
    corpus = WordCorpus(np.concatenate([np.array(line, dtype=np.uint16) for line in lines]), offsets)
    return count_cooccurrences(tmp_path / "counts", corpus, len(WORDS), CooccurrenceConfig(window=2))


def test_table_counted_by_hand(counts: Cooccurrences, vocabulary: Vocabulary) -> None:
    """Within two words, near ice: solid 1, water 1/2 | water 1, solid 1/2 | solid 1, water 1/2; that is 2.5 + 2 = 4.5.

    Near steam: gas 1 | water 1, fashion 1/2 | fashion 1, water 1/2; that is 4.
    """
    table = cooccurrence_ratios(counts, vocabulary, "ice", "steam", ["solid", "gas", "water", "fashion"])
    solid, gas, water, fashion = table.ratios
    assert (solid.first.count, water.first.count, gas.first.count) == (2.5, 2, 0)
    assert solid.first.probability == pytest.approx(2.5 / 4.5)
    assert (gas.second.probability, water.second.probability, fashion.second.probability) == (0.25, 0.375, 0.375)
    assert solid.value is None
    assert gas.value == 0
    assert water.value == pytest.approx((2 / 4.5) / 0.375)
    assert table.occurrences == (3, 3)


def test_text_and_json_show_the_counts(counts: Cooccurrences, vocabulary: Vocabulary) -> None:
    table = cooccurrence_ratios(counts, vocabulary, "ice", "steam", ["solid", "water"])
    header, solid, water, note = str(table).split("\n")
    assert header.split() == ["k", "P(k|ice)", "P(k|steam)", "ratio"]
    assert solid.split() == ["solid", "5.6e-01", "(2.5)", "0", "(0)", "–"]
    assert water.split() == ["water", "4.4e-01", "(2.0)", "3.8e-01", "(1.5)", "1.19"]
    assert "within 2 words" in note
    assert "ice occurs 3 times, steam 3 times" in note
    assert table.to_dict()["ratios"][0] == {
        "word": "solid",
        "first": {"count": 2.5, "probability": 2.5 / 4.5},
        "second": {"count": 0.0, "probability": 0.0},
        "ratio": None,
    }


@pytest.mark.parametrize(
    ("words", "message"), [(["solidd"], "did you mean solid"), (["xyz"], "nowhere"), ([], "ratios")]
)
def test_unknown_words_are_one_sentence(
    counts: Cooccurrences, vocabulary: Vocabulary, words: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        cooccurrence_ratios(counts, vocabulary, "ice", "steam", words)
