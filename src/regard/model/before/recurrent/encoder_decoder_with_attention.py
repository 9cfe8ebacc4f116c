"""A recurrent encoder–decoder with attention (Bahdanau et al. 2015; Luong et al. 2015).

A bidirectional encoder gives each source token a vector that knows its whole sentence. For each target token the
decoder attends to these vectors, so that a sentence need not fit into one state (`encoder_decoder.py` shows what that
costs).
The Transformer took the attention and dropped the recurrence.
"""

from typing import Literal, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.config import ConfigError
from regard.model.before.base import Seq2SeqConfig, SequenceToSequence
from regard.model.before.recurrent.attention_scores import RecurrentAttentionConfig, Source
from regard.model.before.recurrent.decoders import (
    AnyDecoder,
    BahdanauConfig,
    BahdanauDecoder,
    LuongConfig,
    LuongDecoder,
)
from regard.model.before.recurrent.encoder import Encoded, RecurrentEncoder
from regard.model.before.recurrent.layers import pack_states, unpack_states
from regard.model.before.recurrent.noisy_top_k import NoisyTopKConfig
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding


class RecurrentAttentionModelConfig(Seq2SeqConfig):
    """A recurrent encoder–decoder with attention."""

    kind: Literal["recurrent-attention"] = "recurrent-attention"
    cell: Literal["lstm", "gru"] = "gru"
    """The recurrent cell."""
    width: int = Field(default=256, ge=1, le=1_000_000)
    """The width of the token embeddings."""
    hidden: int = Field(default=512, ge=1, le=1_000_000)
    """The width of the decoder's layers."""
    encoder_hidden: int | None = Field(default=None, ge=2, le=1_000_000)
    """The width of the encoder's layers, half of it for each direction; `hidden` if not given."""
    layers: int = Field(default=1, ge=1, le=10_000)
    """The number of recurrent layers of the encoder, and of the decoder."""
    attention: RecurrentAttentionConfig = RecurrentAttentionConfig()
    """How a state of the decoder and a token of the source are compared."""
    decoder: AnyDecoder = BahdanauConfig()
    """How the decoder uses attention: "bahdanau" or "luong"."""
    experts: NoisyTopKConfig | None = None
    """A mixture of experts between the first and the second layer of the encoder, and of the decoder (Shazeer et al.
    2017); if not given, there is none."""
    dropout: float = Field(default=0.3, ge=0, lt=1)
    """The dropout probability of embeddings, of the layers' outputs (never of what a layer passes to its next step) and
    of the features that the logits are computed from."""
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""

    @property
    def memory_width(self) -> int:
        """The width of the encoded source."""
        return self.encoder_hidden or self.hidden

    @model_validator(mode="after")
    def _check_widths(self) -> Self:
        key = "hidden" if self.encoder_hidden is None else "encoder_hidden"
        if self.memory_width % 2:
            raise ConfigError(
                key, f"found {self.memory_width}; expected an even number, half of it for each direction."
            )
        needs_same = [
            name
            for name, found in (("attention.kind", self.attention.kind), ("decoder.kind", self.decoder.kind))
            if found in ("dot", "luong")
        ]
        if needs_same and self.memory_width != self.hidden:
            raise ConfigError(
                "encoder_hidden",
                f"found {self.memory_width}, but {needs_same[0]} needs encoder and decoder of the same width "
                f"({self.hidden}); leave it out.",
            )
        return self

    @model_validator(mode="after")
    def _check_experts(self) -> Self:
        if self.experts is not None and self.layers < 2:
            raise ConfigError("experts", f"they stand between two layers, but layers is {self.layers}; raise it to 2.")
        if self.experts is not None and isinstance(self.decoder, LuongConfig) and self.decoder.input_feeding:
            raise ConfigError(
                "experts", "they cannot be combined with input feeding; set decoder.input_feeding to false."
            )
        return self

    def build(self) -> "RecurrentAttentionModel":
        return RecurrentAttentionModel(self)


class RecurrentAttentionModel(SequenceToSequence):
    """Embeddings, a bidirectional encoder, a decoder with attention, logits."""

    def __init__(self, config: RecurrentAttentionModelConfig) -> None:
        super().__init__()
        self.config: RecurrentAttentionModelConfig = config
        width, hidden, memory = config.width, config.hidden, config.memory_width
        self.embed_tokens = TokenEmbedding(config.vocab_size, width)
        self.source_embed_tokens = self.source_embedding_of(config, width)
        self.encoder = RecurrentEncoder(
            config.cell,
            width,
            memory,
            config.layers,
            bidirectional=True,
            dropout=config.dropout,
            experts=None if config.experts is None else config.experts.build(memory, config.dropout),
        )
        kind = BahdanauDecoder if isinstance(config.decoder, BahdanauConfig) else LuongDecoder
        self.decoder = kind(
            config.decoder,  # type: ignore[arg-type]
            config.attention.build(hidden, memory),
            cell=config.cell,
            width=width,
            hidden=hidden,
            context=memory,
            layers=config.layers,
            dropout=config.dropout,
            experts=None if config.experts is None else config.experts.build(hidden, config.dropout),
        )
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, width)
        self.lm_head_bias = nn.Parameter(self.embed_tokens.weight.new_zeros(config.vocab_size))

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> RecurrentState:
        encoded = self._read(source, lengths)
        memory = self.decoder.attention.memory(encoded.output)
        return RecurrentState(pack_states(self.decoder.start(encoded)), memory, lengths)

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        x = self._embed(self.embed_tokens, tokens)
        states = unpack_states(state.rows)
        x, states = self.decoder(x, states, Source.of(state), self._target_lengths(tokens), attention_hook)
        state.rows = pack_states(states)
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.lm_head_bias)

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        return self._read(tokens, lengths).layers

    def _read(self, source: Tensor, lengths: Tensor | None) -> Encoded:
        """source: # (batch, tokens)"""
        embed = self.embed_tokens if self.source_embed_tokens is None else self.source_embed_tokens
        encoded: Encoded = self.encoder(self._embed(embed, source), lengths)
        return encoded

    def _embed(self, embed: TokenEmbedding, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(embed(tokens) * self.config.width**0.5)  # (rows, tokens, width)
        return x

    def _target_lengths(self, tokens: Tensor) -> Tensor | None:
        """The lengths of the rows in training, if there are experts, whose losses must not count padding.  # (rows,)"""
        pad = self.config.special_tokens.pad
        if self.config.experts is None or pad is None or not self.training:
            return None
        return (tokens != pad).sum(dim=1)
