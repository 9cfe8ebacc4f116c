"""What all autoregressive models have in common, with or without an encoder.

Token ids go through a causal stack and become logits for the next token: all positions at once in training, or step by
step with a KV cache while decoding.
"""

import copy
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention import Context, Full, KVCache, Lengths
from regard.attention.context import AttentionHook
from regard.attention.kv_cache import LayerState
from regard.attention.positions.config import AnyPosition, SinusoidalConfig
from regard.config import Config, ConfigError
from regard.model.embedding import EmbeddingConfig, EmbeddingLayer, SpecialTokensConfig, TokenEmbedding
from regard.model.stack import Stack, StackConfig, check_stack


class AutoregressiveConfig(Config):
    """The config of an autoregressive model. The defaults are those of the paper's base model."""

    vocab_size: int = Field(ge=1, le=10_000_000)
    """The size of the vocabulary."""
    width: int = Field(default=512, ge=1, le=1_000_000)
    """The width of the model: the features of each token between layers (d_model)."""
    decoder: StackConfig = StackConfig()
    """The layers of the decoder."""
    position: AnyPosition = SinusoidalConfig()
    """The positional encoding."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""
    output_bias: bool = False
    """Whether the logits have a bias."""
    special_tokens: SpecialTokensConfig = SpecialTokensConfig()

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        check_stack("decoder", self.decoder, self.width, self.position)
        if self.tie_weights and self.position.token_width(self.width) != self.width:
            raise ConfigError(
                "tie_weights",
                "token embeddings beside a concatenated position are too narrow to score tokens; set it to false.",
            )
        if self.position.needs_length:
            raise ConfigError(
                "position.kind",
                f"{self.position.kind!r} needs the length of the whole text, which is unknown while generating; "
                "choose another.",
            )
        for name, token_id in self.special_tokens.plain().items():
            if token_id is not None and token_id >= self.vocab_size:
                raise ConfigError(
                    f"special_tokens.{name}", f"id {token_id} is outside the vocabulary of {self.vocab_size}."
                )
        return self


class AutoregressiveModel(nn.Module):
    """Token embedding, causal stack, logits. `cross_kv` as in `Stack`."""

    def __init__(self, config: AutoregressiveConfig, cross_kv: str | None) -> None:
        super().__init__()
        width = config.width
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.position.token_width(width))
        self.embedding = EmbeddingLayer(config.embedding, config.position, width)
        self.decoder = Stack(config.decoder, width, config.position, causal=True, cross_kv=cross_kv)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, width)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.output_bias else None

    @property
    def device(self) -> torch.device:
        return self.embed_tokens.weight.device

    def decode(self, tokens: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        """The logits for the token after each token.  tokens: # (batch, tokens); gives (batch, tokens, vocabulary)"""
        x = self.decoder(self.embedding(self.embed_tokens(tokens), context), context, states)
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.lm_head_bias)

    @torch.no_grad()
    def step(
        self, tokens: Tensor, cache: KVCache, counts: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> tuple[Tensor, KVCache]:
        """The logits for the token after each new token. A row may add one token or a chunk, `counts` of it real.

        tokens: # (batch, new tokens); counts: # (batch,); gives (batch, new tokens, vocabulary)
        """
        positions, extent = self.embedding.embed_positions, cache.extent + tokens.shape[-1]
        if counts is None and positions.max_length is not None and extent > positions.max_length:
            cache.tighten()  # its extent may count rows that are gone
            positions.check_length(cache.extent + tokens.shape[-1])
        memory = Full() if cache.memory_lengths is None else Lengths(cache.memory_lengths)
        context = Context.after(cache, tokens, counts, memory=memory, attention_hook=attention_hook)
        logits = self.decode(tokens, context, cache.layers)
        cache.advance(tokens.shape[1], counts)
        return logits, cache

    def has_room(self, cache: KVCache, tokens: int) -> bool:
        """Whether every row has positions for this many more tokens, so that they can be added in one step."""
        max_length = self.embedding.embed_positions.max_length
        return max_length is None or cache.extent + tokens <= max_length

    def with_shortlist(self, tokens: Tensor) -> Self:
        """The same model with logits for these tokens only, in this order.  tokens: # (shortlist,)"""
        lm_head = self.embed_tokens if self.lm_head is None else self.lm_head
        copied = copy.copy(self)
        copied._modules, copied._parameters = dict(self._modules), dict(self._parameters)
        copied.lm_head = TokenEmbedding(0, lm_head.weight.shape[1])
        copied.lm_head.weight = nn.Parameter(lm_head.weight[tokens], requires_grad=False)
        if self.lm_head_bias is not None:
            copied.lm_head_bias = nn.Parameter(self.lm_head_bias[tokens], requires_grad=False)
        return copied

    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache for one more token of one row, and at most for one token of a source."""
        return sum(each.kv_features for each in self.decoder.self_attention()) * self.embed_tokens.weight.element_size()
