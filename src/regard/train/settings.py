"""How a run goes: how long, how large its steps, how often it looks up, what it keeps."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.train.loss import LossConfig
from regard.train.optimiser import OptimiserConfig
from regard.train.schedule import ScheduleConfig


class ParallelConfig(Config):
    """How several processes share the work. A single one does not look at this."""

    kind: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every process keeps all weights. fsdp: each keeps a share of them, which takes less memory."""
    shard: int | None = Field(default=None, ge=2)
    """fsdp: over how many processes the weights are shared out; where there are more, each such group has its own copy.
    All processes, if not given."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds after which a process that does not answer counts as lost."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.shard is not None and self.kind != "fsdp":
            raise ConfigError("shard", 'only kind = "fsdp" shares out weights; leave this out for ddp.')
        return self


class TrainConfig(Config):
    """Settings of the loop, whatever the task. A step is one move of the weights, of `accumulate` batches."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    steps: int = Field(ge=1)
    tokens: int = Field(default=4096, ge=1)
    """The most tokens a side of a batch has, padding included."""
    shapes: int = Field(default=32, ge=1)
    """In how many shapes batches come: more leave less padding, fewer mix better."""
    accumulate: int = Field(default=1, ge=1)
    """How many batches' gradients are summed before the weights move."""
    clip: float = Field(default=1.0, ge=0)
    """The longest a gradient may be, all parameters together; 0 lets it be."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """What the model computes in. Weights, loss and optimiser are float32 in any case."""
    deterministic: bool = False
    """On a GPU: the same bits every time, at the price of speed. A CPU always gives them."""
    capture: bool = True
    """On a CUDA device: record the work of each batch shape once and replay it, which spares the launching."""
    recompute: bool = False
    """Keep only what enters each layer and compute the inside again on the way back: the same numbers with less memory,
    for about a third more work."""
    store: Literal["float32", "float16"] = "float32"
    """In what numbers the finished weights are written: float16 takes half the room."""
    parallel: ParallelConfig = ParallelConfig()
    loss: LossConfig = LossConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig
    validate_every: int = Field(default=1000, ge=1)
    save_every: int = Field(default=1000, ge=1)
    log_every: int = Field(default=50, ge=1)
    keep: int = Field(default=5, ge=1)
    """How many checkpoints are kept, besides the best."""
    final: Literal["last", "best", "mean", "moving"] = "last"
    """What the run ends with: its last weights, those that did best on the validation set, the mean of the last
    `average` checkpoints, or the moving average."""
    average: int = Field(default=5, ge=1)
    moving: float = Field(default=0.0, ge=0, lt=1)
    """How much of an exponential moving average of the weights stays each step (0.999, say); 0 keeps none."""
    watch: Literal["loss", "score"] = "loss"
    """What decides which weights are best: the loss on the validation set, or the task's own score."""
    patience: int = Field(default=0, ge=0)
    """Stop when so many validations in a row brought nothing better; 0 never stops early."""

    @model_validator(mode="before")
    @classmethod
    def _schedule_ends_with_the_run(cls, values: Any) -> Any:
        """A schedule that says nothing about its length has the run's."""
        if isinstance(values, dict) and isinstance(values.get("schedule"), dict) and "steps" in values:
            return {**values, "schedule": {"steps": values["steps"], **values["schedule"]}}
        return values

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.parallel.kind == "fsdp" and self.optimiser.kind == "muon":
            raise ConfigError(
                "parallel.kind", 'Muon moves whole matrices, which fsdp cuts up; take "ddp", or adamw as optimiser.'
            )
        if self.final == "moving" and not self.moving:
            raise ConfigError("moving", "final asks for the moving average; say how much of it stays, such as 0.999.")
        if self.final == "mean" and self.average > self.keep:
            raise ConfigError(
                "keep", f"found {self.keep}; the mean of the last {self.average} checkpoints needs as many kept."
            )
        if self.schedule.steps is not None and self.schedule.steps < self.steps and self.schedule.kind == "linear":
            raise ConfigError(
                "schedule.steps",
                f"the rate is zero after {self.schedule.steps} of {self.steps} steps; leave this key out.",
            )
        return self
