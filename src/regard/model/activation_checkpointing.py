"""Activation checkpointing: only a layer's input is kept, and its activations are recomputed during the backward pass
(Chen et al. 2016). That takes less memory for about a third more work, and gives the same results."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from regard.attention.multi_head import Attention

Output = TypeVar("Output")


def checkpointed(
    function: Callable[[Tensor], Output], modules: Sequence[nn.Module], x: Tensor, *, preserve_rng: bool
) -> Output:
    """function(x) with activation checkpointing: only x is kept, and the rest is recomputed in the backward pass.

    modules: those whose weights the function uses. They are kept for the backward pass as they are now: with
        `functional_call`, weights of another precision are in place during the forward pass only.
    preserve_rng: whether dropout draws from PyTorch's generator, whose state is then restored to recompute. That is
        impossible while a CUDA graph is captured, so there nothing is recomputed.
    """
    if not torch.is_grad_enabled() or (preserve_rng and x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return function(x)
    module = _FunctionModule(function, modules)
    weights: dict[str, Tensor] = dict(module.named_parameters())

    def with_weights(x: Tensor) -> Output:
        output: Output = functional_call(module, weights, (x,))
        return output

    output: Output = checkpoint(with_weights, x, use_reentrant=False, preserve_rng_state=preserve_rng)
    return output


def checkpointed_pair(
    layer: Callable[[Tensor, Tensor], Output],
    normalize: Callable[[Tensor], Tensor],
    modules: Sequence[nn.Module],
    x: Tensor,
    normalized: Tensor,
    *,
    preserve_rng: bool,
) -> Output:
    """layer(x, normalized) with activation checkpointing: only x is kept, and `normalize(x)` is recomputed too."""
    first_pass, requires_grad = [normalized], normalized.requires_grad

    def from_residual(x: Tensor) -> Output:
        if first_pass:
            return layer(x, first_pass.pop())
        with torch.no_grad():  # its gradient flows through the first pass; here only the values count
            again = normalize(x).detach()
        return layer(x, again.requires_grad_(requires_grad))

    return checkpointed(from_residual, modules, x, preserve_rng=preserve_rng)


def has_dropout(module: nn.Module) -> bool:
    """Whether a module has any dropout, which draws from PyTorch's generator in training."""
    return any(
        part.p > 0 if isinstance(part, nn.Dropout) else isinstance(part, Attention) and part.dropout > 0
        for part in module.modules()
    )


class _FunctionModule(nn.Module):
    """A function as a module with the weights that it uses."""

    def __init__(self, function: Callable[..., Any], modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.used_modules = nn.ModuleList(modules)
        self._function = [function]  # in a list: should it be a module, it must not be registered

    def forward(self, x: Tensor) -> Any:
        return self._function[0](x)
