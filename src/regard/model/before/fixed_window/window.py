"""The neural language model of Bengio et al. (2003): a feed-forward network over a window of the last n − 1 words.

The Markov assumption of n-gram models, but without their table: the n − 1 previous words become embeddings, which are
concatenated to x, and the logits are

    y = b + W·x + U·tanh(d + H·x)

Similar words have similar embeddings, so the model also knows what follows word sequences that it has never read. The
direct connection W·x is optional. Before a text begins, embeddings are zeros.
"""

from typing import Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.config import ConfigError
from regard.model.before.base import CausalLMConfig, CausalSequenceModel, Dropout
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding


class WindowLMConfig(CausalLMConfig):
    """A neural language model with a window of fixed size."""

    kind: Literal["window-lm"] = "window-lm"
    window: int = Field(default=4, ge=1, le=100_000)
    """The number of previous tokens that the next one depends on: n − 1."""
    width: int = Field(default=60, ge=1, le=1_000_000)
    """The width of embeddings."""
    hidden: int = Field(default=100, ge=1, le=1_000_000)
    """The width of the hidden layer."""
    direct: bool = False
    """Whether embeddings are also connected directly to the logits (W)."""
    dropout: float = Dropout
    """The dropout probability of embeddings and of the hidden layer."""
    tie_weights: bool = False
    """Whether the token embedding is also the output projection (`lm_head`); `hidden` must then equal `width`."""

    @model_validator(mode="after")
    def _check_tie(self) -> Self:
        if self.tie_weights and self.hidden != self.width:
            raise ConfigError(
                "tie_weights",
                f"embeddings of width {self.width} cannot score a hidden layer of width {self.hidden}; set hidden to "
                f"{self.width}, or tie_weights to false.",
            )
        return self

    def build(self) -> "WindowLM":
        return WindowLM(self)


class WindowLM(CausalSequenceModel):
    """Computes the logits of the next token from the tokens in the window."""

    config: WindowLMConfig

    def __init__(self, config: WindowLMConfig) -> None:
        super().__init__()
        self.config = config
        inputs = config.window * config.width
        self.embed_tokens = TokenEmbedding(config.vocab_size, config.width)
        self.hidden = nn.Linear(inputs, config.hidden)
        self.direct = nn.Linear(inputs, config.vocab_size, bias=False) if config.direct else None
        self.dropout = nn.Dropout(config.dropout)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, config.hidden)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def initial_state(self, rows: int) -> RecurrentState:
        """The embeddings that later windows see again: all but the first of the current one."""
        return RecurrentState({"window": self.hidden.weight.new_zeros(rows, self.config.window - 1, self.config.width)})

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        new = self.dropout(self.embed_tokens(tokens) * self.config.width**0.5)
        seen = torch.cat((state.rows["window"], new), dim=1)  # (rows, window − 1 + tokens, width)
        state.rows = {"window": seen[:, tokens.shape[1] :]}
        x = seen.unfold(1, self.config.window, 1).transpose(2, 3).flatten(2)  # (rows, tokens, window · width)
        hidden = self.dropout(self.hidden(x).tanh())  # (rows, tokens, hidden)
        logits = (self.embed_tokens if self.lm_head is None else self.lm_head).logits(hidden, self.lm_head_bias)
        return logits if self.direct is None else logits + self.direct(x)
