"""The two models of the paper, as it describes them (Vaswani et al. 2017, §3 and table 3).

Post-norm, sinusoidal positions, ReLU, one vocabulary for both languages with tied embeddings, no biases in attention
(the paper's formulas have none).
"""

from regard.attention import MultiHeadConfig
from regard.model.embedding import EmbeddingConfig
from regard.model.encoder_decoder import EncoderDecoderConfig
from regard.model.feed_forward import FeedForwardConfig
from regard.model.stack import StackConfig


def transformer_base(vocab_size: int) -> EncoderDecoderConfig:
    """6 + 6 layers of width 512: 65 million parameters."""
    return paper_model(vocab_size)


def transformer_big(vocab_size: int) -> EncoderDecoderConfig:
    """6 + 6 layers of width 1024: 213 million parameters."""
    return paper_model(vocab_size, width=1024, hidden=4096, heads=16, dropout=0.3)


def paper_model(
    vocab_size: int,
    *,
    layers: int = 6,
    width: int = 512,
    hidden: int = 2048,
    heads: int = 8,
    head_dim: int | None = None,
    value_head_dim: int | None = None,
    dropout: float = 0.1,
) -> EncoderDecoderConfig:
    """Any row of the paper's table 3: the base model with some of its sizes changed."""
    stack = StackConfig(
        layers=layers,
        attention=MultiHeadConfig(heads=heads, head_dim=head_dim, value_head_dim=value_head_dim, bias=False),
        feed_forward=FeedForwardConfig(hidden=hidden),
        norm_position="post",
        dropout=dropout,
    )
    return EncoderDecoderConfig(
        vocab_size=vocab_size,
        width=width,
        encoder=stack,
        decoder=stack,
        embedding=EmbeddingConfig(dropout=dropout),
    )
