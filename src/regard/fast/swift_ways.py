"""Two ways to take a step: everything in one compiled function, or part by part where PyTorch has to help.

Sources are read in one compiled function too, where that knows all parts of the encoder.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.encoding import Added
from regard.attention.heads import CrossAttention, SelfAttention
from regard.errors import UserError
from regard.fast.swift_cache import Desk, Floats, Numbers, Sizes, SwiftCache
from regard.fast.swift_products import PRODUCTS, Product, Projection, floats, stack
from regard.model.block import Block, PostNorm, PreNorm
from regard.model.embedding import Input, Vocabulary, out_of_vocabulary
from regard.model.encoder_decoder import EncoderDecoder
from regard.model.feed_forward import FeedForward, GatedFeedForward
from regard.model.stack import Stack

Norm = nn.LayerNorm | nn.RMSNorm
_AT_ONCE = 128
"""Tokens of sources that are read at once."""


class Layer:
    """What one block multiplies with, and its norms.  norms: # (3, 2, width), weight and bias of each sublayer's"""

    def __init__(self, block: Block) -> None:
        past, wide = block["attention"], block["feed_forward"]
        own, dense = past.function, wide.function
        assert isinstance(own, SelfAttention)
        assert isinstance(dense, FeedForward)
        self.heads, self.key_width = own.sizes.heads, own.sizes.key_heads * own.sizes.head_width
        self.scale = np.float32(own.sizes.head_width**-0.5)
        self.reads = "cross" in block
        self.made = Projection.of_linear(own.query, own.source.key, own.source.value)
        self.past_out = self.query = self.memory_out = Projection.of_linear(own.output)
        if self.reads:
            other = block["cross"].function
            assert isinstance(other, CrossAttention)
            self.query, self.memory_out = Projection.of_linear(other.query), Projection.of_linear(other.output)
        self.bend, self.widen, self.narrow = dense.bend, *map(Projection.of_linear, (dense.widen, dense.narrow))
        self.gate = Projection.of_linear(dense.gate) if isinstance(dense, GatedFeedForward) else None
        self.plain = dense.bend is functional.relu and self.gate is None
        parts = [past, block["cross"] if self.reads else past, wide]
        self.before = not isinstance(past, PostNorm)
        self.norms = np.stack([norm_weights(_norm(part)) for part in parts])
        self.centred, self.epsilon = isinstance(past.norm, nn.LayerNorm), _epsilon(_norm(past))

    @property
    def sizes(self) -> Sizes:
        return Sizes(self.norms.shape[2], len(self.made.bias), len(self.widen.bias), self.heads)


class Places(NamedTuple):
    """What positions do: codes that are added to word vectors, and cosine and sine by which heads are turned, if any.

    codes: # (positions, width); turns: # (positions, 2, half a head's width)
    """

    codes: Floats
    turns: Floats


class Words:
    """Word vectors, and what positions make of them."""

    def __init__(self, vocabulary: Vocabulary, entry: Input, stack: Stack) -> None:
        self.table, self.factor, self.position = floats(vocabulary.weight), np.float32(entry.factor), entry.position
        self.rotary = next((attention.rotary for attention in stack.attention()), None)
        self._places = Places(np.zeros((0, self.table.shape[1]), np.float32), np.zeros((0, 2, 0), np.float32))

    def places(self, count: int, expected: int) -> Places:
        """Those of so many positions or more. Learned ones end somewhere, and say so."""
        places = self._places  # another thread may put shorter ones there
        if max(map(len, places)) < count and (self.rotary is not None or isinstance(self.position, Added)):
            known = getattr(self.position, "limit", None) or expected
            numbers = torch.arange(max(count, min(known, expected)))
            codes, turns = places
            if isinstance(self.position, Added):
                codes = floats(self.position.encode(numbers))
            if self.rotary is not None:
                turns = floats(torch.stack(self.rotary.rotation(numbers, len(numbers)), dim=1))
            self._places = places = Places(codes, turns)
        return places


class Reading:
    """An encoder in one compiled function."""

    def __init__(self, model: EncoderDecoder, precision: str) -> None:
        from regard.fast.swift_read import read_sources

        self.read_sources, self.tokens = read_sources, model.config.tokens
        layers = layers_of(model.encoder)
        self.words = Words(model.source_vocabulary or model.vocabulary, model.source_input, model.encoder)
        self.products = stack_all(layers, ("made", "past_out", "widen", "narrow"), precision)
        self.sizes = layers[0].sizes.made, layers[0].sizes.hidden
        self.attention, self.norms = (layers[0].heads, layers[0].scale), stacked_norms(layers, model.encoder.norm)
        cross = [block["cross"].function for block in model.decoder.blocks if isinstance(block, Block)]
        own = [part.source for part in cross if isinstance(part, CrossAttention) and part.source is not None]
        shared = own if model.decoder.memory is None else [model.decoder.memory]
        self.remembered = stack([Projection.of_linear(each.key, each.value) for each in shared], precision)
        self.layers, self.key_width = len(cross), len(shared[0].key.weight)

    def begin(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[SwiftCache, Tensor]:
        """A cache for each source, with its end behind it, and the first tokens.  # (rows,)"""
        end, start = self.tokens.end, self.tokens.start
        assert end is not None
        assert start is not None
        lengths = np.array([len(source) + 1 for source in sources])
        longest = int(lengths.max())
        places = self.words.places(longest, longest)
        cache = SwiftCache(self.layers, len(sources), capacity, self.key_width)
        cache.memory = np.zeros((2, self.layers, len(sources), longest, self.key_width), np.float32)
        cache.memory_lengths, cache.origin[:] = lengths, np.arange(len(sources))
        for first, last in _chunks(lengths):
            tokens = np.array([token for source in sources[first:last] for token in (*source, end)])
            if tokens.min() < 0 or tokens.max() >= len(self.words.table):
                raise UserError(out_of_vocabulary(torch.from_numpy(tokens), len(self.words.table)))
            self.read_sources(
                tokens,
                np.concatenate([np.arange(length) for length in lengths[first:last]]),
                np.concatenate(([0], lengths[first:last].cumsum())),
                self.words.table,
                *places,
                self.words.factor,
                *self.attention,
                *self.norms,
                self.products,
                self.sizes,
                self.remembered,
                first,
                cache.memory,
            )
        return cache, torch.full((len(sources),), start)


def _chunks(lengths: Numbers) -> Iterator[tuple[int, int]]:
    """Sources that are read at once, from and to: so few that what is made of them stays in the processor's cache."""
    first = total = 0
    for number, length in enumerate(lengths):
        if total and total + length > _AT_ONCE:
            yield first, number
            first, total = number, 0
        total += int(length)
    yield first, len(lengths)


class InOne:
    """All layers in one compiled function."""

    def __init__(self, layers: Sequence[Layer], last: nn.Module, scores: Projection, precision: str) -> None:
        from regard.fast.swift_step import take_step

        self.take_step, self.sizes, self.vocabulary = take_step, layers[0].sizes, len(scores.bias)
        asks = ("query", "memory_out") if layers[0].reads else ("past_out", "past_out")  # those are then not used
        places = ("made", "past_out", *asks, "widen", "narrow")
        self.products = (*stack_all(layers, places, precision), stack([scores], precision))
        self.attention, self.norms = (layers[0].heads, layers[0].scale), stacked_norms(layers, last)

    def step(self, tokens: Tensor, cache: SwiftCache, words: Words, places: Places) -> Tensor:
        """Logits for the word after each new token.  tokens: # (rows,); gives (rows, vocabulary)"""
        desk = cache.desk(self.sizes)
        logits = torch.empty(cache.rows, self.vocabulary)
        self.take_step(
            tokens.numpy(),
            cache.lengths,
            words.table,
            *places,
            words.factor,
            cache.keys,
            cache.values,
            cache.origin,
            cache.memory[0],
            cache.memory[1],
            cache.memory_lengths,
            *self.attention,
            *self.norms,
            self.products,
            desk.room,
            desk.weights,
            logits.numpy(),
        )
        return logits

    def scoring(self, scores: Projection, precision: str) -> InOne:
        """The same with other words to score."""
        twin = copy.copy(self)
        twin.vocabulary, twin.products = len(scores.bias), (*self.products[:-1], stack([scores], precision))
        return twin


class ByParts:
    """One part after another: for feed-forwards that bend as only PyTorch knows, or are not alike in all layers."""

    def __init__(self, layers: Sequence[Layer], last: nn.Module, scores: Projection, precision: str) -> None:
        from regard.fast import kernels

        product = PRODUCTS[precision]
        self.kernels, self.sizes = kernels, layers[0].sizes
        self.layers = [_Parts(layer, product) for layer in layers]
        self.scores = product(scores)
        self.last = norm_weights(last) if isinstance(last, Norm) else None

    def step(self, tokens: Tensor, cache: SwiftCache, words: Words, places: Places) -> Tensor:
        """Logits for the word after each new token.  tokens: # (rows,); gives (rows, vocabulary)"""
        kernels, desk, heads = self.kernels, cache.desk(self.sizes), self.sizes.heads
        kernels.embed(tokens.numpy(), cache.lengths, words.table, places.codes, words.factor, desk.x_array)
        x, first = desk.x, self.layers[0].layer
        for number, parts in enumerate(self.layers):
            norms, scale = parts.layer.norms, parts.layer.scale
            for part in range(3):
                if part == 1 and not parts.layer.reads:
                    continue
                weight, bias = norms[part]
                source = self._normed(x, weight, bias, desk) if first.before else x
                if part == 0:
                    made, kept = parts.made(source).numpy(), (cache.keys[number], cache.values[number])
                    if len(places.turns):
                        kernels.turn(made, cache.lengths, places.turns, x.shape[1])
                    kernels.attend_past(
                        made, *kept, cache.origin, cache.lengths, heads, scale, desk.weights, desk.mixed_array
                    )
                    x = parts.past_out(desk.mixed, x)
                elif part == 1:
                    asked, read = parts.query(source).numpy(), cache.memory[:, number]
                    kernels.attend_memory(
                        asked, *read, cache.memory_lengths, heads, scale, desk.weights, desk.mixed_array
                    )
                    x = parts.memory_out(desk.mixed, x)
                else:
                    x = parts.narrow(parts.hidden(source), x)
                if not first.before:
                    kernels.normalise(x.numpy(), weight, bias, first.epsilon, first.centred, x.numpy())
        return self.scores(x if self.last is None else self._normed(x, self.last[0], self.last[1], desk))

    def scoring(self, scores: Projection, precision: str) -> ByParts:
        """The same with other words to score."""
        twin = copy.copy(self)
        twin.scores = PRODUCTS[precision](scores)
        return twin

    def _normed(self, x: Tensor, weight: Floats, bias: Floats, desk: Desk) -> Tensor:
        first = self.layers[0].layer
        self.kernels.normalise(x.numpy(), weight, bias, first.epsilon, first.centred, desk.normed_array)
        return desk.normed


class _Parts:
    """The products of a layer."""

    def __init__(self, layer: Layer, product: type[Product]) -> None:
        self.layer = layer
        self.made, self.past_out = product(layer.made), product(layer.past_out)
        self.query, self.memory_out = product(layer.query), product(layer.memory_out)
        self.widen, self.narrow = product(layer.widen), product(layer.narrow)
        self.gate = None if layer.gate is None else product(layer.gate)

    def hidden(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.layer.bend(self.widen(x))
        return self.layer.bend(self.gate(x)).mul_(self.widen(x))


def layers_of(stack: Stack) -> list[Layer]:
    return [Layer(block) for block in stack.blocks if isinstance(block, Block)]


def are_alike(layers: Sequence[Layer]) -> bool:
    """Whether one compiled function goes through all layers: they bend as it does, and are of the same sizes."""
    return all(layer.plain and layer.sizes == layers[0].sizes for layer in layers)


def stack_all(layers: Sequence[Layer], places: Sequence[str], precision: str) -> tuple[Any, ...]:
    """What all layers multiply with, place by place; the same place twice is the same arrays."""
    made = {place: stack([getattr(layer, place) for layer in layers], precision) for place in places}
    return tuple(made[place] for place in places)


def stacked_norms(layers: Sequence[Layer], last: nn.Module) -> tuple[Any, ...]:
    """Whether norms stand before and whether they take the mean away, their weights in all layers, epsilon, and the
    weights of the one behind the last layer if any."""
    first, norms = layers[0], np.stack([layer.norms for layer in layers])
    behind = np.zeros((0, norms.shape[3]), np.float32)
    if isinstance(last, Norm):
        behind = norm_weights(last)
    return first.before, first.centred, norms, first.epsilon, behind


def norm_weights(norm: Norm) -> Floats:
    """Weight and bias of a norm.  # (2, width)"""
    weight, bias = floats(norm.weight), getattr(norm, "bias", None)
    return np.stack((weight, np.zeros_like(weight) if bias is None else floats(bias)))


def _norm(sublayer: nn.Module) -> Norm:
    assert isinstance(sublayer, PreNorm)
    assert isinstance(sublayer.norm, Norm)
    return sublayer.norm


def _epsilon(norm: Norm) -> np.float32:
    return np.float32(torch.finfo(torch.float32).eps if norm.eps is None else norm.eps)
