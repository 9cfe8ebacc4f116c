"""A decoder for a CPU: the same weights and the same results as the model, several times as fast.

A decode step is one compiled function (`kernels/cpu/decoder_step.py`): linear layers with weights packed beforehand,
query, key and value in one, and between them attention and norms. Beams never copy the keys and values that their
hypotheses share (`kv_cache.py`).

`make_cpu_decoder(model)` gives such a decoder, or the model itself where it is not supported: on other devices, in
other
precisions, with layers that the kernels do not have, or where numba is not installed. The decoder takes the weights as
they are at that moment. `make_cpu_decoder(model, "int8")` quantizes them: a quarter of the memory, faster where the CPU
has VNNI, and slightly different results.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeGuard, TypeVar

import torch
from torch import Tensor

from regard.attention import KVCache
from regard.errors import UserError
from regard.fused.cpu_forward import Embedding, FusedEncoder, FusedStep, UnfusedStep, can_be_fused, layer_weights
from regard.fused.cpu_linear import LINEARS, with_packed_linears
from regard.fused.kv_cache import CpuKVCache, concat_heads
from regard.fused.layers import lm_head_weights
from regard.fused.support import cpu_decoder_unsupported_reason, encoder_is_supported
from regard.kernels.cpu import jit_cache
from regard.model.autoregressive import AutoregressiveModel
from regard.model.encoder_decoder import EncoderDecoder

Precision = Literal["float32", "int8"]
AnyAutoregressive = TypeVar("AnyAutoregressive", bound=AutoregressiveModel)


def make_cpu_decoder(model: Any, precision: Precision = "float32") -> Any:
    """A fused decoder for this CPU, or the model itself where it is not supported."""
    return CpuDecoder(model, precision) if cpu_decoder_unsupported_reason(model) is None else model


def is_compiled() -> bool:
    """Whether the kernels were compiled on this machine before, so that using them costs no wait."""
    return jit_cache.is_cached("decoder_step.decoder_step")


class CpuDecoder(Generic[AnyAutoregressive]):
    """Decodes with packed weights, in float32 or int8."""

    takes_rows = True

    def __init__(self, model: AnyAutoregressive, precision: Precision = "float32") -> None:
        reason = cpu_decoder_unsupported_reason(model)
        if reason is not None:
            raise UserError(f"This model has no fused decoder for a CPU: {reason}.")
        if precision not in LINEARS:
            raise UserError(f"The fused decoder for a CPU is in {' or '.join(LINEARS)}; found {precision!r}.")
        self.model, self.precision, self.config = model, precision, model.config
        self.layers = layer_weights(model.decoder)
        self.embedding = Embedding(model.embed_tokens, model.embedding, model.decoder)
        kind = FusedStep if can_be_fused(self.layers) else UnfusedStep
        self.decode_step: FusedStep | UnfusedStep = kind(
            self.layers, model.decoder.final_norm, lm_head_weights(model), precision
        )
        self.encoder = FusedEncoder(model, precision) if _has_fused_encoder(model) else None
        self.packed_model = with_packed_linears(model, precision) if self.encoder is None else None
        """Runs the encoder, or the prompts of a language model, where the fused encoder cannot."""

    @property
    def device(self) -> torch.device:
        return self.model.device

    @torch.no_grad()
    def prefill(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[CpuKVCache, Tensor]:
        """Encode sources, or run prompts, as the model itself does."""
        if self.encoder is not None:
            return self.encoder.prefill(sources, capacity)
        cache, first = self.packed_model.prefill(sources, capacity)  # type: ignore[union-attr, operator]
        return self._convert(cache), first

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: CpuKVCache, rows: Tensor | None = None) -> tuple[Tensor, CpuKVCache]:
        """Logits for the token after each new one.  tokens: # (rows, 1); gives (rows, 1, vocab_size)

        With `rows`, only those are computed, and only their logits are given.  # (some,)
        """
        cache.advance()
        positions = self.embedding.positions(cache.extent, cache.capacity)
        tokens = tokens[:, 0] if rows is None else tokens[rows, 0]
        rows = torch.arange(cache.rows) if rows is None else rows
        logits = self.decode_step(tokens, rows, cache, self.embedding, positions)
        cache.lengths += 1
        return logits[:, None], cache

    def with_shortlist(self, tokens: Tensor) -> CpuDecoder[AnyAutoregressive]:
        """The same decoder with logits for these tokens only, in this order.  tokens: # (some,)"""
        decoder = copy.copy(self)
        decoder.decode_step = self.decode_step.with_lm_head(lm_head_weights(self.model, tokens), self.precision)
        return decoder

    def kv_bytes_per_token(self) -> int:
        return self.model.kv_bytes_per_token()

    def _convert(self, plain: KVCache) -> CpuKVCache:
        """The cache of the plain model in the layout of the kernels."""
        cross_kv, source_lengths = None, plain.memory_lengths
        if all(layer.cross_kv is not None for layer in plain.layers):
            pairs = [layer.cross_kv for layer in plain.layers if layer.cross_kv is not None]
            cross_kv = torch.stack([torch.stack([concat_heads(pair[part]) for pair in pairs]) for part in range(2)])
            if source_lengths is None:
                source_lengths = torch.full((plain.rows,), cross_kv.shape[3])
        cache = CpuKVCache(
            len(self.layers), plain.rows, plain.capacity, self.layers[0].kv_width, cross_kv,
            None if source_lengths is None else source_lengths.clone(),
            max_positions=self.model.embedding.embed_positions.max_length,
        )  # fmt: skip
        cache.copy_prompts(plain)
        return cache


def _has_fused_encoder(model: AutoregressiveModel) -> TypeGuard[EncoderDecoder]:
    if (
        not isinstance(model, EncoderDecoder)
        or model.config.special_tokens.bos is None
        or model.config.special_tokens.eos is None
    ):
        return False
    supported = encoder_is_supported(model.encoder, model.source_embedding)
    return supported and can_be_fused(layer_weights(model.encoder))
