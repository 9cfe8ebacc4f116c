"""A model computed in a lower precision: weights all cast at once, gradients all brought back at once.

A model has hundreds of small tensors. Casting each when it is used, and adding up the gradient of each, starts more
kernels than the rest of a small model's pass. Here casting is one operation over all of them, and gradients gather in
one long tensor that every parameter's `grad` is a part of. The copies lie in one, too; those that are to lie behind
each other there are named `first`, in their order.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

_EVEN = 64
"""Numbers on whose multiples every copy begins: of two bytes each, a line of a GPU's cache."""


class Lowered:
    """A model that is called with copies of its parameters: `refresh` them before a pass, `collect` after it."""

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.bfloat16, *, first: Sequence[Tensor] = ()) -> None:
        self.model = model
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.is_floating_point()}
        self.parameters: list[Tensor] = list(named.values())
        made = _side_by_side(self.parameters, dtype, first)
        self.copies = [copy.requires_grad_(p.requires_grad) for p, copy in zip(self.parameters, made, strict=True)]
        self.weights = dict(zip(named, self.copies, strict=True))
        """The copies by their names."""
        self.trained = [(p, copy) for p, copy in zip(self.parameters, self.copies, strict=True) if p.requires_grad]
        """Parameters that are, with their copies."""
        self._like = [parameter for parameter, _ in self.trained]
        self._sums = self._long()
        self._held = _views(self._sums, self._like)
        self._new: Tensor | None = None
        self._seen = self._versions()
        self.stale = False
        """Whether the parameters were moved by something that leaves no trace in their versions, as fused Adam does."""

    def __call__(self, *inputs: Any, **settings: Any) -> Tensor:
        scores: Tensor = functional_call(self.model, self.weights, inputs, settings)
        return scores

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the parameters as they are now, if they were changed since they were copied."""
        if any(copy.grad is not None for copy in self.copies):  # of a pass that was broken off
            self.leave()
        now = self._versions()
        if self.stale or now != self._seen:
            torch._foreach_copy_(self.copies, self.parameters)
            self._seen, self.stale = now, False

    def leave(self) -> list[Tensor | None]:
        """The copies' gradients as they are, which are then forgotten."""
        given = [copy.grad for _, copy in self.trained]
        for _, copy in self.trained:
            copy.grad = None
        return given

    def take(self, given: list[Tensor | None]) -> None:
        """Have the gradients that `leave` gave in what the parameters hold, in place of what was there."""
        for (_, copy), grad in zip(self.trained, given, strict=True):
            copy.grad = grad
        self.collect(first=True)

    @torch.no_grad()
    def collect(self, *, first: bool = False) -> None:
        """Add the copies' gradients to the parameters' and forget them; the `first` of a sum takes their place."""
        if first:
            for parameter, part in zip(self._like, self._held, strict=True):
                parameter.grad = part
            self._copy(self._sums)
        else:
            self._hold()
            self._new = self._long() if self._new is None else self._new
            self._copy(self._new)
            self._sums.add_(self._new)
        for _, copy in self.trained:
            copy.grad = None

    def _copy(self, long: Tensor) -> None:
        """Copy the copies' gradients into the parts of a long tensor; what has none is zero."""
        parts = self._held if long is self._sums else _views(long, self._like)
        given = [(part, copy.grad) for (_, copy), part in zip(self.trained, parts, strict=True)]
        if any(grad is None for _, grad in given):
            long.zero_()
        found = [(part, grad) for part, grad in given if grad is not None]
        torch._foreach_copy_([part for part, _ in found], [grad for _, grad in found])

    def _hold(self) -> None:
        """Let every parameter's gradient be its part of the sums, with what it was so far."""
        if all(parameter.grad is None for parameter in self._like):
            self._sums.zero_()
        for parameter, part in zip(self._like, self._held, strict=True):
            if parameter.grad is None:
                parameter.grad = part.zero_()
            elif parameter.grad is not part:
                parameter.grad = part.copy_(parameter.grad)

    def _versions(self) -> list[tuple[int, int]]:
        """What differs after any change of the parameters by PyTorch."""
        return [(parameter._version, parameter.data_ptr()) for parameter in self.parameters]

    def _long(self) -> Tensor:
        """A tensor as long as all gradients together."""
        return torch.zeros(sum(each.numel() for each in self._like), device=self._like[0].device)


def _side_by_side(parameters: Sequence[Tensor], dtype: torch.dtype, first: Sequence[Tensor]) -> list[Tensor]:
    """Copies of parameters in one long tensor; each for itself where they are not plain tensors on one device."""
    if len({each.device for each in parameters}) > 1 or any(type(each.data) is not Tensor for each in parameters):
        return [each.detach().to(dtype) for each in parameters]
    known = set(parameters)
    order = list(dict.fromkeys([*(each for each in first if each in known), *parameters]))
    room = [-(-each.numel() // _EVEN) * _EVEN for each in order]
    long = torch.zeros(sum(room), dtype=dtype, device=order[0].device)
    parts = dict(zip(order, long.split(room), strict=True))
    return [parts[each][: each.numel()].view(each.shape).copy_(each.detach()).detach() for each in parameters]


def _views(long: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Parts of a long tensor in the shapes of others."""
    parts = long.split([each.numel() for each in like])
    return [part.view(each.shape) for part, each in zip(parts, like, strict=True)]
