"""What the trainer of word vectors needs from an algorithm: an update of the tables by one block of the data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from torch import Tensor

AnyBlock = TypeVar("AnyBlock", contravariant=True)


@dataclass(frozen=True)
class BlockLoss:
    """The loss of a block, before its updates where that costs nothing, as a sum and a count."""

    total: float
    count: float
    """What the sum is divided by: predictions, or pairs of words that occur together."""


class VectorEngine(Protocol[AnyBlock]):
    """Updates the tables of a model in place. Several threads may call it at once, each with a block of its own."""

    def train_block(self, block: AnyBlock, lr: float, seed: int) -> BlockLoss:
        """Take all updates of a block. With one thread, the same blocks, rates and seeds give the same tables, bit for
        bit: all random numbers follow from `seed`."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """What the algorithm holds besides the model's tables, such as sums of squared gradients."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None: ...
