"""What every model that writes word after word has in common, with or without an encoder to look at.

Words go in, a causal stack works on them, scores for the next word come out: all at once in training, or step by step
behind a cache while decoding.
"""

import copy
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention import Cache, Context, Full, Lengths
from regard.attention.cache import LayerState
from regard.attention.context import Watch
from regard.attention.position import AnyPosition, SinusoidalConfig
from regard.config import Config, ConfigError
from regard.model.embedding import EmbeddingConfig, Input, TokensConfig, Vocabulary
from regard.model.stack import Stack, StackConfig, check_stack


class WriterConfig(Config):
    """Settings of a model that writes. Numbers left out are those of the paper's base model."""

    vocabulary: int = Field(ge=1)
    width: int = Field(default=512, ge=1)
    decoder: StackConfig = StackConfig()
    position: AnyPosition = SinusoidalConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    tie: bool = True
    """Whether words are scored with the same vectors they are looked up in."""
    output_bias: bool = False
    tokens: TokensConfig = TokensConfig()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        check_stack("decoder", self.decoder, self.width, self.position)
        if self.tie and self.position.token_width(self.width) != self.width:
            raise ConfigError(
                "tie",
                "word vectors that leave room for a concatenated position cannot score words too; set it to false.",
            )
        if self.position.needs_length:
            raise ConfigError(
                "position.kind",
                f"{self.position.kind!r} needs the length of the whole sentence, which is not known while writing it; "
                "choose another.",
            )
        for name, number in self.tokens.plain().items():
            if number is not None and number >= self.vocabulary:
                raise ConfigError(f"tokens.{name}", f"id {number} is outside the vocabulary of {self.vocabulary}.")
        return self


class Writer(nn.Module):
    """Words in, causal stack, words out. `memory` says how cross-attention is fed, None if there is none."""

    def __init__(self, config: WriterConfig, memory: str | None) -> None:
        super().__init__()
        width = config.width
        self.vocabulary = Vocabulary(config.vocabulary, config.position.token_width(width))
        self.input = Input(config.embedding, config.position, width)
        self.decoder = Stack(config.decoder, width, config.position, causal=True, memory=memory)
        self.output = None if config.tie else Vocabulary(config.vocabulary, width)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary)) if config.output_bias else None

    @property
    def device(self) -> torch.device:
        return self.vocabulary.weight.device

    def write(self, tokens: Tensor, context: Context, states: list[LayerState]) -> Tensor:
        """Logits for the word after each token.  tokens: # (batch, tokens); gives (batch, tokens, vocabulary)"""
        x = self.decoder(self.input(self.vocabulary(tokens), context), context, states)
        return (self.vocabulary if self.output is None else self.output).logits(x, self.output_bias)

    @torch.no_grad()
    def step(
        self, tokens: Tensor, cache: Cache, counts: Tensor | None = None, watch: Watch | None = None
    ) -> tuple[Tensor, Cache]:
        """Logits for the word after each new token. Rows may bring one token or a chunk, `counts` of it real.

        tokens: # (batch, new tokens); counts: # (batch,); gives (batch, new tokens, vocabulary)
        """
        seen = Full() if cache.memory_lengths is None else Lengths(cache.memory_lengths)
        context = Context.after(cache, tokens, counts, memory=seen, watch=watch)
        logits = self.write(tokens, context, cache.layers)
        cache.advance(tokens.shape[1], counts)
        return logits, cache

    def limited(self, tokens: Tensor) -> Self:
        """A writer with the same weights that scores these words only, in this order.  tokens: # (some,)"""
        scored = self.vocabulary if self.output is None else self.output
        twin = copy.copy(self)
        twin._modules, twin._parameters = dict(self._modules), dict(self._parameters)
        twin.output = Vocabulary(0, scored.weight.shape[1])
        twin.output.weight = nn.Parameter(scored.weight[tokens], requires_grad=False)
        if self.output_bias is not None:
            twin.output_bias = nn.Parameter(self.output_bias[tokens], requires_grad=False)
        return twin

    def reorder(self, cache: Cache, rows: Tensor) -> Cache:
        """Make row i of the cache what row `rows[i]` was."""
        cache.reorder(rows)
        return cache

    def regroup(self, cache: Cache, rows: Tensor, sources: Tensor | None) -> Cache:
        """The same where rows stand in groups that share a source; `sources` says which, None that each keeps it."""
        cache.regroup(rows, sources)
        return cache

    def put(self, cache: Cache, sources: Tensor, other: Cache) -> Cache:
        """Let these groups of rows be those of another cache; groups past the last are added."""
        cache.put(sources, other)
        return cache

    def clear(self, cache: Cache, sources: Tensor) -> None:
        """Let these groups of rows hold nothing."""
        cache.clear(sources)

    def is_full(self, cache: Cache) -> bool:
        """Whether another token needs more room."""
        if cache.extent == cache.capacity:
            cache.tighten()
        return cache.extent == cache.capacity

    def grow(self, cache: Cache) -> None:
        cache.grow(2 * cache.capacity)

    def held(self, cache: Cache) -> int:
        return cache.bytes()

    def bytes_a_position(self) -> int:
        """What a cache takes for one more position of one row, and at most for one position of a source."""
        return sum(each.cached for each in self.decoder.attention()) * self.vocabulary.weight.element_size()
