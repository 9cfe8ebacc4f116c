"""The two models of the paper, as it describes them (Vaswani et al. 2017, §3 and table 3).

Post-norm, sinusoidal positions, ReLU, one vocabulary for both languages whose vectors also score the words, no biases
in the attention projections (the paper's formulas have none).
"""

from regard.attention import HeadsConfig
from regard.model.embedding import EmbeddingConfig
from regard.model.encoder_decoder import EncoderDecoderConfig
from regard.model.feed_forward import FeedForwardConfig
from regard.model.stack import StackConfig


def transformer_base(vocabulary: int) -> EncoderDecoderConfig:
    """6 + 6 layers of width 512: 65 million parameters."""
    return paper_model(vocabulary)


def transformer_big(vocabulary: int) -> EncoderDecoderConfig:
    """6 + 6 layers of width 1024: 213 million parameters."""
    return paper_model(vocabulary, width=1024, hidden=4096, heads=16, dropout=0.3)


def paper_model(
    vocabulary: int,
    *,
    layers: int = 6,
    width: int = 512,
    hidden: int = 2048,
    heads: int = 8,
    head_width: int | None = None,
    value_width: int | None = None,
    dropout: float = 0.1,
) -> EncoderDecoderConfig:
    """Any row of the paper's table 3: the base model with some of its numbers changed."""
    stack = StackConfig(
        layers=layers,
        attention=HeadsConfig(heads=heads, head_width=head_width, value_width=value_width, bias=False),
        feed_forward=FeedForwardConfig(hidden=hidden),
        order="post",
        dropout=dropout,
    )
    return EncoderDecoderConfig(
        vocabulary=vocabulary,
        width=width,
        encoder=stack,
        decoder=stack,
        embedding=EmbeddingConfig(dropout=dropout),
    )
