"""A recurrent encoder–decoder: the source is read into one vector, and the target is written from it.

Cho et al. (2014) give the vector, the summary, to every step of the decoder and to its output. Sutskever et al. (2014)
start each layer of the decoder from the last state of the encoder's layer, and read the source backward, so that its
first words are close to those of the target. There is no attention, so nothing in the decoder waits for its own output:
all target tokens go through each layer in one fused call.
"""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.config import ConfigError
from regard.model.before.base import Seq2SeqConfig, SequenceToSequence
from regard.model.before.recurrent.decoders import FirstState, Readout
from regard.model.before.recurrent.encoder import Encoded, RecurrentEncoder
from regard.model.before.recurrent.layers import RecurrentLayer, State, pack_states, reverse_rows, unpack_states
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding


class RecurrentConfig(Seq2SeqConfig):
    """A recurrent encoder–decoder without attention."""

    kind: Literal["recurrent"] = "recurrent"
    cell: Literal["lstm", "gru"] = "gru"
    """The recurrent cell."""
    width: int = Field(default=256, ge=1, le=1_000_000)
    """The width of the token embeddings."""
    hidden: int = Field(default=512, ge=1, le=1_000_000)
    """The width of the recurrent layers; of a bidirectional one, half of it for each direction."""
    layers: int = Field(default=1, ge=1, le=10_000)
    """The number of recurrent layers of the encoder, and of the decoder."""
    bidirectional: bool = False
    """Whether the encoder reads the source in both directions."""
    reverse_source: bool = False
    """Whether the source is read from its last token to its first (Sutskever et al. 2014)."""
    summary_input: Literal["every_step", "first_state"] = "every_step"
    """Where the summary of the source goes: into every step of the decoder and its output (Cho et al. 2014), or only
    into the first states of its layers (Sutskever et al. 2014)."""
    dropout: float = Field(default=0.3, ge=0, lt=1)
    """The dropout probability of embeddings, of the layers' outputs (never of what a layer passes to its next step) and
    of the features that the logits are computed from."""
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""

    @model_validator(mode="after")
    def _check_directions(self) -> Self:
        if self.bidirectional and self.hidden % 2:
            raise ConfigError("hidden", f"found {self.hidden}; a bidirectional encoder needs an even number.")
        return self

    def build(self) -> "RecurrentEncoderDecoder":
        return RecurrentEncoderDecoder(self)


class EveryStepDecoder(nn.Module):
    """The summary c = tanh(V h) of the encoder's last state h is an input of each step, and of a maxout readout."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden
        self.summary_proj = nn.Linear(hidden, hidden)
        nn.init.xavier_uniform_(self.summary_proj.weight)
        self.first_state = FirstState(config.cell, hidden, hidden, config.layers)
        self.layers = _layers(config, width + hidden)
        self.readout = Readout("maxout", hidden + width + hidden, width)
        self.dropout = nn.Dropout(config.dropout)

    def start(self, encoded: Encoded) -> list[State]:
        """The states before the first token, and the summary."""
        summary = self.summary_proj(encoded.states[-1][0]).tanh()
        return [*self.first_state(summary), (summary,)]

    def forward(self, x: Tensor, states: list[State]) -> tuple[Tensor, list[State]]:
        """x: # (rows, tokens, width); gives the features of the logits (rows, tokens, width) and the last states"""
        *states, (summary,) = states
        c = summary[:, None].expand(-1, x.shape[1], -1)  # (rows, tokens, hidden)
        h, states = _run(self.layers, torch.cat((x, c), dim=-1), states, self.dropout)
        return self.dropout(self.readout(torch.cat((h, x, c), dim=-1))), [*states, (summary,)]


class FirstStateDecoder(nn.Module):
    """The encoder's last states are the first ones of the decoder, layer by layer."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        same = config.hidden == config.width
        self.layers = _layers(config, config.width)
        self.output_proj = nn.Identity() if same else nn.Linear(config.hidden, config.width, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def start(self, encoded: Encoded) -> list[State]:
        """The states before the first token."""
        return encoded.states

    def forward(self, x: Tensor, states: list[State]) -> tuple[Tensor, list[State]]:
        """x: # (rows, tokens, width); gives the features of the logits (rows, tokens, width) and the last states"""
        h, states = _run(self.layers, x, states, self.dropout)
        return self.output_proj(self.dropout(h)), states


class RecurrentEncoderDecoder(SequenceToSequence):
    """Embeddings, a recurrent encoder, a recurrent decoder, logits."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.config: RecurrentConfig = config
        width = config.width
        self.embed_tokens = TokenEmbedding(config.vocab_size, width)
        self.source_embed_tokens = self.source_embedding_of(config, width)
        self.encoder = RecurrentEncoder(
            config.cell,
            width,
            config.hidden,
            config.layers,
            bidirectional=config.bidirectional,
            dropout=config.dropout,
        )
        self.decoder = (EveryStepDecoder if config.summary_input == "every_step" else FirstStateDecoder)(config)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, width)
        self.lm_head_bias = nn.Parameter(self.embed_tokens.weight.new_zeros(config.vocab_size))

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> RecurrentState:
        return RecurrentState(pack_states(self.decoder.start(self._read(source, lengths))))

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        layers = self._read(tokens, lengths).layers
        return [reverse_rows(layer, lengths) for layer in layers] if self.config.reverse_source else layers

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        x, states = self.decoder(self._embed(self.embed_tokens, tokens), unpack_states(state.rows))
        state.rows = pack_states(states)
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.lm_head_bias)

    def _read(self, source: Tensor, lengths: Tensor | None) -> Encoded:
        """source: # (batch, tokens); read from its end if the model does so"""
        if self.config.reverse_source:
            source = reverse_rows(source, lengths)
        embed = self.embed_tokens if self.source_embed_tokens is None else self.source_embed_tokens
        encoded: Encoded = self.encoder(self._embed(embed, source), lengths)
        return encoded

    def _embed(self, embed: TokenEmbedding, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(embed(tokens) * self.config.width**0.5)  # (rows, tokens, width)
        return x


def _layers(config: RecurrentConfig, inputs: int) -> nn.ModuleList:
    hidden = config.hidden
    return nn.ModuleList(
        RecurrentLayer(config.cell, hidden if number else inputs, hidden) for number in range(config.layers)
    )


def _run(layers: nn.ModuleList, x: Tensor, states: list[State], dropout: nn.Module) -> tuple[Tensor, list[State]]:
    """The top layer's output, and the last state of every layer; dropout between layers."""
    after: list[State] = []
    for number, (layer, state) in enumerate(zip(layers, states, strict=True)):
        x, last = layer(dropout(x) if number else x, state)
        after.append(last)
    return x, after
