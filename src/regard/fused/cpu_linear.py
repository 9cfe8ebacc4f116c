"""Linear layers of a `CpuDecoder` outside of its compiled functions: in float32 with oneDNN, or in int8.

They are for whole prompts and for the layers that the compiled step does not support. The compiled functions have their
own (`kernels/cpu/packed_gemm.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.fused.layers import LinearWeights

Floats = NDArray[np.float32]
Model = TypeVar("Model", bound=nn.Module)


class Float32Linear:
    def __init__(self, weights: LinearWeights) -> None:
        from regard.kernels.cpu.linear import PackedLinear  # needs numba

        self.linear = PackedLinear(weights.weight, _bias(weights).clone())

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """The product, plus `add`.  x: # (rows, width); add: # (rows, size), may be overwritten"""
        return self.linear(x, add)


class Int8Linear:
    """With int8 weights, and activations quantized with a scale for each row."""

    def __init__(self, weights: LinearWeights) -> None:
        from regard.kernels.cpu.packed_gemm import run_packed_linear

        self.linear, self.packed = run_packed_linear, pack_layers([weights], "int8")
        self.size = len(weights.weight)

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """The product, plus `add`.  x: # (rows, width); add: # (rows, size), may be overwritten"""
        out = x.new_empty(x.shape[0], self.size) if add is None else add
        self.linear(x.contiguous().numpy(), self.packed, 0, out.numpy(), add is not None, False)
        return out


CpuLinear = Float32Linear | Int8Linear
LINEARS: dict[str, type[CpuLinear]] = {"float32": Float32Linear, "int8": Int8Linear}


def pack_layers(layers: Sequence[LinearWeights], precision: str) -> tuple[Any, ...]:
    """The weights of the same linear layer in all layers of a model, as `packed_gemm.packed_linear` takes them."""
    from regard.kernels.cpu.packed_gemm import pack_float32, pack_int8

    pack = pack_float32 if precision == "float32" else pack_int8
    packed = [pack(as_array(weights.weight), as_array(_bias(weights))) for weights in layers]
    return tuple(np.stack(arrays) for arrays in zip(*packed, strict=True))


def with_packed_linears(model: Model, precision: str) -> Model:
    """A copy of a model that shares its weights, except that those of its linear layers are packed."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    packed = copy.deepcopy(model, shared)
    for module in list(packed.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, _PackedLinear(child, precision))
    return packed


def as_array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array


class _PackedLinear(nn.Module):
    """Replaces an `nn.Linear` of a model."""

    def __init__(self, linear: nn.Linear, precision: str) -> None:
        super().__init__()
        self.linear = LINEARS[precision](LinearWeights.of(linear))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(0, -2)).view(*x.shape[:-1], -1)


def _bias(weights: LinearWeights) -> Tensor:
    return weights.weight.new_zeros(len(weights.weight)) if weights.bias is None else weights.bias
