"""The [train] table of a recipe: length of the run, batch size, precision, loss, optimizer, checkpoints."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.train.expected_gleu import ExpectedGleuConfig
from regard.train.loss import LossConfig
from regard.train.optimizer import OptimizerConfig, ScheduleConfig


class ParallelConfig(Config):
    """How several processes train together. A single process ignores this."""

    kind: Literal["ddp", "fsdp"] = "ddp"
    """How weights are distributed. ddp: every process holds all weights. fsdp: each holds a shard of them, which takes
    less memory."""
    shard: int | None = Field(default=None, ge=2, le=100_000)
    """With fsdp, over how many processes the weights are sharded; every further group of that many holds another copy.
    All processes, if not given."""
    timeout: float = Field(default=600.0, gt=0, le=2_592_000)
    """Seconds after which a process that does not answer counts as lost."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shard is not None and self.kind != "fsdp":
            raise ConfigError("shard", 'only kind = "fsdp" shards the weights; leave this out for ddp.')
        return self


class TrainConfig(Config):
    """Settings of the trainer, whatever the task. A step is one optimizer step on `grad_accumulation` batches."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """The seed of all random numbers: initial weights, order of the batches, dropout."""
    steps: int = Field(ge=1, le=1_000_000_000)
    """The number of optimizer steps of the run."""
    batch_tokens: int = Field(default=4096, ge=1, le=1_000_000_000)
    """The most tokens that a batch has on either side (source, target), padding included."""
    length_buckets: int = Field(default=32, ge=1, le=100_000)
    """The number of length buckets: more of them mean less padding, fewer a better mix of sentences."""
    grad_accumulation: int = Field(default=1, ge=1, le=1_000_000)
    """The number of batches whose gradients are summed before each optimizer step."""
    max_grad_norm: float = Field(default=1.0, ge=0, le=1e9)
    """Gradients are clipped to this norm, taken over all parameters; 0 turns clipping off."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """The dtype of the forward and backward pass. auto: bfloat16 on a GPU that supports it, float32 elsewhere; a run
    records which of them it has chosen. Weights, loss and optimizer state are always float32."""
    deterministic: bool = False
    """On a GPU: bit-identical results in every run, at the price of speed. A CPU always gives them."""
    cuda_graphs: bool = True
    """On a GPU: capture the forward and backward pass of each batch shape once as a CUDA graph and replay it, which
    saves kernel launches."""
    activation_checkpointing: bool = False
    """Keep only each layer's input and recompute its activations during the backward pass: the same gradients with less
    memory, for about a third more computation."""
    save_dtype: Literal["float32", "float16"] = "float32"
    """The dtype of the saved model: float16 takes half the space."""
    parallel: ParallelConfig = ParallelConfig()
    expected_gleu: ExpectedGleuConfig | None = None
    """Fine-tune on the expected GLEU of sampled outputs (Wu et al. 2016), for models with a source and a target; if not
    given, train on the loss alone."""
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig
    validate_every: int = Field(default=1000, ge=1, le=1_000_000_000)
    """Steps between two evaluations on the validation set."""
    save_every: int = Field(default=1000, ge=1, le=1_000_000_000)
    """Steps between two checkpoints."""
    log_every: int = Field(default=50, ge=1, le=1_000_000_000)
    """Steps between two lines of the log: loss, learning rate, speed."""
    keep_checkpoints: int = Field(default=5, ge=1, le=1_000_000)
    """How many checkpoints are kept, besides the best."""
    final_weights: Literal["last", "best", "average", "ema"] = "last"
    """The weights of the finished model: those of the last step, those that did best on the validation set, the average
    of the last `average_last` checkpoints, or the exponential moving average."""
    average_last: int = Field(default=5, ge=1, le=1_000_000)
    """The number of last checkpoints that `final_weights = "average"` averages."""
    ema_decay: float = Field(default=0.0, ge=0, lt=1)
    """The decay of an exponential moving average of the weights, such as 0.999; 0 keeps none."""
    monitor: Literal["loss", "score"] = "loss"
    """What decides which weights are best: the loss on the validation set (without label smoothing), or the task's
    score."""
    patience: int = Field(default=0, ge=0, le=1_000_000)
    """Early stopping after so many validations in a row without improvement; 0 never stops early."""

    @model_validator(mode="before")
    @classmethod
    def _default_schedule_steps(cls, values: Any) -> Any:
        """A schedule without `steps` ends with the run."""
        if isinstance(values, dict) and isinstance(values.get("schedule"), dict) and "steps" in values:
            return {**values, "schedule": {"steps": values["steps"], **values["schedule"]}}
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.parallel.kind == "fsdp" and self.optimizer.kind == "muon":
            raise ConfigError(
                "parallel.kind", 'Muon updates whole matrices, which fsdp shards; choose "ddp", or adamw as optimizer.'
            )
        if self.final_weights == "ema" and not self.ema_decay:
            raise ConfigError("ema_decay", 'final_weights = "ema" needs a decay; give one, such as 0.999.')
        if self.final_weights == "average" and self.average_last > self.keep_checkpoints:
            raise ConfigError(
                "keep_checkpoints",
                f"found {self.keep_checkpoints}; averaging the last {self.average_last} checkpoints needs as many.",
            )
        if self.schedule.steps is not None and self.schedule.steps < self.steps and self.schedule.kind == "linear":
            raise ConfigError(
                "schedule.steps",
                f"the learning rate is zero after {self.schedule.steps} of {self.steps} steps; leave this key out.",
            )
        return self
