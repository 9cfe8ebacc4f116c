"""Decoding: search and sampling over any model that can take a decoding step, and batching of requests."""

from regard.decode.batch import BatchDecoderModel, DecodeFuture, Request, score_all, search_all, search_batch
from regard.decode.beam import BeamSearch, beam_search
from regard.decode.config import Constraints, DecodeConfig, make_strategy
from regard.decode.constrained_beam import ConstrainedBeamSearch, RequiredWord
from regard.decode.diverse_beam import DiverseBeamSearch, Diversity
from regard.decode.engine import Engine
from regard.decode.ensemble import Ensemble, EnsembleState
from regard.decode.forbidden_text import ForbiddenText, ForbiddenTextProcessor
from regard.decode.greedy import Greedy, greedy_search
from regard.decode.logits_processors import (
    ForbiddenProcessor,
    MinLengthProcessor,
    NoRepeatNgramProcessor,
    PrefixProcessor,
)
from regard.decode.observer import Candidates, Observer, RecordingObserver, Step
from regard.decode.sampling import Sampler, SamplingParams
from regard.decode.search import DecoderModel, DecoderState, score_forced, search
from regard.decode.strategy import (
    Choice,
    GeneratedTokens,
    Hypothesis,
    LengthPenalty,
    LogitsProcessor,
    OutputLimits,
    SearchStrategy,
    upcast,
)
from regard.decode.tree_constraint import TreeConstraint, TreeProcessor

__all__ = [
    "BatchDecoderModel",
    "BeamSearch",
    "Candidates",
    "Choice",
    "ConstrainedBeamSearch",
    "Constraints",
    "DecodeConfig",
    "DecodeFuture",
    "DecoderModel",
    "DecoderState",
    "DiverseBeamSearch",
    "Diversity",
    "Engine",
    "Ensemble",
    "EnsembleState",
    "ForbiddenProcessor",
    "ForbiddenText",
    "ForbiddenTextProcessor",
    "GeneratedTokens",
    "Greedy",
    "Hypothesis",
    "LengthPenalty",
    "LogitsProcessor",
    "MinLengthProcessor",
    "NoRepeatNgramProcessor",
    "Observer",
    "OutputLimits",
    "PrefixProcessor",
    "RecordingObserver",
    "Request",
    "RequiredWord",
    "Sampler",
    "SamplingParams",
    "SearchStrategy",
    "Step",
    "TreeConstraint",
    "TreeProcessor",
    "beam_search",
    "greedy_search",
    "make_strategy",
    "score_all",
    "score_forced",
    "search",
    "search_all",
    "search_batch",
    "upcast",
]
