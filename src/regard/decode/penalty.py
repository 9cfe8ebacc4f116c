"""What a hypothesis' log-probability is divided by, so that long ones are not chosen against for their length alone."""

from dataclasses import dataclass
from typing import Protocol


class LengthPenalty(Protocol):
    def at(self, length: int) -> float:
        """The divisor for an output of `length` tokens, its end included. Never falls as the length grows."""
        ...


@dataclass(frozen=True)
class NoPenalty:
    """The plain log-probability."""

    def at(self, length: int) -> float:
        return 1.0


@dataclass(frozen=True)
class PaperPenalty:
    """((5 + length) / 6)^strength (Wu et al. 2016, eq. 14); the Transformer paper takes 0.6."""

    strength: float = 0.6

    def at(self, length: int) -> float:
        return float(((5 + length) / 6) ** self.strength)


@dataclass(frozen=True)
class PowerPenalty:
    """length^strength; 1 is the mean log-probability of a token."""

    strength: float = 1.0

    def at(self, length: int) -> float:
        return float(length**self.strength)
