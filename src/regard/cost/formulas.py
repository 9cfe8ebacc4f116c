"""Closed forms: the FLOPs of a forward pass as functions of lengths, widths and the vocabulary.

`counted.py` counts any model; what it finds is a number. A formula says why it is that number, and how it grows:

    m, n    tokens of the source and of the target        d    the width of the model
    h       the width of its hidden layers                k    the tokens that a window or a convolution sees
    f       the hidden width of a feed-forward            |T|  the size of the vocabulary

The number of layers is written out as a coefficient. There is a function for each class of config; tests hold all of
them against the counter. A model with parts that a formula does not know has none.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from regard.attention import Full, MultiHeadConfig, read_pattern
from regard.cost.expression import Expression, Size, symbol
from regard.model import AnyModelConfig, EncoderDecoderConfig, FeedForwardConfig, LanguageModelConfig, StackConfig
from regard.model.before.convolutional.bytenet import ByteNetConfig
from regard.model.before.convolutional.convs2s import ConvolutionalConfig
from regard.model.before.convolutional.language_model import ConvolutionalLMConfig
from regard.model.before.fixed_window.context import ContextConfig
from regard.model.before.fixed_window.dnn1 import DNN1Config
from regard.model.before.fixed_window.dnn2 import DNN2Config
from regard.model.before.fixed_window.window import WindowLMConfig
from regard.model.before.ngram.model import NgramConfig
from regard.model.before.recurrent.attention_scores import RecurrentAttentionConfig
from regard.model.before.recurrent.decoders import BahdanauConfig
from regard.model.before.recurrent.deep_att import DeepAttConfig
from regard.model.before.recurrent.encoder_decoder import RecurrentConfig
from regard.model.before.recurrent.encoder_decoder_with_attention import RecurrentAttentionModelConfig
from regard.model.before.recurrent.gnmt import GnmtConfig
from regard.model.before.recurrent.language_model import RecurrentLMConfig
from regard.model.feed_forward import is_gated

m, n, d, h, k, f, T = map(symbol, ("m", "n", "d", "h", "k", "f", "|T|"))
_GATES = {"lstm": 4, "gru": 3}


@dataclass(frozen=True)
class Formula:
    """The FLOPs of a row: of the source, and of the target, which may depend on the source's length as well."""

    target: Expression
    source: Expression = field(default_factory=Expression)
    sizes: dict[str, int] = field(default_factory=dict)
    """The values of all symbols but the lengths."""
    columns: Callable[[int], int] | None = None
    """ByteNet's c: how many columns a source of m tokens has."""

    def flops(self, source_length: int, target_length: int) -> tuple[int, int]:
        """Of one row, source and target."""
        values = {**self.sizes, "m": source_length, "n": target_length}
        if self.columns is not None:
            values["c"] = self.columns(source_length)
        return self.source(values), self.target(values)

    @property
    def total(self) -> Expression:
        return self.source + self.target


AnyConfig = TypeVar("AnyConfig")
FORMULAS: dict[type[Any], Callable[[Any], Formula | None]] = {}
"""Formulas by class of config."""


def formula(config: type[AnyConfig]) -> Callable[[Callable[[AnyConfig], Formula | None]], Callable[[AnyConfig], Any]]:
    """Register the function that gives the formula of a config of this class. A decorator."""

    def register(function: Callable[[AnyConfig], Formula | None]) -> Callable[[AnyConfig], Any]:
        FORMULAS[config] = function
        return function

    return register


def formula_of(config: AnyModelConfig) -> Formula | None:
    """The closed form of a model; None if there is none."""
    function = FORMULAS.get(type(config))
    return None if function is None else function(config)


# Parts


def linear(tokens: Size, inputs: Size, outputs: Size) -> Expression:
    return Expression.of(2) * tokens * inputs * outputs


def recurrent(cell: str, tokens: Size, inputs: Size, width: Size) -> Expression:
    """A recurrent layer: n·d² of the inputs, and as much of the states."""
    return linear(tokens, _GATES[cell], width) * (Expression.of(inputs) + width)


def convolution(tokens: Size, channels: Size, *, gated: bool) -> Expression:
    return linear(tokens, k * channels, channels) * (2 if gated else 1)


def attention(queries: Size, keys: Size, width: Size) -> Expression:
    """QKᵀ and weights × V."""
    return linear(queries, keys, width) * 2


def _recurrent_attention(config: RecurrentAttentionConfig, state: Expression, memory: Expression) -> Any:
    """Of the source, whose keys are projected once, and of the target."""
    if config.hidden is not None:
        return None
    values = linear(n, m, memory)
    if config.kind == "dot":
        return Expression(), linear(n, m, state) + values
    keys = linear(m, memory, state)
    if config.kind == "general":
        return keys, linear(n, m, state) + values
    return keys, linear(n, state, state) + linear(n, m, state) + values


# Models without a source


@formula(NgramConfig)
def _ngram(config: NgramConfig) -> Formula:
    return Formula(Expression())  # it looks up, and multiplies nothing


@formula(WindowLMConfig)
def _window(config: WindowLMConfig) -> Formula:
    direct = linear(n, k * d, T) if config.direct else Expression()
    sizes = {"k": config.window, "d": config.width, "h": config.hidden, "|T|": config.vocab_size}
    return Formula(linear(n, k * d, h) + linear(n, h, T) + direct, sizes=sizes)


@formula(RecurrentLMConfig)
def _recurrent_lm(config: RecurrentLMConfig) -> Formula:
    layers = recurrent(config.cell, n, d, d) * config.layers
    return Formula(layers + linear(n, d, T), sizes={"d": config.width, "|T|": config.vocab_size})


@formula(ConvolutionalLMConfig)
def _convolutional_lm(config: ConvolutionalLMConfig) -> Formula:
    channels = d if config.hidden is None else h
    layers = convolution(n, channels, gated=True) * config.layers
    sizes = {"k": config.kernel, "d": config.width, "h": config.hidden or 0, "|T|": config.vocab_size}
    return Formula(layers + linear(n, d, channels) * 2 + linear(n, d, T), sizes=sizes)


@formula(LanguageModelConfig)
def _language_model(config: LanguageModelConfig) -> Formula | None:
    if not _is_plain(config.decoder, config.width):
        return None
    return Formula(_self_attention_stack(n, config.decoder.layers) + linear(n, d, T), sizes=_transformer_sizes(config))


# Models with a source


@formula(DNN1Config)
def _dnn1(config: DNN1Config) -> Formula:
    """One-hot words select rows of the first matrix, which takes no multiplication."""
    layers = linear(n, h, h) * (config.layers - 1)
    return Formula(layers + linear(n, h, T), sizes={"h": config.hidden, "|T|": config.vocab_size})


@formula(DNN2Config)
def _dnn2(config: DNN2Config) -> Formula:
    layers = linear(n, d, h) + linear(n, h, h) * (config.layers - 1) + linear(n, h, d)
    sizes = {"d": config.width, "h": config.hidden, "|T|": config.vocab_size}
    return Formula(layers + linear(n, d, T), linear(m, d, h), sizes)


@formula(ContextConfig)
def _context(config: ContextConfig) -> Formula:
    """Every target word mixes all words of the source and of the target."""
    layers = linear(n, d, h) + linear(n, h, h) * (config.layers - 1) + linear(n, h, d) + linear(n, d, T)
    features: Size = {"mean": 0, "learned": 1}.get(config.mixing, d)
    mixed = linear(n, m + n, d) + linear(n, m + n, features)
    source: Expression = field(default_factory=Expression)
    if config.mixing == "learned":
        mixed, source = mixed + linear(n, d, 1), linear(m, d, 1)
    if config.mixing == "query_key":
        mixed, source = mixed + linear(n, d, d) * 2, linear(m, d, d)
    sizes = {"d": config.width, "h": config.hidden, "|T|": config.vocab_size}
    return Formula(layers + mixed, source, sizes)


@formula(RecurrentConfig)
def _recurrent(config: RecurrentConfig) -> Formula:
    cell, layers = config.cell, config.layers
    if config.bidirectional:  # each direction has half the width, so a state's matrix has half as many weights
        source = _bidirectional(cell, d) + _bidirectional(cell, h) * (layers - 1)
    else:
        source = recurrent(cell, m, d, h) + recurrent(cell, m, h, h) * (layers - 1)
    upper = recurrent(cell, n, h, h) * (layers - 1) + linear(n, d, T)
    sizes = {"d": config.width, "h": config.hidden, "|T|": config.vocab_size}
    if config.summary_input == "first_state":
        projected = Expression() if config.width == config.hidden else linear(n, h, d)
        return Formula(upper + recurrent(cell, n, d, h) + projected, source, sizes)
    start = linear(1, h, h) + linear(1, h, h) * (layers * (2 if cell == "lstm" else 1))
    readout = linear(n, h * 2 + d, d) * 2  # maxout
    return Formula(upper + recurrent(cell, n, d + h, h) + readout, source + start, sizes)


def _bidirectional(cell: str, inputs: Expression) -> Expression:
    """Both directions over the source, each of half the width h: 2·(h/2)·(inputs + h/2) = h·inputs + h·h/2."""
    gates = _GATES[cell]
    return linear(m, inputs, h) * gates + m * h * h * gates


@formula(RecurrentAttentionModelConfig)
def _recurrent_attention_model(config: RecurrentAttentionModelConfig) -> Formula | None:
    scores = _recurrent_attention(config.attention, h, h)
    if scores is None or config.experts is not None or config.memory_width != config.hidden:
        return None
    cell, layers = config.cell, config.layers
    source = _bidirectional(cell, d) + _bidirectional(cell, h) * (layers - 1) + scores[0]
    target = recurrent(cell, n, h, h) * (layers - 1) + linear(n, d, T) + scores[1]
    sizes = {"d": config.width, "h": config.hidden, "|T|": config.vocab_size}
    if isinstance(config.decoder, BahdanauConfig):
        target += recurrent(cell, n, d + h, h)
        target += linear(n, h * 2 + d, d) * (2 if config.decoder.readout == "maxout" else 1)
        # The first states come from the backward direction, which has half the width.
        return Formula(target, source + h * h * (layers * (2 if cell == "lstm" else 1)), sizes)
    target += recurrent(cell, n, d + h if config.decoder.input_feeding else d, h) + linear(n, h * 2, h)
    return Formula(target + (Expression() if config.width == config.hidden else linear(n, h, d)), source, sizes)


@formula(GnmtConfig)
def _gnmt(config: GnmtConfig) -> Formula | None:
    scores = _recurrent_attention(config.attention, d, d)
    if scores is None:
        return None
    cell, above = config.cell, config.layers - 1
    source = recurrent(cell, m, d, d) * 2 + recurrent(cell, m, d * 2, d) + recurrent(cell, m, d, d) * (above - 1)
    target = recurrent(cell, n, d * 2, d) * (1 + above) + linear(n, d, T)
    return Formula(target + scores[1], source + scores[0], {"d": config.width, "|T|": config.vocab_size})


@formula(DeepAttConfig)
def _deep_att(config: DeepAttConfig) -> Formula | None:
    """A fast-forward connection computes half of the inputs' part of the gates again."""
    scores = _recurrent_attention(config.attention, h, h)
    if scores is None:
        return None

    def layer(tokens: Expression, inputs: Expression) -> Expression:
        return recurrent("lstm", tokens, inputs, h) + linear(tokens, inputs, h * 2)

    column = layer(m, d) + layer(m, h * 3) * (config.encoder_layers - 1)
    target = layer(n, d + h) + layer(n, h * 3) * (config.decoder_layers - 1) + linear(n, h * 3, d) + linear(n, d, T)
    sizes = {"d": config.width, "h": config.hidden, "|T|": config.vocab_size}
    return Formula(target + scores[1], column * 2 + linear(m, h * 6, h) + scores[0], sizes)


@formula(ConvolutionalConfig)
def _convolutional(config: ConvolutionalConfig) -> Formula:
    channels = d if config.hidden is None else h
    source = convolution(m, channels, gated=True) * config.encoder_layers + linear(m, d, channels) * 2
    layer = convolution(n, channels, gated=True) + linear(n, d, channels) * 2 + attention(n, m, d)
    target = layer * config.decoder_layers + linear(n, d, channels) * 2 + linear(n, d, T)
    sizes = {"k": config.kernel, "d": config.width, "h": config.hidden or 0, "|T|": config.vocab_size}
    return Formula(target, source, sizes)


@formula(ByteNetConfig)
def _bytenet(config: ByteNetConfig) -> Formula:
    """Convolutions work at h, half of the width d; the encoder runs over c columns."""
    c = symbol("c")

    def blocks(tokens: Expression, sets: int) -> Expression:
        block = linear(tokens, d, h) * 2 + convolution(tokens, h, gated=False)
        return block * (sets * len(config.dilations)) + linear(tokens, d, d)

    sizes = {"k": config.kernel, "d": config.width, "h": config.width // 2, "|T|": config.vocab_size}
    return Formula(
        blocks(n, config.decoder_sets) + linear(n, d, T),
        blocks(c, config.encoder_sets),
        sizes,
        lambda tokens: math.ceil(tokens * config.length_ratio) + config.length_offset,
    )


@formula(EncoderDecoderConfig)
def _encoder_decoder(config: EncoderDecoderConfig) -> Formula | None:
    encoder, decoder = config.encoder, config.decoder
    hidden = {stack.feed_forward.hidden for stack in (encoder, decoder) if stack.feed_forward is not None}
    if not (_is_plain(encoder, config.width) and _is_plain(decoder, config.width)) or len(hidden) != 1:
        return None
    keys_and_values = linear(m, d, d) * (2 * (1 if config.cross_kv == "shared" else decoder.layers))
    cross = (linear(n, d, d) * 2 + attention(n, m, d)) * decoder.layers
    target = _self_attention_stack(n, decoder.layers) + cross + linear(n, d, T)
    return Formula(target, _self_attention_stack(m, encoder.layers) + keys_and_values, _transformer_sizes(config))


def _self_attention_stack(tokens: Expression, layers: int) -> Expression:
    """Projections of queries, keys, values and output; attention over all pairs; feed-forward."""
    return (linear(tokens, d, d) * 4 + attention(tokens, tokens, d) + linear(tokens, d, f) * 2) * layers


def _transformer_sizes(config: EncoderDecoderConfig | LanguageModelConfig) -> dict[str, int]:
    feed_forward = config.decoder.feed_forward
    assert feed_forward is not None
    return {"d": config.width, "f": feed_forward.hidden, "|T|": config.vocab_size}


def _is_plain(stack: StackConfig, width: int) -> bool:
    """Whether a stack has the paper's sublayers: heads that together are as wide as the model, a dense feed-forward."""
    heads, feed_forward = stack.attention, stack.feed_forward
    if not isinstance(heads, MultiHeadConfig) or type(feed_forward) is not FeedForwardConfig:
        return False
    sizes = heads.sizes(width)
    same = sizes.heads == sizes.kv_heads and sizes.heads * sizes.head_dim == sizes.heads * sizes.value_head_dim == width
    full = read_pattern(heads.pattern) == Full() and heads.output_projection and stack.dense_prefix is None
    return same and full and not is_gated(feed_forward.activation)
