"""How well the words of gaps are told from what stands around them.

A word is whatever a tokenizer makes it, so scores compare models with the same tokenizer and the same gaps only.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from regard.score.accuracy import wilson


@dataclass(frozen=True)
class FillScore:
    """What was asked for, and what came of it."""

    asked: int
    """Hidden words."""
    correct: int
    """Those that the model holds for the likeliest."""
    nats: float
    """−Σ ln p(hidden word)."""

    @property
    def accuracy(self) -> float:
        """The share that was found, from 0 to 100."""
        return 100 * self.correct / self.asked if self.asked else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Where the accuracy on all there could be lies, with 95 % confidence."""
        low, high = wilson(self.correct, self.asked)
        return 100 * low, 100 * high

    @property
    def loss(self) -> float:
        """Nats a hidden word."""
        return self.nats / self.asked if self.asked else 0.0

    @property
    def perplexity(self) -> float:
        """e to the loss: among how many equally likely words such a model would choose."""
        return math.exp(self.loss) if self.loss < _LARGEST else math.inf

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"accuracy {self.accuracy:.2f} % of {self.asked:,} hidden words (95 % interval {low:.1f} to {high:.1f}), "
            f"loss {self.loss:.4f}"
        )

    def rounded(self) -> dict[str, Any]:
        """As plain data: the measures, and what was counted."""
        measures = {
            "accuracy": round(self.accuracy, 2),
            "interval": [round(end, 2) for end in self.interval],
            "loss": round(self.loss, 4),
            "perplexity": round(self.perplexity, 4),
        }
        return measures | asdict(self) | {"nats": round(self.nats, 4)}


_LARGEST = 709  # beyond this e to the loss is more than a float can hold
