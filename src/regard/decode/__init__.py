"""Search for the best output over anything that can take a step."""

from regard.decode.beam import Beams, beam_search
from regard.decode.diverse import Diverse
from regard.decode.engine import Engine, Request, Ticket, Worker
from regard.decode.ensemble import Ensemble
from regard.decode.given import score_given
from regard.decode.observe import Candidates, Observer, Recording, Step
from regard.decode.offline import search_all, search_batch
from regard.decode.penalty import LengthPenalty, NoPenalty, PaperPenalty, PowerPenalty
from regard.decode.required import Required
from regard.decode.rules import Forbidden, Prefix, Rule, Shortest, Written
from regard.decode.search import Choice, Chooser, Hypothesis, Stepper, search
from regard.decode.settings import DecodeConfig, Wish, make_chooser
from regard.decode.single import Sampled, Single, greedy_search
from regard.decode.tree_rule import TreeRule, TreeWish

__all__ = [
    "Beams",
    "Candidates",
    "Choice",
    "Chooser",
    "DecodeConfig",
    "Diverse",
    "Engine",
    "Ensemble",
    "Forbidden",
    "Hypothesis",
    "LengthPenalty",
    "NoPenalty",
    "Observer",
    "PaperPenalty",
    "PowerPenalty",
    "Prefix",
    "Recording",
    "Request",
    "Required",
    "Rule",
    "Sampled",
    "Shortest",
    "Single",
    "Step",
    "Stepper",
    "Ticket",
    "TreeRule",
    "TreeWish",
    "Wish",
    "Worker",
    "Written",
    "beam_search",
    "greedy_search",
    "make_chooser",
    "score_given",
    "search",
    "search_all",
    "search_batch",
]
