"""Search for the best output over anything that can take a step."""

from regard.decode.beam import beam_search
from regard.decode.penalty import LengthPenalty, NoPenalty, PaperPenalty, PowerPenalty
from regard.decode.search import Hypothesis, Stepper, greedy_search
from regard.decode.settings import DecodeConfig

__all__ = [
    "DecodeConfig",
    "Hypothesis",
    "LengthPenalty",
    "NoPenalty",
    "PaperPenalty",
    "PowerPenalty",
    "Stepper",
    "beam_search",
    "greedy_search",
]
