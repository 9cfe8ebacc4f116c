"""Google's neural machine translation, a deep recurrent encoder–decoder with residual connections (Wu et al. 2016).

Eight LSTM layers on each side train only with residual connections, which begin at the third layer. Only the bottom
layer of the encoder is bidirectional, so that the others can run one behind the other on several GPUs. For the same
reason the *bottom* layer of the decoder attends to the source, and its context is an input of every layer: all layers
above it are computed for all target tokens at once.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.model.before.base import Seq2SeqConfig, SequenceToSequence
from regard.model.before.recurrent.attention_scores import RecurrentAttentionConfig, Source
from regard.model.before.recurrent.decoders import AttentiveLayer
from regard.model.before.recurrent.layers import BidirectionalLayer, RecurrentLayer, pack_states, unpack_states
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding

_FIRST_RESIDUAL = 2
"""The third layer from the bottom."""


class GnmtConfig(Seq2SeqConfig):
    """A deep recurrent encoder–decoder as in Google's system. The paper's has 8 layers of width 1024."""

    kind: Literal["gnmt"] = "gnmt"
    cell: Literal["lstm", "gru"] = "lstm"
    """The recurrent cell."""
    width: int = Field(default=512, ge=1, le=1_000_000)
    """The width of embeddings and recurrent layers (of each direction in the bidirectional one)."""
    layers: int = Field(default=4, ge=2, le=10_000)
    """The number of recurrent layers of the encoder, and of the decoder."""
    attention: RecurrentAttentionConfig = RecurrentAttentionConfig()
    """How a state of the decoder and a token of the source are compared."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """The dropout probability of embeddings and of each layer's output, before it is added to its input."""
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""

    def build(self) -> "Gnmt":
        return Gnmt(self)


class Gnmt(SequenceToSequence):
    """A bidirectional layer and residual layers above it; a layer with attention and residual layers above it."""

    def __init__(self, config: GnmtConfig) -> None:
        super().__init__()
        self.config: GnmtConfig = config
        width, cell = config.width, config.cell
        self.embed_tokens = TokenEmbedding(config.vocab_size, width)
        self.source_embed_tokens = self.source_embedding_of(config, width)
        self.encoder_bottom = BidirectionalLayer(cell, width, 2 * width)
        self.encoder_layers = nn.ModuleList(
            RecurrentLayer(cell, 2 * width if number == 1 else width, width) for number in range(1, config.layers)
        )
        attention = config.attention.build(width, width)
        self.decoder_bottom = AttentiveLayer(cell, width, width, width, attention)
        self.decoder_layers = nn.ModuleList(RecurrentLayer(cell, 2 * width, width) for _ in range(1, config.layers))
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, width)
        self.lm_head_bias = nn.Parameter(self.embed_tokens.weight.new_zeros(config.vocab_size))

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> RecurrentState:
        x = self.hidden_states(source, lengths)[-1]
        rows = source.shape[0]
        layers = (self.decoder_bottom.layer, *self.decoder_layers)
        first = [layer.zero_state(rows) for layer in layers if isinstance(layer, RecurrentLayer)]
        return RecurrentState(pack_states(first), self.decoder_bottom.attention.memory(x), lengths)

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        bottom, *states = unpack_states(state.rows)
        embedded = self._embed(self.embed_tokens, tokens)
        x, context, last = self.decoder_bottom(embedded, bottom, Source.of(state), attention_hook)
        x, after = self.dropout(x), [last]
        for number, (layer, before) in enumerate(zip(self.decoder_layers, states, strict=True), start=1):
            output, last = layer(torch.cat((x, context), dim=-1), before)
            x = self._add(x, output, number)
            after.append(last)
        state.rows = pack_states(after)
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.lm_head_bias)

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        embed = self.embed_tokens if self.source_embed_tokens is None else self.source_embed_tokens
        embedded = self._embed(embed, tokens)
        x = self.dropout(self.encoder_bottom(embedded, lengths)[0])  # (batch, tokens, 2 · width)
        found = [embedded, x]
        for number, layer in enumerate(self.encoder_layers, start=1):
            output, _ = layer(found[-1], lengths=lengths)
            found.append(self._add(found[-1], output, number))
        return found

    def _add(self, x: Tensor, output: Tensor, number: int) -> Tensor:
        """A layer's output with its residual connection, if it has one."""
        output = self.dropout(output)
        return x + output if number >= _FIRST_RESIDUAL else output

    def _embed(self, embed: TokenEmbedding, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(embed(tokens) * self.config.width**0.5)  # (rows, tokens, width)
        return x
