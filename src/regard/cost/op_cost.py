"""The units of the estimate: FLOPs, and the values that autograd saves for the backward pass."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Literal

Precision = Literal["float32", "bfloat16"]
Device = Literal["cuda", "cpu"]
"""Whose kernels decide what autograd saves."""


@dataclass(frozen=True)
class OpCost:
    """The cost of part of a forward pass: FLOPs, and numbers of values saved for backward by how they are stored."""

    flops: int = 0
    attention_flops: int = 0
    """Of `flops`, those of the two attention matmuls, QKᵀ and weights × V."""
    saved: int = 0
    """Values in the model's precision."""
    dropout_masks: int = 0
    """Elements of dropout masks: one byte each on a GPU, one value in the model's precision on a CPU."""
    float32_values: int = 0
    """Values in float32 whatever the precision; a token id (int64) counts as two."""

    float32_copies: int = 0
    """Float32 copies that exist only where the model itself has another precision."""
    concatenated_weights: int = 0
    """Weights concatenated for one matmul, in float32 only: bfloat16 copies are stored that way already."""

    def __add__(self, other: "OpCost") -> "OpCost":
        return OpCost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: int) -> "OpCost":
        return OpCost(*(times * value for value in astuple(self)))

    @property
    def flops_only(self) -> "OpCost":
        """The same without anything saved for backward, as in inference."""
        return OpCost(self.flops, self.attention_flops)

    def bytes(self, precision: Precision, device: Device) -> int:
        """Bytes of everything saved for backward."""
        size = bytes_per_value(precision)
        float32 = self.float32_values + (0 if precision == "float32" else self.float32_copies)
        saved = self.saved + (self.concatenated_weights if precision == "float32" else 0)
        return size * saved + (size if device == "cpu" else 1) * self.dropout_masks + 4 * float32


@dataclass(frozen=True)
class StackCost:
    """The cost of one stack (encoder or decoder) in a forward pass over all rows of a batch."""

    layers: OpCost = OpCost()
    """All layers together."""
    outside: OpCost = OpCost()
    """Everything outside the layers: embeddings, the final norm, the source's keys and values, the head."""
    checkpointed: OpCost = OpCost()
    """What is saved under activation checkpointing: each layer's input, and what is outside the layers."""
    recomputed: tuple[OpCost, ...] = (OpCost(),)
    """Of each layer, what its recomputation in backward holds on top of `checkpointed`."""

    @property
    def total(self) -> OpCost:
        return self.layers + self.outside

    def with_recomputed(self, extra: OpCost) -> "StackCost":
        """The same where the recomputation of every layer holds more."""
        return replace(self, recomputed=tuple(layer + extra for layer in self.recomputed))


def stack_cost(layers: Sequence[OpCost], outside: OpCost, layer_input: int) -> StackCost:
    """The cost of a stack of `layers`; `layer_input` is the number of values that enter each of them.

    Backward recomputes one layer at a time, from the last to the first, and frees the inputs of those behind it.
    """
    saved_input = OpCost(saved=layer_input)
    recomputed = tuple(layer + saved_input * (index - len(layers)) for index, layer in enumerate(layers))
    return StackCost(
        sum(layers, OpCost()), outside, outside + saved_input * len(layers), recomputed if layers else (OpCost(),)
    )


def bytes_per_value(precision: Precision) -> int:
    return 4 if precision == "float32" else 2


def norm_cost(tokens: int, width: int, kind: Literal["layer", "rms"], device: Device) -> OpCost:
    """A norm saves its input and output, and per token mean and deviation (LayerNorm) or the RMS alone.

    PyTorch has no fused RMSNorm on a CPU: the normalized values before scaling are saved as well.
    """
    unscaled = 1 if kind == "rms" and device == "cpu" else 0
    return OpCost(saved=(2 + unscaled) * tokens * width, float32_values=tokens * (1 if kind == "rms" else 2))
