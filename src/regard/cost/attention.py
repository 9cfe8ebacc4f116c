"""The cost of attention: multi-head (also grouped-query), and multi-head latent attention (MLA).

Fused attention saves queries, keys, values, its output, and the float32 log-sum-exp of each softmax. A CPU has no fused
kernel with dropout on the attention weights, or for values that are not as wide as keys: it then saves the weights, and
with dropout the mask and the weights after it.

Latent attention (attention/latent.py) computes keys and values from the latent in every layer, also for the source:
only the source's latents are computed up front, and the up projections belong to each layer. A decoding step takes
whichever order of matmuls needs fewer FLOPs, naive or absorbed.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from regard.attention import LatentAttentionConfig, MultiHeadConfig
from regard.attention.multi_head import HeadSizes
from regard.cost.op_cost import Device, OpCost, norm_cost
from regard.model.stack import AnyAttention

AnyConfig = TypeVar("AnyConfig", MultiHeadConfig, LatentAttentionConfig)


def attention_cost(
    config: AnyAttention, width: int, device: Device
) -> "AttentionCost[MultiHeadConfig] | AttentionCost[LatentAttentionConfig]":
    """The costs of an attention layer with these settings in a model of this width."""
    if isinstance(config, LatentAttentionConfig):
        return LatentAttentionCost(config, width, device)
    return MultiHeadCost(config, width, device)


@dataclass(frozen=True)
class AttentionCost(ABC, Generic[AnyConfig]):
    """The costs of one attention layer for one row."""

    config: AnyConfig
    width: int
    device: Device

    @property
    @abstractmethod
    def shares_cross_kv(self) -> bool:
        """Whether layers that share the source's keys and values save them once, all of them together."""

    @abstractmethod
    def self_attention(self, tokens: int, pairs: int, rotary: bool) -> OpCost:
        """Self-attention; `pairs` is the number of (query, key) pairs that are computed."""

    @abstractmethod
    def cross_attention(self, queries: int, keys: int) -> OpCost:
        """Cross-attention to a source whose keys and values (or latents) are already projected."""

    @abstractmethod
    def kv_projection(self, keys: int) -> OpCost:
        """The FLOPs that project a source to keys and values (or latents), for one layer or for all that share them."""

    @abstractmethod
    def projected_kv(self, keys: int) -> OpCost:
        """The source's keys and values as projected, for one layer or for all that share them."""

    @abstractmethod
    def attended_kv(self, keys: int) -> OpCost:
        """The same as the attention kernel saves them."""

    @abstractmethod
    def extra_kv(self, keys: int) -> OpCost:
        """What attention saves of them on top of `projected_kv`."""

    @abstractmethod
    def decode_self_attention(self, visible: int) -> OpCost:
        """The FLOPs of one new token that attends to `visible` tokens in the KV cache, itself included."""

    @abstractmethod
    def decode_cross_attention(self, keys: int) -> OpCost:
        """The FLOPs of one new token that attends to a source."""

    def _is_fused(self, sizes: HeadSizes) -> bool:
        return self.device == "cuda" or (self.config.dropout == 0 and sizes.head_dim == sizes.value_head_dim)

    def _attend(self, sizes: HeadSizes, queries: int, keys: int, pairs: int, rotary: bool) -> OpCost:
        """Attention and the output projection: queries, attention weights where not fused, and the result are saved."""
        query_size, output_size = queries * sizes.heads * sizes.head_dim, queries * sizes.heads * sizes.value_head_dim
        cost = _attention_matmuls(sizes, pairs)
        if self.config.output_projection:
            cost += OpCost(flops=2 * self.width * output_size)
        if self._is_fused(sizes):
            # Rotated queries are stored head by head, and so is the result: the output projection needs a copy of it.
            saved = (2 if rotary and self.config.output_projection else 1) * output_size
            return cost + OpCost(saved=query_size + saved, float32_values=queries * sizes.heads)
        weights, dropout = sizes.heads * queries * keys, self.config.dropout > 0
        saved = (2 if dropout else 1) * weights + output_size * self.config.output_projection
        return cost + OpCost(saved=query_size + saved, dropout_masks=weights * dropout)


class MultiHeadCost(AttentionCost[MultiHeadConfig]):
    """Multi-head attention, also with fewer key/value heads than query heads."""

    @property
    def sizes(self) -> HeadSizes:
        return self.config.sizes(self.width)

    @property
    def shares_cross_kv(self) -> bool:
        return self._is_fused(self.sizes)

    def self_attention(self, tokens: int, pairs: int, rotary: bool) -> OpCost:
        kv = self.kv_projection(tokens) + self.attended_kv(tokens)
        return kv + self._project_and_attend(tokens, tokens, pairs, rotary)

    def cross_attention(self, queries: int, keys: int) -> OpCost:
        return self._project_and_attend(queries, keys, queries * keys, False)

    def kv_projection(self, keys: int) -> OpCost:
        return OpCost(flops=2 * self.width * keys * self.config.kv_features(self.width))

    def projected_kv(self, keys: int) -> OpCost:
        return OpCost(saved=keys * self.config.cross_kv_features(self.width))

    def attended_kv(self, keys: int) -> OpCost:
        """Without a fused kernel keys and values are repeated for each query head; cosine also saves the raw keys."""
        sizes = self.sizes
        heads = sizes.kv_heads if self._is_fused(sizes) else sizes.heads
        saved = keys * heads * (sizes.head_dim + sizes.value_head_dim)
        if self.config.similarity == "cosine":
            raw_keys = keys * sizes.kv_heads * sizes.head_dim
            return OpCost(saved=saved + raw_keys, float32_values=2 * keys * sizes.kv_heads)
        return OpCost(saved=saved)

    def extra_kv(self, keys: int) -> OpCost:
        attended = self.attended_kv(keys)
        return attended + self.projected_kv(keys) * -1 if self.shares_cross_kv else attended

    def decode_self_attention(self, visible: int) -> OpCost:
        return self.kv_projection(1) + self.decode_cross_attention(visible)

    def decode_cross_attention(self, keys: int) -> OpCost:
        return self._project_and_attend(1, keys, keys, False).flops_only

    def _project_and_attend(self, queries: int, keys: int, pairs: int, rotary: bool) -> OpCost:
        sizes = self.sizes
        query_size = queries * sizes.heads * sizes.head_dim
        projection = OpCost(flops=2 * self.width * query_size)
        if self.config.similarity == "cosine":  # raw and normalized, beside the scaled ones
            projection += OpCost(saved=2 * query_size, float32_values=2 * queries * sizes.heads)
        return projection + self._attend(sizes, queries, keys, pairs, rotary)


class LatentAttentionCost(AttentionCost[LatentAttentionConfig]):
    """Multi-head latent attention: all heads compute their keys and values from one latent per token."""

    @property
    def shares_cross_kv(self) -> bool:
        return True

    def self_attention(self, tokens: int, pairs: int, rotary: bool) -> OpCost:
        rope_key = OpCost(flops=2 * tokens * self.width * self.config.rope_head_dim)
        latents = self.kv_projection(tokens) + self.projected_kv(tokens) + rope_key
        return latents + self._naive(self._self_sizes, tokens, tokens, pairs, rotary)

    def cross_attention(self, queries: int, keys: int) -> OpCost:
        return self._naive(self._cross_sizes, queries, keys, queries * keys, False)

    def kv_projection(self, keys: int) -> OpCost:
        return OpCost(flops=2 * keys * self.width * self.config.kv_latent)

    def projected_kv(self, keys: int) -> OpCost:
        """The latents, and what their norm saves."""
        return norm_cost(keys, self.config.kv_latent, "rms", self.device)

    def attended_kv(self, keys: int) -> OpCost:
        return self.projected_kv(keys)

    def extra_kv(self, keys: int) -> OpCost:
        return OpCost()

    def decode_self_attention(self, visible: int) -> OpCost:
        rope_key = OpCost(flops=2 * self.width * self.config.rope_head_dim)
        return self.kv_projection(1) + rope_key + self._decode(self._self_sizes, visible)

    def decode_cross_attention(self, keys: int) -> OpCost:
        return self._decode(self._cross_sizes, keys)

    @property
    def _self_sizes(self) -> HeadSizes:
        """Self-attention: heads include the part that RoPE rotates."""
        return self.config.sizes(self.width)

    @property
    def _cross_sizes(self) -> HeadSizes:
        """Cross-attention: heads without the rotated part."""
        return replace(self._self_sizes, head_dim=self._self_sizes.head_dim - self.config.rope_head_dim)

    def _project_queries(self, sizes: HeadSizes, queries: int) -> OpCost:
        """The query projection, through a latent where there is a query latent."""
        rank, width = self.config.query_latent, sizes.heads * sizes.head_dim
        if rank is None:
            return OpCost(flops=2 * queries * self.width * width)
        return OpCost(flops=2 * queries * rank * (self.width + width)) + norm_cost(queries, rank, "rms", self.device)

    def _naive(self, sizes: HeadSizes, queries: int, keys: int, pairs: int, rotary: bool) -> OpCost:
        """Expand every latent to keys and values first; the shared rotated key is concatenated to each head's own."""
        kv_size = keys * sizes.heads * (sizes.head_dim + sizes.value_head_dim)
        expanded = keys * sizes.heads * (self._cross_sizes.head_dim + sizes.value_head_dim)
        up_projection = OpCost(flops=2 * self.config.kv_latent * expanded, saved=kv_size)
        return up_projection + self._project_queries(sizes, queries) + self._attend(sizes, queries, keys, pairs, rotary)

    def _decode(self, sizes: HeadSizes, keys: int) -> OpCost:
        """One token with the cache, in the order with fewer FLOPs; naive if both take as many."""
        latent, head_dim = self.config.kv_latent, self._cross_sizes.head_dim
        in_latent_space = replace(sizes, head_dim=sizes.head_dim - head_dim + latent, value_head_dim=latent)
        folded = OpCost(flops=2 * sizes.heads * latent * (head_dim + sizes.value_head_dim))
        output = OpCost(flops=2 * self.width * sizes.heads * sizes.value_head_dim)
        absorbed = self._project_queries(sizes, 1) + folded + _attention_matmuls(in_latent_space, keys) + output
        naive = self._naive(sizes, 1, keys, keys, False)
        return min(naive.flops_only, absorbed.flops_only, key=lambda order: order.flops)


def _attention_matmuls(sizes: HeadSizes, pairs: int) -> OpCost:
    """QKᵀ and weights × V over so many (query, key) pairs."""
    flops = 2 * pairs * sizes.heads * (sizes.head_dim + sizes.value_head_dim)
    return OpCost(flops=flops, attention_flops=flops)
