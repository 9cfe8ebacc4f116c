"""Words that the loss scores by itself, some at a time, instead of being handed all scores at once.

On a GPU they also add up by themselves what flows back to each word that was looked up."""

from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from regard.fast import triton_switch
from regard.model.embedding import Vocabulary


class Unscored(NamedTuple):
    """Vectors that are yet to be compared with every word's."""

    x: Tensor  # (batch, tokens, width)
    weight: Tensor  # (vocabulary, width)
    bias: Tensor | None  # (vocabulary,)

    def logits(self) -> Tensor:
        """(batch, tokens, vocabulary)"""
        return functional.linear(self.x, self.weight, self.bias)


class LateVocabulary(Vocabulary):
    """Words whose scores are left to the loss, where there is something to learn from it."""

    _looked_up: Tensor | None = None
    """The weight as words that were looked up give it on, until it scores."""

    def forward(self, ids: Tensor) -> Tensor:
        self._looked_up = None
        if not triton_switch.runs_on(ids.device) or ids.dtype != torch.int64 or not torch.is_grad_enabled():
            return super().forward(ids)
        from regard.fast.triton_lookup import lookup

        found, self._looked_up = lookup(ids, self.weight)
        return found

    def logits(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        known = triton_switch.runs_on(x.device) or (x.device.type == "cpu" and x.dtype == torch.float32)
        if not known or x.dtype == torch.float64 or not torch.is_grad_enabled():
            return super().logits(x, bias)
        weight, self._looked_up = self.weight if self._looked_up is None else self._looked_up, None
        return cast(Tensor, Unscored(x, weight, bias))
