"""Convolutions: k·d² operations for each token, and a state of the last inputs of each layer."""

import math

from regard.cost.expression import Expression, symbol
from regard.cost.formulas.parts import (
    FLOAT,
    HALF,
    INTEGER,
    Columns,
    Formula,
    L,
    T,
    attention,
    d,
    embedding_parameters,
    h,
    k,
    linear,
    linear_parameters,
    m,
    n,
    vocabularies,
)
from regard.model.before.convolutional.bytenet import ByteNetConfig
from regard.model.before.convolutional.convs2s import ConvolutionalConfig
from regard.model.before.convolutional.language_model import ConvolutionalLMConfig


def convolutional_lm(config: ConvolutionalLMConfig) -> Formula:
    channels = d if config.hidden is None else h
    layer = _gated(n, channels)
    span = sum((config.kernel - 1) * config.dilation(number) for number in range(config.layers))
    return Formula(
        layer * config.layers + linear(n, d, channels) * 2 + linear(n, d, T),
        _embeddings(config) + _gated_parameters(channels) * config.layers + _in_and_out(channels),
        channels * (FLOAT * span),
        layer=layer,
        sizes=_sizes(config),
    )


def convolutional(config: ConvolutionalConfig) -> Formula:
    """Every layer of the decoder is a convolution and attention to the source, with projections to d and back."""
    channels = d if config.hidden is None else h
    layer = _gated(n, channels) + linear(n, d, channels) * 2 + attention(n, m, d)
    encoder = _gated_parameters(channels) * config.encoder_layers + _in_and_out(channels)
    decoder = (_gated_parameters(channels) + _in_and_out(channels)) * config.decoder_layers + _in_and_out(channels)
    return Formula(
        layer * config.decoder_layers + linear(n, d, channels) * 2 + linear(n, d, T),
        _embeddings(config) + L * d * 2 + encoder + decoder,
        channels * (FLOAT * config.decoder_layers * (config.kernel - 1)) + m * d * (2 * FLOAT) + INTEGER,
        _gated(m, channels) * config.encoder_layers + linear(m, d, channels) * 2,
        layer,
        _sizes(config) | {"L": config.max_length},
    )


def bytenet(config: ByteNetConfig) -> Formula:
    """Convolutions work at half of the width; the encoder runs over c columns, an estimate of the target's length."""
    c, half = symbol("c"), d * HALF
    blocks, span = len(config.dilations), sum(config.dilations) * (config.kernel - 1)

    def block(tokens: Expression) -> Expression:
        return linear(tokens, d, half) * 2 + linear(tokens, k * half, half)

    parameters = linear_parameters(d, half) + linear_parameters(half, d) + linear_parameters(k * half, half)
    parameters += d * 2 + half * 4  # three norms
    sets = config.encoder_sets + config.decoder_sets
    return Formula(
        block(n) * (config.decoder_sets * blocks) + linear(n, d, d) + linear(n, d, T),
        embedding_parameters(config, d) + parameters * (sets * blocks) + linear_parameters(d, d) * 2 + d * 5,
        half * (FLOAT * config.decoder_sets * span) + c * d * FLOAT + INTEGER,
        block(c) * (config.encoder_sets * blocks) + linear(c, d, d),
        block(n),
        {"k": config.kernel, "d": config.width, **vocabularies(config)},
        Columns(
            lambda tokens: math.ceil(tokens * config.length_ratio) + config.length_offset,
            f"⌈{config.length_ratio:g}·m⌉" + (f" + {config.length_offset}" if config.length_offset else ""),
        ),
    )


def _gated(tokens: Expression, channels: Expression) -> Expression:
    """A convolution and its gate."""
    return linear(tokens, k * channels, channels) * 2


def _gated_parameters(channels: Expression) -> Expression:
    """Weight normalization has a scale for each output, beside the bias."""
    return k * channels * channels * 2 + channels * 4


def _in_and_out(channels: Expression) -> Expression:
    """Two linear layers with weight normalization, from d to the channels and back."""
    return d * channels * 2 + (d + channels) * 2


def _embeddings(config: ConvolutionalLMConfig | ConvolutionalConfig) -> Expression:
    """An output projection of its own has weight normalization: a scale for each token."""
    return embedding_parameters(config, d) + (Expression() if config.tie_weights else T)


def _sizes(config: ConvolutionalLMConfig | ConvolutionalConfig) -> dict[str, int]:
    hidden = {} if config.hidden is None else {"h": config.hidden}
    return {"k": config.kernel, "d": config.width, **hidden, **vocabularies(config)}
