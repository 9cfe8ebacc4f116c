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
    NormalisedConfig,
    RotaryConfig,
    SinusoidalConfig,
    YarnScaling,
)
from regard.attention.position import PositionConfig
from regard.model import (
    AnyModelConfig,
    ClassifyConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    FillConfig,
    FirstConfig,
    LanguageModelConfig,
    ModelConfig,
    NormConfig,
    PixelsConfig,
    StackConfig,
    TagConfig,
    VisionTransformerConfig,
)
from regard.model.experts import ExpertsConfig

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


def latent(rotary_width: int) -> dict[str, Any]:
    """Settings of heads that make keys and values of a latent."""
    return {"kind": "latent", "latent": 6, "head_width": 3, "rotary_width": rotary_width, "value_width": 5}


def with_experts(config: StackConfig, **settings: Any) -> StackConfig:
    """The same stack with experts like its feed-forward in the place of it."""
    dense = config.feed_forward.plain() | {"kind": "experts"}
    return config.model_copy(update={"feed_forward": ExpertsConfig(**dense | {"experts": 4} | settings)})


def with_first(config: StackConfig, layers: int = 1, **settings: Any) -> StackConfig:
    """The same stack with a dense feed-forward in its first layers, like the others' but for these settings."""
    usual = {name: getattr(config.feed_forward, name) for name in ("hidden", "activation", "bias", "dropout")}
    first = FirstConfig(layers=layers, feed_forward=FeedForwardConfig(**usual | settings))
    return config.model_copy(update={"first": first})


def language_model(**settings: Any) -> LanguageModelConfig:
    return LanguageModelConfig(**{"vocabulary": VOCABULARY, "width": WIDTH, "decoder": stack(), **settings})


def encoder_decoder(**settings: Any) -> EncoderDecoderConfig:
    small = {"vocabulary": VOCABULARY, "width": WIDTH, "encoder": stack(), "decoder": stack()}
    return EncoderDecoderConfig(**{**small, **settings})


def encoder(**settings: Any) -> EncoderConfig:
    return EncoderConfig(**{"vocabulary": VOCABULARY, "width": WIDTH, "encoder": stack(), **settings})


def vision(**settings: Any) -> VisionTransformerConfig:
    small = {"image": 6, "patch": 2, "channels": 2, "width": WIDTH, "encoder": stack(), "classes": 5}
    return VisionTransformerConfig(**{**small, **settings})


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
        "experts": language_model(decoder=with_experts(stack(activation="gelu"), gate="sigmoid", shared=2)),
        "experts in groups": language_model(
            decoder=with_experts(
                stack(norm="rms", activation="swiglu", bias=False, hidden=8),
                experts=8,
                active=3,
                shared=1,
                gate="sigmoid",
                factor=2.5,
                groups=4,
                active_groups=2,
                group_score="best-two",
                balancing="bias",
            ),
            position=RotaryConfig(),
            tie=False,
        ),
        "dense before experts": language_model(
            decoder=with_first(with_experts(stack(layers=3, activation="swiglu", hidden=8), shared=1), hidden=40)
        ),
        "learned and concatenated": language_model(
            decoder=stack(layers=1),
            position=LearnedConfig(limit=20, join="concatenate", features=3),
            tie=False,
        ),
        "like DeepSeek": language_model(
            decoder=stack(norm="rms", activation="swiglu", bias=False, **latent(4), query_latent=5),
            position=RotaryConfig(scaling=YarnScaling(factor=4, trained=8)),
            tie=False,
        ),
        "latent in a window": language_model(
            decoder=stack(pattern="sliding(3)", **latent(2), scale=0.3),
            position=RotaryConfig(),
        ),
        "latent whose angles change": language_model(
            decoder=stack(order="post", **latent(4)),
            position=RotaryConfig(scaling=DynamicScaling(factor=2, trained=4)),
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
        "experts": encoder_decoder(
            encoder=with_experts(stack(order="post"), normalise=False),
            decoder=with_experts(
                stack(order="post", activation="geglu"), experts=6, groups=2, active_groups=1, shared=1
            ),
        ),
        "narrower first layers": encoder_decoder(
            encoder=with_first(stack(layers=3), layers=2, hidden=7), decoder=with_first(stack(), activation="gelu")
        ),
        "latent": encoder_decoder(
            encoder=stack(**latent(2), pattern="sliding(3)"), decoder=stack(**latent(4)), position=RotaryConfig()
        ),
        "latent and shared": encoder_decoder(
            encoder=stack(key_heads=2), decoder=stack(**latent(0), query_latent=3), memory="shared"
        ),
    },
}
"""Models that write."""

LABELS = ("good", "bad", "so-so")

READERS: dict[str, dict[str, AnyModelConfig]] = {
    "encoder": {
        "plain": encoder(),
        "like BERT": encoder(
            encoder=stack(order="post", activation="gelu"),
            position=LearnedConfig(limit=20),
            embedding=EmbeddingConfig(scale=False, norm=NormConfig()),
            segments=2,
            head=FillConfig(),
        ),
        "like BERT, for sentences": encoder(
            encoder=stack(order="post", activation="gelu-tanh"),
            position=LearnedConfig(limit=20),
            embedding=EmbeddingConfig(scale=False, norm=NormConfig()),
            segments=2,
            pooler=True,
            head=ClassifyConfig(labels=LABELS, pooling="pooler"),
        ),
        "tagging": encoder(
            encoder=stack(norm="rms", activation="swiglu", bias=False, key_heads=2),
            position=RotaryConfig(scaling=BandScaling(factor=4, trained=8)),
            head=TagConfig(labels=LABELS),
        ),
        "local": encoder(
            encoder=stack(pattern="global(1) | sliding(2)", activation="geglu", key_heads=1),
            position=SinusoidalConfig(join="concatenate", features=5),
            segments=3,
            head=FillConfig(tie=False, bias=False, activation="silu", norm=NormConfig(kind="rms")),
        ),
        "of the mean": encoder(
            encoder=stack(similarity="cosine", activation="relu2"),
            position=NormalisedConfig(),
            head=ClassifyConfig(labels=LABELS, pooling="mean"),
        ),
        "of the first": encoder(
            encoder=stack(order="none", layers=1, activation="silu"),
            position=IndexConfig(),
            head=ClassifyConfig(labels=LABELS),
        ),
        "wide values": encoder(
            encoder=stack(heads=3, head_width=6, value_width=5, similarity="dot", activation="geglu-tanh"),
            position=BinaryConfig(),
            embedding=EmbeddingConfig(norm=NormConfig(kind="rms")),
            head=FillConfig(activation="tanh"),
        ),
        "no positions": encoder(
            encoder=stack(output=False), position=NoPositionConfig(), head=FillConfig(activation="relu")
        ),
        "another bend": encoder(encoder=stack(layers=1), head=FillConfig(activation="gelu-tanh")),
        "latent": encoder(encoder=stack(**latent(4)), position=RotaryConfig(), head=TagConfig(labels=LABELS)),
    },
    "vision": {
        "plain": vision(),
        "like ViT": vision(encoder=stack(activation="gelu"), dropout=0.0, classes=LABELS),
        "the mean": vision(
            encoder=stack(activation="gelu-tanh", key_heads=2), pooling="mean", image=(4, 6), representation=7
        ),
        "registers": vision(encoder=stack(activation="swiglu", norm="rms", bias=False), registers=2),
        "sinusoidal": vision(
            encoder=stack(order="post", activation="relu2"),
            position={"kind": "sinusoidal"},
            registers=1,
            representation=9,
            pixels=PixelsConfig(mean=(0.1, 0.2), std=(0.3, 0.4)),
        ),
        "sinusoidal mean": vision(
            encoder=stack(activation="silu", similarity="cosine", key_heads=1),
            position={"kind": "sinusoidal"},
            pooling="mean",
            registers=1,
            classes=0,
        ),
        "local": vision(encoder=stack(pattern="global(1) | sliding(2)", activation="geglu")),
        "latent": vision(encoder=stack(**latent(0), query_latent=5)),
        "no residual": vision(encoder=stack(order="none", layers=1, activation="geglu-tanh"), channels=1, patch=3),
    },
}
"""Models that only read."""

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


def layouts(position: PositionConfig) -> dict[str, dict[str, Any]]:
    """Every layout of heads that goes with these positions."""
    rotary_width = 4 if isinstance(position, RotaryConfig) else 0
    narrow = {"heads": 3, "latent": 2, "query_latent": 5, "scale": 0.3}
    return {**LAYOUTS, "latent": latent(rotary_width), "narrow latents": {**latent(rotary_width), **narrow}}


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
def stacks(draw: strategies.DrawFn, position: PositionConfig) -> StackConfig:
    return stack(
        layers=draw(strategies.integers(1, 2)),
        order=draw(strategies.sampled_from(["pre", "post", "none"])),
        norm=draw(strategies.sampled_from(["layer", "rms"])),
        activation=draw(strategies.sampled_from(["relu", "gelu", "swiglu", "relu2"])),
        bias=draw(strategies.booleans()),
        pattern=draw(strategies.sampled_from(PATTERNS)),
        **draw(strategies.sampled_from(list(layouts(position).values()))),
    )


@strategies.composite
def language_models(draw: strategies.DrawFn) -> LanguageModelConfig:
    return language_model(**draw(_common()))


@strategies.composite
def encoder_decoders(draw: strategies.DrawFn) -> EncoderDecoderConfig:
    common = draw(_common())
    return encoder_decoder(
        encoder=draw(stacks(common["position"])),
        source_vocabulary=draw(strategies.sampled_from([None, 9])),
        memory=draw(strategies.sampled_from(["layer", "shared"])),
        **common,
    )


@strategies.composite
def _common(draw: strategies.DrawFn) -> dict[str, Any]:
    position = draw(strategies.sampled_from(list(POSITIONS.values())))
    whole = position.token_width(WIDTH) == WIDTH
    return {
        "decoder": draw(stacks(position)),
        "position": position,
        "tie": whole and draw(strategies.booleans()),
        "output_bias": draw(strategies.booleans()),
        "embedding": EmbeddingConfig(
            scale=draw(strategies.booleans()),
            norm=draw(strategies.sampled_from([None, NormConfig(), NormConfig(kind="rms")])),
        ),
    }


@strategies.composite
def encoders(draw: strategies.DrawFn) -> EncoderConfig:
    position = draw(strategies.sampled_from([*POSITIONS.values(), NormalisedConfig()]))
    whole = position.token_width(WIDTH) == WIDTH
    head = draw(
        strategies.sampled_from(
            [
                {"kind": "none"},
                {"kind": "fill", "tie": whole},
                {"kind": "tag", "labels": LABELS},
                *({"kind": "classify", "labels": LABELS, "pooling": way} for way in ("pooler", "first", "mean")),
            ]
        )
    )
    return encoder(
        encoder=draw(stacks(position)),
        position=position,
        embedding=EmbeddingConfig(
            scale=draw(strategies.booleans()),
            norm=draw(strategies.sampled_from([None, NormConfig(), NormConfig(kind="rms")])),
        ),
        segments=draw(strategies.sampled_from([0, 2])),
        pooler=head.get("pooling") == "pooler",
        head=head,
    )


def build(config: AnyModelConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
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


def inputs(config: AnyModelConfig, rows: int = 2, tokens: int = 7) -> tuple[Tensor, ...]:
    """What a model of this config is called with: ids, source and target ids, or pixels."""
    if isinstance(config, VisionTransformerConfig):
        return (pixels(rows, config.channels, *config.size),)
    if isinstance(config, EncoderDecoderConfig):
        return ids(rows, tokens - 2, source_size(config), seed=1), ids(rows, tokens, seed=2)
    return (ids(rows, tokens, seed=2),)


def pixels(*shape: int, seed: int = 3) -> Tensor:
    """Any pixels.  # (batch, channels, height, width)"""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def source_size(config: EncoderDecoderConfig) -> int:
    return config.source_vocabulary or config.vocabulary
