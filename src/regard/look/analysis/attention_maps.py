"""Finding a model's attention modules, and recording their weights during a forward pass.

A Transformer is built from stacks of blocks, so its attention modules can be listed by type and layer; they can be
recorded, opened and ablated. The models before it list their own, of which only the weights are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.look.schema import AttentionSpec, AttentionType
from regard.model import CausalSequenceModel, SequenceToSequence
from regard.model.before.base import AlignmentModule
from regard.model.stack import Stack

WEIGHTS_ONLY = (
    "The attention of this model is not the multi-head attention of a Transformer: its weights can be shown, but its "
    "heads cannot be opened or ablated."
)

AttentionKey = tuple[AttentionType, int]
"""An attention type and a layer."""


def attention_modules(model: nn.Module) -> Mapping[AttentionType, Sequence[Attention | AlignmentModule]]:
    """A model's attention modules by type, from the first layer to the last."""
    if isinstance(model, SequenceToSequence | CausalSequenceModel):
        return model.attention_modules()
    modules: dict[AttentionType, list[Attention]] = {}
    encoder, decoder = getattr(model, "encoder", None), getattr(model, "decoder", None)
    if isinstance(encoder, Stack):
        modules["encoder"] = list(encoder.self_attention())
    if isinstance(decoder, Stack):
        modules["decoder"] = list(decoder.self_attention())
        if cross := decoder.cross_attention():
            modules["cross"] = list(cross)
    return modules


def attention_specs(model: nn.Module) -> list[AttentionSpec]:
    """The number of layers and heads of each attention type."""
    return [
        AttentionSpec(
            attention_type=attention_type,
            layers=len(layers),
            heads=layers[0].heads,
            weights_only=None if isinstance(layers[0], Attention) else True,
        )
        for attention_type, layers in attention_modules(model).items()
    ]


def attention_nbytes(model: nn.Module, source: int, target: int) -> int:
    """The size in float16 of all attention weights over `source` and `target` tokens."""
    sizes: dict[AttentionType, int] = {"encoder": source * source, "decoder": target * target, "cross": target * source}
    return sum(2 * sizes[spec.attention_type] * spec.layers * spec.heads for spec in attention_specs(model))


def find_attention(model: nn.Module, attention_type: AttentionType, layer: int, head: int | None = None) -> Attention:
    """The attention module of a layer; an error if the model has no such type, layer or head, or only its weights."""
    modules = attention_modules(model)
    layers = modules.get(attention_type)
    if layers is None:
        raise UserError(f"This model has no {attention_type!r} attention; it has {', '.join(modules) or 'none'}.")
    if not 0 <= layer < len(layers):
        raise UserError(f"{attention_type!r} has no layer {layer}: its {len(layers)} layers are counted from 0.")
    if head is not None and not 0 <= head < layers[layer].heads:
        raise UserError(f"{attention_type!r} has no head {head}: its {layers[layer].heads} heads are counted from 0.")
    found = layers[layer]
    if not isinstance(found, Attention):
        raise UserError(WEIGHTS_ONLY)
    return found


def check_heads(model: nn.Module) -> None:
    """Refuse a model without heads that can be ablated."""
    modules = [module for layers in attention_modules(model).values() for module in layers]
    if not modules:
        raise UserError("This model has no attention, so there are no heads to ablate.")
    if not all(isinstance(module, Attention) for module in modules):
        raise UserError(WEIGHTS_ONLY)


@dataclass
class AttentionRecorder:
    """An attention observer that keeps the weights of every module, in their own precision or in `dtype`."""

    model: nn.Module
    dtype: torch.dtype | None = None
    source_length: int = 0
    """The number of source tokens, for modules that attend to the source and to the target so far at once."""
    weights: dict[AttentionType, list[Tensor]] = field(default_factory=dict)
    """For each attention type, one tensor per layer.  # (batch, heads, queries, keys)"""

    def __post_init__(self) -> None:
        self._types: dict[nn.Module, list[AttentionType]] = {}
        for attention_type, modules in attention_modules(self.model).items():
            for module in modules:
                self._types.setdefault(module, []).append(attention_type)

    def __call__(self, module: nn.Module, weights: Tensor) -> None:
        recorded = weights.detach().to(device="cpu", dtype=self.dtype)
        types = self._types.get(module, [])
        for attention_type in types:
            part = recorded
            if len(types) > 1:
                source, target = recorded.tensor_split([self.source_length], dim=-1)
                part = source if attention_type == "cross" else target
            self.weights.setdefault(attention_type, []).append(part)

    def stacked(self, attention_type: AttentionType) -> Tensor:
        """The weights of the batch's first row in all layers.  # (layers, heads, queries, keys)"""
        return torch.stack([weights[0] for weights in self.weights[attention_type]])
