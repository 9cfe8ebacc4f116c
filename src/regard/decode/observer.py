"""Observing a search while it runs.

A search reports every step to its observer: the candidates, the tokens chosen and, on request, every layer's attention
weights. Tensors are passed as they are, on their device; an observer that keeps them copies them. Without an observer
none of this is computed.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from torch import Tensor, nn


class Candidates(NamedTuple):
    """The continuations that a step chose from in each slot, best first."""

    beam_indices: Tensor  # (slots, candidates): the beam of the slot that each continues
    tokens: Tensor  # (slots, candidates)
    logprobs: Tensor  # (slots, candidates): summed over all tokens so far; -inf marks an empty entry


@dataclass(frozen=True)
class Step:
    """One step of a search, over the slots that are still being decoded."""

    number: int
    """Counted from 1."""
    slots: tuple[int, ...]
    """The index of each slot's output in the results of the search."""
    input_tokens: Tensor
    """The token that each row was fed.  # (rows,)"""
    candidates: Candidates
    beam_indices: Tensor | None
    """The row that each row continues; None if every row continues itself.  # (rows,)"""
    tokens: Tensor
    """The token chosen for each row.  # (rows,)"""


class Observer(Protocol):
    """Receives the steps of a search."""

    attention: bool
    """Whether to report attention weights; every layer then takes the slower path that computes them."""

    def on_step(self, step: Step) -> None: ...

    def on_attention(self, module: nn.Module, weights: Tensor) -> None:
        """The weights of one attention module in the step reported next.  # (rows, heads, queries, keys)"""
        ...


@dataclass
class RecordingObserver:
    """Records every step, on the CPU."""

    attention: bool = False
    steps: list[Step] = field(default_factory=list)
    weights: list[list[tuple[nn.Module, Tensor]]] = field(default_factory=list)
    """For each step, every attention module with its weights, in the order of computation."""
    _pending: list[tuple[nn.Module, Tensor]] = field(default_factory=list)

    def on_step(self, step: Step) -> None:
        candidates = Candidates(*(tensor.cpu() for tensor in step.candidates))
        beam_indices = None if step.beam_indices is None else step.beam_indices.cpu()
        self.steps.append(
            Step(step.number, step.slots, step.input_tokens.cpu(), candidates, beam_indices, step.tokens.cpu())
        )
        self.weights.append(self._pending)
        self._pending = []

    def on_attention(self, module: nn.Module, weights: Tensor) -> None:
        self._pending.append((module, weights.cpu()))
