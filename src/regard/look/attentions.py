"""Where a model has attention: which side, which layer, how many heads. And all weights of one pass, gathered.

Every model of the package is stacks of blocks, so its attentions can be listed; what is listed here is what can be
watched, opened and switched off.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from regard.attention.heads import Attention
from regard.errors import UserError
from regard.look.wire import AttentionFacts, Side
from regard.model.block import Block
from regard.model.stack import Stack

Place = tuple[Side, int]
"""A side and a layer of it."""


def attentions_of(model: nn.Module) -> dict[Side, list[Attention]]:
    """Every attention of a model by its side, from the first layer to the last."""
    found: dict[Side, list[Attention]] = {}
    encoder, decoder = getattr(model, "encoder", None), getattr(model, "decoder", None)
    if isinstance(encoder, Stack):
        found["encoder"] = list(encoder.attention())
    if isinstance(decoder, Stack):
        found["decoder"] = list(decoder.attention())
        cross = [block["cross"].function for block in decoder.blocks if isinstance(block, Block) and "cross" in block]
        if cross:
            found["cross"] = [one for one in cross if isinstance(one, Attention)]
    return found


def facts_of(model: nn.Module) -> list[AttentionFacts]:
    """What there is of it, in a few numbers."""
    return [
        AttentionFacts(side=side, layers=len(layers), heads=layers[0].heads)
        for side, layers in attentions_of(model).items()
    ]


def bytes_of_weights(model: nn.Module, source: int, target: int) -> int:
    """What the weights of one pass take, in 16 bits, over a source and a target of so many tokens."""
    sizes: dict[Side, int] = {"encoder": source * source, "decoder": target * target, "cross": target * source}
    return sum(2 * sizes[one.side] * one.layers * one.heads for one in facts_of(model))


def attention_at(model: nn.Module, side: Side, layer: int, head: int | None = None) -> Attention:
    """The attention that stands there, or a sentence that says what there is."""
    layers = attentions_of(model).get(side)
    if layers is None:
        there = ", ".join(attentions_of(model))
        raise UserError(f"This model has no attention called {side!r}; it has {there}.")
    if not 0 <= layer < len(layers):
        raise UserError(f"There is no layer {layer} in {side!r}; its {len(layers)} layers count from 0.")
    if head is not None and not 0 <= head < layers[layer].heads:
        raise UserError(f"There is no head {head} in {side!r}; its {layers[layer].heads} heads count from 0.")
    return layers[layer]


@dataclass
class Gathered:
    """A watch that keeps the weights of every attention of one pass, as they are or in another precision."""

    model: nn.Module
    dtype: torch.dtype | None = None
    weights: dict[Side, list[Tensor]] = field(default_factory=dict)
    """Of each side, layer by layer.  # (rows, heads, queries, keys)"""

    def __post_init__(self) -> None:
        self._sides = {one: side for side, layers in attentions_of(self.model).items() for one in layers}

    def __call__(self, module: nn.Module, weights: Tensor) -> None:
        assert isinstance(module, Attention)
        kept = weights.detach().to(device="cpu", dtype=self.dtype)
        self.weights.setdefault(self._sides[module], []).append(kept)

    def stacked(self, side: Side) -> Tensor:
        """All layers of one row.  # (layers, heads, queries, keys)"""
        return torch.stack([one[0] for one in self.weights[side]])
