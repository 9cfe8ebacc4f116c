"""Training steps as CUDA graphs.

On a GPU, small models are limited by kernel launches, not by arithmetic. So the forward and backward pass of each batch
shape is captured once as a CUDA graph and replayed from then on: one launch instead of thousands. This works because
batches come in a small, fixed set of shapes. A replay computes exactly what the eager pass computes.
"""

from collections.abc import Mapping
from typing import Any, Generic

import torch
from torch import Tensor, nn

from regard.attention.positions.rotary import has_dynamic_rotary
from regard.fused.training import can_capture_checkpointing
from regard.train.fused_adam import FusedAdam, GradPointers
from regard.train.loss import Loss
from regard.train.step import ExpertBalance, PassKind, TrainStep
from regard.train.task import AnyBatch, Forward, Task

_WARMUP_PASSES = 2


class CudaGraphStep(TrainStep[AnyBatch]):
    """The same with CUDA graphs: a pass is captured when its batch shape first comes up, and replayed afterwards."""

    reuses_grads = True

    def __init__(
        self, task: Task[AnyBatch], precision: str, forward: Forward | None = None, fused_adam: FusedAdam | None = None
    ) -> None:
        super().__init__(task, precision, forward, fused_adam)
        self._graphs: dict[Any, _CapturedPass[AnyBatch]] = {}
        self._pool: Any = None
        self._warmup_stream: torch.cuda.Stream | None = None

    def _run(self, batch: AnyBatch, scale: Tensor, kind: PassKind) -> Loss:
        kind = "next" if self.mixed_precision is None else kind  # in float32 all passes are alike
        captured = self._graphs.get((batch.shape, kind))
        if captured is None:
            captured = self._graphs[batch.shape, kind] = self._capture(batch, scale, kind)
        captured.batch.copy_from(batch)
        captured.scale.copy_(scale)
        captured.graph.replay()
        self._pointers = captured.pointers
        # The next replay overwrites the loss.
        return Loss(captured.loss.total.clone(), captured.loss.nll.clone(), captured.loss.count.clone())

    def _capture(self, batch: AnyBatch, scale: Tensor, kind: PassKind) -> "_CapturedPass[AnyBatch]":
        """Run the pass a few times on another stream, undo what that changed, then capture it."""
        static_batch = batch.split(1)[0]
        static_scale = scale.clone()
        grads = self._clone_grads() if kind == "next" else {}
        device = scale.device
        rng_state = torch.cuda.get_rng_state(device)
        self._warmup_stream = stream = self._warmup_stream or torch.cuda.Stream(device)  # each has its own workspace
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), ExpertBalance(self.task.model).counting(False):
            for _ in range(_WARMUP_PASSES):
                raw_grads = None  # frees those of the pass before
                _, raw_grads = self._forward_backward(static_batch, static_scale, kind)
        torch.cuda.current_stream(device).wait_stream(stream)
        if self.fused_adam is not None and raw_grads is not None and self.fused_adam.pointers(raw_grads) is None:
            kind = "first"  # fused Adam cannot read these gradients
        raw_grads = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss, raw_grads = self._forward_backward(static_batch, static_scale, kind)
        self._pool = self._pool or graph.pool()
        torch.cuda.set_rng_state(rng_state, device)
        self._restore_grads(grads)
        # Only the addresses are kept: another graph may reuse the memory, but only after the gradients were used.
        pointers = None if self.fused_adam is None or raw_grads is None else self.fused_adam.pointers(raw_grads)
        return _CapturedPass(graph, static_batch, static_scale, loss, pointers)

    def _clone_grads(self) -> dict[str, Tensor]:
        return {name: p.grad.clone() for name, p in self.task.model.named_parameters() if p.grad is not None}

    def _restore_grads(self, grads: Mapping[str, Tensor]) -> None:
        """Restore the gradients from before the warmup, in the tensors that the graphs write to."""
        for name, parameter in self.task.model.named_parameters():
            if parameter.grad is not None:
                if name in grads:
                    parameter.grad.copy_(grads[name])
                else:
                    parameter.grad.zero_()


def uncapturable_reason(model: nn.Module, *, activation_checkpointing: bool) -> str | None:
    """Why the passes of a model cannot be captured as CUDA graphs; None if they can."""
    if has_dynamic_rotary(model):
        return (
            "the frequencies of this RoPE scaling (dynamic, longrope) depend on the length of each row, which is read "
            "during the pass"
        )
    if activation_checkpointing and not can_capture_checkpointing(model):
        return (
            "train.activation_checkpointing draws dropout twice, which a graph can do only if the model runs on fused "
            "kernels"
        )
    return None


class _CapturedPass(Generic[AnyBatch]):
    """A CUDA graph and the tensors it reads and writes."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, batch: AnyBatch, scale: Tensor, loss: Loss, pointers: GradPointers | None
    ) -> None:
        self.graph, self.batch, self.scale, self.loss, self.pointers = graph, batch, scale, loss, pointers
