"""Mixed precision: float32 weights, a forward and backward pass in bfloat16.

A model has hundreds of small tensors. Casting each one where it is used, and accumulating each gradient on its own,
launches more kernels than the rest of a small model's pass. Here all weights are cast in one operation, and the
gradients are accumulated in one flat tensor that every parameter's `grad` is a view of. The bfloat16 copies also share
one flat tensor; those listed as `adjacent` come first in it, in that order.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

_ALIGNMENT = 64
"""Copies start at multiples of so many elements: at two bytes each, one cache line of a GPU."""


def resolve_precision(precision: str, device: torch.device | str) -> Literal["float32", "bfloat16"]:
    """The precision that a device computes in: with "auto", bfloat16 on a GPU that supports it, float32 elsewhere."""
    if precision == "auto":
        on_gpu = torch.device(device).type == "cuda"
        return "bfloat16" if on_gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "float32" if precision == "float32" else "bfloat16"


class MixedPrecisionModel:
    """A model that is called with copies of its parameters: `refresh` before a pass, `accumulate_grads` after it."""

    def __init__(
        self, model: nn.Module, dtype: torch.dtype = torch.bfloat16, *, adjacent: Sequence[Tensor] = ()
    ) -> None:
        self.model = model
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.is_floating_point()}
        self.parameters: list[Tensor] = list(named.values())
        copies = _flat_copies(self.parameters, dtype, adjacent)
        self.copies = [copy.requires_grad_(p.requires_grad) for p, copy in zip(self.parameters, copies, strict=True)]
        self.weights = dict(zip(named, self.copies, strict=True))
        """The copies by parameter name."""
        self.trained = [(p, copy) for p, copy in zip(self.parameters, self.copies, strict=True) if p.requires_grad]
        """Every parameter that requires a gradient, with its copy."""
        self._trained_parameters = [parameter for parameter, _ in self.trained]
        self._flat_grad = self._flat_zeros()
        self._grads = _views(self._flat_grad, self._trained_parameters)
        self._scratch: Tensor | None = None
        self._copied_versions = self._versions()
        self.stale = False
        """Whether the parameters changed in a way that their version counters do not show, as fused Adam does it."""

    def __call__(self, *inputs: Any, **settings: Any) -> Tensor:
        output: Tensor = functional_call(self.model, self.weights, inputs, settings)
        return output

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the parameters again if they changed since the last time."""
        if any(copy.grad is not None for copy in self.copies):  # left over from a pass that failed
            self.pop_grads()
        now = self._versions()
        if self.stale or now != self._copied_versions:
            torch._foreach_copy_(self.copies, self.parameters)
            self._copied_versions, self.stale = now, False

    def pop_grads(self) -> list[Tensor | None]:
        """The copies' gradients, which are removed from them."""
        grads = [copy.grad for _, copy in self.trained]
        for _, copy in self.trained:
            copy.grad = None
        return grads

    def set_grads(self, grads: list[Tensor | None]) -> None:
        """Replace the parameters' gradients by those that `pop_grads` gave."""
        for (_, copy), grad in zip(self.trained, grads, strict=True):
            copy.grad = grad
        self.accumulate_grads(first=True)

    @torch.no_grad()
    def accumulate_grads(self, *, first: bool = False) -> None:
        """Add the copies' gradients to the parameters', or replace these if `first` of a step; clear the copies'."""
        if first:
            for parameter, view in zip(self._trained_parameters, self._grads, strict=True):
                parameter.grad = view
            self._cast_grads(self._flat_grad)
        else:
            self._bind_grads()
            self._scratch = self._flat_zeros() if self._scratch is None else self._scratch
            self._cast_grads(self._scratch)
            self._flat_grad.add_(self._scratch)
        for _, copy in self.trained:
            copy.grad = None

    def _cast_grads(self, flat: Tensor) -> None:
        """Cast the copies' gradients into a flat tensor, with zeros for those that have none."""
        views = self._grads if flat is self._flat_grad else _views(flat, self._trained_parameters)
        pairs = [(view, copy.grad) for (_, copy), view in zip(self.trained, views, strict=True)]
        if any(grad is None for _, grad in pairs):
            flat.zero_()
        present = [(view, grad) for view, grad in pairs if grad is not None]
        torch._foreach_copy_([view for view, _ in present], [grad for _, grad in present])

    def _bind_grads(self) -> None:
        """Make every parameter's gradient a view of the flat gradient, keeping its value."""
        if all(parameter.grad is None for parameter in self._trained_parameters):
            self._flat_grad.zero_()
        for parameter, view in zip(self._trained_parameters, self._grads, strict=True):
            if parameter.grad is None:
                parameter.grad = view.zero_()
            elif parameter.grad is not view:
                parameter.grad = view.copy_(parameter.grad)

    def _versions(self) -> list[tuple[int, int]]:
        """A value that differs after PyTorch has changed any parameter."""
        return [(parameter._version, parameter.data_ptr()) for parameter in self.parameters]

    def _flat_zeros(self) -> Tensor:
        """A float32 tensor with an element for each trained weight."""
        parameters = self._trained_parameters
        return torch.zeros(sum(each.numel() for each in parameters), device=parameters[0].device)


def _flat_copies(parameters: Sequence[Tensor], dtype: torch.dtype, adjacent: Sequence[Tensor]) -> list[Tensor]:
    """Copies as views of one flat tensor; separate ones if the parameters are not plain tensors on one device."""
    if len({each.device for each in parameters}) > 1 or any(type(each.data) is not Tensor for each in parameters):
        return [each.detach().to(dtype) for each in parameters]
    known = set(parameters)
    order = list(dict.fromkeys([*(each for each in adjacent if each in known), *parameters]))
    sizes = [-(-each.numel() // _ALIGNMENT) * _ALIGNMENT for each in order]
    flat = torch.zeros(sum(sizes), dtype=dtype, device=order[0].device)
    parts = dict(zip(order, flat.split(sizes), strict=True))
    return [parts[each][: each.numel()].view(each.shape).copy_(each.detach()).detach() for each in parameters]


def _views(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Consecutive parts of a flat tensor, in the shapes of others."""
    parts = flat.split([each.numel() for each in like])
    return [part.view(each.shape) for part, each in zip(parts, like, strict=True)]
