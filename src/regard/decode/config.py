"""Decoding settings, constraints on an output, and the strategy that implements them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.decode.beam import BeamSearch
from regard.decode.constrained_beam import ConstrainedBeamSearch, ConstraintProgress, RequiredWord, Word
from regard.decode.diverse_beam import DiverseBeamSearch, Diversity
from regard.decode.forbidden_text import ForbiddenText, ForbiddenTextProcessor
from regard.decode.greedy import Greedy
from regard.decode.logits_processors import ForbiddenProcessor, NoRepeatNgramProcessor, PrefixProcessor
from regard.decode.sampling import Sampler, SamplingParams
from regard.decode.strategy import LengthPenalty, LogitsProcessor, OutputLimits, SearchStrategy
from regard.decode.tree_constraint import TreeConstraint, TreeProcessor
from regard.errors import UserError, unexpected_keyword

SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
"""Options that mean sampling."""


class DecodeConfig(Config):
    """Decoding settings: beam search by default, greedy search with a beam size of 1, sampling with `sample`."""

    beam_size: int = Field(default=5, ge=1, le=1000)
    """The number of hypotheses that beam search keeps at every step; 1 is greedy search."""
    nbest: int | None = Field(default=None, ge=1, le=1000)
    """The number of best hypotheses to return; all `beam_size` of them by default."""
    length_penalty: LengthPenalty = LengthPenalty()
    coverage_penalty: float = Field(default=0.0, ge=0, le=1e3)
    """β of GNMT's coverage penalty: hypotheses that do not attend to all of the source score lower (Wu et al. 2016,
    eq. 14); 0 is none. It needs a model whose decoder attends to the source."""
    replace_unk: Literal["off", "copy", "dictionary"] = "off"
    """What replaces an unknown word of a translation (Luong et al. 2015): a copy of the source word with the largest
    attention, or its translation in the run folder's dictionary, where it has one. It needs a tokenizer of kind word,
    and a model whose decoder attends to the source."""
    max_length_ratio: float = Field(default=2.0, ge=0, le=1e3)
    """The maximum length relative to the source: an output has at most `max_length_ratio` · source length +
    `max_length_offset` tokens, EOS included."""
    max_length_offset: int = Field(default=20, ge=1, le=100_000_000)
    """The constant part of the maximum length, in tokens; see `max_length_ratio`."""
    min_length: int = Field(default=1, ge=0, le=100_000_000)
    """An output has at least this many tokens before EOS, as far as the maximum length allows."""
    no_repeat_ngram_size: int = Field(default=0, ge=0, le=1000)
    """No n-gram of this size occurs twice in an output; 0 is no limit."""
    max_repeats: int | None = Field(default=None, ge=0, le=1000)
    """No n-gram of at most 8 tokens occurs more often than this in a row, so that no output loops; 0 is no limit.

    Translations have a limit of 6 by default, other outputs none."""
    beam_groups: int = Field(default=1, ge=1, le=1000)
    """Groups of diverse beam search; 1 is plain beam search."""
    diversity_penalty: float = Field(default=2.0, ge=0, le=1e6)
    """Subtracted from a token's score for every beam of an earlier group that chose it at the same step."""
    sample: bool = False
    """Sample tokens from the distribution instead of searching for the most likely output."""
    temperature: float = Field(default=1.0, ge=0, le=1e3)
    """Sampling temperature: logits are divided by it, so that less than 1 favors likely tokens; 0 takes the most likely
    one."""
    top_k: int = Field(default=0, ge=0, le=10_000_000)
    """Top-k sampling: only the k most likely tokens are sampled from; 0 keeps all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling (top-p): only the smallest set of tokens with at least this total probability is sampled from; 1
    keeps all (Holtzman et al. 2020)."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Min-p sampling: only tokens at least this many times as likely as the most likely one are sampled from; 0 keeps
    all (Nguyen et al. 2024)."""
    repetition_penalty: float = Field(default=1.0, gt=0, le=1e3)
    """Sampling: logits of tokens already generated are divided by it if positive, else multiplied (Keskar et al. 2019);
    1 changes nothing."""
    seed: int = Field(default=0, ge=-(1 << 62), le=1 << 62)
    """The seed of sampling: line n, counted from 0, is sampled with seed + n."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.beam_size % self.beam_groups:
            raise ConfigError(
                "beam_groups",
                f"{self.beam_groups} groups cannot share {self.beam_size} beams evenly; choose a divisor of beam_size.",
            )
        if self.nbest is not None and self.nbest > self.beam_size:
            raise ConfigError("nbest", f"found {self.nbest}; expected no more than beam_size ({self.beam_size}).")
        if self.sample and self.beam_size > 1:
            raise ConfigError("beam_size", f"found {self.beam_size}; sampling needs a beam_size of 1.")
        if self.coverage_penalty and self.beam_size == 1:
            raise ConfigError("coverage_penalty", "it ranks the hypotheses of a beam; raise beam_size, or set it to 0.")
        if self.max_repeats == 1:
            raise ConfigError("max_repeats", "found 1; expected 0 (no limit) or at least 2.")
        return self

    def updated(self, changes: Mapping[str, Any]) -> "DecodeConfig":
        """The same settings with some changed; of a table such as `length_penalty`, only the keys that are given."""
        plain = self.plain()
        for key, value in changes.items():
            inner = plain.get(key)
            plain[key] = inner | value if isinstance(inner, dict) and isinstance(value, dict) else value
        return DecodeConfig.read(plain)

    def greedy(self) -> "DecodeConfig":
        """Greedy search with the same limits on the output."""
        changes = {"beam_size": 1, "nbest": None, "beam_groups": 1, "sample": False, "coverage_penalty": 0.0}
        return self.updated(changes)

    def only_best(self) -> "DecodeConfig":
        """The same search, returning the best hypothesis only."""
        return self.model_copy(update={"nbest": 1})

    def with_options(self, options: Mapping[str, Any], function: Callable[..., Any] | None = None) -> "DecodeConfig":
        """The settings with the options of a command or a call, which may leave out what follows from others.

        A sampling option, such as `temperature`, means sampling, and a beam size means searching. The beam is as large
        as `nbest` and `beam_groups` need it, and a length penalty that is a number is its alpha. An option that is None
        is not given. An unknown one is the error of a keyword that `function` does not have.
        """
        if not options:
            return self
        if function is not None:
            _check_keywords(options, function)
        changes = {key: value for key, value in options.items() if value is not None}
        changes |= self._penalty_change(changes.get("length_penalty"))
        searches = "beam_size" in changes or "beam_groups" in changes
        samples = any(key in changes for key in SAMPLING_OPTIONS) or (self.sample and not searches)
        if changes.setdefault("sample", samples) is True:
            for key in ("beam_size", "nbest", "beam_groups"):
                if changes.get(key) not in (None, 1):
                    raise ConfigError(key, f"found {changes[key]!r}, but sampling generates one output; leave it out.")
            return self.updated(changes | {"beam_size": 1, "nbest": None, "beam_groups": 1, "coverage_penalty": 0.0})
        given = {"beam_size": self.beam_size, "nbest": 1, "beam_groups": self.beam_groups} | changes
        size, nbest, groups = (given[key] for key in ("beam_size", "nbest", "beam_groups"))
        if all(type(number) is int and number > 0 for number in (size, nbest, groups)):
            changes["beam_size"] = -(-max(size, nbest, groups) // groups) * groups
        return self.updated(changes)

    def _penalty_change(self, penalty: Any) -> dict[str, Any]:
        """A length penalty as a change. An alpha turns a penalty of kind "none" into the default one."""
        if type(penalty) in (int, float):
            penalty = {"alpha": float(penalty)}
        if isinstance(penalty, Mapping) and "kind" not in penalty and self.length_penalty.kind == "none":
            penalty = {"kind": "gnmt", **penalty}
        return {} if penalty is None else {"length_penalty": penalty}

    def check_no_translation(self) -> None:
        """Refuse settings that only translations can have."""
        if self.replace_unk != "off":
            raise UserError('decode.replace_unk replaces words of translations, and this is none; set it to "off".')

    def max_length(self, source_length: int) -> int:
        """The maximum number of output tokens, EOS included."""
        return int(self.max_length_ratio * source_length) + self.max_length_offset


@dataclass(frozen=True)
class Constraints:
    """Constraints on one output, as token ids: its prefix, required and forbidden words; or that it is a tree."""

    prefix: tuple[int, ...] = ()
    required: tuple[Word, ...] = ()
    forbidden: tuple[tuple[int, ...], ...] = ()
    forbidden_text: ForbiddenText | None = None
    seed: int | None = None
    tree: TreeConstraint | None = None

    @property
    def batch_key(self) -> tuple[Any, ...]:
        """Outputs whose constraints have the same key can be decoded in one batch."""
        tree = None if self.tree is None else self.tree.batch_key
        return self.forbidden, self.forbidden_text, bool(self.prefix), bool(self.required), tree

    @property
    def words(self) -> tuple[Any, ...]:
        """What they say about words; empty if nothing."""
        given = self.prefix, self.required, self.forbidden, self.forbidden_text
        return tuple(each for each in given if each)

    def with_seed(self, seed: int) -> "Constraints":
        """The same constraints with this seed for sampling, unless they already have one."""
        return self if self.seed is not None else replace(self, seed=seed)

    def check(self, max_length: int) -> None:
        """Refuse constraints that no output of at most `max_length` tokens can satisfy."""
        if self.tree is not None:
            self.tree.check_max_length(max_length)
            if self.words:
                raise UserError(
                    "A tree cannot have a prefix, required or forbidden words; leave these out, or the tree."
                )
        if len(self.prefix) > max_length:
            raise UserError(f"The prefix has {len(self.prefix)} tokens, but the output may have at most {max_length}.")
        for forbidden in self.forbidden:
            if _contains(self.prefix, forbidden):
                raise UserError("The prefix contains a forbidden word; leave out one of the two.")
            ways = (RequiredWord.of(word).sequences for word in self.required)
            if any(all(_contains(sequence, forbidden) for sequence in word) for word in ways):
                raise UserError("A required word contains a forbidden word; leave out one of the two.")
        if self.required:
            progress = ConstraintProgress.start(self.required)
            for token in self.prefix:
                progress = progress.after(token)
            if (count := len(self.prefix) + progress.tokens_left) >= max_length:
                raise UserError(
                    f"The {'prefix and the ' if self.prefix else ''}required words have {count} tokens, but the output "
                    f"may have at most {max_length}, EOS included; allow a longer output or require less."
                )


def make_strategy(
    config: DecodeConfig,
    max_lengths: Sequence[int],
    eos: int,
    *,
    constraints: Sequence[Constraints] | None = None,
    alternatives: int = 0,
    device: torch.device | str = "cpu",
) -> SearchStrategy:
    """The strategy for these settings, with one slot per maximum length.

    The constraints of all slots have the same `batch_key`.
    """
    constraints = [Constraints()] * len(max_lengths) if constraints is None else constraints
    if len(constraints) != len(max_lengths):
        raise UserError(f"Found constraints for {len(constraints)} rows, but there are {len(max_lengths)} rows.")
    required = any(each.required for each in constraints)
    if required and (config.sample or config.beam_groups > 1):
        raise UserError("Required words need plain beam search; leave out the words, or sampling and beam groups.")
    for each, max_length in zip(constraints, max_lengths, strict=True):
        each.check(max_length)
    processors = _make_processors(config, constraints, max_lengths, eos, device)
    options: dict[str, Any] = {"processors": processors, "alternatives": alternatives, "device": device}
    strategy = _plain_strategy(config, max_lengths, eos, constraints, options)
    strategy.limits = OutputLimits(config.min_length, config.max_repeats or 0)
    return strategy


def _plain_strategy(
    config: DecodeConfig,
    max_lengths: Sequence[int],
    eos: int,
    constraints: Sequence[Constraints],
    options: dict[str, Any],
) -> SearchStrategy:
    """The strategy without limits on the output."""
    required = any(each.required for each in constraints)
    if config.sample:
        params = SamplingParams(config.repetition_penalty, config.temperature, config.top_k, config.top_p, config.min_p)
        seeds = [config.seed + row if each.seed is None else each.seed for row, each in enumerate(constraints)]
        return Sampler(max_lengths, eos, params, seeds=seeds, **options)
    if config.beam_size == 1 and not required:
        return Greedy(max_lengths, eos, **options)
    options = {"length_penalty": config.length_penalty, **options}
    strategy: BeamSearch | DiverseBeamSearch
    if required:
        words = [each.required for each in constraints]
        strategy = ConstrainedBeamSearch(max_lengths, eos, config.beam_size, words, **options)
    elif config.beam_groups > 1:
        diversity = Diversity(config.beam_groups, config.diversity_penalty)
        strategy = DiverseBeamSearch(max_lengths, eos, config.beam_size, diversity, **options)
    else:
        strategy = BeamSearch(max_lengths, eos, config.beam_size, **options)
    strategy.nbest = config.nbest
    return strategy


def _make_processors(
    config: DecodeConfig,
    constraints: Sequence[Constraints],
    max_lengths: Sequence[int],
    eos: int,
    device: torch.device | str,
) -> list[LogitsProcessor]:
    processors: list[LogitsProcessor] = []
    if any(each.prefix for each in constraints):
        processors.append(PrefixProcessor([each.prefix for each in constraints], device))
    forbidden = {sequence for each in constraints for sequence in each.forbidden}
    if forbidden:
        processors.append(ForbiddenProcessor(sorted(forbidden), device))
    texts = dict.fromkeys(each.forbidden_text for each in constraints if each.forbidden_text is not None)
    processors += [ForbiddenTextProcessor(text, device) for text in texts]
    if any(each.tree for each in constraints):
        processors.append(TreeProcessor([each.tree for each in constraints], max_lengths, eos, device))
    if config.no_repeat_ngram_size:  # last: it leaves at least one of the tokens that are allowed so far
        processors.append(NoRepeatNgramProcessor(config.no_repeat_ngram_size))
    return processors


def _check_keywords(options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Refuse options that are no decoding settings, as Python refuses unknown keywords."""
    for name in options:
        if name not in DecodeConfig.model_fields:
            own = [each for each in inspect.signature(function).parameters if each != "options"]
            raise unexpected_keyword(function, name, [*own, *DecodeConfig.model_fields])


def _contains(tokens: tuple[int, ...], sequence: tuple[int, ...]) -> bool:
    return any(tokens[start : start + len(sequence)] == sequence for start in range(len(tokens) - len(sequence) + 1))
