"""x Wᵀ + b as a fast writer computes it: in float32 with oneDNN, or with int8 weights.

These are for whole texts at once and for what has no place in a compiled step. Steps have their own (`swift_tiles.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.fast.swift_cache import Floats

_ROWS = 64
"""For about so many rows weights are packed."""
Model = TypeVar("Model", bound=nn.Module)


class Projection(NamedTuple):
    """weight: # (size, width); bias: # (size,)"""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, *parts: tuple[Tensor, Tensor | None]) -> Projection:
        """Several side by side. Where there is no bias it is zero."""
        biases = [weight.new_zeros(len(weight)) if bias is None else bias.detach() for weight, bias in parts]
        weights = [weight.detach() for weight, _ in parts]
        return cls(torch.cat(weights) if len(weights) > 1 else weights[0], torch.cat(biases))

    @classmethod
    def of_linear(cls, *parts: nn.Module) -> Projection:
        linear = [part for part in parts if isinstance(part, nn.Linear)]
        assert len(linear) == len(parts)
        return cls.of(*((part.weight, part.bias) for part in linear))


def stack(projections: Sequence[Projection], precision: str) -> tuple[Any, ...]:
    """The projections of one place in all layers, as `swift_tiles.multiply` wants them."""
    from regard.fast import swift_tiles

    pack = swift_tiles.pack_floats if precision == "float32" else swift_tiles.pack_bytes
    packed = [pack(floats(each.weight), floats(each.bias)) for each in projections]
    return tuple(np.stack(arrays) for arrays in zip(*packed, strict=True))


class FloatProduct:
    """In float32, with weights packed where oneDNN is there."""

    def __init__(self, projection: Projection) -> None:
        self.weight, self.bias = projection
        self.packed = _pack(self.weight)
        if self.packed is not None:
            self.product = torch.ops.mkldnn._linear_pointwise.default
            self.add_product = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """The product, with `add` added.  x: # (rows, width); add: # (rows, size), may be overwritten"""
        if self.packed is None:
            product = functional.linear(x, self.weight, self.bias)
            return product if add is None else product.add_(add)
        rows = x.shape[0]
        more = _rounded(rows) - rows
        if more:
            x, add = functional.pad(x, (0, 0, 0, more)), None if add is None else functional.pad(add, (0, 0, 0, more))
        made: Tensor
        if add is not None:
            made = self.add_product(x, add, self.packed, self.bias, "add")
        else:
            made = self.product(x, self.packed, self.bias, "none", [], "")
        return made[:rows] if more else made


class ByteProduct:
    """With int8 weights and activations, rounded with a scale for each row."""

    def __init__(self, projection: Projection) -> None:
        from regard.fast.swift_tiles import multiply_rows

        self.multiply, self.weights = multiply_rows, stack([projection], "int8")
        self.size = len(projection.bias)

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """The product, with `add` added.  x: # (rows, width); add: # (rows, size), may be overwritten"""
        made = x.new_empty(x.shape[0], self.size) if add is None else add
        self.multiply(x.contiguous().numpy(), self.weights, 0, made.numpy(), add is not None, False)
        return made


Product = FloatProduct | ByteProduct
PRODUCTS: dict[str, type[Product]] = {"float32": FloatProduct, "int8": ByteProduct}


class _FastLinear(nn.Module):
    """What stands in a model in the place of a projection."""

    def __init__(self, linear: nn.Linear, precision: str) -> None:
        super().__init__()
        self.product = PRODUCTS[precision](Projection.of_linear(linear))

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x.flatten(0, -2)).view(*x.shape[:-1], -1)


def with_fast_products(model: Model, precision: str) -> Model:
    """A copy of a model that shares its weights, except that projections have theirs packed."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    for module in list(twin.modules()):
        for name, part in list(module.named_children()):
            if isinstance(part, nn.Linear):
                setattr(module, name, _FastLinear(part, precision))
    return twin


def floats(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array


def _rounded(rows: int) -> int:
    """A number of rows not much larger. oneDNN keeps code for every number it meets; so there are few of them."""
    if rows <= 32:
        return rows
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step


def _pack(weight: Tensor) -> Tensor | None:
    """Weights in oneDNN's own layout; None where this PyTorch has no such products."""
    if not torch.backends.mkldnn.is_available():
        return None
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        torch.ops.mkldnn._linear_pointwise(weight[:1], packed, None, "none", [], "")
    except (AttributeError, RuntimeError, TypeError):
        return None
    return packed
