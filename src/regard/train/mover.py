"""From gradients in the precision they were made in straight to moved weights.

Where a step is one pass in bf16 on one GPU, its gradients need not be summed in float32 first: one kernel clips them,
takes Adam's step and writes the copies that the next pass computes with (`triton_move.py`). That is half the traffic of
doing these one after the other. Adam's memory stays PyTorch's, so a run may change between both ways at any step.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.fast import triton_switch
from regard.train.lowered import Lowered
from regard.train.optimiser import Optimiser


class Noted(NamedTuple):
    """Where the gradients of a pass lie, until the next pass is taken."""

    places: Tensor  # (tensors,), int64
    dtype: torch.dtype


def mover_of(optimiser: Optimiser, forward: object) -> "Mover | None":
    """What moves the weights of a model that computes in lower precision; None where it has to go the long way."""
    if not isinstance(forward, Lowered) or optimiser.adam is None or find_spec("triton") is None:
        return None
    whole = [parameter for parameter, _ in forward.trained]
    known = all(each.dtype == torch.float32 and each.is_contiguous() and _even(each) for each in whole)
    if not known or not all(triton_switch.runs_on(each.device) for each in whole):
        return None
    owned = {parameter for group in optimiser.adam.param_groups for parameter in group["params"]}
    return Mover(optimiser, forward) if owned == set(whole) else None


class Mover:
    """Moves the parameters of a lowered model as its optimiser would."""

    def __init__(self, optimiser: Optimiser, lowered: Lowered) -> None:
        from regard.train.triton_move import STRETCH

        assert optimiser.adam is not None
        self.optimiser, self.adam, self.lowered = optimiser, optimiser.adam, lowered
        self.parameters = [parameter for parameter, _ in lowered.trained]
        device = self.parameters[0].device
        counts = [parameter.numel() for parameter in self.parameters]
        stretches = [(number, first) for number, count in enumerate(counts) for first in range(0, count, STRETCH)]
        self._tensors, self._firsts = torch.tensor(stretches, device=device).T.contiguous()
        self._counts = torch.tensor(counts, device=device)
        decay_of = {each: group["weight_decay"] for group in self.adam.param_groups for each in group["params"]}
        self._decays = torch.tensor([decay_of[each] for each in self.parameters], device=device)
        self._sums = torch.empty(len(stretches), device=device)
        self._places: Tensor | None = None
        self._steps: list[Tensor] = []
        self._memory = -1

    def note(self, gradients: Sequence[Tensor | None]) -> Noted | None:
        """Where gradients lie, one for each parameter; None if they cannot be taken from there."""
        found = [each for each in gradients if each is not None and each.is_contiguous() and _even(each)]
        kinds = {each.dtype for each in found}
        if len(found) != len(self.parameters) or len(kinds) != 1:
            return None
        places = torch.tensor([each.data_ptr() for each in found], device=self._counts.device)
        return Noted(places, kinds.pop())

    @torch.no_grad()
    def move(self, noted: Noted, rate: float, clip: float) -> None:
        """One step at this learning rate, gradients clipped to a norm where it is not 0."""
        from regard.train import triton_move as kernels

        places = self._remembered()
        torch._foreach_add_(self._steps, 1)
        kind, grid = _kind(noted.dtype), (len(self._sums),)
        where = (self._tensors, self._firsts, self._counts)
        total = self._sums
        if clip:
            kernels.sum_squares[grid](noted.places, *where, self._sums, kind=kind, block=kernels.STRETCH, num_warps=4)
            total = self._sums.sum()
        group = self.adam.param_groups[0]
        beta, other_beta = group["betas"]
        kernels.move[grid](
            places, noted.places, *where, self._decays, total, self._steps[0],
            rate, clip, beta, other_beta, group["eps"],
            kind=kind, lowered=_kind(self.lowered.copies[0].dtype), clipped=bool(clip),
            apart=isinstance(self.adam, torch.optim.AdamW), block=kernels.STRETCH, num_warps=4,
        )  # fmt: skip

    def _remembered(self) -> Tensor:
        """Where parameters, what Adam remembers of them, and their copies lie."""
        if self._places is None or self._memory != self.optimiser.recalled:
            for parameter in self.parameters:
                state = self.adam.state[parameter]
                if not state:
                    state["step"] = torch.zeros((), device=parameter.device)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)
            states = [self.adam.state[parameter] for parameter in self.parameters]
            self._steps = [state["step"] for state in states]
            rows = [
                [each.data_ptr() for each in (parameter, state["exp_avg"], state["exp_avg_sq"], copy)]
                for (parameter, copy), state in zip(self.lowered.trained, states, strict=True)
            ]
            self._places = torch.tensor(rows, device=self._counts.device)
            self._memory = self.optimiser.recalled
        return self._places


def _even(tensor: Tensor) -> bool:
    """Whether a tensor begins where several of its numbers can be read at once."""
    return tensor.data_ptr() % 16 == 0


def _kind(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}[dtype]
