"""Accuracy, per-class recall and Wilson intervals."""

import json

import pytest

from regard import UserError
from regard.score import AccuracyScore, score_accuracy
from regard.score.accuracy import wilson_interval

CLASSES = ("cat", "dog", "sun")


@pytest.mark.parametrize(
    ("correct", "items", "expected"),
    [
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (0, 20, (0.0000, 0.1611)),
        (1, 29, (0.0061, 0.1718)),
    ],
)
def test_wilson_intervals_equal_published_ones(correct: int, items: int, expected: tuple[float, float]) -> None:
    """Newcombe 1998, table I, method 3: the score interval without continuity correction."""
    assert wilson_interval(correct, items) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("items", [1, 7, 1000])
def test_intervals_contain_the_proportion(items: int) -> None:
    for correct in (0, items // 2, items):
        low, high = wilson_interval(correct, items)
        assert 0 <= low <= correct / items <= high <= 1
        assert wilson_interval(items - correct, items) == pytest.approx((1 - high, 1 - low))


def test_interval_of_no_items() -> None:
    assert wilson_interval(0, 0) == (0, 1)
    assert AccuracyScore().accuracy == AccuracyScore().loss == AccuracyScore().balanced_accuracy == 0


def test_accuracy_and_recall() -> None:
    score = score_accuracy([0, 0, 1, 0, 1], [0, 0, 0, 1, 1], CLASSES, nats=2.5)
    assert (score.correct, score.items, score.accuracy, score.loss) == (3, 5, 60.0, 0.5)
    assert score.recall == {"cat": pytest.approx(200 / 3), "dog": 50.0}  # there is no sun
    assert score.balanced_accuracy == pytest.approx((200 / 3 + 50) / 2)


def test_precision_and_f1_of_each_class() -> None:
    """As scikit-learn's classification_report: a class that is predicted but does not occur counts in the macro F1."""
    score = score_accuracy([0, 0, 1, 0, 2], [0, 0, 0, 1, 1], CLASSES)
    assert score.precision == {"cat": pytest.approx(200 / 3), "dog": 0.0, "sun": 0.0}
    assert score.f1 == {"cat": pytest.approx(200 / 3), "dog": 0.0, "sun": 0.0}
    assert score.macro_f1 == pytest.approx(200 / 9)


def test_unknown_classes_are_counted() -> None:
    score = score_accuracy([0, 1, 0], [0, 2, 2], CLASSES, known=2)
    assert score.describe_items("words") == "3 words, 2 of them with labels that the model does not have"


def test_score_as_text() -> None:
    score = score_accuracy([0, 0, 1, 0], [0, 0, 1, 1], CLASSES, nats=1.0)
    assert str(score) == "accuracy 75.00 % (95 % interval 30.1 to 95.4), loss 0.2500; lowest recall 50.0 % for 'dog'"


def test_score_round_trips_through_json() -> None:
    score = score_accuracy([0, 2, 1, 0, 2], [0, 0, 1, 1, 2], CLASSES, nats=1.23456789)
    loaded = json.loads(json.dumps(score.rounded()))
    assert (loaded["accuracy"], loaded["correct"], loaded["items"], loaded["loss"]) == (60.0, 3, 5, 0.2469)
    assert loaded["recall"] == {"cat": 50.0, "dog": 50.0, "sun": 100.0}
    assert loaded["interval"] == pytest.approx(score.interval, abs=0.005)
    again = AccuracyScore(**{name: loaded[name] for name in score.__dataclass_fields__})
    assert again.rounded() == loaded


@pytest.mark.parametrize(
    ("predicted", "labels", "message"),
    [
        ([0], [0, 1], "There are 1 predictions and 2 labels"),
        ([], [], "nothing to score"),
        ([3], [0], "no class 3; the 3 classes count from 0"),
        ([0], [-1], "no class -1"),
    ],
)
def test_invalid_input_is_refused(predicted: list[int], labels: list[int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        score_accuracy(predicted, labels, CLASSES)
