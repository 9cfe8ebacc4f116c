"""Classification accuracy, with a confidence interval, and precision, recall and F1 of each class.

A test set is a sample, so its accuracy comes with an interval: Wilson's (1927), which stays between 0 and 100 and is
valid for small sets and for accuracies near the ends, where the usual ± is not. Recall shows what accuracy hides: that
a rare class is never recognized.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from regard.errors import UserError

_SIGMAS = 1.959963984540054
"""The two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True)
class AccuracyScore:
    """Counts, and percentages derived from them."""

    items_by_class: dict[str, int] = field(default_factory=dict)
    """How many items each class has, for the classes that occur."""
    correct_by_class: dict[str, int] = field(default_factory=dict)
    """How many of those were classified correctly."""
    nats: float = 0.0
    """−Σ ln p(true class), over the items of classes that the model has."""
    unknown_classes: list[str] = field(default_factory=list)
    """Classes that the model does not have. Their items count as errors, but not in the loss."""
    predicted_by_class: dict[str, int] = field(default_factory=dict)
    """How many items were classified as each class, for the classes that occur or were predicted."""

    @property
    def items(self) -> int:
        return sum(self.items_by_class.values())

    @property
    def correct(self) -> int:
        return sum(self.correct_by_class.values())

    @property
    def accuracy(self) -> float:
        return _percent(self.correct, self.items)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy."""
        low, high = wilson_interval(self.correct, self.items)
        return 100 * low, 100 * high

    @property
    def loss(self) -> float:
        """Nats per item."""
        known = self.items - sum(self.items_by_class[name] for name in self.unknown_classes)
        return self.nats / known if known else 0.0

    @property
    def recall(self) -> dict[str, float]:
        """The percentage of each class that was classified correctly."""
        return {name: _percent(self.correct_by_class[name], count) for name, count in self.items_by_class.items()}

    @property
    def precision(self) -> dict[str, float]:
        """The percentage of the items classified as each class that belong to it; 0 if there are none."""
        return {
            name: _percent(self.correct_by_class.get(name, 0), count) for name, count in self.predicted_by_class.items()
        }

    @property
    def f1(self) -> dict[str, float]:
        """The harmonic mean of precision and recall, for each class that occurs or was predicted."""
        return {
            name: _percent(2 * self.correct_by_class.get(name, 0), predicted + self.items_by_class.get(name, 0))
            for name, predicted in self.predicted_by_class.items()
        }

    @property
    def macro_f1(self) -> float:
        """The mean of the F1 scores of all classes."""
        return sum(self.f1.values()) / len(self.f1) if self.f1 else 0.0

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the recalls: the accuracy if all classes were equally frequent."""
        return sum(self.recall.values()) / len(self.recall) if self.recall else 0.0

    def __str__(self) -> str:
        low, high = self.interval
        text = f"accuracy {self.accuracy:.2f} % (95 % interval {low:.1f} to {high:.1f}), loss {self.loss:.4f}"
        if not self.recall:
            return text
        name, lowest = min(self.recall.items(), key=lambda item: item[1])
        return f"{text}; lowest recall {lowest:.1f} % for {name!r}"

    def describe_items(self, unit: str) -> str:
        """How many items there are, and how many of them the model cannot get right. `unit` is their name."""
        unknown = sum(self.items_by_class[name] for name in self.unknown_classes)
        lost = f", {unknown:,} of them with labels that the model does not have" if unknown else ""
        return f"{self.items:,} {unit}{lost}"

    def rounded(self) -> dict[str, Any]:
        """As plain data: the percentages, to two decimals, and the counts."""
        return asdict(self) | {
            "accuracy": round(self.accuracy, 2),
            "interval": [round(end, 2) for end in self.interval],
            "balanced_accuracy": round(self.balanced_accuracy, 2),
            "loss": round(self.loss, 4),
            "correct": self.correct,
            "items": self.items,
            "precision": {name: round(precision, 2) for name, precision in self.precision.items()},
            "recall": {name: round(recall, 2) for name, recall in self.recall.items()},
            "f1": {name: round(f1, 2) for name, f1 in self.f1.items()},
            "macro_f1": round(self.macro_f1, 2),
            "nats": round(self.nats, 4),
        }


def score_accuracy(
    predicted: Iterable[int],
    labels: Iterable[int],
    classes: Sequence[str],
    nats: float = 0.0,
    *,
    known: int | None = None,
) -> AccuracyScore:
    """The score of a test set: the predicted class numbers and the true ones.

    The model has the first `known` classes, by default all of them.
    """
    predictions, truth = list(predicted), list(labels)
    if len(predictions) != len(truth):
        raise UserError(
            f"There are {len(predictions)} predictions and {len(truth)} labels; their numbers must be equal."
        )
    if not truth:
        raise UserError("There is nothing to score; at least one item is needed.")
    invalid = next((number for number in (*predictions, *truth) if not 0 <= number < len(classes)), None)
    if invalid is not None:
        raise UserError(f"There is no class {invalid}; the {len(classes)} classes count from 0.")
    items, predicted_items = Counter(truth), Counter(predictions)
    correct = Counter(label for label, prediction in zip(truth, predictions, strict=True) if label == prediction)
    return AccuracyScore(
        {classes[number]: items[number] for number in sorted(items)},
        {classes[number]: correct[number] for number in sorted(items)},
        nats,
        [classes[number] for number in sorted(items) if known is not None and number >= known],
        {classes[number]: predicted_items[number] for number in sorted(items | predicted_items)},
    )


def wilson_interval(correct: int, items: int) -> tuple[float, float]:
    """The 95 % confidence interval of a proportion (Wilson 1927, without continuity correction)."""
    if not items:
        return 0.0, 1.0
    p, z2 = correct / items, _SIGMAS**2
    center = p + z2 / (2 * items)
    half_width = _SIGMAS * math.sqrt(p * (1 - p) / items + z2 / (4 * items**2))
    scale = 1 + z2 / items
    low = (center - half_width) / scale if correct else 0.0
    return low, (center + half_width) / scale if correct < items else 1.0


def _percent(part: int, total: int) -> float:
    return 100 * part / total if total else 0.0
