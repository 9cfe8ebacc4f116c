"""Diverse beam search (Vijayakumar et al. 2016): groups of beams that avoid the choices of earlier groups.

With Hamming diversity: at every step a token's score in a group is lowered by the diversity penalty for each beam of an
earlier group that chose it at this step. The penalty only steers the search; log-probabilities and the scores that
outputs are ranked by stay the model's own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from regard.decode.beam import BeamSearch
from regard.decode.observer import Candidates
from regard.decode.strategy import Choice, Hypothesis, LengthPenalty, LogitsProcessor, SearchStrategy
from regard.errors import UserError


@dataclass(frozen=True)
class Diversity:
    """The number of groups of beams, and the penalty for a token that an earlier group chose."""

    groups: int
    penalty: float


class DiverseBeamSearch(SearchStrategy):
    """`beam_size` outputs per slot, found by several groups of beams that avoid each other."""

    nbest: int | None = None

    def __init__(
        self,
        max_lengths: Sequence[int],
        eos: int,
        beam_size: int,
        diversity: Diversity,
        *,
        length_penalty: LengthPenalty | None = None,
        processors: Sequence[LogitsProcessor] = (),
        alternatives: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        groups = diversity.groups
        if groups < 1 or beam_size % groups:
            raise UserError(
                f"{groups} groups cannot share {beam_size} beams evenly; choose a divisor of the beam size."
            )
        self.slots, self.beam_size, self.processors = len(max_lengths), beam_size, processors
        self.penalty = diversity.penalty
        self.groups = [
            _Group(
                max_lengths,
                eos,
                beam_size // groups,
                length_penalty=length_penalty,
                processors=processors,
                alternatives=alternatives,
                device=device,
            )
            for _ in range(groups)
        ]

    @property
    def max_steps(self) -> int:
        return self.groups[0].max_steps

    def choose(self, logits: Tensor) -> Choice:
        by_group = logits.view(self.slots, len(self.groups), -1, logits.shape[1])  # (slots, groups, beams, vocab_size)
        counts = torch.zeros(self.slots, logits.shape[1], device=logits.device)  # how often each token was chosen
        first_rows = torch.arange(self.slots, device=logits.device)[:, None] * self.beam_size
        rows, tokens, candidates = [], [], []
        for number, group in enumerate(self.groups):
            group.limits = self.limits
            group.token_penalties = (self.penalty * counts).repeat_interleave(group.beam_size, dim=0)
            choice = group.choose(by_group[:, number].flatten(0, 1))
            assert choice.beam_indices is not None
            assert choice.candidates is not None
            chosen = choice.tokens.view(self.slots, -1)
            counts = counts.scatter_add(1, chosen, torch.ones_like(chosen, dtype=counts.dtype))
            offset = number * group.beam_size
            rows.append(first_rows + choice.beam_indices.view(self.slots, -1) % group.beam_size + offset)
            tokens.append(chosen)
            candidates.append(choice.candidates._replace(beam_indices=choice.candidates.beam_indices + offset))
        merged = Candidates(*(torch.cat(each, dim=1) for each in zip(*candidates, strict=True)))
        return Choice(torch.cat(rows, dim=1).flatten(), torch.cat(tokens, dim=1).flatten(), merged)

    def finished(self) -> Tensor:
        return torch.stack([group.finished() for group in self.groups]).all(dim=0)

    def results(self, slot: int) -> list[Hypothesis]:
        found = {hypothesis.tokens: hypothesis for group in self.groups for hypothesis in group.results(slot)}
        return sorted(found.values(), key=lambda hypothesis: -hypothesis.score)[: self.nbest]

    def select_slots(self, slots: Tensor) -> None:
        self.slots = slots.shape[0]
        for part in (*self.groups, *self.processors):
            part.select_slots(slots)

    def scatter_slots(self, slots: Tensor, other: Self) -> None:
        for group, new_group in zip(self.groups, other.groups, strict=True):
            group.scatter_slots(slots, new_group)
        for processor, new_processor in zip(self.processors, other.processors, strict=True):
            processor.scatter_slots(slots, new_processor)
        self.slots = self.groups[0].slots

    def clear_slots(self, slots: Tensor) -> None:
        for group in self.groups:
            group.clear_slots(slots)

    def best_tokens(self, slot: int) -> tuple[int, ...]:
        return self.groups[0].best_tokens(slot)

    def stop(self, slot: int) -> None:
        for group in self.groups:
            group.stop(slot)


class _Group(BeamSearch):
    """One group; `token_penalties` is subtracted from its logits.  # (slots · beam_size, vocab_size)

    The processors are shared by all groups, so their slots are selected and scattered by `DiverseBeamSearch`.
    """

    token_penalties: Tensor

    def best_logits(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
        penalized = self.process(logits) - self.token_penalties
        best, tokens = penalized.topk(min(k, logits.shape[1]), dim=1)
        return best, tokens, logits.logsumexp(dim=-1, keepdim=True)

    def model_logprobs(self, logprobs: Tensor, tokens: Tensor) -> Tensor:
        penalties = self.token_penalties.view(self.slots, self.beam_size, -1)[:, 0]  # the same for every beam
        return logprobs + penalties.gather(1, tokens)

    def select_slots(self, slots: Tensor) -> None:
        with self._without_processors():
            super().select_slots(slots)

    def scatter_slots(self, slots: Tensor, other: Self) -> None:
        with self._without_processors(), other._without_processors():
            super().scatter_slots(slots, other)

    @contextmanager
    def _without_processors(self) -> Iterator[None]:
        processors, self.processors = self.processors, ()
        try:
            yield
        finally:
            self.processors = processors
