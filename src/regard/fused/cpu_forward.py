"""The forward passes of a `CpuDecoder`: its encoder, and its decode step.

The encoder and the step are one compiled function each. Where a model has layers that these do not support, the step
runs part by part, with the help of PyTorch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.multi_head import HasKVProjections
from regard.attention.positions.absolute import Added
from regard.errors import UserError
from regard.fused.cpu_linear import LINEARS, CpuLinear, Floats, as_array, pack_layers
from regard.fused.kv_cache import CpuKVCache, LayerSizes, Workspace
from regard.fused.layers import LayerWeights, LinearWeights, NormWeights
from regard.model.embedding import EmbeddingLayer, TokenEmbedding, out_of_vocabulary
from regard.model.encoder_decoder import EncoderDecoder
from regard.model.stack import Stack

_CHUNK_TOKENS = 128
"""Source tokens that are encoded at once: so few that the activations stay in the CPU's cache."""


class Positions(NamedTuple):
    """Positional encodings that are added to embeddings, and cosine and sine of rotary positions; empty if not used.

    encodings: # (positions, width); rotary: # (positions, 2, head_dim / 2)
    """

    encodings: Floats
    rotary: Floats


class Embedding:
    """The token embeddings of a stack, and its positions."""

    def __init__(self, tokens: TokenEmbedding, layer: EmbeddingLayer, stack: Stack) -> None:
        self.table, self.scale = as_array(tokens.weight), np.float32(layer.scale)
        self.embed_positions = layer.embed_positions
        self.rotary = next((attention.rotary for attention in stack.self_attention()), None)
        self._positions = Positions(np.zeros((0, self.table.shape[1]), np.float32), np.zeros((0, 2, 0), np.float32))

    def positions(self, count: int, expected: int) -> Positions:
        """Those of at least `count` positions, or of `expected` if there are that many."""
        positions = self._positions  # another thread may assign shorter ones
        if max(map(len, positions)) < count and (self.rotary is not None or isinstance(self.embed_positions, Added)):
            limit = self.embed_positions.max_length or expected
            numbers = torch.arange(max(count, min(limit, expected)))
            encodings, rotary = positions
            if isinstance(self.embed_positions, Added):
                encodings = as_array(self.embed_positions.encode(numbers))
            if self.rotary is not None:
                rotary = as_array(torch.stack(self.rotary.rotation(numbers, len(numbers)), dim=1))
            self._positions = positions = Positions(encodings, rotary)
        return positions


class FusedEncoder:
    """An encoder in one compiled function."""

    def __init__(self, model: EncoderDecoder, precision: str) -> None:
        from regard.kernels.cpu.encoder import encode

        self.encode, self.special_tokens = encode, model.config.special_tokens
        layers = layer_weights(model.encoder)
        self.embedding = Embedding(
            model.source_embed_tokens or model.embed_tokens, model.source_embedding, model.encoder
        )
        self.weights = _pack_common(layers, precision)
        sizes = layer_sizes(layers[0])
        self.sizes = sizes.qkv, sizes.hidden
        self.attention, self.norms = _attention_args(layers), _norm_args(layers, model.encoder.final_norm)
        attentions, shared = model.decoder.cross_attention(), model.decoder.cross_kv
        projections = [
            each for each in ([*attentions] if shared is None else [shared]) if isinstance(each, HasKVProjections)
        ]
        self.cross_kv = pack_layers([LinearWeights.of(each.k_proj, each.v_proj) for each in projections], precision)
        self.layers, self.kv_width = len(attentions), len(projections[0].k_proj.weight)
        self.max_positions = model.embedding.embed_positions.max_length

    def prefill(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[CpuKVCache, Tensor]:
        """Encode sources, each followed by the end token. Gives a cache with one row for each, and first tokens."""
        end, start = self.special_tokens.eos, self.special_tokens.bos
        assert end is not None
        assert start is not None
        lengths = np.array([len(source) + 1 for source in sources])
        max_length = int(lengths.max())
        positions = self.embedding.positions(max_length, max_length)
        cross_kv = torch.zeros(2, self.layers, len(sources), max_length, self.kv_width)
        for first, last in _chunks(lengths):
            tokens = np.array([token for source in sources[first:last] for token in (*source, end)])
            if tokens.min() < 0 or tokens.max() >= len(self.embedding.table):
                raise UserError(out_of_vocabulary(torch.from_numpy(tokens), len(self.embedding.table)))
            self.encode(
                tokens,
                np.concatenate([np.arange(length) for length in lengths[first:last]]),
                np.concatenate(([0], lengths[first:last].cumsum())),
                self.embedding.table,
                *positions,
                self.embedding.scale,
                *self.attention,
                *self.norms,
                self.weights,
                self.sizes,
                self.cross_kv,
                first,
                cross_kv.numpy(),
            )
        cache = CpuKVCache(
            self.layers, len(sources), capacity, self.kv_width, cross_kv, torch.from_numpy(lengths),
            max_positions=self.max_positions,
        )  # fmt: skip
        return cache, torch.full((len(sources),), start)


def _chunks(lengths: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of sources that are encoded at once."""
    first = total = 0
    for number, length in enumerate(lengths):
        if total and total + length > _CHUNK_TOKENS:
            yield first, number
            first, total = number, 0
        total += int(length)
    yield first, len(lengths)


class FusedStep:
    """A decode step in one compiled function."""

    def __init__(
        self, layers: Sequence[LayerWeights], final_norm: nn.Module, lm_head: LinearWeights, precision: str
    ) -> None:
        from regard.kernels.cpu.decoder_step import decoder_step

        self.decoder_step, self.sizes, self.vocab_size = decoder_step, layer_sizes(layers[0]), len(lm_head.weight)
        qkv, self_out, up, down = _pack_common(layers, precision)
        query = cross_out = self_out  # not used without cross-attention
        if layers[0].query is not None:
            query = pack_layers([layer.query for layer in layers if layer.query is not None], precision)
            cross_out = pack_layers([layer.cross_out for layer in layers if layer.cross_out is not None], precision)
        self.weights = (qkv, self_out, query, cross_out, up, down, pack_layers([lm_head], precision))
        self.attention, self.norms = _attention_args(layers), _norm_args(layers, final_norm)

    def __call__(
        self, tokens: Tensor, rows: Tensor, cache: CpuKVCache, embedding: Embedding, positions: Positions
    ) -> Tensor:
        """Logits for the token after the new one of some rows.  tokens, rows: # (some,); gives (some, vocab_size)"""
        workspace = cache.workspace(self.sizes, len(rows))
        logits = torch.empty(len(rows), self.vocab_size)
        cross_keys, cross_values = cache.cross_kv.numpy()
        self.decoder_step(
            tokens.numpy(),
            cache.lengths[rows].numpy(),
            rows.numpy(),
            embedding.table,
            *positions,
            embedding.scale,
            cache.keys.numpy(),
            cache.values.numpy(),
            cache.beam_indices.numpy(),
            cross_keys,
            cross_values,
            cache.source_lengths.numpy(),
            cache.rows // cache.sources,
            *self.attention,
            *self.norms,
            self.weights,
            workspace.arrays,
            workspace.scores,
            logits.numpy(),
        )
        return logits

    def with_lm_head(self, lm_head: LinearWeights, precision: str) -> FusedStep:
        """The same step with another output projection."""
        step = copy.copy(self)
        step.vocab_size, step.weights = len(lm_head.weight), (*self.weights[:-1], pack_layers([lm_head], precision))
        return step


class UnfusedStep:
    """A decode step part by part: for activations that only PyTorch has, and for layers of different sizes."""

    def __init__(
        self, layers: Sequence[LayerWeights], final_norm: nn.Module, lm_head: LinearWeights, precision: str
    ) -> None:
        from regard.kernels.cpu import decode_attention, embedding, norm

        self.attention_kernels, self.embedding_kernels = decode_attention, embedding
        self.normalize = norm.normalize
        linear = LINEARS[precision]
        self.sizes = layer_sizes(layers[0])
        self.attention, (self.pre_norm, self.centered, _, self.eps, self.final_norm) = (
            _attention_args(layers),
            _norm_args(layers, final_norm),
        )
        self.layers = [_UnfusedLayer(layer, linear) for layer in layers]
        self.lm_head = linear(lm_head)

    def __call__(
        self, tokens: Tensor, rows: Tensor, cache: CpuKVCache, embedding: Embedding, positions: Positions
    ) -> Tensor:
        """Logits for the token after the new one of some rows.  tokens, rows: # (some,); gives (some, vocab_size)"""
        workspace, (heads, scale) = cache.workspace(self.sizes, len(rows)), self.attention
        lengths, beam_indices = cache.lengths[rows].numpy(), cache.beam_indices.numpy()
        keys, values, cross_kv = cache.keys.numpy(), cache.values.numpy(), cache.cross_kv.numpy()
        self.embedding_kernels.embed(
            tokens.numpy(), lengths, embedding.table, positions.encodings, embedding.scale, workspace.x_array
        )
        x = workspace.x
        for number, layer in enumerate(self.layers):
            inputs = self._before(x, layer.norms[0], workspace)
            qkv = layer.qkv(inputs).numpy()
            if len(positions.rotary):
                self.embedding_kernels.apply_rotary(qkv, lengths, positions.rotary, x.shape[1])
            self.attention_kernels.self_attention_decode(
                qkv, keys[number], values[number], beam_indices, rows.numpy(), lengths, heads, scale,
                workspace.scores, workspace.attended_array,
            )  # fmt: skip
            x = self._after(layer.self_out(workspace.attended, x), layer.norms[0])
            if layer.query is not None and layer.cross_out is not None:
                query = layer.query(self._before(x, layer.norms[1], workspace)).numpy()
                self.attention_kernels.cross_attention_decode(
                    query, cross_kv[0, number], cross_kv[1, number], rows.numpy(), cache.rows // cache.sources,
                    cache.source_lengths.numpy(), heads, scale, workspace.scores, workspace.attended_array,
                )  # fmt: skip
                x = self._after(layer.cross_out(workspace.attended, x), layer.norms[1])
            x = layer.down(layer.hidden(self._before(x, layer.norms[-1], workspace)), x)
            x = self._after(x, layer.norms[-1])
        return self.lm_head(self._normalize(x, self.final_norm, workspace) if len(self.final_norm) else x)

    def with_lm_head(self, lm_head: LinearWeights, precision: str) -> UnfusedStep:
        """The same step with another output projection."""
        step = copy.copy(self)
        step.lm_head = LINEARS[precision](lm_head)
        return step

    def _before(self, x: Tensor, norm: Floats, workspace: Workspace) -> Tensor:
        """The input of a sublayer."""
        return self._normalize(x, norm, workspace) if self.pre_norm else x

    def _after(self, x: Tensor, norm: Floats) -> Tensor:
        """What a sublayer leaves of the residual sum."""
        if not self.pre_norm:
            self.normalize(x.numpy(), norm[0], norm[1], self.eps, self.centered, x.numpy())
        return x

    def _normalize(self, x: Tensor, norm: Floats, workspace: Workspace) -> Tensor:
        self.normalize(x.numpy(), norm[0], norm[1], self.eps, self.centered, workspace.normed_array)
        return workspace.normed


class _UnfusedLayer:
    """The linear layers and norms of one layer."""

    def __init__(self, weights: LayerWeights, linear: type[CpuLinear]) -> None:
        self.qkv, self.self_out = linear(weights.qkv), linear(weights.self_out)
        self.query = None if weights.query is None else linear(weights.query)
        self.cross_out = None if weights.cross_out is None else linear(weights.cross_out)
        self.up, self.down = linear(weights.up), linear(weights.down)
        self.gate = None if weights.gate is None else linear(weights.gate)
        self.activation = weights.activation
        self.norms = [_norm_array(norm) for norm in weights.norms]

    def hidden(self, x: Tensor) -> Tensor:
        """The hidden layer of the feed-forward."""
        if self.gate is None:
            return self.activation(self.up(x))
        return self.activation(self.gate(x)).mul_(self.up(x))


def layer_weights(stack: Stack) -> list[LayerWeights]:
    return [LayerWeights(block) for block in stack.blocks()]


def layer_sizes(layer: LayerWeights) -> LayerSizes:
    return LayerSizes(len(layer.norms[0].weight), len(layer.qkv.weight), len(layer.up.weight), layer.heads)


def can_be_fused(layers: Sequence[LayerWeights]) -> bool:
    """Whether one compiled function can compute all layers: with ReLU, no gate, and the same sizes."""
    return all(
        layer.activation is functional.relu and layer.gate is None and layer_sizes(layer) == layer_sizes(layers[0])
        for layer in layers
    )


def _pack_common(layers: Sequence[LayerWeights], precision: str) -> tuple[Any, ...]:
    """The packed weights of the qkv, self-attention output, up and down projections of all layers."""
    linears = zip(*((layer.qkv, layer.self_out, layer.up, layer.down) for layer in layers), strict=True)
    return tuple(pack_layers(weights, precision) for weights in linears)


def _attention_args(layers: Sequence[LayerWeights]) -> tuple[int, np.float32]:
    """Heads, and the scale of their scores."""
    return layers[0].heads, np.float32(layers[0].head_dim ** -0.5)


def _norm_args(layers: Sequence[LayerWeights], final_norm: nn.Module) -> tuple[Any, ...]:
    """What the compiled functions take as pre_norm, centered, norms, eps and final_norm."""
    first = layers[0].norms[0]
    norms = np.stack([_sublayer_norms(layer) for layer in layers])
    last = np.zeros((0, norms.shape[3]), np.float32)
    if not isinstance(final_norm, nn.Identity):
        last = _norm_array(NormWeights.of(final_norm))
    return layers[0].pre_norm, first.centered, norms, np.float32(first.eps), last


def _sublayer_norms(layer: LayerWeights) -> Floats:
    """Weight and bias of the norms of self-attention, cross-attention (if any) and feed-forward.  # (3, 2, width)"""
    first, *cross, last = layer.norms
    return np.stack([_norm_array(norm) for norm in (first, *(cross or [first]), last)])


def _norm_array(norm: NormWeights) -> Floats:
    """Weight and bias.  # (2, width)"""
    return np.stack((as_array(norm.weight), as_array(norm.bias)))
