"""What the trainer and a run need from a task: a model, batches, a loss, and an evaluation of the finished model.

The trainer never looks inside a batch, and of an evaluation it knows only which number should grow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from regard.cost import Workload
from regard.model import AnyModel
from regard.train.distributed.process_group import ProcessGroup
from regard.train.loss import Loss

Forward = Callable[..., Tensor]
"""The model's forward pass as the trainer runs it: on fused kernels where possible, in the run's precision."""
LogFn = Callable[[str], None]
"""Receives messages for the user, one sentence or more each."""


class Batch(Protocol):
    """A micro-batch."""

    @property
    def count(self) -> int:
        """The number of targets: the denominator of the loss."""
        ...

    @property
    def shape(self) -> Any:
        """A hashable key, equal for batches whose tensors have equal shapes."""
        ...

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self: ...

    def pin_memory(self) -> Self: ...

    def split(self, parts: int) -> list[Self]: ...

    def copy_from(self, other: Self) -> None:
        """Copy the contents of a batch of the same shape, in place."""
        ...


AnyBatch = TypeVar("AnyBatch", bound=Batch)


GivenBatch = TypeVar("GivenBatch", bound=Batch, covariant=True)


class Batches(Protocol[GivenBatch]):
    """An endless stream of training batches, and the position of training in it."""

    @property
    def min_rows(self) -> int:
        """The rows of the smallest batch: no batch can always be split into more parts than that."""
        ...

    def epochs(self) -> Iterator[GivenBatch]: ...

    def skip(self) -> None:
        """Skip the next batch, which another process takes."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Evaluation:
    """How well the model does its task on the validation set.

    `score` is the number to maximize (BLEU, accuracy, …), `metrics` is everything that is logged.
    """

    score: float
    metrics: dict[str, float]


class Score(Protocol):
    """The result on a test set: a frozen dataclass of numbers and of what makes them comparable."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __str__(self) -> str:
        """The result in words, the number that counts first."""
        ...

    def rounded(self) -> dict[str, Any]:
        """All fields as JSON data, with the digits that are worth keeping."""
        ...


class Task(Protocol[AnyBatch]):
    """A recipe with its data and model: everything that differs between one kind of training run and another."""

    @property
    def model(self) -> AnyModel: ...

    @property
    def process_group(self) -> ProcessGroup: ...

    @property
    def batches(self) -> Batches[AnyBatch]: ...

    def loss(self, forward: Forward, batch: AnyBatch) -> Loss:
        """The training loss. `forward` is called in place of the model.

        A mixture of experts adds its load-balancing loss, which the task collects around `forward`.
        """
        ...

    def nll(self, forward: Forward, batch: AnyBatch) -> Loss:
        """The validation loss of one forward pass: the negative log-likelihood (`Loss.nll`), and the loss with the
        recipe's label smoothing (`Loss.total`), without auxiliary losses."""
        ...

    def validation_batches(self) -> Iterable[AnyBatch]:
        """The batches of the validation set, once; none if there is no such set."""
        ...

    def evaluate(self) -> Evaluation | None:
        """Run the task on the validation set with the current weights; None if there is no such set.

        Every process calls this. They may share the work, and all of them return the same result.
        """
        ...

    def describe_data(self) -> str:
        """The training data in words, as the end of the sentence "Training on …"."""
        ...

    def workload(self) -> Workload:
        """The shape of the batches, of all processes together, for the cost estimate."""
        ...

    def test(self, log: LogFn) -> dict[str, Score]:
        """Evaluate the trained model on every test set, once; each result is logged."""
        ...

    def metadata(self) -> dict[str, Any]:
        """What the run folder records: fingerprints of the data (`data`), and whatever is needed to use the model as
        it was tested."""
        ...
