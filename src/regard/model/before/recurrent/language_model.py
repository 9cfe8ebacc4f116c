"""A recurrent language model: an LSTM or GRU reads the text so far into a state of fixed size (Mikolov et al. 2010)."""

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.model.before.base import CausalLMConfig, CausalSequenceModel, Dropout
from regard.model.before.recurrent.layers import RecurrentLayer
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding


class RecurrentLMSettings(CausalLMConfig):
    """What recurrent language models of one direction and of both have in common."""

    cell: Literal["lstm", "gru"] = "lstm"
    """The recurrent cell."""
    width: int = Field(default=512, ge=1, le=1_000_000)
    """The width of embeddings and recurrent layers."""
    layers: int = Field(default=2, ge=1, le=10_000)
    """The number of recurrent layers."""
    dropout: float = Dropout
    """The dropout probability of embeddings and of each layer's output."""
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""


class RecurrentLMConfig(RecurrentLMSettings):
    """A recurrent language model."""

    kind: Literal["recurrent-lm"] = "recurrent-lm"

    def build(self) -> "RecurrentLM":
        return RecurrentLM(self)


class RecurrentLM(CausalSequenceModel):
    """Computes the logits of the next token from the state after the tokens so far."""

    def __init__(self, config: RecurrentLMSettings) -> None:
        super().__init__()
        self.config: RecurrentLMSettings = config
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(
            RecurrentLayer(config.cell, config.width, config.width) for _ in range(config.layers)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, config.width)
        self.lm_head_bias = nn.Parameter(self.embed_tokens.weight.new_zeros(config.vocab_size))

    def initial_state(self, rows: int) -> RecurrentState:
        return RecurrentState(
            {
                f"{number}.{part}": tensor
                for number, layer in enumerate(self.layers)
                for part, tensor in enumerate(layer.zero_state(rows))  # type: ignore[operator]
            }
        )

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        x = self._embed(tokens)
        rows: dict[str, Tensor] = {}
        for number, layer in enumerate(self.layers):
            parts = 2 if self.config.cell == "lstm" else 1
            x, last = layer(x, tuple(state.rows[f"{number}.{part}"] for part in range(parts)))
            x = self.dropout(x)
            rows |= {f"{number}.{part}": tensor for part, tensor in enumerate(last)}
        state.rows = rows
        return self._logits(x)

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        found = [self._embed(tokens)]
        for layer in self.layers:
            found.append(self.dropout(layer(found[-1])[0]))
        return found

    def _embed(self, tokens: Tensor) -> Tensor:
        x: Tensor = self.dropout(self.embed_tokens(tokens) * self.config.width**0.5)  # (rows, tokens, width)
        return x

    def _logits(self, x: Tensor) -> Tensor:
        """x: # (rows, tokens, width); gives (rows, tokens, vocabulary)"""
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(x, self.lm_head_bias)
