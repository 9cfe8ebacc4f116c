"""How outputs are searched for, as a recipe or a person says it, and the chooser that does so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.decode.beam import Beams
from regard.decode.diverse import Diverse
from regard.decode.penalty import LengthPenalty, NoPenalty, PaperPenalty, PowerPenalty
from regard.decode.required import Progress, Required
from regard.decode.rules import Forbidden, Prefix, Rule
from regard.decode.search import Chooser
from regard.decode.single import Sampled, Single
from regard.decode.tree_rule import TreeRule, TreeWish
from regard.errors import UserError


class DecodeConfig(Config):
    """One beam is greedy search. The penalty says how outputs of different lengths compare."""

    beams: int = Field(default=5, ge=1)
    outputs: int | None = Field(default=None, ge=1)
    """How many of the best outputs are given; as many as there are beams, if this says nothing."""
    penalty: Literal["paper", "power", "none"] = "paper"
    strength: float = Field(default=0.6, ge=0)
    longest_factor: float = Field(default=2.0, ge=0)
    """An output ends at the latest after so many times the tokens of its source …"""
    longest_extra: int = Field(default=20, ge=1)
    """… and so many more."""
    groups: int = Field(default=1, ge=1)
    """Groups of beams that are kept apart, for outputs that differ."""
    diversity: float = Field(default=2.0, ge=0)
    """How much less a group likes a token that an earlier one took."""
    sample: bool = False
    """Whether tokens are drawn by chance instead of searched for."""
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition: float = Field(default=1.0, gt=0)
    seed: int = 0
    """Row r is drawn with the seed plus r, if it has none of its own."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.beams % self.groups:
            raise ConfigError(
                "groups", f"{self.beams} beams cannot be put into {self.groups} equal groups; choose a divisor."
            )
        if self.outputs is not None and self.outputs > self.beams:
            raise ConfigError("outputs", f"{self.beams} beams cannot give {self.outputs} outputs; ask for fewer.")
        if self.sample and self.beams > 1:
            raise ConfigError("beams", "drawing tokens by chance follows one output; set beams to 1.")
        return self

    def only_best(self) -> "DecodeConfig":
        """The same search, of which only the best output is wanted."""
        return self.model_copy(update={"outputs": 1})

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


@dataclass(frozen=True)
class Wish:
    """What one output must look like, beyond being likely."""

    prefix: tuple[int, ...] = ()
    required: tuple[tuple[int, ...], ...] = ()
    forbidden: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None
    tree: TreeWish | None = None

    @property
    def lane(self) -> tuple[Any, ...]:
        """Outputs whose wishes agree in this can be searched for side by side."""
        return self.forbidden, bool(self.prefix), bool(self.required), None if self.tree is None else self.tree.lane


def make_chooser(
    config: DecodeConfig,
    limits: Sequence[int],
    end: int,
    *,
    wishes: Sequence[Wish] | None = None,
    alternatives: int = 0,
    device: torch.device | str = "cpu",
) -> Chooser:
    """What searches as the config says, one slot a limit. All wishes of one search forbid the same."""
    wishes = [Wish()] * len(limits) if wishes is None else wishes
    if len(wishes) != len(limits):
        raise UserError(f"There are {len(wishes)} wishes for {len(limits)} rows; give one for each.")
    required = any(wish.required for wish in wishes)
    if required and (config.sample or config.groups > 1):
        raise UserError("Required words go with beam search: leave out sampling and groups, or the words.")
    for wish, limit in zip(wishes, limits, strict=True):
        _check_wish(wish, limit)
    rules: list[Rule] = []
    if any(wish.prefix for wish in wishes):
        rules.append(Prefix([wish.prefix for wish in wishes], device))
    forbidden = {sequence for wish in wishes for sequence in wish.forbidden}
    if forbidden:
        rules.append(Forbidden(sorted(forbidden), device))
    if any(wish.tree for wish in wishes):
        rules.append(TreeRule([wish.tree for wish in wishes], limits, end, device))
    if config.sample:
        seeds = [config.seed + row if wish.seed is None else wish.seed for row, wish in enumerate(wishes)]
        return Sampled(
            limits,
            end,
            seeds=seeds,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            min_p=config.min_p,
            repetition=config.repetition,
            rules=rules,
            alternatives=alternatives,
            device=device,
        )
    if config.beams == 1 and not required:
        return Single(limits, end, rules=rules, alternatives=alternatives, device=device)
    shared: dict[str, Any] = {
        "penalty": config.length_penalty(),
        "rules": rules,
        "alternatives": alternatives,
        "device": device,
    }
    chooser: Beams | Diverse
    if required:
        chooser = Required(limits, end, config.beams, [wish.required for wish in wishes], **shared)
    elif config.groups > 1:
        chooser = Diverse(limits, end, config.beams, config.groups, config.diversity, **shared)
    else:
        chooser = Beams(limits, end, config.beams, **shared)
    chooser.outputs = config.outputs
    return chooser


def _check_wish(wish: Wish, limit: int) -> None:
    """Refuse what no output can fulfil."""
    if wish.tree is not None:
        wish.tree.check_limit(limit)
        if wish.prefix or wish.required or wish.forbidden:
            raise UserError("What a tree begins with or contains cannot be given; leave that out, or the tree.")
    if len(wish.prefix) > limit:
        raise UserError(f"The output begins with {len(wish.prefix)} given tokens and may have {limit} at most.")
    for sequence in wish.forbidden:
        for text, name in (
            (wish.prefix, "what it begins with"),
            *((word, "a required word") for word in wish.required),
        ):
            if any(text[at : at + len(sequence)] == sequence for at in range(len(text) - len(sequence) + 1)):
                raise UserError(f"What the output must not contain is part of {name}; leave out one of the two.")
    if wish.required:
        progress = Progress.of(wish.required)
        for token in wish.prefix:
            progress = progress.after(token)
        if (count := len(wish.prefix) + progress.left) >= limit:
            what = "Its beginning and the required words" if wish.prefix else "The required words"
            raise UserError(
                f"{what} have {count} tokens and the output at most {limit}, its end included; allow a longer output "
                "or require less."
            )
