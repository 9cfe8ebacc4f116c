"""Recurrent networks: d² operations for each token, one token after the other, and a state that does not grow.

With attention there are n·m·d more, and the state also holds the encoded source.
"""

from dataclasses import replace
from typing import NamedTuple

from regard.cost.expression import Expression, Size, symbol
from regard.cost.formulas.parts import (
    FLOAT,
    GATES,
    HALF,
    STATES,
    Formula,
    T,
    d,
    embedding_parameters,
    f,
    h,
    linear,
    linear_parameters,
    m,
    n,
    vocabularies,
)
from regard.model.before.recurrent.attention_scores import RecurrentAttentionConfig
from regard.model.before.recurrent.bidirectional_lm import BidirectionalLMConfig
from regard.model.before.recurrent.decoders import BahdanauConfig
from regard.model.before.recurrent.deep_att import DeepAttConfig
from regard.model.before.recurrent.encoder_decoder import RecurrentConfig
from regard.model.before.recurrent.encoder_decoder_with_attention import RecurrentAttentionModelConfig
from regard.model.before.recurrent.gnmt import GnmtConfig
from regard.model.before.recurrent.language_model import RecurrentLMSettings


def bidirectional_lm(config: BidirectionalLMConfig) -> Formula:
    """Both directions, as in training; only the forward one has a state, because it alone continues texts."""
    forward = recurrent_lm(config)
    backward = _layer_parameters(config.cell, d, d) * config.layers
    return replace(forward, target=forward.target * 2, parameters=forward.parameters + backward)


def recurrent_lm(config: RecurrentLMSettings) -> Formula:
    cell, layers = config.cell, config.layers
    layer = _layer(cell, n, d, d)
    return Formula(
        layer * layers + linear(n, d, T),
        embedding_parameters(config, d) + _layer_parameters(cell, d, d) * layers,
        d * (FLOAT * STATES[cell] * layers),
        layer=layer,
        sizes={"d": config.width, **vocabularies(config)},
    )


def recurrent(config: RecurrentConfig) -> Formula:
    """The summary of the source is an input of every step (Cho et al. 2014), or only the first state."""
    cell, layers = config.cell, config.layers
    source, parameters = _encoder(cell, h, layers, bidirectional=config.bidirectional)
    target = _layer(cell, n, h, h) * (layers - 1) + linear(n, d, T)
    parameters += embedding_parameters(config, d) + _layer_parameters(cell, h, h) * (layers - 1)
    state = h * (FLOAT * STATES[cell] * layers)
    if config.summary_input == "first_state":
        projected = d * h if config.width != config.hidden else Expression()
        target += _layer(cell, n, d, h) + n * projected * 2
        parameters += _layer_parameters(cell, d, h) + projected
    else:
        first_states = h * (layers * STATES[cell])
        target += _layer(cell, n, d + h, h) + linear(n, h * 2 + d, d * 2)  # maxout takes the larger of two features
        parameters += _layer_parameters(cell, d + h, h) + linear_parameters(h * 2 + d, d * 2)
        source += linear(1, h, h + first_states)
        parameters += linear_parameters(h, h + first_states)
        state += h * FLOAT
    sizes = {"d": config.width, "h": config.hidden, **vocabularies(config)}
    return Formula(target, parameters, state, source, _layer(cell, n, h, h), sizes)


def recurrent_attention(config: RecurrentAttentionModelConfig) -> Formula:
    """The encoder's width is e where it is another than h; experts stand between the first two layers (f: hidden)."""
    cell, layers = config.cell, config.layers
    same = config.memory_width == config.hidden
    e = h if same else symbol("e")
    scores = _scores(config.attention, h, e)
    source, parameters = _encoder(cell, e, layers, bidirectional=True)
    target = _layer(cell, n, h, h) * (layers - 1) + linear(n, d, T) + scores.target
    source += scores.source
    parameters += embedding_parameters(config, d) + _layer_parameters(cell, h, h) * (layers - 1) + scores.parameters
    state = h * (FLOAT * STATES[cell] * layers) + scores.memory
    if isinstance(config.decoder, BahdanauConfig):
        pieces = 2 if config.decoder.readout == "maxout" else 1
        first_states = h * (layers * STATES[cell])
        target += _layer(cell, n, d + e, h) + linear(n, h + e + d, d * pieces)
        # The first states come from the backward direction, which has half the width.
        source += linear(1, e * HALF, first_states)
        parameters += _layer_parameters(cell, d + e, h) + linear_parameters(h + e + d, d * pieces)
        parameters += linear_parameters(e * HALF, first_states)
    else:
        fed = h if config.decoder.input_feeding else Expression()
        projected = d * h if config.width != config.hidden else Expression()
        target += _layer(cell, n, d + fed, h) + linear(n, h * 2, h) + n * projected * 2
        parameters += _layer_parameters(cell, d + fed, h) + linear_parameters(h * 2, h) + projected
        state += fed * FLOAT
    sizes = {"d": config.width, "h": config.hidden, **vocabularies(config), **scores.sizes}
    sizes |= {} if same else {"e": config.memory_width}
    if config.experts is not None:
        count, top = config.experts.experts, config.experts.top_k
        for tokens, width in ((m, e), (n, h)):
            each = linear(tokens, width, 2 * count) + (linear(tokens, width, f) * 2 + linear(tokens, width, 1)) * top
            source, target = (source + each, target) if tokens is m else (source, target + each)
            parameters += width * (2 * count) + (linear_parameters(width, f) + linear_parameters(f, width)) * count
        sizes["f"] = config.experts.hidden
    return Formula(target, parameters, state, source, _layer(cell, n, h, h) + scores.target, sizes)


def gnmt(config: GnmtConfig) -> Formula:
    """The bottom layer of the encoder is bidirectional; the context is an input of every layer of the decoder."""
    cell, above = config.cell, config.layers - 1
    scores = _scores(config.attention, d, d)
    source = _layer(cell, m, d, d) * (2 + above - 1) + _layer(cell, m, d * 2, d)
    encoder = _layer_parameters(cell, d, d) * (2 + above - 1) + _layer_parameters(cell, d * 2, d)
    layer = _layer(cell, n, d * 2, d)
    decoder = _layer_parameters(cell, d * 2, d) * (1 + above)
    return Formula(
        layer * (1 + above) + linear(n, d, T) + scores.target,
        embedding_parameters(config, d) + encoder + decoder + scores.parameters,
        d * (FLOAT * STATES[cell] * (1 + above)) + scores.memory,
        source + scores.source,
        layer + scores.target,
        {"d": config.width, **vocabularies(config), **scores.sizes},
    )


def deep_att(config: DeepAttConfig) -> Formula:
    """A fast-forward connection computes half of the inputs' part of the gates again, and adds it to the input."""
    scores, passed = _scores(config.attention, h, h), h * 3

    def layer(tokens: Expression, inputs: Expression) -> Expression:
        return _layer("lstm", tokens, inputs, h) + linear(tokens, inputs, h * 2)

    upper, above = config.encoder_layers - 1, config.decoder_layers - 1
    encoder = _layer_parameters("lstm", d, h) + _layer_parameters("lstm", passed, h) * upper
    decoder = _layer_parameters("lstm", d + h, h) + _layer_parameters("lstm", passed, h) * above
    column = layer(m, d) + layer(m, passed) * upper
    parameters = encoder * 2 + decoder + linear_parameters(passed * 2, h) + passed * d + scores.parameters
    return Formula(
        layer(n, d + h) + layer(n, passed) * above + linear(n, passed, d) + linear(n, d, T) + scores.target,
        embedding_parameters(config, d) + parameters,
        h * (FLOAT * 2 * config.decoder_layers) + scores.memory,
        column * 2 + linear(m, passed * 2, h) + scores.source,
        layer(n, passed) + scores.target,
        {"d": config.width, "h": config.hidden, **vocabularies(config), **scores.sizes},
    )


# Layers


def _layer(cell: str, tokens: Size, inputs: Size, width: Size) -> Expression:
    """A matrix for the inputs and one for the state, in each gate."""
    return linear(tokens, Expression.of(inputs) + width, Expression.of(GATES[cell]) * width)


def _layer_parameters(cell: str, inputs: Size, width: Size) -> Expression:
    """PyTorch's layers have two biases."""
    return Expression.of(GATES[cell]) * width * (Expression.of(inputs) + width + 2)


def _encoder(cell: str, width: Expression, layers: int, *, bidirectional: bool) -> tuple[Expression, Expression]:
    """FLOPs and parameters of the encoder's layers; each of two directions has half the width."""
    part, directions = (width * HALF, 2) if bidirectional else (width, 1)
    flops = (_layer(cell, m, d, part) + _layer(cell, m, width, part) * (layers - 1)) * directions
    parameters = _layer_parameters(cell, d, part) + _layer_parameters(cell, width, part) * (layers - 1)
    return flops, parameters * directions


class _Scores(NamedTuple):
    """Attention to the source: FLOPs of its keys and of the target, parameters, and bytes that the state keeps."""

    source: Expression
    target: Expression
    parameters: Expression
    memory: Expression
    sizes: dict[str, int]


def _scores(config: RecurrentAttentionConfig, state: Expression, encoded: Expression) -> _Scores:
    """The hidden width of an additive score is that of the state, or a."""
    context, values = linear(n, m, encoded), m * encoded * FLOAT
    if config.kind == "dot":  # the values are the keys
        return _Scores(Expression(), linear(n, m, state) + context, Expression(), values, {})
    if config.kind == "general":
        target = linear(n, m, state) + context
        return _Scores(linear(m, encoded, state), target, encoded * state, values + m * state * FLOAT, {})
    a = state if config.hidden is None else symbol("a")
    target = linear(n, state, a) + linear(n, m, a) + context
    sizes = {} if config.hidden is None else {"a": config.hidden}
    return _Scores(linear(m, encoded, a), target, (state + encoded + 1) * a, values + m * a * FLOAT, sizes)
