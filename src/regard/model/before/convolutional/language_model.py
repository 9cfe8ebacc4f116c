"""A convolutional language model: gated causal convolutions (Dauphin et al. 2017).

A token sees the last 1 + Σ (kernel − 1) · dilation tokens, and there are no positions, so texts may have any length.
Blocks are residual with weight normalization and are scaled as in ConvS2S. Dilations make the receptive field grow
quickly (van den Oord et al. 2016); Dauphin et al. use none.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.attention.context import AttentionHook
from regard.model.before.base import CausalLMConfig, CausalSequenceModel, Dropout
from regard.model.before.convolutional.layers import Dilation, GatedConvolution, WeightNormLinear, module_list
from regard.model.before.state import RecurrentState
from regard.model.embedding import TokenEmbedding


class ConvolutionalLMConfig(CausalLMConfig):
    """A convolutional language model."""

    kind: Literal["convolutional-lm"] = "convolutional-lm"
    width: int = Field(default=512, ge=1, le=1_000_000)
    """The width of the embeddings."""
    hidden: int | None = Field(default=None, ge=1, le=1_000_000)
    """The channels of the convolutions; if not given, as many as `width`."""
    layers: int = Field(default=8, ge=1, le=10_000)
    """The number of convolutions."""
    kernel: int = Field(default=4, ge=1, le=1_000)
    """The tokens that a convolution sees, itself included."""
    dilations: tuple[Dilation, ...] = Field(default=(1,), min_length=1, max_length=100, strict=False)
    """The dilations of the first layers, repeated for those that follow."""
    dropout: float = Dropout
    """The dropout probability of embeddings, of each convolution's input and of the output projection's input."""
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""

    def dilation(self, layer: int) -> int:
        return self.dilations[layer % len(self.dilations)]

    @property
    def receptive_field(self) -> int:
        """The number of tokens that a prediction depends on."""
        return 1 + (self.kernel - 1) * sum(self.dilation(layer) for layer in range(self.layers))

    def build(self) -> "ConvolutionalLM":
        return ConvolutionalLM(self)


class ConvolutionalLM(CausalSequenceModel):
    """Computes the logits of the next token from a window of the tokens before it."""

    def __init__(self, config: ConvolutionalLMConfig) -> None:
        super().__init__()
        self.config: ConvolutionalLMConfig = config
        width, channels, dropout = config.width, config.hidden or config.width, config.dropout
        self.embed_tokens = TokenEmbedding(config.vocab_size, width)
        nn.init.normal_(self.embed_tokens.weight, 0, 0.1)
        self.in_proj = WeightNormLinear(width, channels, dropout)
        self.convolutions = module_list(
            GatedConvolution(channels, channels, config.kernel, config.dilation(layer), dropout)
            for layer in range(config.layers)
        )
        self.out_proj = WeightNormLinear(channels, width)
        self.lm_head = None if config.tie_weights else WeightNormLinear(width, config.vocab_size, dropout)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.tie_weights else None
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, rows: int) -> RecurrentState:
        return RecurrentState({str(number): each.empty_cache(rows) for number, each in enumerate(self.convolutions)})

    def decode(self, tokens: Tensor, state: RecurrentState, attention_hook: AttentionHook | None = None) -> Tensor:
        *_, x = self._layers(tokens, state)
        x = self.dropout(x)  # (rows, tokens, width)
        if self.lm_head is None:
            return self.embed_tokens.logits(x, self.lm_head_bias)
        logits: Tensor = self.lm_head(x)
        return logits

    def hidden_states(self, tokens: Tensor, lengths: Tensor | None = None) -> list[Tensor]:
        return self._layers(tokens, self.initial_state(len(tokens)))

    def _layers(self, tokens: Tensor, state: RecurrentState) -> list[Tensor]:
        """The embeddings, and the output of every layer; the last is projected. The state is updated in place."""
        found = [self.dropout(self.embed_tokens(tokens))]  # (rows, tokens, width)
        x = self.in_proj(found[0])  # (rows, tokens, channels)
        rows: dict[str, Tensor] = {}
        for number, convolution in enumerate(self.convolutions):
            convolved, rows[str(number)] = convolution.causal(self.dropout(x), state.rows[str(number)])
            x = (convolved + x) * 0.5**0.5
            found.append(x)
        state.rows = rows
        return [*found[:-1], self.out_proj(x)]
