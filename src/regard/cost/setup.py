"""How a model is trained, as far as its cost depends on that."""

from dataclasses import dataclass, replace
from typing import Literal

from regard.cost.fused_forward import has_fused_form, uses_torch_dropout
from regard.cost.op_cost import Device, Precision
from regard.cost.workload import BatchShape, Workload
from regard.errors import UserError
from regard.model import AnyModelConfig, ModelConfig, SequenceConfig

LossKernel = Literal["chunked", "fused", "in_place", "deferred"]
"""How the loss is computed:

- `chunked`: some rows at a time with PyTorch's operations;
- `fused`: by a kernel that needs no memory of its own (kernels/cuda/cross_entropy.py);
- `in_place`: by that kernel, with the gradient of the logits written over the logits;
- `deferred`: the loss computes the logits itself, a block at a time, and they are gone before backward begins.
"""


@dataclass(frozen=True)
class TrainingSetup:
    """Precision, optimizer, processes and implementation of a training run.

    `processes` share each step, with weights, gradients and optimizer state sharded over `shards` of them (FSDP; 1 is
    DDP). `fused` and `loss` are chosen as training chooses them where they are None (see `resolved`).
    """

    precision: Precision
    optimizer: str = "adam"
    device: Device = "cuda"
    processes: int = 1
    shards: int = 1
    fused: bool | None = None
    loss: LossKernel | None = None
    activation_checkpointing: bool = False
    cuda_graphs: bool = False
    """Whether passes are captured in CUDA graphs. It matters here under activation checkpointing only, where some
    layers save everything all the same."""

    def __post_init__(self) -> None:
        if self.precision not in ("float32", "bfloat16"):
            raise UserError(f"There is no precision {self.precision!r}; choose float32 or bfloat16.")
        if self.processes < 1 or self.shards < 1 or self.processes % self.shards:
            raise UserError(
                f"Training needs at least 1 process, in groups of equal size; found {self.processes} processes in "
                f"groups of {self.shards}."
            )

    def resolved(self, config: AnyModelConfig, workload: Workload) -> "TrainingSetup":
        """The same with `fused` and `loss` decided.

        On a GPU steps are fused unless weights are sharded. Their loss defers the logits where one process takes one
        pass over a model with a decoder, else the gradient overwrites the logits. On a CPU steps are counted as
        unfused, with the loss chunked.
        """
        fused = self.fused
        if fused is None:
            fused = self.device == "cuda" and self.shards == 1 and has_fused_form(config)
        if self.device == "cpu":
            return replace(self, fused=fused, loss="chunked")
        defers = fused and self.processes == 1 and isinstance(config, ModelConfig) and workload.forward_passes == 1
        return replace(self, fused=fused, loss=self.loss or ("deferred" if defers else "in_place"))

    @property
    def has_bfloat16_copies(self) -> bool:
        """Whether passes use bfloat16 copies of all weights, with their own gradients (train/mixed_precision.py)."""
        return self.fused is True and self.precision == "bfloat16" and self.processes == 1

    def uses_checkpointing(self, config: AnyModelConfig, batch: BatchShape) -> tuple[bool, bool]:
        """Whether the layers of the encoder, and of the decoder, are recomputed in backward."""
        if isinstance(config, SequenceConfig):
            return False, False
        if not (self.activation_checkpointing and self.cuda_graphs and self.fused):
            return self.activation_checkpointing, self.activation_checkpointing
        encoder, decoder = uses_torch_dropout(config, batch)
        return not encoder, not decoder
