"""Small models for tests: samples of every kind, strategies that draw more, and `build`.

No parameter of a built model is zero or one, so that ignoring a bias or skipping a norm changes the output.
"""

from typing import Any

import torch
from hypothesis import strategies
from torch import Tensor

from regard.attention import (
    BinaryConfig,
    DynamicScaling,
    IndexConfig,
    LearnedConfig,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoPositionConfig,
    NormalizedConfig,
    RotaryConfig,
    SinusoidalConfig,
    YarnScaling,
)
from regard.attention.positions.config import PositionConfig
from regard.model import (
    AnyModelConfig,
    ClassificationHeadConfig,
    DensePrefixConfig,
    EmbeddingConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    LanguageModelConfig,
    MaskedLMHeadConfig,
    ModelConfig,
    NormConfig,
    PixelsConfig,
    StackConfig,
    TokenClassificationHeadConfig,
    VisionTransformerConfig,
)
from regard.model.mixture_of_experts import MixtureOfExpertsConfig

VOCAB_SIZE = 13
WIDTH = 16

# In float64, rounding errors reach about 1e-13 in models this small; a wrong mask or position is off by 1e-4 or more.
EXACT: dict[str, float] = {"rtol": 1e-10, "atol": 1e-10}


def stack(
    *,
    layers: int = 2,
    norm_position: str = "pre",
    residual: bool = True,
    norm: str = "layer",
    activation: str = "relu",
    hidden: int = 24,
    dropout: float = 0.1,
    bias: bool = True,
    **attention: Any,
) -> StackConfig:
    """A small stack. `dropout` and `bias` apply to every sublayer; other settings go to the attention."""
    return StackConfig.read(
        {
            "layers": layers,
            "norm_position": norm_position,
            "residual": residual,
            "norm": {"kind": norm},
            "dropout": dropout,
            "attention": {"heads": 4, "dropout": dropout, "bias": bias, **attention},
            "feed_forward": {"hidden": hidden, "activation": activation, "dropout": dropout, "bias": bias},
        }
    )


def norm_order(order: str) -> dict[str, Any]:
    """The settings for "pre", "post" or "none": pre-norm, post-norm, or no residual connections."""
    return {"residual": False} if order == "none" else {"norm_position": order}


def latent(rope_head_dim: int) -> dict[str, Any]:
    """Settings of multi-head latent attention."""
    return {"kind": "latent", "kv_latent": 6, "head_dim": 3, "rope_head_dim": rope_head_dim, "value_head_dim": 5}


def with_experts(config: StackConfig, **settings: Any) -> StackConfig:
    """The stack with its feed-forward replaced by experts of the same form."""
    dense = config.feed_forward.plain() | {"kind": "moe"}
    return config.model_copy(update={"feed_forward": MixtureOfExpertsConfig(**dense | {"experts": 4} | settings)})


def with_dense_prefix(config: StackConfig, layers: int = 1, **settings: Any) -> StackConfig:
    """The stack with a dense feed-forward in its first layers, which differs from the others' in these settings."""
    common = {name: getattr(config.feed_forward, name) for name in ("hidden", "activation", "bias", "dropout")}
    prefix = DensePrefixConfig(layers=layers, feed_forward=FeedForwardConfig(**common | settings))
    return config.model_copy(update={"dense_prefix": prefix})


def language_model(**settings: Any) -> LanguageModelConfig:
    return LanguageModelConfig(**{"vocab_size": VOCAB_SIZE, "width": WIDTH, "decoder": stack(), **settings})


def encoder_decoder(**settings: Any) -> EncoderDecoderConfig:
    small = {"vocab_size": VOCAB_SIZE, "width": WIDTH, "encoder": stack(), "decoder": stack()}
    return EncoderDecoderConfig(**{**small, **settings})


def encoder(**settings: Any) -> EncoderConfig:
    return EncoderConfig(**{"vocab_size": VOCAB_SIZE, "width": WIDTH, "encoder": stack(), **settings})


def vision(**settings: Any) -> VisionTransformerConfig:
    small = {"image_size": 6, "patch_size": 2, "channels": 2, "width": WIDTH, "encoder": stack(), "classes": 5}
    return VisionTransformerConfig(**{**small, **settings})


SAMPLES: dict[str, dict[str, ModelConfig]] = {
    "language-model": {
        "plain": language_model(),
        "like GPT-2": language_model(
            decoder=stack(activation="gelu-tanh"),
            position=LearnedConfig(max_length=20),
            embedding=EmbeddingConfig(scale=False),
        ),
        "like Llama": language_model(
            decoder=stack(norm="rms", activation="swiglu", bias=False, kv_heads=2),
            position=RotaryConfig(scaling=Llama3Scaling(factor=4, original_max_length=8)),
            tie_weights=False,
        ),
        "post-norm": language_model(decoder=stack(norm_position="post", activation="gelu"), output_bias=True),
        "no residual": language_model(
            decoder=stack(residual=False, activation="silu", layers=1), position=NoPositionConfig()
        ),
        "cosine": language_model(
            decoder=stack(similarity="cosine", activation="relu2"),
            position=RotaryConfig(scaling=YarnScaling(factor=4, original_max_length=8)),
        ),
        "sliding": language_model(
            decoder=stack(pattern="sliding(3)", kv_heads=1, activation="geglu"), position=BinaryConfig()
        ),
        "dilated and global": language_model(
            decoder=stack(pattern="global(1) | dilated(2, 2)", activation="geglu-tanh"),
            position=SinusoidalConfig(combine="concatenate", features=4),
            tie_weights=False,
        ),
        "wide values": language_model(
            decoder=stack(norm_position="post", norm="rms", heads=3, head_dim=6, value_head_dim=5, similarity="dot"),
            position=IndexConfig(),
            embedding=EmbeddingConfig(norm=NormConfig()),
        ),
        "no output projection": language_model(
            decoder=stack(output_projection=False, kv_heads=1),
            position=RotaryConfig(scaling=DynamicScaling(factor=2, original_max_length=4)),
            tie_weights=False,
            output_bias=True,
        ),
        "experts": language_model(decoder=with_experts(stack(activation="gelu"), router="sigmoid", shared_experts=2)),
        "experts in groups": language_model(
            decoder=with_experts(
                stack(norm="rms", activation="swiglu", bias=False, hidden=8),
                experts=8,
                top_k=3,
                shared_experts=1,
                router="sigmoid",
                routed_scale=2.5,
                groups=4,
                top_groups=2,
                group_score="top2_sum",
                balancing="bias",
            ),
            position=RotaryConfig(),
            tie_weights=False,
        ),
        "dense before experts": language_model(
            decoder=with_dense_prefix(
                with_experts(stack(layers=3, activation="swiglu", hidden=8), shared_experts=1), hidden=40
            )
        ),
        "learned and concatenated": language_model(
            decoder=stack(layers=1),
            position=LearnedConfig(max_length=20, combine="concatenate", features=3),
            tie_weights=False,
        ),
        "like DeepSeek": language_model(
            decoder=stack(norm="rms", activation="swiglu", bias=False, **latent(4), query_latent=5),
            position=RotaryConfig(scaling=YarnScaling(factor=4, original_max_length=8)),
            tie_weights=False,
        ),
        "latent in a window": language_model(
            decoder=stack(pattern="sliding(3)", **latent(2), scale=0.3),
            position=RotaryConfig(),
        ),
        "latent with dynamic rotary": language_model(
            decoder=stack(norm_position="post", **latent(4)),
            position=RotaryConfig(scaling=DynamicScaling(factor=2, original_max_length=4)),
        ),
    },
    "encoder-decoder": {
        "plain": encoder_decoder(),
        "like the paper": encoder_decoder(
            encoder=stack(norm_position="post", bias=False),
            decoder=stack(norm_position="post", bias=False),
            position=SinusoidalConfig(),
        ),
        "like Marian": encoder_decoder(
            encoder=stack(norm_position="post", activation="silu"),
            decoder=stack(norm_position="post", activation="silu", layers=1),
            position=SinusoidalConfig(layout="halves"),
            output_bias=True,
        ),
        "like BART": encoder_decoder(
            encoder=stack(norm_position="post", activation="gelu"),
            decoder=stack(norm_position="post", activation="gelu"),
            position=LearnedConfig(max_length=20),
            embedding=EmbeddingConfig(scale=False, norm=NormConfig()),
        ),
        "shared cross_kv": encoder_decoder(
            encoder=stack(norm="rms", activation="swiglu", bias=False),
            decoder=stack(kv_heads=2, norm="rms", activation="swiglu"),
            position=RotaryConfig(scaling=LinearScaling(factor=2)),
            cross_kv="shared",
        ),
        "two vocabularies": encoder_decoder(
            encoder=stack(layers=1), decoder=stack(kv_heads=1), source_vocab_size=9, tie_weights=False
        ),
        "two patterns": encoder_decoder(
            encoder=stack(pattern="global(1) | sliding(2)", activation="relu2"),
            decoder=stack(pattern="dilated(2, 2)", activation="geglu"),
            position=RotaryConfig(
                scaling=LongRopeScaling(short_factors=(1, 2), long_factors=(2, 4), original_max_length=4)
            ),
        ),
        "cosine and shared": encoder_decoder(
            encoder=stack(similarity="cosine", heads=2),
            decoder=stack(similarity="cosine", activation="gelu-tanh"),
            position=BinaryConfig(),
            cross_kv="shared",
        ),
        "concatenated": encoder_decoder(
            encoder=stack(heads=8, pattern="dilated(3, 2)"),
            decoder=stack(heads=2, activation="geglu-tanh"),
            position=SinusoidalConfig(combine="concatenate", features=5),
            source_vocab_size=17,
            tie_weights=False,
            output_bias=True,
        ),
        "no residual": encoder_decoder(
            encoder=stack(residual=False, layers=1), decoder=stack(residual=False, layers=1), position=IndexConfig()
        ),
        "no positions": encoder_decoder(position=NoPositionConfig()),
        "experts": encoder_decoder(
            encoder=with_experts(stack(norm_position="post"), normalize=False),
            decoder=with_experts(
                stack(norm_position="post", activation="geglu"), experts=6, groups=2, top_groups=1, shared_experts=1
            ),
        ),
        "narrower first layers": encoder_decoder(
            encoder=with_dense_prefix(stack(layers=3), layers=2, hidden=7),
            decoder=with_dense_prefix(stack(), activation="gelu"),
        ),
        "latent": encoder_decoder(
            encoder=stack(**latent(2), pattern="sliding(3)"), decoder=stack(**latent(4)), position=RotaryConfig()
        ),
        "latent and shared": encoder_decoder(
            encoder=stack(kv_heads=2), decoder=stack(**latent(0), query_latent=3), cross_kv="shared"
        ),
    },
}
"""Autoregressive models."""

LABELS = ("good", "bad", "so-so")

ENCODER_SAMPLES: dict[str, dict[str, AnyModelConfig]] = {
    "encoder": {
        "plain": encoder(),
        "like BERT": encoder(
            encoder=stack(norm_position="post", activation="gelu"),
            position=LearnedConfig(max_length=20),
            embedding=EmbeddingConfig(scale=False, norm=NormConfig()),
            token_types=2,
            head=MaskedLMHeadConfig(),
        ),
        "like BERT, classification": encoder(
            encoder=stack(norm_position="post", activation="gelu-tanh"),
            position=LearnedConfig(max_length=20),
            embedding=EmbeddingConfig(scale=False, norm=NormConfig()),
            token_types=2,
            pooler=True,
            head=ClassificationHeadConfig(labels=LABELS, pooling="pooler"),
        ),
        "token classification": encoder(
            encoder=stack(norm="rms", activation="swiglu", bias=False, kv_heads=2),
            position=RotaryConfig(scaling=Llama3Scaling(factor=4, original_max_length=8)),
            head=TokenClassificationHeadConfig(labels=LABELS),
        ),
        "local": encoder(
            encoder=stack(pattern="global(1) | sliding(2)", activation="geglu", kv_heads=1),
            position=SinusoidalConfig(combine="concatenate", features=5),
            token_types=3,
            head=MaskedLMHeadConfig(tie_weights=False, bias=False, activation="silu", norm=NormConfig(kind="rms")),
        ),
        "mean pooling": encoder(
            encoder=stack(similarity="cosine", activation="relu2"),
            position=NormalizedConfig(),
            head=ClassificationHeadConfig(labels=LABELS, pooling="mean"),
        ),
        "cls pooling": encoder(
            encoder=stack(residual=False, layers=1, activation="silu"),
            position=IndexConfig(),
            head=ClassificationHeadConfig(labels=LABELS),
        ),
        "wide values": encoder(
            encoder=stack(heads=3, head_dim=6, value_head_dim=5, similarity="dot", activation="geglu-tanh"),
            position=BinaryConfig(),
            embedding=EmbeddingConfig(norm=NormConfig(kind="rms")),
            head=MaskedLMHeadConfig(activation="tanh"),
        ),
        "no positions": encoder(
            encoder=stack(output_projection=False),
            position=NoPositionConfig(),
            head=MaskedLMHeadConfig(activation="relu"),
        ),
        "gelu-tanh head": encoder(encoder=stack(layers=1), head=MaskedLMHeadConfig(activation="gelu-tanh")),
        "latent": encoder(
            encoder=stack(**latent(4)), position=RotaryConfig(), head=TokenClassificationHeadConfig(labels=LABELS)
        ),
    },
    "vision": {
        "plain": vision(),
        "like ViT": vision(encoder=stack(activation="gelu"), dropout=0.0, classes=LABELS),
        "mean pooling": vision(
            encoder=stack(activation="gelu-tanh", kv_heads=2), pooling="mean", image_size=(4, 6), representation_size=7
        ),
        "registers": vision(encoder=stack(activation="swiglu", norm="rms", bias=False), registers=2),
        "sinusoidal": vision(
            encoder=stack(norm_position="post", activation="relu2"),
            position={"kind": "sinusoidal"},
            registers=1,
            representation_size=9,
            pixels=PixelsConfig(mean=(0.1, 0.2), std=(0.3, 0.4)),
        ),
        "sinusoidal mean": vision(
            encoder=stack(activation="silu", similarity="cosine", kv_heads=1),
            position={"kind": "sinusoidal"},
            pooling="mean",
            registers=1,
            classes=0,
        ),
        "local": vision(encoder=stack(pattern="global(1) | sliding(2)", activation="geglu")),
        "latent": vision(encoder=stack(**latent(0), query_latent=5)),
        "no residual": vision(
            encoder=stack(residual=False, layers=1, activation="geglu-tanh"), channels=1, patch_size=3
        ),
    },
}
"""Encoders and vision transformers."""

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
    "grouped": {"kv_heads": 2},
    "multi-query": {"kv_heads": 1},
    "other head widths": {"heads": 3, "head_dim": 6, "value_head_dim": 5},
    "cosine": {"similarity": "cosine", "kv_heads": 2},
    "dot": {"similarity": "dot"},
    "no output projection": {"output_projection": False},
}


def layouts(position: PositionConfig) -> dict[str, dict[str, Any]]:
    """Every layout of attention heads that these positions support."""
    rope_head_dim = 4 if isinstance(position, RotaryConfig) else 0
    narrow = {"heads": 3, "kv_latent": 2, "query_latent": 5, "scale": 0.3}
    return {**LAYOUTS, "latent": latent(rope_head_dim), "narrow latents": {**latent(rope_head_dim), **narrow}}


# Encodings that do not change as a text grows. Learned ones have enough positions for any padding.
POSITIONS: dict[str, PositionConfig] = {
    "none": NoPositionConfig(),
    "sinusoidal": SinusoidalConfig(),
    "sinusoidal in halves": SinusoidalConfig(layout="halves"),
    "sinusoidal, concatenated": SinusoidalConfig(combine="concatenate", features=5),
    "learned": LearnedConfig(max_length=64),
    "learned, concatenated": LearnedConfig(max_length=64, combine="concatenate", features=4),
    "index": IndexConfig(),
    "binary": BinaryConfig(),
    "rotary": RotaryConfig(theta=100.0),
    "rotary, linear": RotaryConfig(theta=100.0, scaling=LinearScaling(factor=3)),
    "rotary, yarn": RotaryConfig(theta=100.0, scaling=YarnScaling(factor=3, original_max_length=4)),
    "rotary, llama3": RotaryConfig(theta=100.0, scaling=Llama3Scaling(factor=3, original_max_length=4)),
}


@strategies.composite
def stacks(draw: strategies.DrawFn, position: PositionConfig) -> StackConfig:
    return stack(
        layers=draw(strategies.integers(1, 2)),
        **norm_order(draw(strategies.sampled_from(["pre", "post", "none"]))),
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
        source_vocab_size=draw(strategies.sampled_from([None, 9])),
        cross_kv=draw(strategies.sampled_from(["per_layer", "shared"])),
        **common,
    )


@strategies.composite
def _common(draw: strategies.DrawFn) -> dict[str, Any]:
    position = draw(strategies.sampled_from(list(POSITIONS.values())))
    full_width = position.token_width(WIDTH) == WIDTH
    return {
        "decoder": draw(stacks(position)),
        "position": position,
        "tie_weights": full_width and draw(strategies.booleans()),
        "output_bias": draw(strategies.booleans()),
        "embedding": EmbeddingConfig(
            scale=draw(strategies.booleans()),
            norm=draw(strategies.sampled_from([None, NormConfig(), NormConfig(kind="rms")])),
        ),
    }


@strategies.composite
def encoders(draw: strategies.DrawFn) -> EncoderConfig:
    position = draw(strategies.sampled_from([*POSITIONS.values(), NormalizedConfig()]))
    full_width = position.token_width(WIDTH) == WIDTH
    head = draw(
        strategies.sampled_from(
            [
                {"kind": "none"},
                {"kind": "masked_lm", "tie_weights": full_width},
                {"kind": "token_classification", "labels": LABELS},
                *(
                    {"kind": "classification", "labels": LABELS, "pooling": pooling}
                    for pooling in ("pooler", "cls", "mean")
                ),
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
        token_types=draw(strategies.sampled_from([0, 2])),
        pooler=head.get("pooling") == "pooler",
        head=head,
    )


def build(config: AnyModelConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    """The model in evaluation mode, with every parameter moved away from its initial value."""
    torch.manual_seed(seed)
    model = config.build().to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def ids(rows: int, tokens: int, vocab_size: int = VOCAB_SIZE, seed: int = 0) -> Tensor:
    """Random token ids.  # (rows, tokens)"""
    return torch.randint(vocab_size, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def inputs(config: AnyModelConfig, rows: int = 2, tokens: int = 7) -> tuple[Tensor, ...]:
    """Inputs for a model of this config: ids, source and target ids, or pixels."""
    if isinstance(config, VisionTransformerConfig):
        return (pixels(rows, config.channels, *config.size),)
    if isinstance(config, EncoderDecoderConfig):
        return ids(rows, tokens - 2, source_vocab_size_of(config), seed=1), ids(rows, tokens, seed=2)
    return (ids(rows, tokens, seed=2),)


def pixels(*shape: int, seed: int = 3) -> Tensor:
    """Random pixels.  # (batch, channels, height, width)"""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def source_vocab_size_of(config: EncoderDecoderConfig) -> int:
    return config.source_vocab_size or config.vocab_size
