"""How many things were given their right class, and how sure that share is.

A test set is a sample, so its share comes with an interval: Wilson's (1927), which stays between 0 and 100 and holds
for small sets and for shares near the ends, where the usual ± does not. Recall says the same of each class alone: a
rare one that is never recognised hardly shows in the whole.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from regard.errors import UserError

_SIGMAS = 1.959963984540054
"""Standard deviations to either side that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class AccuracyScore:
    """What was counted; shares are from 0 to 100."""

    items_by_class: dict[str, int] = field(default_factory=dict)
    """How many there are of each class that occurs."""
    correct_by_class: dict[str, int] = field(default_factory=dict)
    """How many of those were recognised."""
    nats: float = 0.0
    """−Σ ln p(right class)."""

    @property
    def items(self) -> int:
        return sum(self.items_by_class.values())

    @property
    def correct(self) -> int:
        return sum(self.correct_by_class.values())

    @property
    def accuracy(self) -> float:
        return _share(self.correct, self.items)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the accuracy on all there could be lies, with 95 % confidence."""
        low, high = wilson(self.correct, self.items)
        return 100 * low, 100 * high

    @property
    def loss(self) -> float:
        """Nats an item."""
        return self.nats / self.items if self.items else 0.0

    @property
    def recall(self) -> dict[str, float]:
        """The share of each class that was recognised."""
        return {name: _share(self.correct_by_class[name], count) for name, count in self.items_by_class.items()}

    @property
    def balanced(self) -> float:
        """The mean of the recalls: the accuracy if all classes were equally frequent."""
        return sum(self.recall.values()) / len(self.recall) if self.recall else 0.0

    def __str__(self) -> str:
        low, high = self.interval
        told = f"accuracy {self.accuracy:.2f} % (95 % interval {low:.1f} to {high:.1f}), loss {self.loss:.4f}"
        if not self.recall:
            return told
        name, least = min(self.recall.items(), key=lambda one: one[1])
        return f"{told}; lowest for {name!r}, {least:.1f} %"

    def rounded(self) -> dict[str, Any]:
        """As plain data: the shares, to two decimals, and what was counted."""
        return asdict(self) | {
            "accuracy": round(self.accuracy, 2),
            "interval": [round(end, 2) for end in self.interval],
            "balanced": round(self.balanced, 2),
            "loss": round(self.loss, 4),
            "correct": self.correct,
            "items": self.items,
            "recall": {name: round(share, 2) for name, share in self.recall.items()},
            "nats": round(self.nats, 4),
        }


def score_accuracy(
    predicted: Iterable[int], wanted: Iterable[int], classes: Sequence[str], nats: float = 0.0
) -> AccuracyScore:
    """The score of a test set: numbers of classes that were predicted, and those that are right."""
    mine, theirs = list(predicted), list(wanted)
    if len(mine) != len(theirs):
        raise UserError(f"There are {len(mine)} predicted classes and {len(theirs)} right ones; give one for each.")
    if not theirs:
        raise UserError("There is nothing to score: at least one item is needed.")
    wrong = next((number for number in (*mine, *theirs) if not 0 <= number < len(classes)), None)
    if wrong is not None:
        raise UserError(f"There is no class number {wrong}; the {len(classes)} there are count from 0.")
    there = Counter(theirs)
    right = Counter(one for one, other in zip(mine, theirs, strict=True) if one == other)
    return AccuracyScore(
        {classes[number]: there[number] for number in sorted(there)},
        {classes[number]: right[number] for number in sorted(there)},
        nats,
    )


def wilson(correct: int, items: int) -> tuple[float, float]:
    """The ends of a 95 % interval for a share, from 0 to 1 (Wilson 1927, without correction for continuity)."""
    if not items:
        return 0.0, 1.0
    share, square = correct / items, _SIGMAS**2
    middle = share + square / (2 * items)
    half = _SIGMAS * math.sqrt(share * (1 - share) / items + square / (4 * items**2))
    whole = 1 + square / items
    low = (middle - half) / whole if correct else 0.0
    return low, (middle + half) / whole if correct < items else 1.0


def _share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
