"""The trainer's policies, each a small object: out-of-memory handling, early stopping, EMA and final weights."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import UserError
from regard.train.checkpoint import CheckpointManager
from regard.train.config import TrainConfig
from regard.train.distributed.process_group import ProcessGroup
from regard.train.step import SingleDevicePlacement
from regard.train.task import Evaluation, LogFn


class BatchSplitter:
    """Out-of-memory handling: batches are split into more micro-batches, whose gradients are summed.

    That is the same step, more slowly. The number of splits stays with the run.
    """

    def __init__(self, config: TrainConfig, process_group: ProcessGroup, log: LogFn) -> None:
        self.config, self.process_group, self.log = config, process_group, log
        self.splits = 1

    def check_can_retry(self, step: int) -> None:
        """Refuse with several processes: the others are in the middle of the step and cannot begin it again."""
        if self.process_group.size > 1:
            raise UserError(
                f"Out of memory at step {step:,} in process {self.process_group.rank}. Lower train.batch_tokens "
                f"({self.config.batch_tokens} now) and raise train.grad_accumulation by the same factor"
                f"{self._checkpointing_advice(', or set {}')}, then start again."
            )

    def split_further(self, step: int, max_rows: int) -> None:
        """Split batches into twice as many parts from now on. max_rows: the rows of the step's largest batch"""
        if self.splits >= max_rows:
            raise UserError(
                "One row of a batch does not fit into memory. Lower data.max_length or train.batch_tokens, set "
                f"train.precision=bfloat16, {self._checkpointing_advice('set {}, ')}or make the model smaller."
            )
        self.splits *= 2
        self.log(
            f"Out of memory at step {step}: from now on each batch is split into {self.splits} parts, which gives the "
            f"same result more slowly. A smaller train.batch_tokens ({self.config.batch_tokens} now) with a larger "
            f"train.grad_accumulation{self._checkpointing_advice(', or {},')} would avoid this."
        )

    def _checkpointing_advice(self, phrase: str) -> str:
        enabled = self.config.activation_checkpointing
        return "" if enabled else phrase.format("train.activation_checkpointing=true")


@dataclass
class BestTracker:
    """The best validation so far, for `final_weights = "best"` and early stopping."""

    monitor: Literal["loss", "score"]
    patience: int
    score: float | None = None
    """Larger is better: the task's score, or the log-likelihood of the validation set."""
    step: int = 0
    stale: int = 0
    """Validations in a row without improvement."""
    initial_score: float | None = None
    """Of the model that training started from, if it was validated. It is for comparison, and never the best."""

    def update(self, step: int, metrics: Mapping[str, float], evaluation: Evaluation | None) -> bool:
        """Record a validation; returns whether it is the best so far.

        The loss that is monitored is the negative log-likelihood: label smoothing is for training only.
        """
        if evaluation is not None and (self.monitor == "score" or "nll" not in metrics):
            score = evaluation.score
        else:
            score = -metrics["nll"]
        if math.isfinite(score) and (self.score is None or score > self.score):
            self.score, self.step, self.stale = score, step, 0
            return True
        self.stale += 1
        return False

    @property
    def out_of_patience(self) -> bool:
        return 0 < self.patience <= self.stale

    @property
    def is_worse_than_initial(self) -> bool:
        """Whether no validation was better than that of the model that training started from."""
        return self.initial_score is not None and self.score is not None and self.score <= self.initial_score

    def state_dict(self) -> dict[str, Any]:
        state = {"score": self.score, "step": self.step, "stale": self.stale}
        return state if self.initial_score is None else state | {"initial_score": self.initial_score}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.score, self.step, self.stale = state["score"], state["step"], state["stale"]
        self.initial_score = state.get("initial_score")


class EMA:
    """An exponential moving average of the weights, sharded as they are."""

    def __init__(self, decay: float, placement: SingleDevicePlacement) -> None:
        self.decay, self._placement = decay, placement
        self.weights = {name: tensor.detach().clone() for name, tensor in self._trained_weights().items()}

    def update(self, step: int) -> None:
        """Average in the weights of a step. Early steps weigh more, so that the initial weights are soon forgotten."""
        decay = min(self.decay, (1 + step) / (10 + step))
        averages = [self._placement.local(tensor) for tensor in self.weights.values()]
        weights = [self._placement.local(tensor.detach()) for tensor in self._trained_weights().values()]
        torch._foreach_lerp_(averages, weights, 1 - decay)

    def load(self, weights: Mapping[str, Tensor], device: torch.device) -> None:
        """Restore the average from full tensors."""
        self.weights = {name: self._placement.shard(name, weights[name]).to(device) for name in self.weights}

    def _trained_weights(self) -> dict[str, Tensor]:
        """The floating-point tensors of the model's state, in a fixed order."""
        return {name: tensor for name, tensor in self._placement.state_dict().items() if tensor.is_floating_point()}


@dataclass(frozen=True)
class FinalWeights:
    """Which weights a finished model has."""

    kind: Literal["last", "best", "average", "ema", "estimated"]
    step: int
    """The step of these weights: the last one, unless `kind` is "best"."""
    checkpoints: int | None = None
    """How many checkpoints were averaged ("average")."""
    ema_decay: float | None = None

    def asdict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class TrainResult:
    """How a run ended. Its model has the `final_weights`."""

    steps: int
    tokens: int
    seconds: float
    batch_splits: int
    """Into how many parts batches were split to fit into memory."""
    stopped_early: bool
    final_weights: FinalWeights


def load_final_weights(
    config: TrainConfig,
    placement: SingleDevicePlacement,
    checkpoints: CheckpointManager,
    best_step: int,
    ema: EMA | None,
    last_step: int,
) -> FinalWeights:
    """Put the weights that `final_weights` asks for into the task's model. best_step: 0 if nothing was validated"""
    match config.final_weights:
        case "average":
            count = min(config.average_last, len(checkpoints.permanent_steps()))
            placement.load_full(checkpoints.average_weights(count))
            return FinalWeights("average", last_step, checkpoints=count)
        case "ema" if ema is not None:
            placement.finalize(ema.weights)
            return FinalWeights("ema", last_step, ema_decay=config.ema_decay)
        case "best" if best_step:
            placement.load_full(checkpoints.load(best_step).model)
            return FinalWeights("best", best_step)
        case _:
            placement.finalize()
            return FinalWeights("last", last_step)
