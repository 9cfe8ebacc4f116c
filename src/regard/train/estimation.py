"""Estimation: models that are counted, in one pass over the data, instead of trained by gradients.

An n-gram model has its probabilities in closed form, so that there are no steps, no optimizer and no checkpoints. A run
is otherwise the same: the model is validated, tested and saved like any other.
"""

import time
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from numpy.typing import NDArray
from torch import nn

from regard.errors import UserError
from regard.progress import phase
from regard.train.callback import Callback
from regard.train.config import TrainConfig
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.metrics import MetricsWriter, NullMetricsWriter
from regard.train.policies import FinalWeights, TrainResult
from regard.train.step import forward_in_precision
from regard.train.task import AnyBatch, Task
from regard.train.validation import validation_loss


@runtime_checkable
class Estimated(Protocol):
    """A model that is estimated from token ids."""

    def fit(self, tokens: NDArray[Any], offsets: NDArray[Any] | None = None) -> None:
        """Estimate everything anew. `tokens` are documents, one behind the other, that begin at `offsets`."""
        ...


@runtime_checkable
class EstimationTask(Protocol):
    """A task with data that such a model can be estimated from."""

    def fit(self) -> int:
        """Estimate the model from the training data; gives the number of tokens."""
        ...


class Estimator:
    """Estimates the model of a task in a run folder, in place of a trainer. Every process does all of it."""

    def __init__(
        self,
        task: Task[AnyBatch],
        config: TrainConfig,
        folder: Path,
        *,
        device: torch.device | str = "cpu",
        callback: Callback | None = None,
        process_group: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        if not isinstance(task, EstimationTask):
            raise UserError(
                f"A model of kind {task.model.config.kind!r} is estimated by counting tokens, which this task cannot "
                "do; choose another model.kind, or the task language-modeling."
            )
        self._fit = task.fit
        self.task: Task[Any] = task
        self.config, self.folder, self.process_group = config, folder, process_group
        self.device, self.callback = torch.device(device), callback or Callback()

    def run(self) -> TrainResult:
        """Estimate the model, and validate it. It counts as one step."""
        self.callback.log("Estimating the model by counting: there are no gradients, so most of [train] is not used.")
        start = time.perf_counter()
        with phase("Counting n-grams"):
            tokens = self._fit()
            model = self.task.model.to(self.device)
        seconds = time.perf_counter() - start
        self.callback.log(f"Estimated {count_values(model):,} values from {tokens:,} tokens in {seconds:.1f} s.")
        self._validate(tokens, seconds)
        return TrainResult(1, tokens, time.perf_counter() - start, 1, False, FinalWeights("estimated", 1))

    def _validate(self, tokens: int, seconds: float) -> None:
        writer = MetricsWriter(self.folder) if self.process_group.is_rank0 else NullMetricsWriter()
        try:
            speed = tokens / max(seconds, 1e-9)
            writer.write(1, {"tokens": tokens, "seconds": seconds, "tokens_per_second": speed})
            self.task.model.eval()
            forward = forward_in_precision(self.task.model, self.config.precision)
            with phase("Validating"):
                metrics = validation_loss(self.task, forward, lambda batch: batch.to(self.device), self.process_group)
            if metrics:
                writer.write(1, {f"valid/{name}": value for name, value in metrics.items()})
                self.callback.on_validation_metrics(1, metrics)
        finally:
            writer.close()


def count_values(model: nn.Module) -> int:
    """How many numbers were estimated: probabilities and the like, which are no parameters of an optimizer."""
    return sum(tensor.numel() for tensor in model.state_dict().values() if tensor.is_floating_point())
