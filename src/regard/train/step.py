"""One training step: forward, loss and backward in the run's precision, then the optimizer step.

**Precision is explicit.** Weights stay in float32. For bfloat16 they are cast once per pass (mixed_precision.py), the
model computes in bfloat16, and gradients are accumulated in float32. Norms and softmax accumulate in float32 inside
their kernels, and the loss is computed in float32.

**Several processes.** A step consists of the same batches whatever the number of processes. If it divides evenly, each
process takes whole batches, and only these are built there; otherwise each takes a part of every batch. All processes
run the same number of passes, since each pass may involve all of them. A pass that is run only for that reason is not
`counted`: its gradient is multiplied by zero.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.errors import UserError
from regard.fused.layers import concatenated_weights
from regard.fused.support import training_unsupported_reason
from regard.fused.training import fuse_for_training
from regard.model.mixture_of_experts import MixtureOfExperts
from regard.train.config import TrainConfig
from regard.train.distributed.process_group import ProcessGroup
from regard.train.distributed.sharded_checkpoint import Sharding
from regard.train.fused_adam import FusedAdam, GradPointers
from regard.train.loss import Loss
from regard.train.mixed_precision import MixedPrecisionModel, resolve_precision
from regard.train.optimizer import Optimizer
from regard.train.task import AnyBatch, Batches, Forward, Task

PassKind = Literal["first", "next", "only"]
"""Which of a step's passes one is: this decides where its gradients go."""


def training_forward(model: nn.Module, precision: str, *, activation_checkpointing: bool = False) -> Forward:
    """The model's forward pass for training: on fused kernels, in a precision, with the logits left to the loss."""
    fused = fuse_for_training(model, fused_loss=True, activation_checkpointing=activation_checkpointing)
    return fused if precision == "float32" else MixedPrecisionModel(fused, adjacent=concatenated_weights(fused))


def forward_in_precision(model: nn.Module, precision: str) -> Forward:
    """The model's own forward pass in a precision; for bfloat16, every call casts the weights."""
    if precision == "auto":
        precision = resolve_precision(precision, next(model.parameters()).device)
    if precision == "float32":
        return model
    names = [name for name, parameter in model.named_parameters() if parameter.is_floating_point()]

    def forward(*inputs: Any, **settings: Any) -> Tensor:
        weights = {name: model.get_parameter(name).to(torch.bfloat16) for name in names}
        output: Tensor = functional_call(model, weights, inputs, settings)
        return output

    return forward


class TrainStep(Generic[AnyBatch]):
    """Accumulates gradients in the parameters' `grad` and takes optimizer steps.

    With `fused_adam`, the gradients of a step's only pass stay in their own precision, and Adam reads them there.
    """

    reuses_grads = False
    """Whether every step writes its gradients to the same tensors."""

    def __init__(
        self, task: Task[AnyBatch], precision: str, forward: Forward | None = None, fused_adam: FusedAdam | None = None
    ) -> None:
        self.task, self.fused_adam = task, fused_adam
        self.forward = forward or forward_in_precision(task.model, precision)
        self.mixed_precision = self.forward if isinstance(self.forward, MixedPrecisionModel) else None
        self._is_first = True
        self._pointers: GradPointers | None = None
        self._raw_grads: list[Tensor | None] | None = None
        self._norm: Tensor | None = None
        self._squared_norm: Tensor | None = None

    def backward(self, batch: AnyBatch, scale: Tensor, *, only: bool = False) -> Loss:
        """The forward and backward pass of a batch on the model's device; the gradient is multiplied by `scale`.

        scale: # (); only: no other pass belongs to this step
        """
        if self.mixed_precision is not None:
            self.mixed_precision.refresh()
        kind: PassKind = "only" if only and self.fused_adam else "first" if self._is_first else "next"
        loss = self._run(batch, scale, kind)
        self._is_first = False
        return loss

    def optimizer_step(self, optimizer: Optimizer, lr: float, max_grad_norm: float) -> None:
        """Clip the gradients (unless `max_grad_norm` is 0), update the weights, and discard the gradients."""
        self._norm = self._squared_norm = None
        if self.fused_adam is not None and self._pointers is not None:
            self._squared_norm = self.fused_adam.step(self._pointers, lr, max_grad_norm)
        else:
            if max_grad_norm:
                self._norm = optimizer.clip_grad_norm(max_grad_norm)
            optimizer.step(lr)
            if self.mixed_precision is not None:
                self.mixed_precision.stale = True
        self._pointers = self._raw_grads = None
        self.zero_grad(optimizer)

    def grad_norm(self) -> float | None:
        """The norm of the last step's gradients before clipping, read from the device; None if they are not clipped."""
        norm: Any = self._norm if self._squared_norm is None else self._squared_norm.sqrt()
        if hasattr(norm, "full_tensor"):  # of sharded gradients: all processes must ask
            norm = norm.full_tensor()
        return None if norm is None else float(norm)

    def zero_grad(self, optimizer: Optimizer) -> None:
        """Begin a new step."""
        self._is_first = True
        if self.mixed_precision is None:  # otherwise the next pass overwrites the gradients
            optimizer.zero_grad(in_place=self.reuses_grads)

    def _run(self, batch: AnyBatch, scale: Tensor, kind: PassKind) -> Loss:
        loss, raw_grads = self._forward_backward(batch, scale, kind)
        if self.fused_adam is not None and raw_grads is not None:
            self._pointers, self._raw_grads = self.fused_adam.pointers(raw_grads), raw_grads  # kept alive until used
            if self._pointers is None and self.mixed_precision is not None:
                self.mixed_precision.set_grads(raw_grads)
        return loss

    def _forward_backward(
        self, batch: AnyBatch, scale: Tensor, kind: PassKind
    ) -> tuple[Loss, list[Tensor | None] | None]:
        """The loss, and the copies' gradients if they are not accumulated in the parameters'."""
        loss = self.task.loss(self.forward, batch)
        torch.autograd.backward(loss.total * scale)
        raw_grads = None
        if self.mixed_precision is not None and kind == "only":
            raw_grads = self.mixed_precision.pop_grads()
        elif self.mixed_precision is not None:
            self.mixed_precision.accumulate_grads(first=kind == "first")
        return Loss(loss.total.detach(), loss.nll.detach(), loss.count.detach()), raw_grads


@dataclass(frozen=True)
class Pass(Generic[AnyBatch]):
    """One forward and backward pass over a batch or a part of one."""

    batch: AnyBatch
    counted: bool = True

    def split(self, parts: int) -> list["Pass[AnyBatch]"]:
        """The same in parts that fit into memory."""
        return [self] if parts == 1 else [Pass(part, self.counted) for part in self.batch.split(parts)]


def shard_batches(
    batches: Batches[AnyBatch], stream: Iterator[AnyBatch], count: int, process_group: ProcessGroup
) -> list[Pass[AnyBatch]]:
    """This process' shard of the next `count` batches of a stream; those of other processes are skipped."""
    if count % process_group.size:
        split = [next(stream).split(process_group.size) for _ in range(count)]
        rank = process_group.rank
        return [Pass(parts[min(rank, len(parts) - 1)], rank < len(parts)) for parts in split]
    passes: list[Pass[AnyBatch]] = []
    for number in range(count):
        if number % process_group.size == process_group.rank:
            passes.append(Pass(next(stream)))
        else:
            batches.skip()
    return passes


def check_batch_sharding(batches: Batches[AnyBatch], config: TrainConfig, process_group: ProcessGroup) -> None:
    """Refuse more processes than there are rows to split a batch into."""
    count, size = config.grad_accumulation, process_group.size
    if count % size and batches.min_rows < size:
        rows = "row" if batches.min_rows == 1 else "rows"
        raise UserError(
            f"{size} processes cannot split a batch of {batches.min_rows} {rows}. Start fewer, raise "
            f"train.batch_tokens ({config.batch_tokens}), or make train.grad_accumulation ({count}) a multiple of "
            f"{size}."
        )


class SingleDevicePlacement:
    """All weights in one process."""

    sharding: Sharding | None = None
    """Which rows of each tensor this process holds; None for all of them."""

    def __init__(self, model: nn.Module, device: torch.device, config: TrainConfig) -> None:
        self.model = model.to(device)
        """The task's plain model."""
        self.module = self.model
        """What is trained."""
        self.forward: Forward = training_forward(
            self.model, config.precision, activation_checkpointing=config.activation_checkpointing
        )

    def sync_grads(self, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around each pass; gradients are reduced over the processes in the `last` pass of a step."""
        return contextlib.nullcontext()

    def unfused_reason(self, precision: str) -> str | None:
        """Why the model is not trained on fused kernels; None if it is."""
        return training_unsupported_reason(self.model, precision)

    def state_dict(self) -> dict[str, Tensor]:
        """The trained module's state, as this process holds it."""
        return dict(self.module.state_dict())

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load full tensors into the trained module."""
        self.module.load_state_dict(dict(state))

    def shard(self, name: str, tensor: Tensor) -> Tensor:
        """What this process holds of a full tensor that belongs to a parameter."""
        return tensor

    def local(self, tensor: Tensor) -> Tensor:
        """The local rows of a tensor, as a plain tensor."""
        return tensor

    @contextmanager
    def full_weights(self, weights: Mapping[str, Tensor] | None = None) -> Iterator[None]:
        """Within the block, the plain model has the trained weights, or others that are sharded like them."""
        if weights is None:
            yield
            return
        trained = {name: tensor.detach().clone() for name, tensor in self.state_dict().items()}
        self.module.load_state_dict(trained | dict(weights))
        try:
            yield
        finally:
            self.module.load_state_dict(trained)

    def finalize(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """Give the plain model the trained weights for good, or others that are sharded like them."""
        if weights is not None:
            self.module.load_state_dict(self.state_dict() | dict(weights))

    def load_full(self, weights: Mapping[str, Tensor]) -> None:
        """Give the plain model these full weights for good."""
        self.model.load_state_dict(dict(weights))


class ExpertBalance:
    """The mixture-of-experts layers of a model during a step: their load, and the biases that even it out.

    Every pass adds to a layer's load. After a step the trainer takes the loads for its log, and layers balanced by a
    bias update it. Between steps the loads are zero, so a checkpoint does not need them. Most models have no such
    layers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._layers = [module for module in model.modules() if isinstance(module, MixtureOfExperts)]

    def reset(self) -> None:
        """Begin a step."""
        for layer in self._layers:
            if layer.load is not None:
                layer.load.zero_()

    @contextmanager
    def counting(self, counted: bool) -> Iterator[None]:
        """Around each pass; a pass that only keeps other processes company is not `counted`."""
        before = [] if counted else [None if layer.load is None else layer.load.clone() for layer in self._layers]
        yield
        for layer, load in zip(self._layers, before, strict=False):
            if layer.load is not None:
                layer.load.copy_(torch.zeros_like(layer.load) if load is None else load)

    def update(self, process_group: ProcessGroup) -> list[Tensor]:
        """End a step: update the biases by the load of all processes; returns this one's load.  # (experts,) each"""
        counted = [layer for layer in self._layers if layer.load is not None]
        loads = [layer.load.clone() for layer in counted if layer.load is not None]
        biased = [(layer, load) for layer, load in zip(counted, loads, strict=True) if layer.expert_bias is not None]
        if biased:
            total = torch.cat([load for _, load in biased])
            if process_group.size > 1:
                total = torch.tensor(process_group.all_reduce(total.tolist()), device=total.device)
            for (layer, _), load in zip(biased, total.split([len(load) for _, load in biased]), strict=True):
                layer.update_expert_bias(load)
        self.reset()
        return loads
