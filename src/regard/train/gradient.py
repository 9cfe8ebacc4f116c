"""From a batch to gradients: forward, loss, backward, in the precision asked for.

**Precision is explicit.** Weights stay in float32. For bf16 they are cast once a pass (`lowered.py`), the model
computes in bf16, and gradients are summed in float32. Norms and softmax keep their sums in float32 inside the kernels,
and the loss is taken in float32.

**On a CUDA device small models wait for launches, not for arithmetic.** So the whole pass for a batch shape is recorded
once as a CUDA graph and replayed from then on: one launch in place of some thousand. The batches come in a fixed
small set of shapes, which is what makes this possible. A replayed pass gives what the plain one gives.
"""

from collections.abc import Mapping
from typing import Any, Generic, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from regard.fast.swift_training import for_training, stacked_weights
from regard.train.balance import Balance
from regard.train.loss import Loss
from regard.train.lowered import Lowered
from regard.train.mover import Mover, Noted
from regard.train.optimiser import Optimiser
from regard.train.task import AnyBatch, Forward, Task

_WARM_PASSES = 2
Part = Literal["first", "more", "only"]
"""What a pass is of the sum of a step's gradients."""


def for_steps(model: nn.Module, precision: str, *, recompute: bool = False) -> Forward:
    """The model as steps of training call it: in its fast form, in a precision. The loss scores its words."""
    fast = for_training(model, late=True, recompute=recompute)
    return fast if precision == "fp32" else Lowered(fast, first=stacked_weights(fast))


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
    """Sums of gradients in what the parameters hold.

    With a `mover`, the gradients of a step's only pass stay where they were made, and are moved by from there.
    """

    in_place = False
    """Whether the same tensors are written to in every step."""

    def __init__(
        self, task: Task[AnyBatch], precision: str, forward: Forward | None = None, mover: Mover | None = None
    ) -> None:
        self.task, self.mover = task, mover
        self.forward = forward or in_precision(task.model, precision)
        self.lowered = self.forward if isinstance(self.forward, Lowered) else None
        self._first = True
        self._noted: Noted | None = None
        self._left: list[Tensor | None] | None = None

    def add(self, batch: AnyBatch, scale: Tensor, *, only: bool = False) -> Loss:
        """One pass over a batch on the model's device; the loss' sum counts `scale` times.  scale: # ()

        only: nothing will be added to it
        """
        if self.lowered is not None:
            self.lowered.refresh()
        loss = self._pass(batch, scale, "only" if only and self.mover else "first" if self._first else "more")
        self._first = False
        return loss

    def move(self, optimiser: Optimiser, rate: float, clip: float) -> None:
        """Let the optimiser take a step at a learning rate, gradients clipped where it is not 0; start a new sum."""
        if self.mover is not None and self._noted is not None:
            self.mover.move(self._noted, rate, clip)
        else:
            if clip:
                optimiser.clip(clip)
            optimiser.step(rate)
            if self.lowered is not None:
                self.lowered.stale = True
        self._noted = self._left = None
        self.forget(optimiser)

    def forget(self, optimiser: Optimiser) -> None:
        """Start a new sum."""
        self._first = True
        if self.lowered is None:  # else the next pass takes the place of what was there
            optimiser.forget_gradients(in_place=self.in_place)

    def _pass(self, batch: AnyBatch, scale: Tensor, part: Part) -> Loss:
        loss, left = self._made(batch, scale, part)
        if self.mover is not None and left is not None:
            self._noted, self._left = self.mover.note(left), left  # held until they were used
            if self._noted is None and self.lowered is not None:
                self.lowered.take(left)
        return loss

    def _made(self, batch: AnyBatch, scale: Tensor, part: Part) -> tuple[Loss, list[Tensor | None] | None]:
        """The loss, and the gradients where they are left where they were made."""
        loss = self.task.loss(self.forward, batch)
        torch.autograd.backward(loss.total * scale)
        left = None
        if self.lowered is not None and part == "only":
            left = self.lowered.leave()
        elif self.lowered is not None:
            self.lowered.collect(first=part == "first")
        return Loss(loss.total.detach(), loss.plain.detach(), loss.count.detach()), left


class CapturedGradients(Gradients[AnyBatch]):
    """The same, replayed: for each batch shape the pass is recorded when it first comes."""

    in_place = True

    def __init__(
        self, task: Task[AnyBatch], precision: str, forward: Forward | None = None, mover: Mover | None = None
    ) -> None:
        super().__init__(task, precision, forward, mover)
        self._recorded: dict[Any, _Recorded[AnyBatch]] = {}
        self._pool: Any = None
        self._side: torch.cuda.Stream | None = None

    def _pass(self, batch: AnyBatch, scale: Tensor, part: Part) -> Loss:
        part = "more" if self.lowered is None else part  # to others it makes no difference
        recorded = self._recorded.get((batch.shape, part))
        if recorded is None:
            recorded = self._recorded[batch.shape, part] = self._record(batch, scale, part)
        recorded.batch.copy_from(batch)
        recorded.scale.copy_(scale)
        recorded.graph.replay()
        self._noted = recorded.noted
        # The next replay writes into the same tensors.
        return Loss(recorded.loss.total.clone(), recorded.loss.plain.clone(), recorded.loss.count.clone())

    def _record(self, batch: AnyBatch, scale: Tensor, part: Part) -> "_Recorded[AnyBatch]":
        """Run the pass a few times on the side, undo what that changed, then record it."""
        held = batch.split(1)[0]
        held_scale = scale.clone()
        before = self._held() if part == "more" else {}
        device = scale.device
        random = torch.cuda.get_rng_state(device)
        self._side = side = self._side or torch.cuda.Stream(device)  # each has a workspace for products
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side), Balance(self.task.model).counting(False):
            for _ in range(_WARM_PASSES):
                left = None  # lets go of what the pass before made
                _, left = self._made(held, held_scale, part)
        torch.cuda.current_stream(device).wait_stream(side)
        if self.mover is not None and left is not None and self.mover.note(left) is None:
            part = "first"  # gradients that cannot be moved by from where they were made
        left = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss, left = self._made(held, held_scale, part)
        self._pool = self._pool or graph.pool()
        torch.cuda.set_rng_state(random, device)
        self._restore(before)
        # Only where they lie is kept: what another recording writes there comes after they were used.
        noted = self.mover.note(left) if self.mover is not None and left is not None else None
        return _Recorded(graph, held, held_scale, loss, noted)

    def _held(self) -> dict[str, Tensor]:
        return {name: p.grad.clone() for name, p in self.task.model.named_parameters() if p.grad is not None}

    def _restore(self, before: Mapping[str, Tensor]) -> None:
        """Gradients as they were, in the tensors that the graphs write to."""
        for name, parameter in self.task.model.named_parameters():
            if parameter.grad is not None:
                if name in before:
                    parameter.grad.copy_(before[name])
                else:
                    parameter.grad.zero_()


class _Recorded(Generic[AnyBatch]):
    def __init__(
        self, graph: torch.cuda.CUDAGraph, batch: AnyBatch, scale: Tensor, loss: Loss, noted: Noted | None
    ) -> None:
        self.graph, self.batch, self.scale, self.loss, self.noted = graph, batch, scale, loss, noted
