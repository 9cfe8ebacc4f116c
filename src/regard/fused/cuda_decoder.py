"""A decoder for a GPU: the same weights and the same results as the model, many times as fast.

Query, key and value come from one product, and what lies between two products is one kernel: a layer launches about a
dozen of them per step. All tensors keep their addresses from step to step, and nothing waits for the device, so a whole
step of a search can be captured as a CUDA graph and replayed (`decode/cuda_graphs.py`).

`make_cuda_decoder(model)` gives such a decoder, or the model itself where it is not supported: on other devices, with
layers that the kernels do not have, or where Triton is not installed. The decoder takes the weights as they are at that
moment.
"""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Generic

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import KVCache
from regard.attention.positions.absolute import Added
from regard.errors import UserError
from regard.fused.cpu_decoder import AnyAutoregressive
from regard.fused.kv_cache import SOURCE_MULTIPLE, CudaKVCache, concat_heads
from regard.fused.layers import LayerWeights, NormWeights, lm_head_weights
from regard.fused.support import cuda_decoder_unsupported_reason
from regard.model.encoder_decoder import EncoderDecoder

MAX_ENCODER_GRAPHS, CAPTURED_FROM = 32, 3
"""Shapes of sources whose graphs are kept, and the occurrence of a shape at which its graph is captured."""


def make_cuda_decoder(model: Any, precision: torch.dtype | None = None) -> Any:
    """A fused decoder for the model's GPU, or the model itself where it is not supported."""
    return CudaDecoder(model, precision) if cuda_decoder_unsupported_reason(model) is None else model


def is_compiled() -> bool:
    """Whether the kernels were compiled on this machine before, so that using them costs no wait."""
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")
    return any(cache.glob("*/_self_attention_decode.json"))


class CudaDecoder(Generic[AnyAutoregressive]):
    """Decodes with fused kernels, in the model's precision or another."""

    supports_cuda_graphs = True
    """The cache's tensors keep their addresses from step to step, so that a captured CUDA graph can be replayed."""
    graph_pool: Any = None
    """Captured decoding steps, kept here by the search (`decode.cuda_graphs`)."""

    def __init__(self, model: AnyAutoregressive, precision: torch.dtype | None = None) -> None:
        reason = cuda_decoder_unsupported_reason(model)
        if reason is not None:
            raise UserError(f"This model has no fused decoder for a GPU: {reason}.")
        # Only here, so that Triton is imported where it is used.
        from regard.kernels.cuda import add_norm, decode_attention, embedding

        self.add_norm, self.attention, self.embed = add_norm.add_norm, decode_attention, embedding.embed_decode
        dtype = model.embed_tokens.weight.dtype if precision is None else precision
        same = dtype == model.embed_tokens.weight.dtype
        self.model: AnyAutoregressive = model if same else copy.deepcopy(model).to(dtype)
        self.config, self.dtype = model.config, dtype
        decoder = self.model.decoder
        self.layers = [_Layer(LayerWeights(block)) for block in decoder.blocks()]
        self.pre_norm = self.layers[0].weights.pre_norm
        self.norms = [norm for layer in self.layers for norm in layer.weights.norms]
        if not isinstance(decoder.final_norm, nn.Identity):
            self.norms.append(NormWeights.of(decoder.final_norm))
        self.table = self.model.embed_tokens.weight.detach()
        lm_head = lm_head_weights(self.model)
        self.lm_head = lm_head.weight.T
        self.lm_head_bias = None if lm_head.bias is None else lm_head.bias.float()
        self.positions: dict[int, tuple[Tensor, tuple[Tensor, Tensor] | None]] = {}
        """Positional encodings by capacity; captured graphs read from here."""
        self.encoder_graphs: dict[tuple[int, ...], EncoderGraph] = {}
        self._encoder_lock = threading.Lock()
        """Threads share the encoder graphs: their inputs and outputs belong to one of them at a time."""
        self.rotary = next((attention.rotary for attention in decoder.self_attention()), None)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def prefill(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[CudaKVCache, Tensor]:
        """Encode sources, or run prompts, as the model itself does."""
        if isinstance(self.model, EncoderDecoder):
            ids, lengths = (tensor.to(self.device) for tensor in self.model.pad_sources(sources, SOURCE_MULTIPLE))
            cache = self._cache(len(ids), capacity, self._encode(ids, lengths), lengths)
            return cache, self.model.first_tokens(len(ids))
        plain, first = self.model.prefill(sources, capacity)  # type: ignore[operator]
        return self._convert(plain), first

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: CudaKVCache) -> tuple[Tensor, CudaKVCache]:
        """Logits for the token after each new one.  tokens: # (rows, 1); gives (rows, 1, vocab_size)"""
        cache.advance()
        pre_norm, attention, add_norm = self.pre_norm, self.attention, self.add_norm
        encodings, rotary = self._positions(cache.capacity)
        residual = torch.empty(cache.rows, self.table.shape[1], device=self.device)
        x = self.embed(
            tokens[:, 0], cache.lengths, self.table, encodings, self.model.embedding.scale, self.norms[0], residual,
            pre_norm=pre_norm,
        )  # fmt: skip
        next_norms = iter(self.norms[1:] if pre_norm else self.norms)
        shared_kv = cache.cross_kv.shape[1] == 1
        for number, layer in enumerate(self.layers):
            weights = layer.weights
            qkv = functional.linear(x, *weights.qkv)
            attended = attention.self_attention_decode(
                qkv, cache.keys[number], cache.values[number], cache.beam_indices, cache.lengths, weights.heads, rotary
            )
            x = add_norm(residual, functional.linear(attended, *weights.self_out), next(next_norms), pre_norm=pre_norm)
            if weights.query is not None and weights.cross_out is not None:
                query = functional.linear(x, *weights.query)
                keys, values = cache.cross_kv[:, 0 if shared_kv else number]
                attended = attention.cross_attention_decode(query, keys, values, cache.source_lengths, weights.heads)
                output = functional.linear(attended, *weights.cross_out)
                x = add_norm(residual, output, next(next_norms), pre_norm=pre_norm)
            output = functional.linear(layer.hidden(x), *weights.down)
            x = add_norm(residual, output, next(next_norms), pre_norm=pre_norm)
        cache.lengths += 1
        return self._logits(x)[:, None], cache

    def kv_bytes_per_token(self) -> int:
        return self.model.kv_bytes_per_token()

    def _logits(self, x: Tensor) -> Tensor:
        """Logits in float32: rounded to bfloat16 many tokens would have the same.  # (rows, vocab_size)"""
        if x.dtype == torch.float32:
            logits = x @ self.lm_head
        elif x.is_cuda:
            logits = torch.mm(x, self.lm_head, out_dtype=torch.float32)
        else:
            logits = x.float() @ self.lm_head.float()
        return logits if self.lm_head_bias is None else logits.add_(self.lm_head_bias)

    def _positions(self, capacity: int) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Positional encodings that are added to embeddings, and cosine and sine of rotary positions."""
        if capacity not in self.positions:
            embed_positions = self.model.embedding.embed_positions
            numbers = torch.arange(min(capacity, embed_positions.max_length or capacity), device=self.device)
            if isinstance(embed_positions, Added):
                encodings = embed_positions.encode(numbers).float().contiguous()
            else:
                encodings = self.table.new_zeros(len(numbers), self.table.shape[1], dtype=torch.float32)
            self.positions[capacity] = encodings, None if self.rotary is None else self.rotary.rotation(numbers, 0)
        return self.positions[capacity]

    def _encode(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Keys and values of sources for each layer, or for all.  # (2, layers or 1, sources, positions, kv width)

        Launching the encoder's kernels takes longer than running them: so for shapes that occur again it is captured as
        a CUDA graph.
        """
        with self._encoder_lock:
            return self._encode_locked(ids, lengths)

    def _encode_locked(self, ids: Tensor, lengths: Tensor) -> Tensor:
        shape = tuple(ids.shape)
        encoder = self.encoder_graphs.pop(shape, None) or EncoderGraph()
        self.encoder_graphs[shape] = encoder
        while len(self.encoder_graphs) > MAX_ENCODER_GRAPHS:
            del self.encoder_graphs[next(iter(self.encoder_graphs))]
        encoder.uses += 1
        if encoder.graph is None and (encoder.uses < CAPTURED_FROM or not ids.is_cuda):
            return self._encode_uncaptured(ids, lengths)
        if encoder.graph is None:
            encoder.ids, encoder.lengths, encoder.graph = ids.clone(), lengths.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(encoder.graph, capture_error_mode="thread_local"):
                encoder.cross_kv = self._encode_uncaptured(encoder.ids, encoder.lengths)
        encoder.ids.copy_(ids)
        encoder.lengths.copy_(lengths)
        encoder.graph.replay()
        return encoder.cross_kv.clone()

    def _encode_uncaptured(self, ids: Tensor, lengths: Tensor) -> Tensor:
        assert isinstance(self.model, EncoderDecoder)
        pairs = self.model.decoder.project_memory(self.model.encode(ids, lengths=lengths))
        distinct = list({id(pair[0]): pair for pair in pairs}.values())
        return torch.stack([torch.stack([concat_heads(pair[part]) for pair in distinct]) for part in range(2)])

    def _convert(self, plain: KVCache) -> CudaKVCache:
        """The cache of the plain model in the layout of the kernels."""
        cache = self._cache(plain.rows, plain.capacity, None, None)
        cache.copy_prompts(plain)
        return cache

    def _cache(self, rows: int, capacity: int, cross_kv: Tensor | None, source_lengths: Tensor | None) -> CudaKVCache:
        return CudaKVCache(
            len(self.layers), rows, capacity, self.layers[0].weights.kv_width, cross_kv, source_lengths,
            max_positions=self.model.embedding.embed_positions.max_length, like=self.table,
        )  # fmt: skip


class EncoderGraph:
    """How often sources of one shape were encoded, and from some time on their captured CUDA graph."""

    uses = 0
    graph: torch.cuda.CUDAGraph | None = None
    ids: Tensor
    lengths: Tensor
    cross_kv: Tensor


class _Layer:
    """A layer's weights, with those of a gated feed-forward concatenated."""

    def __init__(self, weights: LayerWeights) -> None:
        self.weights, self.gated = weights, weights.gate is not None
        self.up = weights.up if weights.gate is None else weights.gate.concat(weights.up)

    def hidden(self, x: Tensor) -> Tensor:
        """The hidden layer of the feed-forward."""
        (weight, bias), activation = self.up, self.weights.activation
        if activation is functional.relu and not self.gated and bias is not None and x.is_cuda:
            out: Tensor = torch._addmm_activation(bias, x, weight.T)
            return out
        up = functional.linear(x, weight, bias)
        if not self.gated:
            return activation(up)
        gate, value = up.chunk(2, dim=1)
        return activation(gate) * value
