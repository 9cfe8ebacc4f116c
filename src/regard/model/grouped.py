"""One product for each group of rows: what experts compute, each with its own matrix.

On a CPU the groups that have rows are multiplied one after another. On a GPU asking how many rows a group has would
make the host wait, and could not be recorded as a CUDA graph. There PyTorch's grouped product takes the numbers from
the device, where the precision and the GPU allow it. All ways give the same numbers to rounding.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_FEW = 1 << 22
"""Results up to which a GPU is better off computing all rows with all matrices than waiting."""
_LINE = 16
"""Bytes at whose multiples rows must begin for the grouped product."""


def grouped(x: Tensor, weight: Tensor, ends: Tensor, *, padded: bool) -> Tensor:
    """x Wᵢᵀ, where i is the group of a row: group i ends before row `ends[i]`, rows behind the last one become zero.

    x: # (rows, width); weight: # (groups, made, width); ends: # (groups,), int32; gives (rows, made)
    padded: there may be rows behind the last group
    """
    if x.is_cuda and x.numel():
        if is_swift(weight, x.dtype):
            return in_one(x, weight, ends, padded=padded)
        few = x.shape[0] * weight.shape[0] * weight.shape[1] <= _FEW
        if few or torch.cuda.is_current_stream_capturing():
            return by_all(x, weight, ends)
    if torch.compiler.is_compiling():
        made: Tensor = _opaque(x, weight, ends)
        return made
    one_by_one: Tensor = _OneByOne.apply(x, weight, ends)  # type: ignore[no-untyped-call]
    return one_by_one


def is_swift(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether PyTorch's grouped product takes these weights in a precision without making the host wait."""
    if not weight.is_cuda or dtype != torch.bfloat16 or _grouped_product() is None:
        return False
    lines = all(size * dtype.itemsize % _LINE == 0 for size in weight.shape[1:])
    return lines and torch.cuda.get_device_capability(weight.device) >= (9, 0)


def in_one(x: Tensor, weight: Tensor, ends: Tensor, *, padded: bool) -> Tensor:
    """PyTorch's grouped product. It leaves rows behind the last group as they happen to be, on the way back too."""
    product = _grouped_product()
    assert product is not None
    if not padded:
        return product(x, weight.mT, offs=ends)
    there = (torch.arange(len(x), device=x.device) < ends[-1])[:, None]
    return product(x.where(there, 0), weight.mT, offs=ends).where(there, 0)


def by_all(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """All rows with all matrices, of which each row takes its own."""
    rows = torch.arange(len(x), device=x.device)
    group = torch.searchsorted(ends, rows.to(ends.dtype), right=True)
    own = group.clamp(max=len(weight) - 1)
    made = torch.matmul(x, weight.mT)[own, rows]  # (groups, rows, made) → (rows, made)
    return made.where((group < len(weight))[:, None], 0)


class _OneByOne(torch.autograd.Function):
    """A product for each group that has rows."""

    @staticmethod
    def forward(context: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        context.save_for_backward(x, weight, ends)
        return _one_by_one(x, weight, ends)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        return *_slopes(slope, *context.saved_tensors), None


def _one_by_one(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    made = x.new_zeros(len(x), weight.shape[1])
    for group, rows in _groups(ends):
        torch.mm(x[rows], weight[group].T, out=made[rows])
    return made


def _slopes(slope: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    back, change = torch.zeros_like(x), torch.zeros_like(weight)
    for group, rows in _groups(ends):
        torch.mm(slope[rows], weight[group], out=back[rows])
        torch.mm(slope[rows].T, x[rows], out=change[group])
    return back, change


def _groups(ends: Tensor) -> Iterator[tuple[int, slice]]:
    """The groups that have rows, and which."""
    first = 0
    for group, end in enumerate(ends.tolist()):
        if end > first:
            yield group, slice(first, end)
        first = end


# The same for a compiler, which need not know that numbers of rows are looked at.
_opaque = torch.library.custom_op("regard::grouped", _one_by_one, mutates_args=())
_opaque_slopes = torch.library.custom_op("regard::grouped_slopes", _slopes, mutates_args=())


@_opaque.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(len(x), weight.shape[1])


@_opaque_slopes.register_fake
def _(slope: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _go_back(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
    return *_opaque_slopes(slope, *context.saved_tensors), None


_opaque.register_autograd(_go_back, setup_context=_keep)


def _grouped_product() -> Callable[..., Tensor] | None:
    """PyTorch's own, under the name it has in this version; None in a version without."""
    return getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
