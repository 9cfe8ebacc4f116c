"""What a loss needs to score words by itself, some at a time, instead of being handed all scores at once."""

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional


class Unscored(NamedTuple):
    """Vectors that are yet to be compared with every word's."""

    x: Tensor  # (batch, tokens, width)
    weight: Tensor  # (vocabulary, width)
    bias: Tensor | None  # (vocabulary,)

    def logits(self) -> Tensor:
        """(batch, tokens, vocabulary)"""
        return functional.linear(self.x, self.weight, self.bias)
