"""Scores of gaps, worked out by hand."""

import math

import pytest

from regard.score import FillScore


def test_the_measures_are_what_they_say() -> None:
    score = FillScore(asked=8, correct=3, nats=8 * math.log(5))
    assert score.accuracy == 37.5
    assert score.loss == pytest.approx(math.log(5))
    assert score.perplexity == pytest.approx(5)
    assert score.interval == pytest.approx((13.68, 69.43), abs=0.01)  # Wilson (1927) for 3 of 8
    assert str(score) == "accuracy 37.50 % of 8 hidden words (95 % interval 13.7 to 69.4), loss 1.6094"


def test_as_plain_data_it_can_be_made_again() -> None:
    plain = FillScore(8, 3, 12.5).rounded()
    assert (plain["accuracy"], plain["loss"]) == (37.5, 1.5625)
    assert FillScore(**{name: plain[name] for name in ("asked", "correct", "nats")}) == FillScore(8, 3, 12.5)


def test_a_loss_that_ran_away_is_no_error() -> None:
    assert FillScore(1, 0, 1e6).perplexity == math.inf
