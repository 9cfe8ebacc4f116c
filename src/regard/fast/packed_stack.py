"""The fast form of a model's parts for training on a CPU (see `packed_training.py`)."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context, LayerState, Lengths
from regard.attention.cache import KeyValue
from regard.attention.heads import CrossAttention, Heads, KeyValueProjection, SelfAttention
from regard.fast.packed_training import (
    Chance,
    Places,
    Shape,
    attend_other,
    attend_self,
    draw,
    drop,
    feed_forward,
    join,
    product,
)
from regard.fast.swift_training import Layer, joined, layers_of, seen_by
from regard.fast.twin import twin_of
from regard.model.embedding import Input
from regard.model.feed_forward import FeedForward, GatedFeedForward
from regard.model.stack import Stack, recomputed_pair

LONGEST = 512
"""Words up to which attention keeps the shares of all pairs."""


class PackedStack(Stack):
    """A stack in its fast form. Its modules and parameters are those of the stack it was made of."""

    skips_padding: bool

    @classmethod
    def of(cls, stack: Stack, *, skips_padding: bool) -> PackedStack:
        made = twin_of(cls, stack)
        made.skips_padding = skips_padding
        return made

    def states(self, memory: Tensor | None = None, capacity: int | None = None) -> list[LayerState]:
        if memory is None or capacity is not None or memory.dtype != torch.float32:
            return super().states(memory, capacity)
        sources = [
            self.memory if self.memory is not None else block["cross"].function.source  # type: ignore[index]
            for block in self.blocks
        ]
        return [LayerState(None, _waiting(memory, source)) for source in sources]

    def forward(self, x: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        """x: # (batch, tokens, width)"""
        own = any(state.own is not None for state in states)
        if own or context.watch is not None or x.dtype != torch.float32 or x.device.type != "cpu" or not x.numel():
            return super().forward(x, context, [_ready(state) for state in states])
        places = Places(x.shape[0], x.shape[1], context.lengths if self.skips_padding else None)
        real = self.skips_padding or context.lengths is None
        now = _Pass(context, places, real, draw() if self.blocks.training else 0, {}, [])
        layers = list(layers_of(self, states))
        if self.memory is not None:
            _share(layers[0], now)
        x = places.pack(x)
        ready = _normed(layers[0], x)
        for layer in layers:
            if self.recomputes:
                parts = layer.parts if self.memory is None else [*layer.parts, self.memory]
                # Of sublayers some may go the model's own way, and draw from PyTorch's generator.
                x, ready = recomputed_pair(
                    partial(_through, layer, now), partial(_normed, layer), parts, x, ready, draws=True
                )
            else:
                x, ready = _through(layer, now, x, ready)
        return places.unpack(ready)


class DroppedInput(Input):
    """The way in, with dropout from a hash."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        if x.dtype != torch.float32 or x.device.type != "cpu":
            return super().forward(x, context)
        placed = self.position.join(x * self.factor, context.positions, context.lengths)
        ready: Tensor = self.norm(placed)
        return drop(ready, _chance(self.dropout, draw(), 0)) if self.dropout.training and self.dropout.p else ready


class Waiting(tuple[Tensor, Tensor]):
    """The encoder's output in the place of keys and values, which are made of it when its padding is known."""

    source: KeyValueProjection


def _waiting(memory: Tensor, source: nn.Module | None) -> KeyValue:
    assert source is not None
    if not isinstance(source, KeyValueProjection):  # the kernels do not know what it makes
        pair: KeyValue = source(memory)
        return pair
    made = Waiting((memory, memory))
    made.source = source
    return made


class _Pass(NamedTuple):
    """What the sublayers of one pass share."""

    context: Context
    places: Places
    real: bool  # whether there is no padding among these words
    seed: int
    memory: dict[KeyValueProjection, Tensor]  # keys and values that all layers look at, by their projection
    others: list[Places]  # of the other text, once it was asked for


def _normed(layer: Layer, x: Tensor) -> Tensor:
    """What a layer's first sublayer takes of the sum before it."""
    return _join(x, None, layer.sublayers[0].itself.norm, None)[1] if layer.before else x


def _through(layer: Layer, now: _Pass, x: Tensor, ready: Tensor) -> tuple[Tensor, Tensor]:
    """The sum behind a layer, and what the next one takes."""
    for number, sublayer, following in layer.sublayers:
        change = _change(sublayer.function, ready, now, layer.state, 2 * number)
        x, ready = _join(x, change, following, _chance(sublayer.dropout, now.seed, 2 * number + 1))
        x = x if layer.before else ready
    return x, ready


def _change(function: nn.Module, x: Tensor, now: _Pass, state: LayerState, call: int) -> Tensor:
    """What a sublayer makes of x.  # (all words, width)"""
    if type(function) in (FeedForward, GatedFeedForward):
        assert isinstance(function, FeedForward)
        return _feed_forward(function, x, _chance(function.dropout, now.seed, call))
    if isinstance(function, Heads) and now.places.longest <= LONGEST:
        facts = seen_by(function, now.context)
        if isinstance(function, SelfAttention) and facts is not None and (facts.causal or now.real):
            made = product(x, *joined(function.query, function.source.key, function.source.value))
            mixed = attend_self(made, now.places, _shape(function, facts.causal), _heads_chance(function, now, call))
            return _linear(mixed, function.output)
        others = _others(function, now, state)
        if others is not None and isinstance(state.memory, Waiting):
            query, both = _linear(x, function.query), _both(now, state.memory, others)
            shape, chance = _shape(function, causal=False), _heads_chance(function, now, call)
            return _linear(attend_other(query, both, now.places, others, shape, chance), function.output)
    changed: Tensor = function(now.places.unpack(x), now.context, _ready(state))
    return now.places.pack(changed)


def _shape(function: Heads, causal: bool) -> Shape:
    return Shape(function.sizes.heads, function.sizes.key_heads, function.sizes.head_width, causal)


def _heads_chance(function: Heads, now: _Pass, call: int) -> Chance | None:
    return Chance(function.dropout, now.seed, call) if function.training and function.dropout else None


def _feed_forward(function: FeedForward, x: Tensor, chance: Chance | None) -> Tensor:
    if isinstance(function, GatedFeedForward):
        widened = function.bend(_linear(x, function.gate)) * _linear(x, function.widen)
    elif function.bend is functional.relu and type(function.widen) is type(function.narrow) is nn.Linear:
        widen, narrow = function.widen, function.narrow
        return feed_forward(x, widen.weight, widen.bias, narrow.weight, narrow.bias, chance)
    else:
        widened = function.bend(_linear(x, function.widen))
    return _linear(drop(widened, chance), function.narrow)


def _others(function: nn.Module, now: _Pass, state: LayerState) -> Places | None:
    """Where the words stand that a cross-attention looks at; None if it goes the model's own way."""
    if not isinstance(function, CrossAttention) or not isinstance(state.memory, Waiting):
        return None
    if seen_by(function, now.context) is None or now.places.longest > LONGEST:
        return None
    if not now.others:
        rows, words, _ = state.memory[0].shape
        there = now.context.memory  # everything, or up to a length
        now.others.append(Places(rows, words, there.lengths if isinstance(there, Lengths) else None))
    others = now.others[0]
    return others if others.longest <= LONGEST and others.rows == now.places.rows else None


def _share(layer: Layer, now: _Pass) -> None:
    """Make the keys and values that all layers look at: outside of them, for each may be computed twice."""
    for _, sublayer, _ in layer.sublayers:
        others = _others(sublayer.function, now, layer.state)
        if others is not None and isinstance(layer.state.memory, Waiting):
            now.memory[layer.state.memory.source] = _both(now, layer.state.memory, others)


def _both(now: _Pass, waiting: Waiting, others: Places) -> Tensor:
    """Keys and values of the other text, side by side.  # (all other words, key + value)"""
    shared = now.memory.get(waiting.source)
    if shared is not None:
        return shared
    return product(others.pack(waiting[0]), *joined(waiting.source.key, waiting.source.value))


def _ready(state: LayerState) -> LayerState:
    """The state with keys and values as every attention takes them."""
    if not isinstance(state.memory, Waiting):
        return state
    return LayerState(state.own, state.memory.source(state.memory[0]))


def _join(x: Tensor, change: Tensor | None, norm: nn.Module, chance: Chance | None) -> tuple[Tensor, Tensor]:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    epsilon = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    bias = getattr(norm, "bias", None)
    return join(x, change, norm.weight, bias, epsilon, centred=isinstance(norm, nn.LayerNorm), chance=chance)


def _linear(x: Tensor, linear: nn.Module) -> Tensor:
    if type(linear) is nn.Linear:
        return product(x, linear.weight, linear.bias)
    made: Tensor = linear(x)
    return made


def _chance(dropout: nn.Dropout, seed: int, call: int) -> Chance | None:
    return Chance(dropout.p, seed, call) if dropout.training and dropout.p else None
