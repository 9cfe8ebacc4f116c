"""Shares of right answers are counted right, and their intervals are Wilson's."""

import json

import pytest

from regard import UserError
from regard.score import AccuracyScore, score_accuracy
from regard.score.accuracy import wilson

CLASSES = ("cat", "dog", "sun")


@pytest.mark.parametrize(
    ("correct", "items", "wanted"),
    [
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0000, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_intervals_are_those_published(correct: int, items: int, wanted: tuple[float, float]) -> None:
    """Newcombe 1998, table I, method 3: the score interval without correction for continuity."""
    assert wilson(correct, items) == pytest.approx(wanted, abs=5e-5)


@pytest.mark.parametrize("items", [1, 7, 1000])
def test_intervals_stay_between_nothing_and_all_and_hold_the_share(items: int) -> None:
    for correct in (0, items // 2, items):
        low, high = wilson(correct, items)
        assert 0 <= low <= correct / items <= high <= 1
        assert wilson(items - correct, items) == pytest.approx((1 - high, 1 - low))


def test_of_nothing_nothing_is_known() -> None:
    assert wilson(0, 0) == (0, 1)
    assert AccuracyScore().accuracy == AccuracyScore().loss == AccuracyScore().balanced == 0


def test_right_answers_are_counted_for_all_and_for_each_class() -> None:
    score = score_accuracy([0, 0, 1, 0, 1], [0, 0, 0, 1, 1], CLASSES, nats=2.5)
    assert (score.correct, score.items, score.accuracy, score.loss) == (3, 5, 60.0, 0.5)
    assert score.recall == {"cat": pytest.approx(200 / 3), "dog": 50.0}  # there is no sun
    assert score.balanced == pytest.approx((200 / 3 + 50) / 2)


def test_what_a_person_reads() -> None:
    score = score_accuracy([0, 0, 1, 0], [0, 0, 1, 1], CLASSES, nats=1.0)
    assert str(score) == "accuracy 75.00 % (95 % interval 30.1 to 95.4), loss 0.2500; lowest for 'dog', 50.0 %"


def test_what_is_kept_is_plain_and_makes_the_same_score_again() -> None:
    score = score_accuracy([0, 2, 1, 0, 2], [0, 0, 1, 1, 2], CLASSES, nats=1.23456789)
    kept = json.loads(json.dumps(score.rounded()))
    assert (kept["accuracy"], kept["correct"], kept["items"], kept["loss"]) == (60.0, 3, 5, 0.2469)
    assert kept["recall"] == {"cat": 50.0, "dog": 50.0, "sun": 100.0}
    assert kept["interval"] == pytest.approx(score.interval, abs=0.005)
    again = AccuracyScore(**{name: kept[name] for name in score.__dataclass_fields__})
    assert again.rounded() == kept


@pytest.mark.parametrize(
    ("predicted", "wanted", "sentence"),
    [
        ([0], [0, 1], "There are 1 predicted classes and 2 right ones"),
        ([], [], "nothing to score"),
        ([3], [0], "no class number 3; the 3 there are count from 0"),
        ([0], [-1], "no class number -1"),
    ],
)
def test_what_cannot_be_scored_is_refused(predicted: list[int], wanted: list[int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        score_accuracy(predicted, wanted, CLASSES)
