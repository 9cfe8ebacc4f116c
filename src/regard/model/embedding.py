"""The way in and the way out: ids become vectors that know their place, vectors become scores for each word."""

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Context
from regard.attention.position import PositionConfig
from regard.config import Config
from regard.errors import UserError
from regard.model.block import NormConfig


class EmbeddingConfig(Config):
    scale: bool = True
    """Multiply word vectors by √width before positions are added (Vaswani et al. 2017, §3.4)."""
    norm: NormConfig | None = None
    """How the sum of word and position is normalised, if it is (BART does)."""
    dropout: float = Field(default=0.1, ge=0, lt=1)


class TokensConfig(Config):
    """Ids with a meaning of their own, where the model has them."""

    padding: int | None = Field(default=None, ge=0)
    start: int | None = Field(default=None, ge=0)
    end: int | None = Field(default=None, ge=0)


class Vocabulary(nn.Module):
    """One vector for each word: looked up on the way in and, where tied, compared with on the way out."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, width) * width**-0.5)  # (vocabulary, width)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: # (batch, tokens); gives (batch, tokens, width)"""
        if ids.dtype not in (torch.int32, torch.int64):
            raise UserError(f"Token ids must be whole numbers (torch.int32 or torch.int64); found {ids.dtype}.")
        try:
            return functional.embedding(ids, self.weight)
        except IndexError:
            raise UserError(out_of_vocabulary(ids, self.weight.shape[0])) from None

    def logits(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """How well each word fits.  x: # (batch, tokens, width); gives (batch, tokens, vocabulary)"""
        return functional.linear(x, self.weight, bias)


class Segments(nn.Module):
    """One vector for each part of a text, such as the two sentences of a pair, added to those of its words."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(count, width) * width**-0.5)  # (segments, width)

    def forward(self, numbers: Tensor | None, words: Tensor) -> Tensor:
        """numbers: # (batch, tokens), None where all is of the first; words: # (batch, tokens, width)"""
        if numbers is None:
            return words + self.table[0]
        if numbers.shape != words.shape[:2] or numbers.dtype not in (torch.int32, torch.int64):
            raise UserError(
                f"segments must hold whole numbers in the shape {tuple(words.shape[:2])}; "
                f"found {tuple(numbers.shape)} of {numbers.dtype}."
            )
        try:
            return words + functional.embedding(numbers, self.table)
        except IndexError:
            count = self.table.shape[0]
            wrong = int(numbers[(numbers < 0) | (numbers >= count)][0])
            raise UserError(f"Segments are numbered from 0 to {count - 1}; found {wrong}.") from None


class Input(nn.Module):
    """What happens to word vectors before the first layer: scale, position, norm, dropout."""

    def __init__(self, config: EmbeddingConfig, position: PositionConfig, width: int) -> None:
        super().__init__()
        self.factor = width**0.5 if config.scale else 1.0
        self.position = position.build(width)
        self.norm = nn.Identity() if config.norm is None else config.norm.build(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """x: # (batch, tokens, token width); gives (batch, tokens, width)"""
        x = x if self.factor == 1 else x * self.factor
        placed = self.position.join(x, context.positions, context.lengths)
        ready: Tensor = self.dropout(self.norm(placed))
        return ready


def out_of_vocabulary(ids: Tensor, size: int) -> str:
    """The sentence for ids that no word has."""
    wrong = ids[(ids < 0) | (ids >= size)]
    found = int(wrong[0]) if wrong.numel() else "none"
    return f"Token id {found} is outside the vocabulary of {size}: ids run from 0 to {size - 1}. Check the tokenizer."
