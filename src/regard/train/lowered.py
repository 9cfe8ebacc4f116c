"""Weights in a lower precision, all cast at once, and their gradients, all brought back at once.

A model has hundreds of small tensors. Casting each when it is used, and adding up the gradient of each, starts more
kernels than the rest of a small model's pass. Here casting is one operation over all of them, and gradients gather in
one long tensor that every parameter's `grad` is a part of.
"""

import torch
from torch import Tensor, nn


class Lowered:
    """A copy of a model's parameters to compute with."""

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad and p.is_floating_point()}
        self.names = list(named)
        self.parameters: list[Tensor] = list(named.values())
        self.copies = [p.detach().to(dtype).requires_grad_() for p in self.parameters]
        size = sum(p.numel() for p in self.parameters)
        device = self.parameters[0].device
        self._sums, self._new = (torch.zeros(size, device=device) for _ in range(2))
        self._parts = _views(self._new, self.parameters)

    @property
    def weights(self) -> dict[str, Tensor]:
        """The copies by their names, to call a model with."""
        return dict(zip(self.names, self.copies, strict=True))

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the parameters as they are now."""
        torch._foreach_copy_(self.copies, self.parameters)

    @torch.no_grad()
    def collect(self) -> None:
        """Add the copies' gradients to the parameters' and forget them."""
        self._hold()
        given = [(copy.grad, part) for copy, part in zip(self.copies, self._parts, strict=True)]
        if any(grad is None for grad, _ in given):
            self._new.zero_()
        found = [(grad, part) for grad, part in given if grad is not None]
        torch._foreach_copy_([part for _, part in found], [grad for grad, _ in found])
        self._sums.add_(self._new)
        for copy in self.copies:
            copy.grad = None

    def _hold(self) -> None:
        """Let every parameter's gradient be its part of the sums, with what it was so far."""
        for parameter, part in zip(self.parameters, _views(self._sums, self.parameters), strict=True):
            if parameter.grad is None:
                parameter.grad = part.zero_()
            elif parameter.grad.data_ptr() != part.data_ptr():
                parameter.grad = part.copy_(parameter.grad)


def _views(long: Tensor, like: list[Tensor]) -> list[Tensor]:
    """Parts of a long tensor in the shapes of others."""
    parts = long.split([each.numel() for each in like])
    return [part.view(each.shape) for part, each in zip(parts, like, strict=True)]
