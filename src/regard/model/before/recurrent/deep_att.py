"""Deep-Att: deep recurrent layers with fast-forward connections (Zhou et al. 2016).

What enters the gates of layer k is f^k = W^k [f^{k−1}; h^{k−1}]: the layer below gives both its output h and its own f,
which has passed no non-linearity and no recurrence. A path of linear maps leads from the embeddings to every layer, so
that deep stacks train. As in the paper, only half of f is passed on.

The encoder has two columns of layers whose directions alternate: one begins forward, the other backward. The bottom
layer of the decoder attends to the source with its previous state.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.model.before.base import Seq2SeqConfig, SequenceToSequence
from regard.model.before.recurrent.attention_scores import RecurrentAttentionConfig, Source
from regard.model.before.recurrent.decoders import AttentiveLayer
from regard.model.before.recurrent.layers import RecurrentLayer, pack_states, unpack_states
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding


class DeepAttConfig(Seq2SeqConfig):
    """A deep recurrent encoder–decoder with fast-forward connections. The paper's has 9 and 7 layers of width 512."""

    kind: Literal["deep-att"] = "deep-att"
    width: int = Field(default=256, ge=1, le=1_000_000)
    """The width of the token embeddings."""
    hidden: int = Field(default=256, ge=1, le=1_000_000)
    """The width of the LSTM layers."""
    encoder_layers: int = Field(default=4, ge=1, le=10_000)
    """The number of layers in each of the encoder's two columns."""
    decoder_layers: int = Field(default=3, ge=1, le=10_000)
    """The number of layers of the decoder."""
    attention: RecurrentAttentionConfig = RecurrentAttentionConfig()
    """How a state of the decoder and a token of the source are compared."""
    dropout: float = Field(default=0.2, ge=0, lt=1)
    """The dropout probability of embeddings and of each layer's output."""
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""

    def build(self) -> "DeepAtt":
        return DeepAtt(self)


class DeepAtt(SequenceToSequence):
    """Two columns of LSTM layers, a layer with attention, LSTM layers above it; all with fast-forward connections."""

    def __init__(self, config: DeepAttConfig) -> None:
        super().__init__()
        self.config: DeepAttConfig = config
        width, hidden = config.width, config.hidden
        passed = 3 * hidden  # half of the four gates, and the output
        self.embed_tokens = TokenEmbedding(config.vocab_size, width)
        self.source_embed_tokens = self.source_embedding_of(config, width)
        self.columns = nn.ModuleList(
            nn.ModuleList(
                RecurrentLayer("lstm", passed if number else width, hidden, reverse=(number + column) % 2 == 1)
                for number in range(config.encoder_layers)
            )
            for column in range(2)
        )
        self.memory_proj = nn.Linear(2 * passed, hidden)
        attention = config.attention.build(hidden, hidden)
        self.decoder_bottom = AttentiveLayer("lstm", width, hidden, hidden, attention)
        self.decoder_layers = nn.ModuleList(
            RecurrentLayer("lstm", passed, hidden) for _ in range(1, config.decoder_layers)
        )
        self.output_proj = nn.Linear(passed, width, bias=False)
        for proj in (self.memory_proj, self.output_proj):
            nn.init.xavier_uniform_(proj.weight)
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, width)
        self.lm_head_bias = nn.Parameter(self.embed_tokens.weight.new_zeros(config.vocab_size))

    def encode(
        self, source: Tensor, lengths: Tensor | None = None, attention_hook: AttentionHook | None = None
    ) -> RecurrentState:
        memory = self.hidden_states(source, lengths)[-1]  # (batch, tokens, hidden)
        layers = (self.decoder_bottom.layer, *self.decoder_layers)
        first = [layer.zero_state(source.shape[0]) for layer in layers if isinstance(layer, RecurrentLayer)]
        return RecurrentState(pack_states(first), self.decoder_bottom.attention.memory(memory), lengths)

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        bottom, *states = unpack_states(state.rows)
        embedded = self._embed(self.embed_tokens, tokens)
        h, context, last = self.decoder_bottom(embedded, bottom, Source.of(state), attention_hook)
        x = self._pass_on(self.decoder_bottom.layer, torch.cat((embedded, context), dim=-1), h)
        after = [last]
        for layer, before in zip(self.decoder_layers, states, strict=True):
            assert isinstance(layer, RecurrentLayer)
            h, last = layer(x, before)
            x = self._pass_on(layer, x, h)
            after.append(last)
        state.rows = pack_states(after)
        x = self.output_proj(x)
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.lm_head_bias)

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        """As of every model. A layer has the outputs of both columns; the last is projected to what is attended to."""
        embed = self.embed_tokens if self.source_embed_tokens is None else self.source_embed_tokens
        embedded = self._embed(embed, tokens)
        columns = []
        for column in self.columns:
            x, outputs = embedded, []
            assert isinstance(column, nn.ModuleList)
            for layer in column:
                assert isinstance(layer, RecurrentLayer)
                h, _ = layer(x, lengths=lengths)
                x = self._pass_on(layer, x, h)
                outputs.append(x)
            columns.append(outputs)
        *lower, top = [torch.cat(pair, dim=-1) for pair in zip(*columns, strict=True)]
        return [embedded, *lower, self.memory_proj(top)]

    def _pass_on(self, layer: RecurrentLayer, x: Tensor, h: Tensor) -> Tensor:
        """[half of f; h], the input of the next layer; f is what the layer's input adds to its gates.

        x: # (rows, tokens, inputs); h: # (rows, tokens, hidden); gives (rows, tokens, 3 · hidden)
        """
        f = nn.functional.linear(x, layer.weight_ih_l0[: 2 * layer.width])
        return torch.cat((f, self.dropout(h)), dim=-1)

    def _embed(self, embed: TokenEmbedding, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(embed(tokens) * self.config.width**0.5)  # (rows, tokens, width)
        return x
