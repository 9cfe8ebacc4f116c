"""Several models that write one output together: the mean of what they hold likely."""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor

from regard.decode.engine import Worker
from regard.decode.search import move, precise
from regard.errors import UserError


class Ensemble:
    """Steppers with the same vocabulary. The state is a list of theirs."""

    def __init__(self, members: Sequence[Worker[Any]]) -> None:
        if not members:
            raise UserError("An ensemble needs at least one model.")
        self.members = list(members)

    @property
    def device(self) -> torch.device:
        return self.members[0].device

    def begin(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[list[Any], Tensor]:
        begun = [member.begin(sources, capacity) for member in self.members]
        return [state for state, _ in begun], begun[0][1]

    def step(self, tokens: Tensor, state: list[Any], **watch: Any) -> tuple[Tensor, list[Any]]:
        """tokens: # (rows, 1); gives log-probabilities # (rows, 1, vocabulary)"""
        steps = [member.step(tokens, own, **watch) for member, own in zip(self.members, state, strict=True)]
        sizes = {logits.shape[-1] for logits, _ in steps}
        if len(sizes) > 1:
            raise UserError(f"An ensemble's models must share a vocabulary; found sizes {sorted(sizes)}.")
        if len(steps) == 1:
            return steps[0][0], [steps[0][1]]
        each = torch.stack([precise(logits).log_softmax(dim=-1) for logits, _ in steps])
        return each.logsumexp(dim=0) - log(len(steps)), [own for _, own in steps]

    def reorder(self, state: list[Any], rows: Tensor) -> list[Any]:
        return [member.reorder(own, rows) for member, own in zip(self.members, state, strict=True)]

    def regroup(self, state: list[Any], rows: Tensor, sources: Tensor | None) -> list[Any]:
        return [move(member, own, rows, sources) for member, own in zip(self.members, state, strict=True)]

    def put(self, state: list[Any], sources: Tensor, other: list[Any]) -> list[Any]:
        parts = zip(self.members, state, other, strict=True)
        return [member.put(own, sources, theirs) for member, own, theirs in parts]

    def clear(self, state: list[Any], sources: Tensor) -> None:
        for member, own in zip(self.members, state, strict=True):
            member.clear(own, sources)

    def is_full(self, state: list[Any]) -> bool:
        return any(member.is_full(own) for member, own in zip(self.members, state, strict=True))

    def grow(self, state: list[Any]) -> None:
        for member, own in zip(self.members, state, strict=True):
            member.grow(own)

    def held(self, state: list[Any]) -> int:
        return sum(member.held(own) for member, own in zip(self.members, state, strict=True))

    def bytes_a_position(self) -> int:
        return sum(member.bytes_a_position() for member in self.members)
