"""The Transformers: encoder–decoder, language model, encoder and Vision Transformer.

None has a closed form if its attention does not see everything, or is latent attention.
"""

from collections.abc import Sequence
from fractions import Fraction

from regard.attention.positions.config import AnyPosition, LearnedConfig
from regard.cost.expression import Expression, symbol
from regard.cost.formulas.parts import FLOAT, Formula, L, S, T, d, linear, linear_parameters, m, n
from regard.cost.formulas.stack import StackFormula, norm_parameters
from regard.model import (
    ClassificationHeadConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    LanguageModelConfig,
    MaskedLMHeadConfig,
    StackConfig,
    TokenClassificationHeadConfig,
    VisionTransformerConfig,
)
from regard.model.vision_transformer import LearnedGridConfig


def language_model(config: LanguageModelConfig) -> Formula | None:
    """The KV cache grows with every token."""
    sizes = _sizes(config, [config.decoder])
    stack = StackFormula.of(config.decoder, sizes)
    if stack is None:
        return None
    return Formula(
        stack.flops(n) + linear(n, d, T),
        stack.parameters() + _embeddings(config, sides=1),
        n * stack.kv * (FLOAT * config.decoder.layers),
        layer=stack.layer(n),
        sizes=sizes,
    )


def encoder_decoder(config: EncoderDecoderConfig) -> Formula | None:
    """Keys and values of the source are projected once, for each layer or for all, and count for the source."""
    sizes = _sizes(config, [config.encoder, config.decoder])
    encoder, decoder = (StackFormula.of(stack, sizes) for stack in (config.encoder, config.decoder))
    if encoder is None or decoder is None:
        return None
    layers = config.decoder.layers
    projections = 1 if config.cross_kv == "shared" else layers
    cross = linear(n, d, decoder.queries) + decoder.attend(n, m) + decoder.output(n)
    kv_parameters = linear_parameters(d, decoder.kv, bias=decoder.bias) * projections
    parameters = (decoder.attention_parameters(kv=False) + decoder.norm) * layers + kv_parameters
    return Formula(
        decoder.flops(n) + cross * layers + linear(n, d, T),
        encoder.parameters() + decoder.parameters() + parameters + _embeddings(config, sides=2),
        n * decoder.kv * (FLOAT * layers) + m * decoder.kv * (FLOAT * projections),
        encoder.flops(m) + linear(m, d, decoder.kv) * projections,
        decoder.layer(n) + cross,
        sizes,
    )


def encoder(config: EncoderConfig) -> Formula | None:
    """A masked language model scores all tokens here; in training it scores the masked ones only."""
    sizes = _sizes(config, [config.encoder])
    stack = StackFormula.of(config.encoder, sizes)
    if stack is None:
        return None
    width = config.position.token_width(config.width)
    flops, parameters = stack.flops(n), stack.parameters() + _embeddings(config, sides=1)
    parameters += d * Fraction(config.token_types * width, config.width)
    parameters += linear_parameters(d, d) if config.pooler else Expression()
    match config.head:
        case MaskedLMHeadConfig() as head:
            flops += linear(n, d, d) + linear(n, d, T)
            parameters += linear_parameters(d, d) + norm_parameters(head.norm)
            parameters += (Expression() if head.tie_weights else T * d) + (T if head.bias else Expression())
        case TokenClassificationHeadConfig() as head:
            flops += linear(n, d, len(head.labels))
            parameters += linear_parameters(d, len(head.labels))
        case ClassificationHeadConfig() as head:
            flops += linear(1, d, len(head.labels)) + (linear(1, d, d) if config.pooler else Expression())
            parameters += linear_parameters(d, len(head.labels))
    return Formula(flops, parameters, layer=stack.layer(n), sizes=sizes)


def vision(config: VisionTransformerConfig) -> Formula | None:
    """p patches and the extra tokens are the n tokens of an image."""
    sizes = _sizes(config, [config.encoder])
    stack = StackFormula.of(config.encoder, sizes)
    if stack is None:
        return None
    p, pixels, has_cls = symbol("p"), config.channels * config.patch_size**2, config.pooling == "cls"
    flops = stack.flops(n) + linear(p, pixels, d)
    parameters = stack.parameters() + linear_parameters(pixels, d) + d * (has_cls + config.registers)
    if isinstance(config.position, LearnedGridConfig):
        parameters += (p + int(has_cls)) * d
    vector = d
    if config.representation_size is not None:
        vector = Expression.of(config.representation_size)
        flops += linear(1, d, vector)
        parameters += linear_parameters(d, vector)
    classes = len(config.labels)
    flops += linear(1, vector, classes)
    parameters += linear_parameters(vector, classes)
    rows, columns = config.grid
    return Formula(flops, parameters, layer=stack.layer(n), sizes=sizes | {"p": rows * columns})


def _embeddings(config: EncoderDecoderConfig | LanguageModelConfig | EncoderConfig, *, sides: int) -> Expression:
    """Tokens, learned positions and norms of each side, and the output projection where it is not tied."""
    position: AnyPosition = config.position
    width = config.width
    tokens = d * Fraction(position.token_width(width), width)
    total = T * tokens
    if not isinstance(config, EncoderConfig):
        total += (Expression() if config.tie_weights else T * d) + (T if config.output_bias else Expression())
    if isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is not None:
        total += S * tokens
    if isinstance(position, LearnedConfig):
        total += L * d * Fraction(position.features or width, width) * sides
    return total if config.embedding.norm is None else total + norm_parameters(config.embedding.norm) * sides


def _sizes(
    config: EncoderDecoderConfig | LanguageModelConfig | EncoderConfig | VisionTransformerConfig,
    stacks: Sequence[StackConfig],
) -> dict[str, int]:
    sizes = {"d": config.width}
    hidden = max(each.hidden for stack in stacks for each in stack.feed_forwards)
    sizes |= {"f": hidden} if hidden else {}
    if isinstance(config, VisionTransformerConfig):
        return sizes
    sizes["|T|"] = config.vocab_size
    if isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is not None:
        sizes["|S|"] = config.source_vocab_size
    if isinstance(config.position, LearnedConfig):
        sizes["L"] = config.position.max_length
    return sizes
