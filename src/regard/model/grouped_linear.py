"""A linear layer per group of rows: what experts compute, each with its own matrix.

On a CPU the groups are multiplied one after another. On a GPU the host would have to wait for the number of rows of
each group, which also rules out CUDA graphs. There PyTorch's grouped matmul reads the numbers on the device, where the
dtype and the GPU allow it. All of them give the same results up to rounding.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

_MAX_DENSE = 1 << 22
"""The largest output for which a GPU had better multiply all rows with all matrices than let the host wait."""
_ALIGNMENT = 16
"""Rows must be aligned to this many bytes for the grouped matmul."""


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor, *, padded: bool) -> Tensor:
    """x Wᵢᵀ, where i is the group of a row: group i ends before row `ends[i]`, and rows after the last group are zero.

    x: # (rows, in); weight: # (groups, out, in); ends: # (groups,), int32; gives (rows, out)
    padded: there may be rows after the last group
    """
    if x.is_meta:  # shapes and FLOPs only: each row is multiplied with one matrix
        return functional.linear(x, weight[0])
    if x.is_cuda and x.numel():
        if uses_grouped_mm(weight, x.dtype):
            return grouped_mm(x, weight, ends, padded=padded)
        small = x.shape[0] * weight.shape[0] * weight.shape[1] <= _MAX_DENSE
        if small or torch.cuda.is_current_stream_capturing():
            return all_groups_matmul(x, weight, ends)
    if torch.compiler.is_compiling():
        output: Tensor = _custom_op(x, weight, ends)
        return output
    one_by_one: Tensor = _GroupByGroup.apply(x, weight, ends)  # type: ignore[no-untyped-call]
    return one_by_one


def uses_grouped_mm(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether PyTorch's grouped matmul takes these weights in this dtype, so that the host does not wait."""
    if not weight.is_cuda or dtype != torch.bfloat16 or _torch_grouped_mm() is None:
        return False
    aligned = all(size * dtype.itemsize % _ALIGNMENT == 0 for size in weight.shape[1:])
    return aligned and torch.cuda.get_device_capability(weight.device) >= (9, 0)


def grouped_mm(x: Tensor, weight: Tensor, ends: Tensor, *, padded: bool) -> Tensor:
    """PyTorch's grouped matmul. It leaves rows after the last group undefined, in the backward pass too."""
    matmul = _torch_grouped_mm()
    assert matmul is not None
    if not padded:
        return matmul(x, weight.mT, offs=ends)
    in_group = (torch.arange(len(x), device=x.device) < ends[-1])[:, None]
    return matmul(x.where(in_group, 0), weight.mT, offs=ends).where(in_group, 0)


def all_groups_matmul(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply all rows with all matrices, and select each row's own."""
    rows = torch.arange(len(x), device=x.device)
    group = torch.searchsorted(ends, rows.to(ends.dtype), right=True)
    output = torch.matmul(x, weight.mT)[group.clamp(max=len(weight) - 1), rows]  # (groups, rows, out) → (rows, out)
    return output.where((group < len(weight))[:, None], 0)


class _GroupByGroup(torch.autograd.Function):
    """A matmul for each group that has rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, ends)
        return _forward(x, weight, ends)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *_backward(grad, *ctx.saved_tensors), None


def _forward(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    output = x.new_zeros(len(x), weight.shape[1])
    for group, rows in _groups(ends):
        torch.mm(x[rows], weight[group].T, out=output[rows])
    return output


def _backward(grad: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    x_grad, weight_grad = torch.zeros_like(x), torch.zeros_like(weight)
    for group, rows in _groups(ends):
        torch.mm(grad[rows], weight[group], out=x_grad[rows])
        torch.mm(grad[rows].T, x[rows], out=weight_grad[group])
    return x_grad, weight_grad


def _groups(ends: Tensor) -> Iterator[tuple[int, slice]]:
    """The groups that have rows, and their rows."""
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            yield group, slice(start, end)
        start = end


# The same as custom operators: torch.compile must not see that the numbers of rows are read on the host.
_custom_op = torch.library.custom_op("regard::grouped_linear", _forward, mutates_args=())
_custom_op_backward = torch.library.custom_op("regard::grouped_linear_backward", _backward, mutates_args=())


@_custom_op.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(len(x), weight.shape[1])


@_custom_op_backward.register_fake
def _(grad: Tensor, x: Tensor, weight: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _custom_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_custom_op_backward(grad, *ctx.saved_tensors), None


_custom_op.register_autograd(_custom_backward, setup_context=_setup_context)


def _torch_grouped_mm() -> Callable[..., Tensor] | None:
    """PyTorch's grouped matmul under its name in this version; None in a version without it."""
    return getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
