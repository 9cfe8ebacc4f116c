"""Masked-token accuracy and loss.

They depend on the tokenizer and on which tokens are masked, so they compare only models that share both.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from regard.score.accuracy import wilson_interval


@dataclass(frozen=True, repr=False)
class MaskedLMScore:
    """The score of a masked language model on a test set."""

    tokens: int
    """Masked tokens."""
    correct: int
    """Those that are the model's most likely prediction."""
    nats: float
    """−Σ ln p(masked token)."""

    @property
    def accuracy(self) -> float:
        """The percentage of masked tokens that were predicted correctly."""
        return 100 * self.correct / self.tokens if self.tokens else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the accuracy."""
        low, high = wilson_interval(self.correct, self.tokens)
        return 100 * low, 100 * high

    @property
    def loss(self) -> float:
        """Nats per masked token."""
        return self.nats / self.tokens if self.tokens else 0.0

    @property
    def perplexity(self) -> float:
        """exp(loss): the number of equally likely tokens the model chooses from, in effect."""
        return math.exp(self.loss) if self.loss < _MAX_EXPONENT else math.inf

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"accuracy {self.accuracy:.2f} % of {self.tokens:,} masked tokens (95 % interval {low:.1f} to {high:.1f}), "
            f"loss {self.loss:.4f}"
        )

    def __repr__(self) -> str:
        return f"MaskedLMScore({self})"

    def rounded(self) -> dict[str, Any]:
        """As plain data: the metrics and the counts."""
        metrics = {
            "accuracy": round(self.accuracy, 2),
            "interval": [round(end, 2) for end in self.interval],
            "loss": round(self.loss, 4),
            "perplexity": round(self.perplexity, 4),
        }
        return metrics | asdict(self) | {"nats": round(self.nats, 4)}


_MAX_EXPONENT = 709  # exp of more overflows a float
