"""A writer laid out for steps on a CPU: the same weights, the same results, several times as fast.

A step is one compiled function (`swift_step.py`): products with weights packed beforehand (`swift_tiles.py`), query,
key and value in one, and between them attention and norms (`kernels.py`). Beams never copy what their texts share: an
index says which row wrote the token at each position.

`swift(model)` gives such a writer, or the model itself where that cannot be: on other devices, in other precisions, for
parts the kernels do not know, or where numba is not installed. It takes the weights as they are at that moment.
`swift(model, "int8")` rounds them to bytes: a quarter of the memory, faster where the processor multiplies bytes, and
results that differ a little.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Literal, TypeGuard, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.attention import Cache
from regard.attention.encoding import Added, Position
from regard.attention.heads import Heads, SelfAttention
from regard.attention.pattern import Causal, Full, Pattern
from regard.errors import UserError
from regard.fast.swift_cache import Floats, SwiftCache
from regard.fast.swift_products import PRODUCTS, Projection, floats, with_fast_products
from regard.fast.swift_ways import ByParts, InOne, Reading, Words, are_alike, layers_of
from regard.model.block import Block, NoResidual, PreNorm
from regard.model.embedding import Input
from regard.model.encoder_decoder import EncoderDecoder
from regard.model.feed_forward import FeedForward, GatedFeedForward
from regard.model.writer import Writer

Precision = Literal["float32", "int8"]
AnyWriter = TypeVar("AnyWriter", bound=Writer)


def swift(model: Any, precision: Precision = "float32") -> Any:
    """The model for fast steps on this CPU, or the model itself where there is no such form of it."""
    return Swift(model, precision) if why_not(model) is None else model


def is_compiled() -> bool:
    """Whether the kernels were compiled on this machine before, so that using them costs no wait."""
    place = Path(__file__).parent / "__pycache__"
    return any(place.glob("swift_step.take_step-*.nbi"))


def why_not(model: Any) -> str | None:
    """What stands against the fast form of a model; None if nothing does."""
    if find_spec("numba") is None:
        return "numba is not installed (pip install 'regard[fast]')"
    if not isinstance(model, Writer):
        return f"it is no Transformer that writes, but a {type(model).__name__}"
    weight = model.vocabulary.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return f"it is for float32 on a CPU, and this model is {weight.dtype} on {weight.device}"
    if not _is_known_entry(model.input):
        return "positions must be added to word vectors or turn queries and keys, and word vectors not be normalised"
    if model.vocabulary.weight.shape[0] < 64:
        return "the vocabulary is smaller than 64"
    return next((reason for block in model.decoder.blocks if (reason := _odd_block(block))), None)


class Swift(Generic[AnyWriter]):
    """A writer that reads with `model` and writes with packed weights, in float32 or int8."""

    def __init__(self, model: AnyWriter, precision: Precision = "float32") -> None:
        reason = why_not(model)
        if reason is not None:
            raise UserError(f"This model has no fast form on a CPU: {reason}.")
        if precision not in PRODUCTS:
            raise UserError(f"The fast form of a model is in {' or '.join(PRODUCTS)}; {precision!r} was asked for.")
        self.model, self.precision, self.config = model, precision, model.config
        self.layers, self.words = layers_of(model.decoder), Words(model.vocabulary, model.input, model.decoder)
        scored = model.vocabulary if model.output is None else model.output
        way = InOne if are_alike(self.layers) else ByParts
        self.way: InOne | ByParts = way(
            self.layers, model.decoder.norm, Projection.of((scored.weight, model.output_bias)), precision
        )
        self.reader = Reading(model, precision) if _is_read_in_one(model) else None
        self.slow_reader = with_fast_products(model, precision) if self.reader is None else None

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def begin(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[SwiftCache, Tensor]:
        """Read sources or prompts, as the model itself does."""
        if self.reader is not None:
            return self.reader.begin(sources, capacity)
        read, first = self.slow_reader.begin(sources, capacity)  # type: ignore[union-attr, operator]
        return self._taken_over(read), first

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: SwiftCache) -> tuple[Tensor, SwiftCache]:
        """Logits for the word after each new token, one a row.  tokens: # (rows, 1); gives (rows, 1, vocabulary)"""
        extent = cache.extent
        if extent == cache.capacity:
            raise UserError(f"The cache has room for {cache.capacity} positions and {extent + 1} are needed.")
        places = self.words.places(extent + 1, cache.capacity)
        logits = self.way.step(tokens[:, 0], cache, self.words, places)
        cache.lengths += 1
        return logits[:, None], cache

    def limited(self, tokens: Tensor) -> Swift[AnyWriter]:
        """The same, scoring these words only, in this order.  tokens: # (some,)"""
        scored = self.model.vocabulary if self.model.output is None else self.model.output
        bias = None if self.model.output_bias is None else self.model.output_bias[tokens]
        twin = copy.copy(self)
        twin.way = self.way.scoring(Projection.of((scored.weight[tokens], bias)), self.precision)
        return twin

    def reorder(self, cache: SwiftCache, rows: Tensor) -> SwiftCache:
        group = cache.rows // cache.sources
        cache.regroup(rows.numpy(), rows.numpy() // group)
        return cache

    def regroup(self, cache: SwiftCache, rows: Tensor, sources: Tensor | None) -> SwiftCache:
        cache.regroup(rows.numpy(), None if sources is None else sources.numpy())
        return cache

    def put(self, cache: SwiftCache, sources: Tensor, other: SwiftCache) -> SwiftCache:
        cache.put(sources.numpy(), other)
        return cache

    def clear(self, cache: SwiftCache, sources: Tensor) -> None:
        """Let these groups of rows hold nothing."""
        cache.lengths.reshape(cache.sources, -1)[sources.numpy()] = 0

    def is_full(self, cache: SwiftCache) -> bool:
        return cache.extent == cache.capacity

    def grow(self, cache: SwiftCache) -> None:
        cache.grow(2 * cache.capacity, cache.rows)

    def held(self, cache: SwiftCache) -> int:
        return cache.bytes()

    def bytes_a_position(self) -> int:
        return self.model.bytes_a_position()

    def _taken_over(self, read: Cache) -> SwiftCache:
        """What the model has read, in this layout."""
        cache = SwiftCache(len(self.layers), read.rows, read.capacity, self.layers[0].key_width)
        memory = [layer.memory for layer in read.layers if layer.memory is not None]
        if memory:
            cache.memory = np.stack([[_joined(layer[part]) for layer in memory] for part in range(2)])
        if read.memory_lengths is not None:
            cache.memory_lengths = read.memory_lengths.numpy().copy()
        elif memory:
            cache.memory_lengths = np.full(read.rows, cache.memory.shape[3])
        for number, layer in enumerate(read.layers):
            if layer.own is not None and layer.own.tensors is not None:
                for kept, tensor in zip((cache.keys, cache.values), layer.own.tensors, strict=True):
                    kept[number] = tensor.permute(2, 0, 1, 3).flatten(2).numpy()
        cache.lengths = read.lengths.numpy().copy()
        cache.origin[:] = np.arange(read.rows)
        return cache


def _is_read_in_one(model: Writer) -> TypeGuard[EncoderDecoder]:
    """Whether the compiled reader knows all parts of an encoder."""
    if not isinstance(model, EncoderDecoder) or model.config.tokens.start is None or model.config.tokens.end is None:
        return False
    if not _is_known_entry(model.source_input):
        return False
    if any(_odd_block(block, (Full(), Full() & Full())) for block in model.encoder.blocks):
        return False
    return are_alike(layers_of(model.encoder))


def _is_known_entry(entry: Input) -> bool:
    """Whether words become vectors as the kernels do it."""
    known = isinstance(entry.position, Added) or type(entry.position) is Position
    return known and isinstance(entry.norm, nn.Identity)


_EARLIER = (Causal(), Causal() & Full(), Full() & Causal())


def _odd_block(block: nn.Module, patterns: Sequence[Pattern] = _EARLIER) -> str | None:
    """What in a block the kernels do not know."""
    assert isinstance(block, Block)
    for name, sublayer in block.items():
        if not isinstance(sublayer, PreNorm) or isinstance(sublayer, NoResidual):
            return "a layer has no residual sum"
        if not isinstance(sublayer.norm, nn.LayerNorm | nn.RMSNorm):
            return "norms must be layer normalisation or RMS"
        function = sublayer.function
        if name == "feed_forward":
            if type(function) not in (FeedForward, GatedFeedForward):
                return f"its feed-forward is a {type(function).__name__}"
        elif reason := _odd_heads(function, patterns):
            return reason
    return None


def _odd_heads(function: nn.Module, patterns: Sequence[Pattern]) -> str | None:
    if not isinstance(function, Heads) or function.kind != "scaled":
        return "attention must be scaled dot products"
    if function.sizes.value_width != function.sizes.head_width or not isinstance(function.output, nn.Linear):
        return "keys and values must be equally wide and heads mixed at the end"
    if function.sizes.heads * function.sizes.head_width != function.output.out_features:
        return "heads must make up the model's width"
    if isinstance(function, SelfAttention):
        if function.rotary is not None and not function.rotary.fixed:
            return "angles of positions must not change while a text grows"
        if function.pattern not in patterns:
            return "every earlier token must be seen"
    return None


def _joined(tensor: Tensor) -> Floats:
    """(sources, heads, positions, width) → (sources, positions, heads · width)"""
    return floats(tensor.transpose(1, 2).flatten(2))
