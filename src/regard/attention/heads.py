"""Attention in several heads: every query its own, keys and values shared as widely as the layout says.

As many key heads as query heads is multi-head attention (Vaswani et al. 2017, §3.2.2), one is multi-query (Shazeer
2019), a number between is grouped-query (Ainslie et al. 2023). Self-attention makes keys and values from its own input
and keeps them in a cache; cross-attention is handed keys and values made from the encoder's output, by a projection of
its own or by one shared by all layers.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from regard.attention.attend import attend, attend_and_show
from regard.attention.cache import KeyValue, LayerState, Store
from regard.attention.context import Context, Inside
from regard.attention.pattern import Pattern
from regard.attention.patterns import read_pattern
from regard.attention.position import PositionConfig
from regard.attention.ring import RingStore
from regard.attention.rotary import Rotary, rotate
from regard.attention.scope import Scope
from regard.attention.similarity import Cosine, Dot, ScaledDot, Similarity
from regard.config import Config, ConfigError


def _known_pattern(text: str) -> str:
    read_pattern(text)
    return text


PatternText = Annotated[str, AfterValidator(_known_pattern)]
"""What a token may see, such as "sliding(512)"; a decoder adds that nothing later is seen."""


class HeadsConfig(Config):
    """Heads that each have their own queries. Widths left out follow from the model's width."""

    kind: Literal["heads"] = "heads"
    heads: int = Field(default=8, ge=1)
    key_heads: int | None = Field(default=None, ge=1)
    """How many heads keys and values have: all of them if not given, 1 for multi-query."""
    head_width: int | None = Field(default=None, ge=1)
    value_width: int | None = Field(default=None, ge=1)
    similarity: Literal["scaled", "dot", "cosine"] = "scaled"
    pattern: PatternText = "full"
    bias: bool = True
    output: bool = True
    """Whether the heads are mixed by a projection at the end (W^O)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)

    def sizes(self, width: int) -> "HeadSizes":
        """All widths and counts for a model of this width."""
        key_heads = self.heads if self.key_heads is None else self.key_heads
        if self.heads % key_heads:
            raise ConfigError(
                "key_heads", f"{self.heads} heads cannot share {key_heads} key heads evenly; choose a divisor of heads."
            )
        head_width = width_of_heads(self.heads, self.head_width, width)
        value_width = head_width if self.value_width is None else self.value_width
        if not self.output and self.heads * value_width != width:
            raise ConfigError(
                "output", f"without it {self.heads} heads of {value_width} values must make the width {width}."
            )
        return HeadSizes(self.heads, key_heads, head_width, value_width)

    def turned_width(self, width: int, position: PositionConfig) -> int:
        """How much of a head rotary positions turn: all of it."""
        return self.sizes(width).head_width

    def cached(self, width: int) -> int:
        """How many numbers a token leaves in a layer's cache: its keys and values."""
        sizes = self.sizes(width)
        return sizes.key_heads * (sizes.head_width + sizes.value_width)

    def remembered(self, width: int) -> int:
        """How many numbers a token of the source leaves there, for each projection of it."""
        return self.cached(width)

    def self_attention(self, width: int, pattern: Pattern, rotary: Rotary | None) -> "SelfAttention":
        return SelfAttention(self, width, pattern, rotary)

    def cross_attention(self, width: int, shared_memory: bool = False) -> "CrossAttention":
        return CrossAttention(self, width, None if shared_memory else self.memory_projection(width))

    def memory_projection(self, width: int) -> "KeyValueProjection":
        return KeyValueProjection(self, width)


@dataclass(frozen=True)
class HeadSizes:
    """The numbers behind a layout of heads."""

    heads: int
    key_heads: int
    head_width: int
    value_width: int


def width_of_heads(heads: int, head_width: int | None, width: int) -> int:
    """How wide a head is: as given, or its share of the model's width."""
    if head_width is not None:
        return head_width
    if width % heads:
        raise ConfigError(
            "heads", f"{heads} heads do not divide the width {width}; choose a divisor, or give head_width."
        )
    return width // heads


class KeyValueProjection(nn.Module):
    """Makes keys and values from what is to be looked at."""

    def __init__(self, config: HeadsConfig, width: int) -> None:
        super().__init__()
        sizes = config.sizes(width)
        self.heads = sizes.key_heads
        self.key = nn.Linear(width, sizes.key_heads * sizes.head_width, bias=config.bias)
        self.value = nn.Linear(width, sizes.key_heads * sizes.value_width, bias=config.bias)

    def forward(self, x: Tensor) -> KeyValue:
        """x: # (batch, keys, width)"""
        return split_heads(self.key(x), self.heads), split_heads(self.value(x), self.heads)


class Attention(nn.Module):
    """What every kind of attention has in common: attend in every head, show the weights, mix the heads."""

    sizes: HeadSizes
    heads: int
    dropout: float
    output: nn.Module
    kind: str
    """How queries and keys are compared."""

    def similarity(self) -> Similarity:
        raise NotImplementedError

    def weighed(self, query: Tensor, key: Tensor, value: Tensor, scope: Scope, context: Context) -> Tensor:
        """Attend in every head.  # (batch, heads, queries, value width)"""
        dropout = self.dropout if self.training else 0.0
        group = query.shape[0] // key.shape[0]
        query = _fold(query, group)
        if context.watch is None:
            mixed = attend(query, key, value, scope, similarity=self.similarity(), dropout=dropout)
        else:
            if isinstance(context.watch, Inside):
                context.watch.inside(self, query, key, value, scope)
            mixed, weights = attend_and_show(query, key, value, scope, similarity=self.similarity(), dropout=dropout)
            context.watch(self, _unfold(_at_positions(weights, scope, context.extent), group))
        return _unfold(mixed, group)

    def joined(self, mixed: Tensor) -> Tensor:
        """Put the heads together again.  (batch, heads, queries, value width) → (batch, queries, width)"""
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return output

    def mix(self, query: Tensor, key: Tensor, value: Tensor, scope: Scope, context: Context) -> Tensor:
        """Attend in every head and put the heads together again.  # (batch, queries, width)"""
        return self.joined(self.weighed(query, key, value, scope, context))


class OwnAttention(Attention):
    """Attention of tokens to each other, and while decoding to those before them in the cache."""

    pattern: Pattern
    rotary: Rotary | None
    cached: int
    """How many numbers a token leaves in the cache."""

    def store(self, capacity: int) -> Store:
        """Room for what this attention keeps of up to `capacity` tokens, or of what its window reaches."""
        fixed = self.rotary is None or self.rotary.fixed  # else keys are turned anew, by where they stand
        horizon = self.pattern.horizon() if self.pattern.causal and fixed else None
        return Store(capacity) if horizon is None else RingStore(capacity, horizon)

    def keep(self, key: Tensor, value: Tensor, context: Context, state: LayerState) -> tuple[Tensor, Tensor, Scope]:
        """Turn the keys by their positions and put both behind those in the cache: all there is, and what is seen.

        Keys whose angles change as the text grows are kept as they are, and turned when read.
        """
        if self.rotary is not None and self.rotary.fixed:
            key = rotate(key, context.rotation(self.rotary))
        if state.own is not None:
            key, value = state.own.append(key, value, context)
        if self.rotary is not None and not self.rotary.fixed:
            key = rotate(key, context.past_rotation(self.rotary))
        scope = context.own(self.pattern) if state.own is None else state.own.scope(context, self.pattern)
        return key, value, scope


class OtherAttention(Attention):
    """Attention of tokens to the encoder's output, of which what they look at waits in the layer's state.

    `source` makes it; it is None where one projection serves all layers and lives outside of them.
    """

    source: nn.Module | None


class Heads(Attention):
    """The part self- and cross-attention have in common: make queries, compare them with keys."""

    def __init__(self, config: HeadsConfig, width: int) -> None:
        super().__init__()
        self.sizes = sizes = config.sizes(width)
        self.heads, self.dropout = sizes.heads, config.dropout
        self.query = nn.Linear(width, sizes.heads * sizes.head_width, bias=config.bias)
        self.output = (
            nn.Linear(sizes.heads * sizes.value_width, width, bias=config.bias) if config.output else nn.Identity()
        )
        self.kind = config.similarity
        if config.similarity == "cosine":
            # At √d_k the scores have the spread they would have without normalisation.
            self.scale = nn.Parameter(torch.full((sizes.heads, 1, 1), sizes.head_width**0.5))  # (heads, 1, 1)

    def similarity(self) -> Similarity:
        if self.kind == "cosine":
            return Cosine(self.scale)
        return Dot() if self.kind == "dot" else ScaledDot()


class SelfAttention(Heads, OwnAttention):
    """Tokens look at each other, and while decoding at those before them in the cache."""

    source: KeyValueProjection

    def __init__(self, config: HeadsConfig, width: int, pattern: Pattern, rotary: Rotary | None = None) -> None:
        super().__init__(config, width)
        self.source = KeyValueProjection(config, width)
        self.pattern, self.rotary, self.cached = pattern, rotary, config.cached(width)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, queries, width)"""
        key, value = self.source(x)
        return self.joined(self.seen(split_heads(self.query(x), self.heads), key, value, context, state))

    def seen(self, query: Tensor, key: Tensor, value: Tensor, context: Context, state: LayerState) -> Tensor:
        """What each head sees, queries, keys and values made.  each: # (batch, heads, queries, width)"""
        if self.rotary is not None:
            query = rotate(query, context.rotation(self.rotary))
        key, value, scope = self.keep(key, value, context, state)
        return self.weighed(query, key, value, scope, context)


class CrossAttention(Heads, OtherAttention):
    """Tokens look at the encoder's output, whose keys and values were made once."""

    source: KeyValueProjection | None

    def __init__(self, config: HeadsConfig, width: int, source: KeyValueProjection | None) -> None:
        super().__init__(config, width)
        self.source = source

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, queries, width)"""
        assert state.memory is not None
        key, value = state.memory
        scope = context.other(key.shape[0], key.shape[2])
        return self.mix(split_heads(self.query(x), self.heads), key, value, scope, context)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads · width) → (batch, heads, length, width)"""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def _at_positions(weights: Tensor, scope: Scope, positions: int) -> Tensor:
    """Weights of keys that do not stand in their order, put where they belong.  # (rows, heads, queries, positions)"""
    if scope.places is None:
        return weights
    there = scope.places.clamp(min=0)[:, None, None].expand_as(weights)
    return weights.new_zeros(*weights.shape[:3], positions).scatter_add(3, there, weights)  # nobody sees no position


def _fold(query: Tensor, group: int) -> Tensor:
    """Rows that look at the same keys become queries of one row.  (rows · group, heads, queries, width)"""
    if group == 1:
        return query
    rows, heads, queries, width = query.shape
    side_by_side = query.view(rows // group, group, heads, queries, width).transpose(1, 2)
    return side_by_side.reshape(rows // group, heads, group * queries, width)


def _unfold(mixed: Tensor, group: int) -> Tensor:
    """(rows, heads, group · queries, width) → (rows · group, heads, queries, width)"""
    if group == 1:
        return mixed
    rows, heads, queries, width = mixed.shape
    apart = mixed.view(rows, heads, group, queries // group, width).transpose(1, 2)
    return apart.reshape(rows * group, heads, queries // group, width)
