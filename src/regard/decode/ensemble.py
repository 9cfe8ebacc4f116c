"""Ensembles: several models decode one output together, by the mean of their probabilities."""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor

from regard.decode.batch import BatchDecoderModel
from regard.decode.strategy import upcast
from regard.errors import UserError


class EnsembleState(list[Any]):
    """The states of an ensemble's members, treated as one."""

    def reorder_beams(self, rows: Tensor, sources: Tensor | None = None) -> None:
        for state in self:
            state.reorder_beams(rows, sources)

    def scatter_rows(self, sources: Tensor, other: "EnsembleState") -> None:
        for mine, theirs in zip(self, other, strict=True):
            mine.scatter_rows(sources, theirs)

    def clear_rows(self, sources: Tensor) -> None:
        for state in self:
            state.clear_rows(sources)

    def is_full(self) -> bool:
        return any(state.is_full() for state in self)

    def grow(self) -> None:
        for state in self:
            state.grow()

    def nbytes(self) -> int:
        return sum(state.nbytes() for state in self)


class Ensemble:
    """Models with the same vocabulary, as one model."""

    def __init__(self, members: Sequence[BatchDecoderModel[Any]]) -> None:
        if not members:
            raise UserError("An ensemble needs at least one model.")
        self.members = list(members)

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    def prefill(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[EnsembleState, Tensor]:
        prefilled = [member.prefill(sources, capacity) for member in self.members]
        return EnsembleState(state for state, _ in prefilled), prefilled[0][1]

    def step(self, tokens: Tensor, state: EnsembleState, **options: Any) -> tuple[Tensor, EnsembleState]:
        """tokens: # (rows, 1); returns log-probabilities # (rows, 1, vocab_size); options go to every member"""
        steps = [member.step(tokens, own, **options) for member, own in zip(self.members, state, strict=True)]
        sizes = {logits.shape[-1] for logits, _ in steps}
        if len(sizes) > 1:
            raise UserError(f"The models of an ensemble must share a vocabulary; found sizes {sorted(sizes)}.")
        states = EnsembleState(own for _, own in steps)
        if len(steps) == 1:
            return steps[0][0], states
        logprobs = torch.stack([upcast(logits).log_softmax(dim=-1) for logits, _ in steps])
        return logprobs.logsumexp(dim=0) - log(len(steps)), states

    def kv_bytes_per_token(self) -> int:
        return sum(member.kv_bytes_per_token() for member in self.members)
