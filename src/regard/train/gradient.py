"""From a batch to gradients: forward, loss, backward, in the precision asked for.

**Precision is explicit.** Weights stay in float32. For bf16 they are cast once a pass, the model computes in bf16, and
gradients flow back through the cast into float32. Norms and softmax keep their sums in float32 inside PyTorch's
kernels, and the loss is taken in float32.

**On a CUDA device small models wait for launches, not for arithmetic.** So the whole pass for a batch shape is recorded
once as a CUDA graph and replayed from then on: one launch in place of some thousand. The batches come in a fixed
small set of shapes, which is what makes this possible. A replayed pass gives what the plain one gives.
"""

from collections.abc import Mapping
from typing import Any, Generic

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.train.loss import Loss
from regard.train.task import AnyBatch, Forward, Task

_WARM_PASSES = 2


def in_precision(model: nn.Module, precision: str) -> Forward:
    """The model, called in a precision."""
    if precision == "fp32":
        return model
    names = [name for name, parameter in model.named_parameters() if parameter.is_floating_point()]

    def forward(*inputs: Any, **settings: Any) -> Tensor:
        weights = {name: model.get_parameter(name).to(torch.bfloat16) for name in names}
        scores: Tensor = functional_call(model, weights, inputs, settings)
        return scores

    return forward


class Gradients(Generic[AnyBatch]):
    """Adds the gradient of a batch's loss to what the parameters hold."""

    def __init__(self, task: Task[AnyBatch], precision: str, forward: Forward | None = None) -> None:
        self.task = task
        self.forward = forward or in_precision(task.model, precision)

    def add(self, batch: AnyBatch, scale: Tensor) -> Loss:
        """One pass over a batch on the model's device; the loss' sum counts `scale` times.  scale: # ()"""
        loss = self.task.loss(self.forward, batch)
        torch.autograd.backward(loss.total * scale)
        return _detached(loss)


class CapturedGradients(Gradients[AnyBatch]):
    """The same, replayed: for each batch shape the pass is recorded when it first comes."""

    def __init__(self, task: Task[AnyBatch], precision: str, forward: Forward | None = None) -> None:
        super().__init__(task, precision, forward)
        self._recorded: dict[Any, _Recorded[AnyBatch]] = {}
        self._pool: Any = None

    def add(self, batch: AnyBatch, scale: Tensor) -> Loss:
        recorded = self._recorded.get(batch.shape)
        if recorded is None:
            recorded = self._recorded[batch.shape] = self._record(batch, scale)
        recorded.batch.copy_from(batch)
        recorded.scale.copy_(scale)
        recorded.graph.replay()
        # The next replay writes into the same tensors.
        return Loss(recorded.loss.total.clone(), recorded.loss.plain.clone(), recorded.loss.count.clone())

    def _record(self, batch: AnyBatch, scale: Tensor) -> "_Recorded[AnyBatch]":
        """Run the pass a few times on the side, undo what that changed, then record it."""
        held = batch.split(1)[0]
        held_scale = scale.clone()
        before = {name: p.grad.clone() for name, p in self.task.model.named_parameters() if p.grad is not None}
        device = scale.device
        random = torch.cuda.get_rng_state(device)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(_WARM_PASSES):
                super().add(held, held_scale)
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = super().add(held, held_scale)
        self._pool = self._pool or graph.pool()
        torch.cuda.set_rng_state(random, device)
        self._restore(before)
        return _Recorded(graph, held, held_scale, loss)

    def _restore(self, before: Mapping[str, Tensor]) -> None:
        """Gradients as they were, in the tensors that the graphs write to."""
        for name, parameter in self.task.model.named_parameters():
            if parameter.grad is not None:
                if name in before:
                    parameter.grad.copy_(before[name])
                else:
                    parameter.grad.zero_()


class _Recorded(Generic[AnyBatch]):
    def __init__(self, graph: torch.cuda.CUDAGraph, batch: AnyBatch, scale: Tensor, loss: Loss) -> None:
        self.graph, self.batch, self.scale, self.loss = graph, batch, scale, loss


def _detached(loss: Loss) -> Loss:
    return Loss(loss.total.detach(), loss.plain.detach(), loss.count.detach())
