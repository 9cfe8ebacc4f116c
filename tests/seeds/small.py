"""Models small enough for a slide, in eval mode, without dropout and reproducible by their seed."""

from typing import Any

import torch
from torch import Tensor

from regard.attention import Context, LayerState, MultiHeadConfig, SelfAttention
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


def stack(layers: int = 2, width: int = WIDTH, attention: MultiHeadConfig | None = None, **changes: Any) -> StackConfig:
    return StackConfig(
        layers=layers,
        attention=attention or MultiHeadConfig(heads=4),
        feed_forward=FeedForwardConfig(hidden=4 * width),
        dropout=0.0,
        **changes,
    )


def translator(layers: int = 2, seed: int = 0, **changes: Any) -> EncoderDecoder:
    torch.manual_seed(seed)
    config = EncoderDecoderConfig(
        vocab_size=WORDS,
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
        vocab_size=WORDS, width=WIDTH, decoder=stack(layers), embedding=EmbeddingConfig(dropout=0.0), **changes
    )
    return config.build().double().eval()


def ids(*numbers: int) -> Tensor:
    """One sentence.  # (1, words)"""
    return torch.tensor([numbers])


def random_ids(length: int, seed: int = 0) -> Tensor:
    """One sentence of random words.  # (1, words)"""
    return torch.randint(WORDS, (1, length), generator=torch.Generator().manual_seed(seed))


def head(matrix: Tensor) -> Tensor:
    """A matrix with one row per word, as a batch of one head.  (words, width) → (1, 1, words, width)"""
    return matrix[None, None]


def run_attention(attention: SelfAttention, x: Tensor) -> Tensor:
    """Self-attention over x.  (words, width) → (words, width)"""
    context = Context(torch.zeros(1, x.shape[0], dtype=torch.long))
    return attention(x[None], context, LayerState())[0]
