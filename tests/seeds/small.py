"""Models small enough for a slide, in evaluation mode and without dropout, the same for the same seed."""

from typing import Any

import torch
from torch import Tensor

from regard.attention import Context, HeadsConfig, LayerState, SelfAttention
from regard.model import (
    EmbeddingConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModel,
    LanguageModelConfig,
    StackConfig,
)

WIDTH, WORDS = 16, 40


def stack(layers: int = 2, width: int = WIDTH, attention: HeadsConfig | None = None, **changes: Any) -> StackConfig:
    return StackConfig(
        layers=layers,
        attention=attention or HeadsConfig(heads=4),
        feed_forward=FeedForwardConfig(hidden=4 * width),
        dropout=0.0,
        **changes,
    )


def translator(layers: int = 2, seed: int = 0, **changes: Any) -> EncoderDecoder:
    torch.manual_seed(seed)
    config = EncoderDecoderConfig(
        vocabulary=WORDS,
        width=WIDTH,
        encoder=stack(layers),
        decoder=stack(layers),
        embedding=EmbeddingConfig(dropout=0.0),
        **changes,
    )
    return config.build().double().eval()


def writer(layers: int = 2, seed: int = 0, **changes: Any) -> LanguageModel:
    torch.manual_seed(seed)
    config = LanguageModelConfig(
        vocabulary=WORDS, width=WIDTH, decoder=stack(layers), embedding=EmbeddingConfig(dropout=0.0), **changes
    )
    return config.build().double().eval()


def ids(*numbers: int) -> Tensor:
    """One sentence.  # (1, words)"""
    return torch.tensor([numbers])


def random_ids(length: int, seed: int = 0) -> Tensor:
    """One sentence of random words.  # (1, words)"""
    return torch.randint(WORDS, (1, length), generator=torch.Generator().manual_seed(seed))


def head(matrix: Tensor) -> Tensor:
    """A matrix with one row a word, as the only head of the only sentence.  (words, width) → (1, 1, words, width)"""
    return matrix[None, None]


def run_attention(attention: SelfAttention, x: Tensor) -> Tensor:
    """Self-attention over x alone.  # (words, width), the result too"""
    context = Context(torch.zeros(1, x.shape[0], dtype=torch.long))
    return attention(x[None], context, LayerState())[0]
