"""Fused Adam: from bfloat16 gradients straight to updated weights.

If a step is a single bfloat16 pass on one GPU, its gradients need not be accumulated in float32 first: one kernel clips
them, takes Adam's step and writes the bfloat16 copies for the next pass (kernels/cuda/adam.py). That is half the memory
traffic of doing these one after the other. The state remains PyTorch's, so a run may switch between both at any step.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels import dispatch
from regard.train.mixed_precision import MixedPrecisionModel
from regard.train.optimizer import Optimizer


class GradPointers(NamedTuple):
    """The addresses of a pass' gradients, valid until the next pass."""

    addresses: Tensor  # (tensors,), int64
    dtype: torch.dtype


def fused_adam_for(optimizer: Optimizer, forward: object) -> "FusedAdam | None":
    """The fused Adam for a mixed-precision model; None where its kernel cannot be used."""
    if not isinstance(forward, MixedPrecisionModel) or optimizer.adam is None:
        return None
    parameters = [parameter for parameter, _ in forward.trained]
    supported = all(each.dtype == torch.float32 and each.is_contiguous() and _is_aligned(each) for each in parameters)
    if not supported or not all(dispatch.runs_triton(each.device) for each in parameters):
        return None
    owned = {parameter for group in optimizer.adam.param_groups for parameter in group["params"]}
    return FusedAdam(optimizer, forward) if owned == set(parameters) else None


class FusedAdam:
    """Updates the parameters of a mixed-precision model as its Adam or AdamW would."""

    def __init__(self, optimizer: Optimizer, model: MixedPrecisionModel) -> None:
        from regard.kernels.cuda.adam import CHUNK

        assert optimizer.adam is not None
        self.optimizer, self.adam, self.model = optimizer, optimizer.adam, model
        self.parameters = [parameter for parameter, _ in model.trained]
        device = self.parameters[0].device
        sizes = [parameter.numel() for parameter in self.parameters]
        chunks = [(number, first) for number, size in enumerate(sizes) for first in range(0, size, CHUNK)]
        self._chunk_tensors, self._chunk_offsets = torch.tensor(chunks, device=device).T.contiguous()
        self._sizes = torch.tensor(sizes, device=device)
        decay_of = {each: group["weight_decay"] for group in self.adam.param_groups for each in group["params"]}
        self._weight_decays = torch.tensor([decay_of[each] for each in self.parameters], device=device)
        self._squares = torch.empty(len(chunks), device=device)
        self._state_addresses: Tensor | None = None
        self._steps: list[Tensor] = []
        self._loads = -1

    def pointers(self, grads: Sequence[Tensor | None]) -> GradPointers | None:
        """The addresses of one gradient per parameter; None if the kernel cannot read them there."""
        found = [each for each in grads if each is not None and each.is_contiguous() and _is_aligned(each)]
        dtypes = {each.dtype for each in found}
        if len(found) != len(self.parameters) or len(dtypes) != 1:
            return None
        addresses = torch.tensor([each.data_ptr() for each in found], device=self._sizes.device)
        return GradPointers(addresses, dtypes.pop())

    @torch.no_grad()
    def step(self, grads: GradPointers, lr: float, max_norm: float) -> Tensor | None:
        """One step at this learning rate, with gradients clipped to `max_norm` unless it is 0.

        Returns the squared norm of the gradients before clipping; None if they are not clipped.
        """
        from regard.kernels.cuda import adam as kernels

        state = self._addresses()
        torch._foreach_add_(self._steps, 1)
        dtype, grid = _triton_dtype(grads.dtype), (len(self._squares),)
        chunks = (self._chunk_tensors, self._chunk_offsets, self._sizes)
        total = self._squares
        if max_norm:
            kernels.sum_squares[grid](
                grads.addresses, *chunks, self._squares, grad_dtype=dtype, block=kernels.CHUNK, num_warps=4
            )
            total = self._squares.sum()
        group = self.adam.param_groups[0]
        beta1, beta2 = group["betas"]
        kernels.adam_step[grid](
            state, grads.addresses, *chunks, self._weight_decays, total, self._steps[0],
            lr, max_norm, beta1, beta2, group["eps"],
            grad_dtype=dtype, copy_dtype=_triton_dtype(self.model.copies[0].dtype), clip=bool(max_norm),
            decoupled=isinstance(self.adam, torch.optim.AdamW), block=kernels.CHUNK, num_warps=4,
        )  # fmt: skip
        return total if max_norm else None

    def _addresses(self) -> Tensor:
        """The addresses of each parameter, its two moments and its copy.  # (tensors, 4)"""
        if self._state_addresses is None or self._loads != self.optimizer.loads:
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
                for (parameter, copy), state in zip(self.model.trained, states, strict=True)
            ]
            self._state_addresses = torch.tensor(rows, device=self._sizes.device)
            self._loads = self.optimizer.loads
        return self._state_addresses


def _is_aligned(tensor: Tensor) -> bool:
    """Whether a tensor starts where vectorized loads can read it."""
    return tensor.data_ptr() % 16 == 0


def _triton_dtype(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}[dtype]
