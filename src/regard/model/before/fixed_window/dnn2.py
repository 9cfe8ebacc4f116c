"""DNN2: a feed-forward network over the concatenated embeddings of the source and of the target so far.

The network of `dnn1.py`, with an embedding of width d for each word in place of a one-hot vector (Bengio et al. 2003
did so for language models, see `window.py`). What is learned of a word holds at all positions, because they share its
embedding; what to do with it is still learned for each position: the first matrix has d rows for each of 2m positions.
The network's output is an embedding too, and words are scored by their similarity to it.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from regard.model.before.fixed_window.fixed_length import FixedLengthConfig, PaddedContextModel
from regard.model.embedding import TokenEmbedding


class DNN2Config(FixedLengthConfig):
    """A feed-forward network over concatenated embeddings."""

    kind: Literal["dnn2"] = "dnn2"
    width: int = Field(default=256, ge=1, le=1_000_000)
    """The width of embeddings."""
    tie_weights: bool = True
    """Whether the token embedding is also the output projection (`lm_head`)."""

    def build(self) -> "DNN2":
        return DNN2(self)


class DNN2(PaddedContextModel):
    """Computes the logits of the next target word from embeddings."""

    config: DNN2Config

    def __init__(self, config: DNN2Config) -> None:
        super().__init__(config)
        width = config.width
        self.embed_tokens = TokenEmbedding(config.vocab_size, width)
        self.source_embed_tokens = self.source_embedding_of(config, width)
        self.dropout = nn.Dropout(config.dropout)
        self.source = PositionLinear(config.max_length, width, config.hidden)
        self.target = PositionLinear(config.max_length, width, config.hidden)
        self.output = nn.Linear(config.hidden, width)
        self.lm_head = None if config.tie_weights else TokenEmbedding(config.vocab_size, width)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def project_source(self, source: Tensor, mask: Tensor | None) -> Tensor:
        x = self._embed(self.embed_tokens if self.source_embed_tokens is None else self.source_embed_tokens, source)
        return self.source.summed(x if mask is None else x.masked_fill(~mask[..., None], 0))

    def project_target(self, target: Tensor, positions: Tensor, extent: int) -> Tensor:
        x = self._embed(self.embed_tokens, target)  # (batch, tokens, width)
        # Rows may be at different positions, but a matrix is best multiplied with all embeddings at its position.
        aligned = x.new_zeros(x.shape[0], extent + 1, x.shape[2])  # the last is for tokens that have no place
        aligned = aligned.scatter(1, positions.clamp(max=extent)[..., None].expand_as(x), x)[:, :extent]
        projected: Tensor = self.target(aligned)  # (batch, positions, hidden)
        place = positions.clamp(max=extent - 1)[..., None]
        return projected.gather(1, place.expand(-1, -1, projected.shape[2]))

    def logits(self, x: Tensor) -> Tensor:
        return (self.embed_tokens if self.lm_head is None else self.lm_head).logits(self.output(x), self.lm_head_bias)

    def _embed(self, table: TokenEmbedding, ids: Tensor) -> Tensor:
        x: Tensor = self.dropout(table(ids) * self.config.width**0.5)
        return x


class PositionLinear(nn.Module):
    """A matrix for each position: together, one matrix for the concatenation of all positions."""

    def __init__(self, positions: int, inputs: int, outputs: int) -> None:
        super().__init__()
        # The sum over two sentences, half as long as they may be, has a variance of 1.
        self.weight = nn.Parameter(torch.randn(positions, inputs, outputs) * (positions * inputs) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """What each of the first positions adds.  x: # (batch, positions, inputs); gives (batch, positions, outputs)"""
        return torch.bmm(x.transpose(0, 1), self.weight[: x.shape[1]]).transpose(0, 1)

    def summed(self, x: Tensor) -> Tensor:
        """The sum of it, as one matmul.  x: # (batch, positions, inputs); gives (batch, outputs)"""
        return x.flatten(1) @ self.weight[: x.shape[1]].flatten(0, 1)
