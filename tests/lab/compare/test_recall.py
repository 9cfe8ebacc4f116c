"""Recall probes: only the distance varies, and a model that remembers everything recalls everything."""

import torch

from regard.lab.compare.recall import copy_recall, plant, translation_recall, word_pairs
from tests.lab.tiny import WORDS

PAIRS = [(f"{one} {other} end .", f"{one.upper()}X {other.upper()}X ENDX .") for one in WORDS for other in WORDS]


def test_lexicon_has_the_words_that_occur_together() -> None:
    lexicon = word_pairs(PAIRS)
    assert lexicon["house"] == "housex"
    assert "end" not in lexicon  # not rare


def test_planted_word_is_at_its_distance() -> None:
    lexicon = word_pairs(PAIRS)
    for distance in (1, 5, 20):
        planted = plant(PAIRS, lexicon, distance)
        assert planted
        assert planted == plant(PAIRS, lexicon, distance)
        for probe in planted:
            words = probe.source.split()
            assert lexicon[words[-1 - distance]] == probe.translation


def test_a_translator_that_reads_only_the_end_forgets() -> None:
    def last_four(lines: list[str]) -> list[str]:
        return [" ".join(f"{word}x" for word in line.split()[-4:]) for line in lines]

    near, far = translation_recall(last_four, PAIRS, PAIRS, (2, 30))
    assert near["recalled"] == near["total"] > 0
    assert far["recalled"] < far["total"] / 2


def test_copying_is_recalled_and_guessing_is_not() -> None:
    vocabulary, period = 50, 8

    def copying(tokens: torch.Tensor, distance: int) -> torch.Tensor:
        back = period + distance - 1  # the token after the same place in the first sequence
        following = tokens.roll(back, dims=1)
        return torch.nn.functional.one_hot(following, vocabulary).float()

    (row,) = copy_recall(lambda tokens: copying(tokens, 6), [0] * 100, vocabulary, (6,))
    assert row["recalled"] == row["total"]
    assert row["nats_saved"] > 0.9  # logits of 0 and 1: a copied token is e times as probable
    (row,) = copy_recall(lambda tokens: copying(tokens, 7), [0] * 100, vocabulary, (6,))
    assert row["recalled"] < row["total"] / 4
    (row,) = copy_recall(lambda tokens: copying(tokens, 7), [0] * 100, vocabulary, (6,), max_length=10)
    assert row["recalled"] is None


def test_a_model_of_the_last_token_saves_nothing_and_one_of_all_tokens_does() -> None:
    vocabulary = 50

    def last(tokens: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(tokens, vocabulary).float()

    def seen(tokens: torch.Tensor) -> torch.Tensor:
        return last(tokens).cumsum(dim=1)

    for distance in (1, 20):
        (row,) = copy_recall(last, list(range(40)), vocabulary, (distance,))
        assert row["nats_saved"] == 0
        (row,) = copy_recall(seen, [0] * 40, vocabulary, (distance,))
        assert row["nats_saved"] > 0
