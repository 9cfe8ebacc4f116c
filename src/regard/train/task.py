"""What the loop knows of a task: a model, batches, a loss, and how good the model is at the real thing.

The loop never looks into a batch, and never asks what the numbers of a score mean beyond which one is to grow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from regard.train.loss import Loss

Forward = Callable[..., Tensor]
"""The model as the loop wants it called: in the precision and with the weights of the moment."""


class Batch(Protocol):
    """Some work for one step."""

    @property
    def count(self) -> int:
        """How many things are predicted: what the loss is divided by."""
        ...

    @property
    def shape(self) -> Any:
        """Equal for batches whose tensors have equal shapes, and usable as a key."""
        ...

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self: ...

    def pin_memory(self) -> Self: ...

    def split(self, parts: int) -> list[Self]: ...

    def copy_from(self, other: Self) -> None:
        """Take over the contents of a batch of the same shape, in place."""
        ...


AnyBatch = TypeVar("AnyBatch", bound=Batch)


GivenBatch = TypeVar("GivenBatch", bound=Batch, covariant=True)


class Batches(Protocol[GivenBatch]):
    """Batches without end, and where in them training stands."""

    @property
    def fewest_rows(self) -> int:
        """The rows of the batch that has the fewest: into more parts than that not every batch can be cut."""
        ...

    def epochs(self) -> Iterator[GivenBatch]: ...

    def skip(self) -> None:
        """Pass over the next batch, which is another process'."""
        ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Measured:
    """How good a model is at what it is for. `score` is the number to grow, `details` all there is to know."""

    score: float
    details: dict[str, float]


class Task(Protocol[AnyBatch]):
    """What ties data, model, loss and measure together."""

    @property
    def model(self) -> nn.Module: ...

    @property
    def batches(self) -> Batches[AnyBatch]: ...

    def loss(self, forward: Forward, batch: AnyBatch) -> Loss:
        """What is trained on. `forward` stands for the model.

        Experts are kept busy by what a task gathers around `forward` and adds (`gathered` in model/experts.py).
        """
        ...

    def plain_loss(self, forward: Forward, batch: AnyBatch) -> Loss:
        """What is reported on validation data: one pass, nothing smoothed."""
        ...

    def validation(self) -> Iterable[AnyBatch]:
        """The validation set, once; nothing where there is none."""
        ...

    def measure(self) -> Measured | None:
        """Do the real thing on the validation set with the model as it stands; None where there is no such set.

        Of several processes each is asked; together they may share the work, and each gives the same answer.
        """
        ...
