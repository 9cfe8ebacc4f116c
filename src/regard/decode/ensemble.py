"""Several models that write one output together: the mean of what they hold likely."""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from torch import Tensor

from regard.decode.search import Stepper, move, precise
from regard.errors import UserError


class Ensemble:
    """Steppers with the same vocabulary. The state is a list of theirs."""

    def __init__(self, members: Sequence[Stepper[Any]]) -> None:
        if not members:
            raise UserError("An ensemble needs at least one model.")
        self.members = list(members)

    def step(self, tokens: Tensor, state: list[Any]) -> tuple[Tensor, list[Any]]:
        """tokens: # (rows, 1); gives log-probabilities # (rows, 1, vocabulary)"""
        steps = [member.step(tokens, own) for member, own in zip(self.members, state, strict=True)]
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
