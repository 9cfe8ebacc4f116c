"""Scores of masked tokens, worked out by hand."""

import math

import pytest

from regard.score import MaskedLMScore


def test_metrics() -> None:
    score = MaskedLMScore(tokens=8, correct=3, nats=8 * math.log(5))
    assert score.accuracy == 37.5
    assert score.loss == pytest.approx(math.log(5))
    assert score.perplexity == pytest.approx(5)
    assert score.interval == pytest.approx((13.68, 69.43), abs=0.01)  # Wilson (1927) for 3 of 8
    assert str(score) == "accuracy 37.50 % of 8 masked tokens (95 % interval 13.7 to 69.4), loss 1.6094"


def test_score_round_trips_through_plain_data() -> None:
    plain = MaskedLMScore(8, 3, 12.5).rounded()
    assert (plain["accuracy"], plain["loss"]) == (37.5, 1.5625)
    assert MaskedLMScore(**{name: plain[name] for name in ("tokens", "correct", "nats")}) == MaskedLMScore(8, 3, 12.5)


def test_perplexity_of_a_huge_loss_is_infinite() -> None:
    assert MaskedLMScore(1, 0, 1e6).perplexity == math.inf
