"""Small models to test with: samples of every kind, strategies that draw more of them, and a way to build them.

A built model has no parameter left at zero or one: a bias that is ignored, or a norm that is skipped, then shows.
"""

from typing import Any

import torch
from hypothesis import strategies
from torch import Tensor

from regard.attention import (
    BandScaling,
    BinaryConfig,
    DynamicScaling,
    IndexConfig,
    LearnedConfig,
    LinearScaling,
    LongScaling,
    NoPositionConfig,
    RotaryConfig,
    SinusoidalConfig,
    YarnScaling,
)
from regard.attention.position import PositionConfig
from regard.model import (
    EmbeddingConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    ModelConfig,
    NormConfig,
    StackConfig,
)

VOCABULARY = 13
WIDTH = 16

# In float64, rounding adds up to about 1e-13 in models as small as these; a wrong mask or position shows from 1e-4 on.
EXACT: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}


def stack(
    *,
    layers: int = 2,
    order: str = "pre",
    norm: str = "layer",
    activation: str = "relu",
    hidden: int = 24,
    dropout: float = 0.1,
    bias: bool = True,
    **heads: Any,
) -> StackConfig:
    """A small stack; what is not named goes to its heads. The one number for dropout serves wherever there is some."""
    return StackConfig.read(
        {
            "layers": layers,
            "order": order,
            "norm": {"kind": norm},
            "dropout": dropout,
            "attention": {"heads": 4, "dropout": dropout, "bias": bias, **heads},
            "feed_forward": {"hidden": hidden, "activation": activation, "dropout": dropout, "bias": bias},
        }
    )


def language_model(**settings: Any) -> LanguageModelConfig:
    return LanguageModelConfig(**{"vocabulary": VOCABULARY, "width": WIDTH, "decoder": stack(), **settings})


def encoder_decoder(**settings: Any) -> EncoderDecoderConfig:
    small = {"vocabulary": VOCABULARY, "width": WIDTH, "encoder": stack(), "decoder": stack()}
    return EncoderDecoderConfig(**{**small, **settings})


SAMPLES: dict[str, dict[str, ModelConfig]] = {
    "language-model": {
        "plain": language_model(),
        "like GPT-2": language_model(
            decoder=stack(activation="gelu-tanh"),
            position=LearnedConfig(limit=20),
            embedding=EmbeddingConfig(scale=False),
        ),
        "like Llama": language_model(
            decoder=stack(norm="rms", activation="swiglu", bias=False, key_heads=2),
            position=RotaryConfig(scaling=BandScaling(factor=4, trained=8)),
            tie=False,
        ),
        "post-norm": language_model(decoder=stack(order="post", activation="gelu"), output_bias=True),
        "no residual": language_model(
            decoder=stack(order="none", activation="silu", layers=1), position=NoPositionConfig()
        ),
        "cosine": language_model(
            decoder=stack(similarity="cosine", activation="relu2"),
            position=RotaryConfig(scaling=YarnScaling(factor=4, trained=8)),
        ),
        "sliding": language_model(
            decoder=stack(pattern="sliding(3)", key_heads=1, activation="geglu"), position=BinaryConfig()
        ),
        "dilated and global": language_model(
            decoder=stack(pattern="global(1) | dilated(2, 2)", activation="geglu-tanh"),
            position=SinusoidalConfig(join="concatenate", features=4),
            tie=False,
        ),
        "wide values": language_model(
            decoder=stack(order="post", norm="rms", heads=3, head_width=6, value_width=5, similarity="dot"),
            position=IndexConfig(),
            embedding=EmbeddingConfig(norm=NormConfig()),
        ),
        "heads not mixed": language_model(
            decoder=stack(output=False, key_heads=1),
            position=RotaryConfig(scaling=DynamicScaling(factor=2, trained=4)),
            tie=False,
            output_bias=True,
        ),
        "learned and concatenated": language_model(
            decoder=stack(layers=1),
            position=LearnedConfig(limit=20, join="concatenate", features=3),
            tie=False,
        ),
    },
    "encoder-decoder": {
        "plain": encoder_decoder(),
        "of the paper": encoder_decoder(
            encoder=stack(order="post", bias=False),
            decoder=stack(order="post", bias=False),
            position=SinusoidalConfig(),
        ),
        "like Marian": encoder_decoder(
            encoder=stack(order="post", activation="silu"),
            decoder=stack(order="post", activation="silu", layers=1),
            position=SinusoidalConfig(layout="halves"),
            output_bias=True,
        ),
        "like BART": encoder_decoder(
            encoder=stack(order="post", activation="gelu"),
            decoder=stack(order="post", activation="gelu"),
            position=LearnedConfig(limit=20),
            embedding=EmbeddingConfig(scale=False, norm=NormConfig()),
        ),
        "shared memory": encoder_decoder(
            encoder=stack(norm="rms", activation="swiglu", bias=False),
            decoder=stack(key_heads=2, norm="rms", activation="swiglu"),
            position=RotaryConfig(scaling=LinearScaling(factor=2)),
            memory="shared",
        ),
        "two vocabularies": encoder_decoder(
            encoder=stack(layers=1), decoder=stack(key_heads=1), source_vocabulary=9, tie=False
        ),
        "two patterns": encoder_decoder(
            encoder=stack(pattern="global(1) | sliding(2)", activation="relu2"),
            decoder=stack(pattern="dilated(2, 2)", activation="geglu"),
            position=RotaryConfig(scaling=LongScaling(short_factors=(1, 2), long_factors=(2, 4), trained=4)),
        ),
        "cosine and shared": encoder_decoder(
            encoder=stack(similarity="cosine", heads=2),
            decoder=stack(similarity="cosine", activation="gelu-tanh"),
            position=BinaryConfig(),
            memory="shared",
        ),
        "concatenated": encoder_decoder(
            encoder=stack(heads=8, pattern="dilated(3, 2)"),
            decoder=stack(heads=2, activation="geglu-tanh"),
            position=SinusoidalConfig(join="concatenate", features=5),
            source_vocabulary=17,
            tie=False,
            output_bias=True,
        ),
        "no residual": encoder_decoder(
            encoder=stack(order="none", layers=1), decoder=stack(order="none", layers=1), position=IndexConfig()
        ),
        "no positions": encoder_decoder(position=NoPositionConfig()),
    },
}

PATTERNS = (
    "full",
    "causal",
    "sliding(1)",
    "sliding(3)",
    "dilated(2, 3)",
    "global(1)",
    "global(2) | sliding(2)",
    "global(1) | dilated(2, 2)",
    "causal & sliding(2)",
)

LAYOUTS: dict[str, dict[str, Any]] = {
    "multi-head": {},
    "grouped": {"key_heads": 2},
    "multi-query": {"key_heads": 1},
    "own widths": {"heads": 3, "head_width": 6, "value_width": 5},
    "cosine": {"similarity": "cosine", "key_heads": 2},
    "dot": {"similarity": "dot"},
    "heads not mixed": {"output": False},
}

# Positions that a token keeps while the text grows. Learned ones go far enough for any padding.
POSITIONS: dict[str, PositionConfig] = {
    "none": NoPositionConfig(),
    "sinusoidal": SinusoidalConfig(),
    "sinusoidal in halves": SinusoidalConfig(layout="halves"),
    "sinusoidal, concatenated": SinusoidalConfig(join="concatenate", features=5),
    "learned": LearnedConfig(limit=64),
    "learned, concatenated": LearnedConfig(limit=64, join="concatenate", features=4),
    "index": IndexConfig(),
    "binary": BinaryConfig(),
    "rotary": RotaryConfig(base=100.0),
    "rotary, linear": RotaryConfig(base=100.0, scaling=LinearScaling(factor=3)),
    "rotary, yarn": RotaryConfig(base=100.0, scaling=YarnScaling(factor=3, trained=4)),
    "rotary, band": RotaryConfig(base=100.0, scaling=BandScaling(factor=3, trained=4)),
}


@strategies.composite
def stacks(draw: strategies.DrawFn) -> StackConfig:
    return stack(
        layers=draw(strategies.integers(1, 2)),
        order=draw(strategies.sampled_from(["pre", "post", "none"])),
        norm=draw(strategies.sampled_from(["layer", "rms"])),
        activation=draw(strategies.sampled_from(["relu", "gelu", "swiglu", "relu2"])),
        bias=draw(strategies.booleans()),
        pattern=draw(strategies.sampled_from(PATTERNS)),
        **draw(strategies.sampled_from(list(LAYOUTS.values()))),
    )


@strategies.composite
def language_models(draw: strategies.DrawFn) -> LanguageModelConfig:
    return language_model(**draw(_common()))


@strategies.composite
def encoder_decoders(draw: strategies.DrawFn) -> EncoderDecoderConfig:
    return encoder_decoder(
        encoder=draw(stacks()),
        source_vocabulary=draw(strategies.sampled_from([None, 9])),
        memory=draw(strategies.sampled_from(["layer", "shared"])),
        **draw(_common()),
    )


@strategies.composite
def _common(draw: strategies.DrawFn) -> dict[str, Any]:
    position = draw(strategies.sampled_from(list(POSITIONS.values())))
    whole = position.token_width(WIDTH) == WIDTH
    return {
        "decoder": draw(stacks()),
        "position": position,
        "tie": whole and draw(strategies.booleans()),
        "output_bias": draw(strategies.booleans()),
        "embedding": EmbeddingConfig(
            scale=draw(strategies.booleans()),
            norm=draw(strategies.sampled_from([None, NormConfig(), NormConfig(kind="rms")])),
        ),
    }


def build(config: ModelConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """The model in evaluation mode, every parameter moved away from where it starts."""
    torch.manual_seed(seed)
    model = config.build().to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def ids(rows: int, tokens: int, vocabulary: int = VOCABULARY, seed: int = 0) -> Tensor:
    """Any token ids.  # (rows, tokens)"""
    return torch.randint(vocabulary, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def inputs(config: ModelConfig, rows: int = 2, tokens: int = 7) -> tuple[Tensor, ...]:
    """What a model of this config is called with: ids, or source and target ids."""
    if isinstance(config, EncoderDecoderConfig):
        return ids(rows, tokens - 2, source_size(config), seed=1), ids(rows, tokens, seed=2)
    return (ids(rows, tokens, seed=2),)


def source_size(config: EncoderDecoderConfig) -> int:
    return config.source_vocabulary or config.vocabulary
