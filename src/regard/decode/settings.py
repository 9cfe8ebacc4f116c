"""How outputs are searched for, as a recipe says it."""

from typing import Literal

from pydantic import Field

from regard.config import Config
from regard.decode.penalty import LengthPenalty, NoPenalty, PaperPenalty, PowerPenalty


class DecodeConfig(Config):
    """One beam is greedy search. The penalty says how outputs of different lengths compare."""

    beams: int = Field(default=5, ge=1)
    penalty: Literal["paper", "power", "none"] = "paper"
    strength: float = Field(default=0.6, ge=0)
    longest_factor: float = Field(default=2.0, gt=0)
    """An output ends at the latest after so many times the tokens of its source …"""
    longest_extra: int = Field(default=20, ge=1)
    """… and so many more."""

    def length_penalty(self) -> LengthPenalty:
        match self.penalty:
            case "paper":
                return PaperPenalty(self.strength)
            case "power":
                return PowerPenalty(self.strength)
            case "none":
                return NoPenalty()

    def limit(self, source_length: int) -> int:
        """The most tokens an output may have, its end included."""
        return int(self.longest_factor * source_length) + self.longest_extra
