"""Looking on while a search works.

A search tells an observer of each step: what it had to choose from, what it took, and where asked for every layer's
attention. Tensors are handed over as they are, on their device; who wants to keep them copies them. Without an observer
nothing of this is made.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor, nn


class Candidates(NamedTuple):
    """What a step chose from in each slot, best first: which of the slot's rows, with which token, at what total."""

    places: Tensor  # (slots, candidates)
    tokens: Tensor  # (slots, candidates)
    totals: Tensor  # (slots, candidates), the log-probability of all tokens so far; -inf stands for nothing


@dataclass(frozen=True)
class Step:
    """One step of a search over some of the rows it was asked for."""

    number: int
    """Counted from 1."""
    slots: tuple[int, ...]
    """Which of the outputs asked for each slot is for."""
    read: Tensor
    """The token that each row went into the step with.  # (rows,)"""
    candidates: Candidates
    rows: Tensor | None
    """Which row each row goes on from; None if from itself.  # (rows,)"""
    tokens: Tensor
    """The token that each row goes on with.  # (rows,)"""


class Observer(Protocol):
    """Whoever listens to a search."""

    attention: bool
    """Whether attention is to be seen too; every layer then goes the readable, slower way."""

    def see(self, step: Step) -> None: ...

    def see_attention(self, module: nn.Module, weights: Tensor) -> None:
        """The weights of one attention in the step that is seen next.  # (rows, heads, queries, keys)"""
        ...


@dataclass
class Recording:
    """An observer that keeps everything, on the CPU."""

    attention: bool = False
    steps: list[Step] = field(default_factory=list)
    weights: list[list[tuple[nn.Module, Tensor]]] = field(default_factory=list)
    """Of each step, every attention with its weights, in the order they were computed."""
    _coming: list[tuple[nn.Module, Tensor]] = field(default_factory=list)

    def see(self, step: Step) -> None:
        candidates = Candidates(*(tensor.cpu() for tensor in step.candidates))
        rows = None if step.rows is None else step.rows.cpu()
        self.steps.append(Step(step.number, step.slots, step.read.cpu(), candidates, rows, step.tokens.cpu()))
        self.weights.append(self._coming)
        self._coming = []

    def see_attention(self, module: nn.Module, weights: Tensor) -> None:
        self._coming.append((module, weights.cpu()))
