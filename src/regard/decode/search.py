"""What can be searched, what a search finds, and how the two work together.

A `Stepper` scores the next token given the one just written and a state, and can move the rows of that state. The
Transformers here are steppers; so is anything else with these two methods. A `Chooser` turns scores into the next
tokens: the likeliest (`Single`), a drawn one (`Sampled`), the best few continuations (`Beams`). It works on slots, one
for each output wanted, with `width` rows each, and knows nothing of models. `search` lets the two take turns until
every slot is settled. Slots that are leave as soon as they are half of all.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from regard.decode.observe import Candidates, Observer, Step
from regard.errors import UserError

State = TypeVar("State")
Limit = int | Sequence[int]
"""The most tokens an output may have, its end included: for all rows, or for each."""


class Stepper(Protocol[State]):
    """Anything that can take a step.

    Where rows share what they write about, as beams do, `regroup(state, rows, sources)` may be there too: rows stand in
    equal groups, and group j gets the source of group `sources[j]`, or keeps its own where `sources` is None.
    """

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """tokens: # (rows, 1); gives logits # (rows, 1, vocabulary) and the state behind them"""
        ...

    def reorder(self, state: State, rows: Tensor) -> State:
        """A state whose row i is what row `rows[i]` was."""
        ...


@dataclass(frozen=True)
class Hypothesis:
    """An output: its tokens (without start and end), their log-probability, and the score it was ranked by."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float
    ended: bool
    """Whether it came to its end, or was cut at the limit."""
    steps: tuple[float, ...] = ()
    """The log-probability of each token, and of the end where it came to it."""
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Where asked for, the likeliest tokens of each step with their log-probabilities."""


class Choice(NamedTuple):
    """What a chooser decided: the row that each row goes on from (None: itself), and its next token.  # (rows,)"""

    rows: Tensor | None
    tokens: Tensor
    candidates: Candidates | None
    """What there was to choose from, for whoever watches; may be left out where no one does."""


class Chooser(ABC):
    """Turns scores for the next token into next tokens, for some slots of `width` rows each."""

    width: int = 1
    slots: int
    watched: bool = False
    """Whether someone wants to see what there is to choose from."""

    @abstractmethod
    def choose(self, logits: Tensor) -> Choice:
        """Take one step in every slot.  logits: # (slots · width, vocabulary)"""

    @abstractmethod
    def settled(self) -> Tensor:
        """Which slots can get no better result.  # (slots,)"""

    @abstractmethod
    def results(self, slot: int) -> list[Hypothesis]:
        """What was found for a slot, best first."""

    @abstractmethod
    def keep(self, slots: Tensor) -> None:
        """Go on with these slots only.  slots: # (slots to keep,)"""

    @abstractmethod
    def put(self, slots: Tensor, other: Self) -> None:
        """Let these slots be those of another chooser with the same settings; slots past the last are added."""

    @abstractmethod
    def so_far(self, slot: int) -> tuple[int, ...]:
        """The tokens of a slot's best output so far."""

    @abstractmethod
    def stop(self, slot: int) -> None:
        """Settle a slot with what it has."""

    @abstractmethod
    def clear(self, slots: Tensor) -> None:
        """Let these slots hold nothing, until others are put there.  slots: # (slots to clear,)"""

    @property
    @abstractmethod
    def longest(self) -> int:
        """After so many steps every slot is settled."""

    # What follows is for choosers whose steps can be recorded: those that never ask the device for an answer.

    reach: int = 0
    """No slot has written more tokens than this."""

    def recorded_as(self) -> Hashable | None:
        """Choosers alike in this, and in the shapes they hold, take the same steps; None if it cannot be recorded."""
        return None

    def held(self) -> list[Tensor]:
        """Every tensor that a step reads or changes."""
        raise NotImplementedError

    def hold(self, tensors: Sequence[Tensor]) -> None:
        """Have these tensors in place of those held, in the same order."""
        raise NotImplementedError

    def copied(self) -> Self:
        """A chooser that holds the same tensors, and can hold others without changing this one."""
        raise NotImplementedError

    @property
    def is_full(self) -> bool:
        """Whether another token needs more room."""
        raise NotImplementedError

    def grow(self) -> None:
        """Twice the room."""
        raise NotImplementedError


@torch.no_grad()
def search(
    stepper: Stepper[State], state: State, start: Tensor, chooser: Chooser, observer: Observer | None = None
) -> list[list[Hypothesis]]:
    """For each row of `start` what the chooser finds, best first.  start: # (rows,)"""
    from regard.decode.replay import recorder_of, search_recorded  # which stands on this module

    chooser.watched = observer is not None
    width = chooser.width
    numbers = list(range(chooser.slots))
    found: list[list[Hypothesis]] = [[] for _ in numbers]
    if width > 1:
        state = move(stepper, state, _every_row_times(start, width), None)
    token = start.repeat_interleave(width)
    recorder = None if observer is not None else recorder_of(stepper, chooser)
    if recorder is not None:
        return search_recorded(recorder, stepper, state, token, chooser)
    for number in range(1, chooser.longest + 1):
        watched = {} if observer is None or not observer.attention else {"watch": observer.see_attention}
        logits, state = stepper.step(token[:, None], state, **watched)
        choice = chooser.choose(logits[:, -1])
        if observer is not None and choice.candidates is not None:
            observer.see(Step(number, tuple(numbers), token, choice.candidates, choice.rows, choice.tokens))
        settled = chooser.settled().cpu().numpy()
        rows, token, sources = choice.rows, choice.tokens, None
        if settled.all():
            break
        if 2 * settled.sum() >= len(settled):  # moving the others pays
            for slot in settled.nonzero()[0].tolist():
                found[numbers[slot]] = chooser.results(slot)
            sources = torch.from_numpy((~settled).nonzero()[0]).to(token.device)
            numbers = [numbers[slot] for slot in sources.tolist()]
            chooser.keep(sources)
            left = (sources[:, None] * width + torch.arange(width, device=token.device)).flatten()
            rows, token = left if rows is None else rows[left], token[left]
        if rows is not None:
            state = move(stepper, state, rows, sources)
    for slot, where in enumerate(numbers):
        found[where] = chooser.results(slot)
    return found


def move(stepper: Any, state: State, rows: Tensor, sources: Tensor | None) -> State:
    """Move the rows of a state, and no more of what they share than must be."""
    if hasattr(stepper, "regroup"):
        moved: State = stepper.regroup(state, rows, sources)
        return moved
    reordered: State = stepper.reorder(state, rows)
    return reordered


def row_limits(start: Tensor, limit: Limit) -> list[int]:
    """The limit of each row."""
    if start.dim() != 1:
        raise UserError(
            f"A search starts from one token a row: expected the shape (rows,), found {tuple(start.shape)}."
        )
    limits = [limit] * len(start) if isinstance(limit, int) else list(limit)
    if len(limits) != len(start):
        raise UserError(f"There are {len(limits)} limits for {len(start)} rows; give one for each.")
    if min(limits, default=1) < 1:
        raise UserError(f"The limit is {min(limits)} tokens; an output has at least one, its end.")
    return limits


def precise(logits: Tensor) -> Tensor:
    """Scores in float32, or in float64 where they came so."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _every_row_times(start: Tensor, width: int) -> Tensor:
    return torch.arange(start.shape[0], device=start.device).repeat_interleave(width)
