"""Multi-head attention, with one KV head per query head or fewer.

As many KV heads as query heads is multi-head attention (Vaswani et al. 2017, §3.2.2), one is multi-query attention
(Shazeer 2019), a number in between is grouped-query attention (Ainslie et al. 2023). Self-attention projects keys and
values from its own input and appends them to the KV cache; cross-attention receives keys and values projected from the
encoder's output, by its own projection or by one that all layers share.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from regard.attention.attend import Cosine, Dot, ScaledDot, Similarity, attend, attend_with_weights
from regard.attention.context import AttentionInputsHook, Context
from regard.attention.kv_cache import KeyValue, KVBuffer, LayerState
from regard.attention.mask import Mask
from regard.attention.pattern import Pattern
from regard.attention.patterns import read_pattern
from regard.attention.positions.config import PositionConfig
from regard.attention.positions.rotary import Rotary, apply_rotary
from regard.attention.rolling_kv_cache import RollingKVBuffer
from regard.config import Config, ConfigError


def _known_pattern(text: str) -> str:
    read_pattern(text)
    return text


PatternText = Annotated[str, Field(max_length=1000), AfterValidator(_known_pattern)]
"""An attention pattern, such as "sliding(512)"; a decoder makes it causal."""


class MultiHeadConfig(Config):
    """Multi-head, grouped-query or multi-query attention. Sizes that are left out follow from the model's width."""

    kind: Literal["multi_head"] = "multi_head"
    heads: int = Field(default=8, ge=1, le=100_000)
    """The number of attention heads."""
    kv_heads: int | None = Field(default=None, ge=1, le=100_000)
    """The number of KV heads: by default that of the query heads; 1 is multi-query attention."""
    head_dim: int | None = Field(default=None, ge=1, le=1_000_000)
    """The features of a head's queries and keys; by default the model's width divided by `heads`."""
    value_head_dim: int | None = Field(default=None, ge=1, le=1_000_000)
    """The features of a head's values; by default `head_dim`."""
    similarity: Literal["scaled", "dot", "cosine"] = "scaled"
    """How the attention score of a query and a key is computed. scaled: their dot product divided by √head_dim (Vaswani
    et al. 2017, §3.2.1). dot: the dot product. cosine: their cosine similarity times a scale that each head learns
    (Henry et al. 2020)."""
    pattern: PatternText = "full"
    """The attention pattern: which keys a query may attend to. Write full, causal, sliding(window), dilated(window,
    step) or global(tokens), combined by & and |, for example "global(4) | sliding(512)". A decoder makes it causal."""
    bias: bool = True
    """Whether the projections have a bias."""
    output_projection: bool = True
    """Whether there is an output projection (W^O)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The dropout probability of attention weights."""

    def sizes(self, width: int) -> "HeadSizes":
        """The sizes of the heads in a model of this width."""
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if self.heads % kv_heads:
            raise ConfigError(
                "kv_heads", f"{kv_heads} KV heads do not divide {self.heads} heads; choose a divisor of heads."
            )
        head_dim = head_dim_for(self.heads, self.head_dim, width)
        value_head_dim = head_dim if self.value_head_dim is None else self.value_head_dim
        if not self.output_projection and self.heads * value_head_dim != width:
            raise ConfigError(
                "output_projection",
                f"without it, {self.heads} heads of value_head_dim {value_head_dim} must add up to the width {width}.",
            )
        return HeadSizes(self.heads, kv_heads, head_dim, value_head_dim)

    def rope_dim(self, width: int, position: PositionConfig) -> int:
        """The number of features of a head that RoPE rotates: all of them."""
        return self.sizes(width).head_dim

    def kv_features(self, width: int) -> int:
        """The features that a token adds to a layer's KV cache: its keys and values."""
        sizes = self.sizes(width)
        return sizes.kv_heads * (sizes.head_dim + sizes.value_head_dim)

    def cross_kv_features(self, width: int) -> int:
        """The features that a source token adds to it, for each projection of keys and values."""
        return self.kv_features(width)

    def self_attention(self, width: int, pattern: Pattern, rotary: Rotary | None) -> "SelfAttention":
        return SelfAttention(self, width, pattern, rotary)

    def cross_attention(self, width: int, shared_kv: bool = False) -> "CrossAttention":
        return CrossAttention(self, width, shared_kv)

    def kv_projection(self, width: int) -> "KVProjection":
        """The projection to keys and values that all cross-attention layers share."""
        return KVProjection(self, width)


@dataclass(frozen=True)
class HeadSizes:
    """The sizes of attention heads."""

    heads: int
    kv_heads: int
    head_dim: int
    value_head_dim: int


def head_dim_for(heads: int, head_dim: int | None, width: int) -> int:
    """The given head_dim, or the model's width divided by the number of heads."""
    if head_dim is not None:
        return head_dim
    if width % heads:
        raise ConfigError(
            "heads", f"{heads} heads do not divide the width {width}; choose a divisor, or give head_dim."
        )
    return width // heads


class Attention(nn.Module):
    """The base class of attention modules: attend in every head, call the hook, merge the heads."""

    sizes: HeadSizes
    heads: int
    dropout: float
    o_proj: nn.Module
    kind: str
    """The similarity function of queries and keys."""

    def similarity(self) -> Similarity:
        raise NotImplementedError

    def attend_heads(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, context: Context) -> Tensor:
        """Attention in every head.  # (batch, heads, queries, value_head_dim)"""
        dropout = self.dropout if self.training else 0.0
        group = query.shape[0] // key.shape[0]
        query = _fold(query, group)
        if context.attention_hook is None:
            mixed = attend(query, key, value, mask, similarity=self.similarity(), dropout=dropout)
        else:
            if isinstance(context.attention_hook, AttentionInputsHook):
                context.attention_hook.on_inputs(self, query, key, value, mask)
            mixed, weights = attend_with_weights(query, key, value, mask, similarity=self.similarity(), dropout=dropout)
            context.attention_hook(self, _unfold(_at_positions(weights, mask, context.extent), group))
        return _unfold(mixed, group)

    def merge_heads(self, mixed: Tensor) -> Tensor:
        """Concatenate and project the heads.  (batch, heads, queries, value_head_dim) → (batch, queries, width)"""
        output: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return output

    def attend_and_merge(self, query: Tensor, key: Tensor, value: Tensor, mask: Mask, context: Context) -> Tensor:
        """Attend in every head and merge the heads.  # (batch, queries, width)"""
        return self.merge_heads(self.attend_heads(query, key, value, mask, context))


class SelfAttentionBase(Attention):
    """The base class of self-attention, over the tokens themselves and, while decoding, those in the KV cache."""

    pattern: Pattern
    rotary: Rotary | None
    kv_features: int
    """The features that a token adds to the KV cache."""

    def new_buffer(self, capacity: int) -> KVBuffer:
        """A buffer for up to `capacity` tokens, or for as many as the pattern's window covers."""
        is_static = self.rotary is None or self.rotary.is_static  # otherwise keys are rotated again in every step
        lookback = self.pattern.lookback() if self.pattern.causal and is_static else None
        return KVBuffer(capacity) if lookback is None else RollingKVBuffer(capacity, lookback)

    def update_cache(
        self, key: Tensor, value: Tensor, context: Context, state: LayerState
    ) -> tuple[Tensor, Tensor, Mask]:
        """Rotate the keys, append keys and values to the cache, and return all of them with their mask.

        Keys whose rotation changes as the sequence grows are cached before rotation, and rotated when they are read.
        """
        if self.rotary is not None and self.rotary.is_static:
            key = apply_rotary(key, context.rotation(self.rotary))
        if state.self_kv is not None:
            key, value = state.self_kv.append(key, value, context)
        if self.rotary is not None and not self.rotary.is_static:
            key = apply_rotary(key, context.cache_rotation(self.rotary))
        mask = context.self_mask(self.pattern) if state.self_kv is None else state.self_kv.mask(context, self.pattern)
        return key, value, mask


class CrossAttentionBase(Attention):
    """The base class of cross-attention, over keys and values of the encoder's output in the layer's state.

    `project_kv` computes them, unless one projection outside of the layers serves all of them (`shared_kv`).
    """

    shared_kv: bool

    def project_kv(self, x: Tensor) -> KeyValue:
        """The keys and values of the encoder's output.  x: # (batch, keys, width)"""
        raise NotImplementedError

    def kv_modules(self) -> list[nn.Module]:
        """The modules that `project_kv` calls; none with `shared_kv`."""
        raise NotImplementedError


class MultiHeadAttention(Attention):
    """The common part of self- and cross-attention: the query projection, the output projection, the similarity."""

    def __init__(self, config: MultiHeadConfig, width: int) -> None:
        super().__init__()
        self.sizes = sizes = config.sizes(width)
        self.heads, self.dropout = sizes.heads, config.dropout
        self.q_proj = nn.Linear(width, sizes.heads * sizes.head_dim, bias=config.bias)
        self.o_proj = (
            nn.Linear(sizes.heads * sizes.value_head_dim, width, bias=config.bias)
            if config.output_projection
            else nn.Identity()
        )
        self.kind = config.similarity
        if config.similarity == "cosine":
            # √d_k gives the scores the standard deviation that they would have without normalization.
            self.logit_scale = nn.Parameter(torch.full((sizes.heads, 1, 1), sizes.head_dim**0.5))  # (heads, 1, 1)

    def similarity(self) -> Similarity:
        if self.kind == "cosine":
            return Cosine(self.logit_scale)
        return Dot() if self.kind == "dot" else ScaledDot()


class HasKVProjections(nn.Module):
    """The key and value projections: of one attention module, or of all cross-attention layers."""

    k_proj: nn.Linear
    v_proj: nn.Linear
    kv_heads: int

    def add_kv_projections(self, config: MultiHeadConfig, width: int) -> None:
        sizes = config.sizes(width)
        self.kv_heads = sizes.kv_heads
        self.k_proj = nn.Linear(width, sizes.kv_heads * sizes.head_dim, bias=config.bias)
        self.v_proj = nn.Linear(width, sizes.kv_heads * sizes.value_head_dim, bias=config.bias)

    def project_kv(self, x: Tensor) -> KeyValue:
        """x: # (batch, keys, width)"""
        return split_heads(self.k_proj(x), self.kv_heads), split_heads(self.v_proj(x), self.kv_heads)


class KVProjection(HasKVProjections):
    """Projects the encoder's output to keys and values once, for all layers."""

    def __init__(self, config: MultiHeadConfig, width: int) -> None:
        super().__init__()
        self.add_kv_projections(config, width)

    def forward(self, x: Tensor) -> KeyValue:
        """x: # (batch, keys, width)"""
        return self.project_kv(x)


class SelfAttention(HasKVProjections, MultiHeadAttention, SelfAttentionBase):
    """Multi-head self-attention."""

    def __init__(self, config: MultiHeadConfig, width: int, pattern: Pattern, rotary: Rotary | None = None) -> None:
        super().__init__(config, width)
        self.add_kv_projections(config, width)
        self.pattern, self.rotary, self.kv_features = pattern, rotary, config.kv_features(width)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, queries, width)"""
        key, value = self.project_kv(x)
        return self.merge_heads(
            self.attend_projected(split_heads(self.q_proj(x), self.heads), key, value, context, state)
        )

    def attend_projected(
        self, query: Tensor, key: Tensor, value: Tensor, context: Context, state: LayerState
    ) -> Tensor:
        """Attention of projected queries, keys and values.  each: # (batch, heads, queries, head_dim)"""
        if self.rotary is not None:
            query = apply_rotary(query, context.rotation(self.rotary))
        key, value, mask = self.update_cache(key, value, context, state)
        return self.attend_heads(query, key, value, mask, context)


class CrossAttention(HasKVProjections, MultiHeadAttention, CrossAttentionBase):
    """Multi-head cross-attention; the encoder's keys and values were computed once."""

    def __init__(self, config: MultiHeadConfig, width: int, shared_kv: bool = False) -> None:
        super().__init__(config, width)
        self.shared_kv = shared_kv
        if not shared_kv:
            self.add_kv_projections(config, width)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, queries, width)"""
        assert state.cross_kv is not None
        key, value = state.cross_kv
        mask = context.cross_mask(key.shape[0], key.shape[2])
        return self.attend_and_merge(split_heads(self.q_proj(x), self.heads), key, value, mask, context)

    def kv_modules(self) -> list[nn.Module]:
        return [] if self.shared_kv else [self.k_proj, self.v_proj]


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads · head_dim) → (batch, heads, length, head_dim)"""
    return x.view(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 2)


def _at_positions(weights: Tensor, mask: Mask, positions: int) -> Tensor:
    """Attention weights of a rolling buffer in the order of positions.  # (rows, heads, queries, positions)"""
    if mask.key_positions is None:
        return weights
    index = mask.key_positions.clamp(min=0)[:, None, None].expand_as(weights)
    return weights.new_zeros(*weights.shape[:3], positions).scatter_add(3, index, weights)  # unused slots have weight 0


def _fold(query: Tensor, group: int) -> Tensor:
    """Merge rows that attend to the same keys into one row with more queries.

    (rows · group, heads, queries, head_dim) → (rows, heads, group · queries, head_dim)
    """
    if group == 1:
        return query
    rows, heads, queries, width = query.shape
    grouped = query.view(rows // group, group, heads, queries, width).transpose(1, 2)
    return grouped.reshape(rows // group, heads, group * queries, width)


def _unfold(mixed: Tensor, group: int) -> Tensor:
    """The inverse of `_fold`.  (rows, heads, group · queries, head_dim) → (rows · group, heads, queries, head_dim)"""
    if group == 1:
        return mixed
    rows, heads, queries, width = mixed.shape
    ungrouped = mixed.view(rows, heads, group, queries // group, width).transpose(1, 2)
    return ungrouped.reshape(rows * group, heads, queries // group, width)
