"""DNN1: a feed-forward network over one-hot words of the source and of the target so far, padded to m words a side.

The first attempt at translation with a neural network, as lectures draw it: 2m one-hot vectors are the input, hidden
layers follow, and the output is a probability for every word of the target language. Its first matrix has a row for
each word at each position, so nothing that it learns of a word at one position holds at another, and its size is
2 · m · |T| · hidden. That is the reason for embeddings (`dnn2.py`).

A one-hot vector times a matrix is a row of it. So the input is never made: the first layer is a sum of rows, one for
each word at its position.
"""

from typing import ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.config import ConfigError
from regard.model.before.fixed_window.fixed_length import FixedLengthConfig, PaddedContextModel
from regard.model.embedding import TokenEmbedding, check_ids

_MAX_WEIGHTS = 2**28
"""The largest first matrix: 1 GiB in float32, and four times that while it is trained with Adam."""


class DNN1Config(FixedLengthConfig):
    """A feed-forward network over one-hot words."""

    kind: Literal["dnn1"] = "dnn1"

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        words = self.vocab_size + (self.source_vocab_size or self.vocab_size)
        weights = words * self.max_length * self.hidden
        if weights > _MAX_WEIGHTS:
            raise ConfigError(
                "vocab_size",
                f"one-hot vectors of {words:,} words (of both languages) at {self.max_length:,} positions need a first "
                f"matrix of {weights:,} weights, and {_MAX_WEIGHTS:,} is the limit; lower the vocabulary, max_length "
                'or hidden, or set kind to "dnn2", which has embeddings.',
            )
        return self

    def build(self) -> "DNN1":
        return DNN1(self)


class DNN1(PaddedContextModel):
    """Computes the logits of the next target word from one-hot words."""

    config: DNN1Config

    def __init__(self, config: DNN1Config) -> None:
        super().__init__(config)
        self.source = OneHotLinear(config.max_length, config.source_vocab_size or config.vocab_size, config.hidden)
        self.target = OneHotLinear(config.max_length, config.vocab_size, config.hidden)
        self.lm_head = TokenEmbedding(config.vocab_size, config.hidden)
        self.lm_head_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def project_source(self, source: Tensor, mask: Tensor | None) -> Tensor:
        x: Tensor = self.source(source, torch.arange(source.shape[1], device=source.device))  # (batch, tokens, hidden)
        return (x if mask is None else x.masked_fill(~mask[..., None], 0)).sum(1)

    def project_target(self, target: Tensor, positions: Tensor, extent: int) -> Tensor:
        x: Tensor = self.target(target, positions.clamp(max=extent - 1))
        return x

    def logits(self, x: Tensor) -> Tensor:
        return self.lm_head.logits(x, self.lm_head_bias)


class OneHotLinear(nn.Module):
    """A one-hot vector at each position times the position's matrix, which is to say: a row of it."""

    no_weight_decay: ClassVar = ("weight",)

    def __init__(self, positions: int, vocab_size: int, outputs: int) -> None:
        super().__init__()
        # The sum over two sentences, half as long as they may be, has a variance of 1.
        self.weight = nn.Parameter(torch.randn(positions, vocab_size, outputs) * positions**-0.5)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids: # (batch, tokens); positions: # (batch, tokens) or (tokens,); gives (batch, tokens, outputs)"""
        if ids.device.type == "cpu":  # the row of a wrong id may be another position's
            check_ids(ids, self.weight.shape[1])
        return functional.embedding(positions * self.weight.shape[1] + ids, self.weight.flatten(0, 1))
