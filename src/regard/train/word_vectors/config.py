"""The [train] table of word vectors: how often the text is read, the learning rate, checkpoints."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from regard.train.config import ParallelConfig, TrainConfig
from regard.train.expected_gleu import ExpectedGleuConfig
from regard.train.loss import LossConfig
from regard.train.optimizer import OptimizerConfig, ScheduleConfig


class VectorScheduleConfig(ScheduleConfig):
    """The learning rate, by how much of the run is done. It needs no length: words are counted, not steps."""

    kind: Literal["linear", "constant"] = "linear"
    """linear: from `lr` down to `min_lr_ratio` of it. constant: always `lr`."""
    lr: float = Field(default=0.025, gt=0, le=100)
    """The learning rate at the start."""
    min_lr_ratio: float = Field(default=1e-4, ge=0, le=1)
    """The final learning rate of a linear schedule, as a fraction of that at the start."""

    warmup_steps: ClassVar[int] = 0  # type: ignore[misc]
    steps: ClassVar[None] = None  # type: ignore[misc]

    @model_validator(mode="after")
    def _check(self) -> "VectorScheduleConfig":
        return self

    def after(self, done: float) -> float:
        """The learning rate when this fraction of the run is done."""
        return self.lr if self.kind == "constant" else self.lr * max(1 - done, self.min_lr_ratio)


class VectorTrainConfig(TrainConfig):
    """Settings of training word vectors. A step is the training on one block of the data.

    There is no batch whose gradients are averaged, and a single process trains, so most settings of other models do not
    exist.
    """

    epochs: int = Field(default=5, ge=1, le=1_000_000)
    """How often the text is read."""
    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """The seed of all random numbers: initial vectors, subsampling, windows, random words."""
    steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """End after so many steps, although not all epochs are over; 0: do not. The learning rate does not depend on it."""
    batch_tokens: int = Field(default=10_000, ge=1, le=1_000_000_000)
    """The words of a block, which one thread trains on at one learning rate: whole sentences with at least so many."""
    deterministic: bool = False
    """Train in one thread, whatever --threads says: bit-identical results in every run, resumed or not. Several threads
    update the same tables without waiting for each other, so that no two runs are the same."""
    schedule: VectorScheduleConfig = VectorScheduleConfig()
    save_every: int = Field(default=5000, ge=1, le=1_000_000_000)
    """Steps between two checkpoints."""
    log_every: int = Field(default=100, ge=1, le=1_000_000_000)
    """Steps between two lines of the log: loss, learning rate, speed."""
    keep_checkpoints: int = Field(default=1, ge=1, le=1_000_000)
    """How many checkpoints are kept."""

    # What does not exist here is a constant for those who ask any recipe for it.
    length_buckets: ClassVar[int] = 1  # type: ignore[misc]
    grad_accumulation: ClassVar[int] = 1  # type: ignore[misc]
    max_grad_norm: ClassVar[float] = 0.0  # type: ignore[misc]
    precision: ClassVar[Literal["float32"]] = "float32"  # type: ignore[misc]
    cuda_graphs: ClassVar[bool] = False  # type: ignore[misc]
    activation_checkpointing: ClassVar[bool] = False  # type: ignore[misc]
    parallel: ClassVar[ParallelConfig] = ParallelConfig()  # type: ignore[misc]
    expected_gleu: ClassVar[ExpectedGleuConfig | None] = None  # type: ignore[misc]
    loss: ClassVar[LossConfig] = LossConfig(label_smoothing=0.0)  # type: ignore[misc]
    optimizer: ClassVar[OptimizerConfig] = OptimizerConfig()  # type: ignore[misc]
    validate_every: ClassVar[int] = 1_000_000_000  # type: ignore[misc]
    final_weights: ClassVar[Literal["last"]] = "last"  # type: ignore[misc]
    average_last: ClassVar[int] = 1  # type: ignore[misc]
    ema_decay: ClassVar[float] = 0.0  # type: ignore[misc]
    monitor: ClassVar[Literal["loss"]] = "loss"  # type: ignore[misc]
    patience: ClassVar[int] = 0  # type: ignore[misc]

    @model_validator(mode="before")
    @classmethod
    def _default_schedule_steps(cls, values: Any) -> Any:
        """The schedule does not end with `steps`."""
        return values
