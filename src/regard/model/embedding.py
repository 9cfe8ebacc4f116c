"""Embeddings: token ids become vectors with positions, and hidden states become logits."""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context
from regard.attention.positions.config import PositionConfig
from regard.config import Config
from regard.errors import UserError
from regard.model.stack import NormConfig


class EmbeddingConfig(Config):
    """How tokens are embedded."""

    scale: bool = True
    """Multiply token embeddings by √width before positions are added (Vaswani et al. 2017, §3.4)."""
    norm: NormConfig | None = None
    """The norm of the sum of token and position embedding (as in BART); if not given, there is none."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """The dropout probability of the embeddings."""


class SpecialTokensConfig(Config):
    """The ids of special tokens. One that is not set does not exist in the model."""

    pad: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Fills up shorter rows of a batch."""
    bos: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Begins a sequence."""
    eos: int | None = Field(default=None, ge=0, lt=10_000_000)
    """Ends a sequence."""


class TokenEmbedding(nn.Module):
    """The token embedding; with tied weights also the output projection."""

    no_weight_decay: ClassVar = ("weight",)

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, width) * width**-0.5)  # (vocabulary, width)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: # (batch, tokens); gives (batch, tokens, width)"""
        if ids.dtype not in (torch.int32, torch.int64):
            raise UserError(f"Token ids must be integers (torch.int32 or torch.int64); found {ids.dtype}.")
        try:
            return functional.embedding(ids, self.weight)
        except IndexError:
            raise UserError(out_of_vocabulary(ids, self.weight.shape[0])) from None

    def logits(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """The logits.  x: # (batch, tokens, width); gives (batch, tokens, vocabulary)"""
        return functional.linear(x, self.weight, bias)


class TokenTypeEmbedding(nn.Module):
    """BERT's token types: an embedding for each part of a text, such as the two sentences of a pair."""

    no_weight_decay: ClassVar = ("weight",)

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width) * width**-0.5)  # (token types, width)

    def forward(self, token_types: Tensor | None, x: Tensor) -> Tensor:
        """Add them to x.  token_types: # (batch, tokens), None for all zeros; x: # (batch, tokens, width)"""
        if token_types is None:
            return x + self.weight[0]
        if token_types.shape != x.shape[:2] or token_types.dtype not in (torch.int32, torch.int64):
            raise UserError(
                f"token_types must contain integers of shape {tuple(x.shape[:2])}; "
                f"found {tuple(token_types.shape)} of {token_types.dtype}."
            )
        try:
            return x + functional.embedding(token_types, self.weight)
        except IndexError:
            count = self.weight.shape[0]
            wrong = int(token_types[(token_types < 0) | (token_types >= count)][0])
            raise UserError(f"Token types run from 0 to {count - 1}; found {wrong}.") from None


class EmbeddingLayer(nn.Module):
    """What happens to token embeddings before the first layer: scale, position, norm, dropout."""

    def __init__(self, config: EmbeddingConfig, position: PositionConfig, width: int) -> None:
        super().__init__()
        self.scale = width**0.5 if config.scale else 1.0
        self.embed_positions = position.build(width)
        self.norm = nn.Identity() if config.norm is None else config.norm.build(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """x: # (batch, tokens, token width); gives (batch, tokens, width)"""
        x = x if self.scale == 1 else x * self.scale
        x = self.embed_positions.combine(x, context.positions, context.lengths)
        output: Tensor = self.dropout(self.norm(x))
        return output


def check_ids(ids: Tensor, size: int) -> Tensor:
    """The same ids, checked while they are on the CPU: a GPU would end the process instead of raising an error."""
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= size):
        raise UserError(out_of_vocabulary(ids, size))
    return ids


def out_of_vocabulary(ids: Tensor, size: int) -> str:
    """The error message for ids outside the vocabulary."""
    wrong = ids[(ids < 0) | (ids >= size)]
    found = int(wrong[0]) if wrong.numel() else "none"
    return f"Token id {found} is outside the vocabulary of {size}: ids run from 0 to {size - 1}. Check the tokenizer."
