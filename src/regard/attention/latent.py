"""Multi-head latent attention (MLA; DeepSeek-AI 2024, "DeepSeek-V2", §2.1).

A token is projected down to a narrow latent, which is normalized, and each head projects its keys and values up from
it. A key that was rotated by its position could not be computed from the latent later, so RoPE has its own features:
`rope_head_dim` of each head's query, and as many of one key that all heads share. The cache holds the latent and that
key, and nothing else.

The result can be computed in two orders:

- *naive*: project keys and values up for every token and head, then attend as usual;
- *absorbed*: q · (U c) = (Uᵀ q) · c, so the up-projection of the keys is absorbed into the query, and that of the
  values is applied to the output of attention. All heads then share one key, the latent concatenated with the RoPE key,
  and the latent is its value.

With n queries and m keys, head_dim h, rope_head_dim r, value_head_dim v and a latent of c, a head takes m·c·(h + v) +
n·m·(h + r + v) multiplications in the naive order and n·c·(h + v) + n·m·(2c + r) in the absorbed one. When all tokens
are processed at once (n = m), as in training, the naive order is cheaper for any latent wider than the mean of h and v.
In a decoding step (n = 1) it would project all cached tokens for one query: the absorbed order is cheaper by about c·(h
+ v) / (2c + r), for DeepSeek-V2 a factor of 120. Therefore the naive order is used without a cache, and with a cache
whichever takes fewer multiplications: absorbed for steps, naive for a long prompt. On a GPU a step has its own kernel
(kernels/cuda/mla_decode.py), which reads each latent once.

RoPE pairs the features n and n + rope_head_dim/2, as everywhere here (see positions/rotary.py). DeepSeek's weights pair
neighbors: their rows 0, 2, 4, … of each rotated part (of every head's query, and of the shared key) come first in ours,
then their rows 1, 3, 5, ….
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.attend import Dot
from regard.attention.context import Context
from regard.attention.kv_cache import KeyValue, LayerState
from regard.attention.mask import Mask
from regard.attention.multi_head import (
    Attention,
    CrossAttentionBase,
    HeadSizes,
    PatternText,
    SelfAttentionBase,
    head_dim_for,
    split_heads,
)
from regard.attention.pattern import Pattern
from regard.attention.positions.config import PositionConfig, RotaryConfig
from regard.attention.positions.rotary import Rotary, apply_rotary
from regard.config import Config, ConfigError
from regard.kernels.dispatch import has_triton

Form = Literal["naive", "absorbed"]


class LatentAttentionConfig(Config):
    """Multi-head latent attention (DeepSeek-V2). Sizes that are left out follow from the model's width."""

    kind: Literal["latent"] = "latent"
    heads: int = Field(default=8, ge=1, le=100_000)
    """The number of attention heads."""
    kv_latent: int = Field(ge=1, le=1_000_000)
    """The width of the latent of keys and values (DeepSeek's kv_lora_rank)."""
    query_latent: int | None = Field(default=None, ge=1, le=1_000_000)
    """The width of the latent of queries (q_lora_rank). If not given, queries are projected from the input directly."""
    head_dim: int | None = Field(default=None, ge=1, le=1_000_000)
    """The features of a head's queries and keys without RoPE (qk_nope_head_dim); by default the model's width divided
    by `heads`."""
    rope_head_dim: int = Field(default=0, ge=0, le=1_000_000)
    """The additional features with RoPE (qk_rope_head_dim); 0 with other positional encodings."""
    value_head_dim: int | None = Field(default=None, ge=1, le=1_000_000)
    """The features of a head's values; by default `head_dim`."""
    scale: float | None = Field(default=None, gt=0, le=1e3)
    """The scale of the scores; by default 1 / √(head_dim + rope_head_dim)."""
    eps: float = Field(default=1e-6, gt=0, le=1)
    """The epsilon of the latents' norms."""
    pattern: PatternText = "full"
    """The attention pattern: which keys a query may attend to. Write full, causal, sliding(window), dilated(window,
    step) or global(tokens), combined by & and |, for example "global(4) | sliding(512)". A decoder makes it causal."""
    bias: bool = False
    """Whether the down-projections and the output projection have a bias; up-projections never do."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """The dropout probability of attention weights."""

    # Settings that other kinds of attention have, and that are fixed here.
    similarity: ClassVar[Literal["latent"]] = "latent"
    output_projection: ClassVar[bool] = True

    def sizes(self, width: int) -> HeadSizes:
        """The sizes of the heads in a model of this width, in the naive order."""
        head_dim = head_dim_for(self.heads, self.head_dim, width)
        value_head_dim = head_dim if self.value_head_dim is None else self.value_head_dim
        return HeadSizes(self.heads, self.heads, head_dim + self.rope_head_dim, value_head_dim)

    def rope_dim(self, width: int, position: PositionConfig) -> int:
        """The number of features of a head that RoPE rotates."""
        rotary = isinstance(position, RotaryConfig)
        if rotary and (self.rope_head_dim == 0 or self.rope_head_dim % 2):
            raise ConfigError(
                "rope_head_dim",
                f"found {self.rope_head_dim}; RoPE rotates pairs of features, so choose an even number of at least 2.",
            )
        if not rotary and self.rope_head_dim:
            raise ConfigError(
                "rope_head_dim",
                f"found {self.rope_head_dim}; expected 0, because this model's positions are not rotary.",
            )
        return self.rope_head_dim

    def kv_features(self, width: int) -> int:
        """The features that a token adds to a layer's KV cache: its latent, and the RoPE key that all heads share."""
        return self.kv_latent + self.rope_head_dim

    def cross_kv_features(self, width: int) -> int:
        """The features that a source token adds to it, for each projection: its latent."""
        return self.kv_latent

    def self_attention(self, width: int, pattern: Pattern, rotary: Rotary | None) -> "LatentSelfAttention":
        return LatentSelfAttention(self, width, pattern, rotary)

    def cross_attention(self, width: int, shared_kv: bool = False) -> "LatentCrossAttention":
        return LatentCrossAttention(self, width, shared_kv)

    def kv_projection(self, width: int) -> "LatentKVProjection":
        """The projection to latents of the encoder's output that all cross-attention layers share."""
        return LatentKVProjection(self, width)


@dataclass(frozen=True, eq=False)
class HeadsAsQueries(Pattern):
    """A mask for heads that are laid out as further queries of one head.

    If heads share a key, SDPA copies it for each of them. As queries of one head they share it without copies: for one
    token after 2,048 others, 8 heads and a latent of 128 that is about 50 times as fast on a CPU.
    """

    mask: Mask
    heads: int
    queries: int
    """The tokens of a row; the heads of a row are adjacent."""

    @classmethod
    def of(cls, mask: Mask, heads: int, queries: int) -> Mask:
        pattern = cls(mask, heads, queries)
        return pattern.bind(heads * mask.queries, mask.keys, rows=mask.rows, start=0, device=mask.device)

    @property
    def same_for_all_rows(self) -> bool:
        return self.mask.same_for_all_rows

    def allows_all(self, start: int, queries: int, keys: int) -> bool:
        return self.mask.is_full

    def allows(self, row: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if self.mask.queries == 1:  # all heads of one token have the same mask
            return self.mask.allows(row, torch.zeros_like(row), key)
        of_row = query // (self.heads * self.queries) * self.queries
        return self.mask.allows(row, of_row + query % self.queries, key)


class LowRankLinear(nn.Module):
    """A low-rank linear layer with a norm in between."""

    def __init__(self, config: LatentAttentionConfig, width: int, middle: int, wide: int) -> None:
        super().__init__()
        self.down_proj = nn.Linear(width, middle, bias=config.bias)
        self.norm = nn.RMSNorm(middle, eps=config.eps)
        self.up_proj = nn.Linear(middle, wide, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.up_proj(self.norm(self.down_proj(x)))
        return output


class HasLatentProjections(nn.Module):
    """The projections to what is cached of each token: the shared RoPE key and the latent."""

    kv_down_proj: nn.Linear
    kv_norm: nn.RMSNorm
    k_rope_proj: nn.Linear | None

    def add_kv_projections(self, config: LatentAttentionConfig, width: int, rope_head_dim: int) -> None:
        self.kv_down_proj = nn.Linear(width, config.kv_latent, bias=config.bias)
        self.kv_norm = nn.RMSNorm(config.kv_latent, eps=config.eps)
        self.k_rope_proj = nn.Linear(width, rope_head_dim, bias=config.bias) if rope_head_dim else None

    def project_kv(self, x: Tensor) -> KeyValue:
        """x: # (batch, keys, width); returns (batch, 1, keys, rope_head_dim) and (batch, 1, keys, latent)"""
        latent = split_heads(self.kv_norm(self.kv_down_proj(x)), 1)
        if self.k_rope_proj is None:
            return latent.new_empty(*latent.shape[:3], 0), latent
        return split_heads(self.k_rope_proj(x), 1), latent


class LatentKVProjection(HasLatentProjections):
    """Projects the encoder's output to latents once, for all layers; they have no RoPE key."""

    def __init__(self, config: LatentAttentionConfig, width: int) -> None:
        super().__init__()
        self.add_kv_projections(config, width, rope_head_dim=0)

    def forward(self, x: Tensor) -> KeyValue:
        """x: # (batch, keys, width)"""
        return self.project_kv(x)


class LatentAttention(Attention):
    """The common part of self- and cross-attention: queries, up-projections and both orders."""

    form: Form | None = None
    """The order to use; None selects it automatically (see the top of this file)."""

    def __init__(self, config: LatentAttentionConfig, width: int, rope_head_dim: int) -> None:
        super().__init__()
        head_dim = head_dim_for(config.heads, config.head_dim, width)
        full_dim, value_head_dim = head_dim + rope_head_dim, config.sizes(width).value_head_dim
        self.sizes = HeadSizes(config.heads, config.heads, full_dim, value_head_dim)
        self.heads, self.dropout, self.kind = config.heads, config.dropout, config.similarity
        self.head_dims = (head_dim, rope_head_dim)
        self.scale = full_dim**-0.5 if config.scale is None else config.scale
        self.q_proj = (
            nn.Linear(width, self.heads * full_dim, bias=False)
            if config.query_latent is None
            else LowRankLinear(config, width, config.query_latent, self.heads * full_dim)
        )
        self.k_up_proj = nn.Linear(config.kv_latent, self.heads * head_dim, bias=False)
        self.v_up_proj = nn.Linear(config.kv_latent, self.heads * value_head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * value_head_dim, width, bias=config.bias)

    def similarity(self) -> Dot:
        return Dot(self.scale)

    def attend_latents(
        self, query: Tensor, cached: KeyValue, mask: Mask, context: Context, state: LayerState
    ) -> Tensor:
        """Attention of queries over RoPE keys and latents.  # (batch, queries, width)

        query: # (batch, heads, queries, head_dim + rope_head_dim), the last part rotated
        """
        form = self.form
        if form is None:
            form = "absorbed" if state.self_kv is not None and self._saves(query, cached[1]) else "naive"
        attend = self._absorbed if form == "absorbed" else self._naive
        return attend(query, cached, mask, context)

    def _saves(self, query: Tensor, latent: Tensor) -> bool:
        """Whether the absorbed order takes fewer multiplications (see the top of this file)."""
        keys, size = latent.shape[2:]
        queries = query.shape[0] * query.shape[2] // latent.shape[0]  # rows that attend to the same keys count together
        head_dim, rope_head_dim = self.head_dims
        projected = head_dim + self.sizes.value_head_dim
        naive = keys * size * projected + queries * keys * (projected + rope_head_dim)
        return queries * size * projected + queries * keys * (2 * size + rope_head_dim) < naive

    def _naive(self, query: Tensor, cached: KeyValue, mask: Mask, context: Context) -> Tensor:
        rope_key, latent = cached[0], cached[1].squeeze(1)
        key, value = (split_heads(up(latent), self.heads) for up in (self.k_up_proj, self.v_up_proj))
        key = torch.cat((key, rope_key.expand(-1, self.heads, -1, -1)), dim=-1)
        return self.attend_and_merge(query, key, value, mask, context)

    def _absorbed(self, query: Tensor, cached: KeyValue, mask: Mask, context: Context) -> Tensor:
        rope_key, latent = cached
        plain, rotated = query.split(self.head_dims, dim=-1)
        key_up, value_up = (each.weight.unflatten(0, (self.heads, -1)) for each in (self.k_up_proj, self.v_up_proj))
        query = torch.cat((plain @ key_up, rotated), dim=-1)  # (batch, heads, queries, latent + rope_head_dim)
        dropping = self.training and self.dropout > 0
        if context.attention_hook is None and not dropping and _has_decode_kernel(query, mask):
            from regard.kernels.cuda.mla_decode import mla_decode

            allowed = None if mask.is_full else mask.dense()[:, 0, 0].expand(-1, latent.shape[2])
            mixed = mla_decode(query[:, :, 0], rope_key.squeeze(1), latent.squeeze(1), allowed, self.scale)
            return self.merge_heads(mixed[:, :, None] @ value_up.mT)
        shape = (*query.shape[:3], latent.shape[3])
        key = torch.cat((latent, rope_key), dim=-1)  # (batch, 1, keys, latent + rope_head_dim)
        if context.attention_hook is None:  # a hook receives the heads separately
            mask = HeadsAsQueries.of(mask, self.heads, query.shape[2])
            query = query.flatten(1, 2)[:, None]
        mixed = self.attend_heads(query, key, latent, mask, context).reshape(shape)
        return self.merge_heads(mixed @ value_up.mT)


def _has_decode_kernel(query: Tensor, mask: Mask) -> bool:
    """Whether the MLA decode kernel applies: one token per row on a GPU, without gradients."""
    if not query.is_cuda or query.dtype == torch.float64 or query.shape[2] != 1 or not has_triton():
        return False
    needs_grad = torch.is_grad_enabled() and query.requires_grad
    return not needs_grad and (mask.is_full or mask.dense().shape[2] == 1)


class LatentSelfAttention(HasLatentProjections, LatentAttention, SelfAttentionBase):
    """Latent self-attention."""

    def __init__(
        self, config: LatentAttentionConfig, width: int, pattern: Pattern, rotary: Rotary | None = None
    ) -> None:
        super().__init__(config, width, config.rope_head_dim)
        self.add_kv_projections(config, width, config.rope_head_dim)
        self.pattern, self.rotary, self.kv_features = pattern, rotary, config.kv_features(width)

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, queries, width)"""
        query = split_heads(self.q_proj(x), self.heads)
        if self.rotary is not None:
            plain, rotated = query.split(self.head_dims, dim=-1)
            query = torch.cat((plain, apply_rotary(rotated, context.rotation(self.rotary))), dim=-1)
        rope_key, latent = self.project_kv(x)
        rope_key, latent, mask = self.update_cache(rope_key, latent, context, state)
        return self.attend_latents(query, (rope_key, latent), mask, context, state)


class LatentCrossAttention(HasLatentProjections, LatentAttention, CrossAttentionBase):
    """Latent cross-attention; the encoder's latents were computed once."""

    def __init__(self, config: LatentAttentionConfig, width: int, shared_kv: bool = False) -> None:
        super().__init__(config, width, rope_head_dim=0)
        self.shared_kv = shared_kv
        if not shared_kv:
            self.add_kv_projections(config, width, rope_head_dim=0)

    def kv_modules(self) -> list[nn.Module]:
        return [] if self.shared_kv else [self.kv_down_proj, self.kv_norm]

    def forward(self, x: Tensor, context: Context, state: LayerState) -> Tensor:
        """x: # (batch, queries, width)"""
        assert state.cross_kv is not None
        latent = state.cross_kv[1]
        mask = context.cross_mask(latent.shape[0], latent.shape[2])
        return self.attend_latents(split_heads(self.q_proj(x), self.heads), state.cross_kv, mask, context, state)
