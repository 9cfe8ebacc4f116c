"""The cost of what surrounds the layers of an encoder model (`Encoder`, `VisionTransformer`): patches and head.

The head decides how many predictions a row gets: one for text and image classification, one per token for token
classification, one per masked token for a masked LM.

A head saves what it reads, which may be less than the layers returned: a mean-pooled text saves only its mean. So the
output of the final norm is counted here and not with the stack.
"""

from regard.cost.op_cost import Device, OpCost, norm_cost
from regard.model import (
    AnyModelConfig,
    ClassificationHeadConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    MaskedLMHeadConfig,
    ModelConfig,
    NormConfig,
    SequenceConfig,
    StackConfig,
    TokenClassificationHeadConfig,
    VisionTransformerConfig,
)

EncoderModelConfig = EncoderConfig | VisionTransformerConfig
TransformerConfig = ModelConfig | EncoderModelConfig
"""The models whose parts have formulas; the others are counted (`counted.py`)."""

_SAVE_OUTPUT = ("relu", "tanh")
"""Activations whose backward needs their output; the others need their input."""


def output_stack(config: TransformerConfig) -> StackConfig:
    """The stack whose output is scored: the decoder, or the only stack of an encoder model."""
    return config.decoder if isinstance(config, ModelConfig) else config.encoder


def predictions(config: AnyModelConfig, tokens: int, predicted_tokens: int | None = None) -> tuple[int, int]:
    """How many predictions a row of `tokens` gets, and over how many tokens or classes each one is.

    `predicted_tokens` is how many of them a masked LM predicts; None means all.
    """
    if isinstance(config, ModelConfig | SequenceConfig):
        return tokens, config.vocab_size
    if isinstance(config, VisionTransformerConfig):
        return 1, len(config.labels)
    match config.head:
        case MaskedLMHeadConfig():
            return tokens if predicted_tokens is None else min(predicted_tokens, tokens), config.vocab_size
        case ClassificationHeadConfig() as head:
            return 1, len(head.labels)
        case TokenClassificationHeadConfig() as head:
            return tokens, len(head.labels)
    return 0, 0


def output_matrix_uses(config: TransformerConfig) -> int:
    """How often the matrix that computes the logits is used: each use yields a gradient as large as the matrix."""
    if isinstance(config, EncoderConfig):
        return 2 if isinstance(config.head, MaskedLMHeadConfig) and config.head.tie_weights else 1
    if isinstance(config, VisionTransformerConfig):
        return 1
    return 1 + config.tie_weights + (isinstance(config, EncoderDecoderConfig) and config.source_vocab_size is None)


def patch_embedding_cost(config: VisionTransformerConfig, tokens: int) -> OpCost:
    """The patch embedding saves the pixels, for the gradient of its weights."""
    patches = tokens - (config.pooling == "cls") - config.registers
    pixels = config.channels * config.patch_size**2
    projection = OpCost(flops=2 * patches * pixels * config.width, saved=patches * pixels)
    return projection + OpCost(dropout_masks=tokens * config.width * (config.dropout > 0))


def head_cost(config: EncoderModelConfig, tokens: int, predicted_tokens: int | None, device: Device) -> OpCost:
    """From the layers' output for a row to its logits, which are not counted as saved: that depends on the loss."""
    count, classes = predictions(config, tokens, predicted_tokens)
    if isinstance(config, VisionTransformerConfig):
        return _image_head(config, tokens, classes)
    width, head = config.width, config.head
    logits = OpCost(flops=2 * count * width * classes)
    layer_output = OpCost(saved=tokens * width)  # of all tokens, padding zeroed
    match head:
        case MaskedLMHeadConfig():
            # Selecting the predicted tokens saves what they are taken from and their positions.
            selection = OpCost() if predicted_tokens is None else layer_output + OpCost(float32_values=2 * count)
            return logits + selection + _transform(head.activation, head.norm, width, count, device)
        case TokenClassificationHeadConfig():
            return logits + (_dropout(count * width) if head.dropout else layer_output)
        case ClassificationHeadConfig(pooling="pooler"):
            pooler = OpCost(flops=2 * width**2, saved=width) + layer_output
            return logits + pooler + (_dropout(width) if head.dropout else OpCost())
        case ClassificationHeadConfig():
            if head.dropout:
                return logits + _dropout(width)
            return logits + (layer_output if head.pooling == "cls" else OpCost(saved=width))
    return OpCost()


def _image_head(config: VisionTransformerConfig, tokens: int, classes: int) -> OpCost:
    """Reads the class token, a view that keeps all tokens in memory, or the mean of the patches."""
    width, representation = config.width, config.representation_size
    pooled = OpCost(saved=tokens * width if config.pooling == "cls" else width)
    if representation is not None:
        return pooled + OpCost(flops=2 * representation * (width + classes), saved=representation)
    return pooled + OpCost(flops=2 * width * classes) if classes else OpCost()


def _transform(activation: str, norm: NormConfig, width: int, tokens: int, device: Device) -> OpCost:
    """A masked LM head's transform before the logits: a linear layer, an activation and a norm."""
    activation_input = 0 if activation in _SAVE_OUTPUT else tokens * width
    linear = OpCost(flops=2 * tokens * width**2, saved=tokens * width + activation_input)
    return linear + norm_cost(tokens, width, norm.kind, device)


def _dropout(values: int) -> OpCost:
    """Dropout's output and its mask."""
    return OpCost(saved=values, dropout_masks=values)
