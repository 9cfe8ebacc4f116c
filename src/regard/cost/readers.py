"""What is around the layers of a model that reads: patches before them, a head behind them.

A reader (`Encoder`, `VisionTransformer`) has one stack and writes nothing. How many answers it gives depends on its
head: one a row for labels and classes, one a token for tags, and to fill gaps one for each token that is asked for.

Behind the layers a head keeps what it reads, which may be less than they gave: of a text whose mean stands for it, that
alone. So what leaves the last norm is left to the head to count.
"""

from regard.cost.effort import Device, Effort, normalise
from regard.model import (
    AnyModelConfig,
    ClassifyConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    FillConfig,
    ModelConfig,
    NormConfig,
    StackConfig,
    TagConfig,
    VisionTransformerConfig,
)

ReaderConfig = EncoderConfig | VisionTransformerConfig

_KEEP_RESULTS = ("relu", "tanh")
"""Bends whose way back needs what leaves them; the others need what enters."""


def stack_of(config: AnyModelConfig) -> StackConfig:
    """The layers that make what is scored: the decoder's of a model that writes, all there are of one that reads."""
    return config.decoder if isinstance(config, ModelConfig) else config.encoder


def answers(config: AnyModelConfig, tokens: int, asked: int | None = None) -> tuple[int, int]:
    """How many answers a row gets, and between how many words or classes each decides.

    `asked`: of how many tokens a word is asked to fill a gap; of all, if not given.
    """
    if isinstance(config, ModelConfig):
        return tokens, config.vocabulary
    if isinstance(config, VisionTransformerConfig):
        return 1, len(config.labels)
    match config.head:
        case FillConfig():
            return tokens if asked is None else min(asked, tokens), config.vocabulary
        case ClassifyConfig() as head:
            return 1, len(head.labels)
        case TagConfig() as head:
            return tokens, len(head.labels)
    return 0, 0


def table_uses(config: AnyModelConfig) -> int:
    """How often the table that words are scored by is used: each use gives a gradient as large as the table."""
    if isinstance(config, EncoderConfig):
        return 2 if isinstance(config.head, FillConfig) and config.head.tie else 1
    if isinstance(config, VisionTransformerConfig):
        return 1
    return 1 + config.tie + (isinstance(config, EncoderDecoderConfig) and config.source_vocabulary is None)


def cut_patches(config: VisionTransformerConfig, tokens: int) -> Effort:
    """Pictures into patches, and a vector of each: the pixels are kept, for the weights' gradient."""
    patches = tokens - (config.pooling == "class") - config.registers
    pixels = config.channels * config.patch**2
    made = Effort(flops=2 * patches * pixels * config.width, kept=patches * pixels)
    return made + Effort(masks=tokens * config.width * (config.dropout > 0))


def head_of(config: ReaderConfig, tokens: int, asked: int | None, device: Device) -> Effort:
    """From what the layers gave of a row to scores, these left out of what is kept: that is for the loss to say."""
    cells, classes = answers(config, tokens, asked)
    if isinstance(config, VisionTransformerConfig):
        return _view(config, tokens, classes)
    width, head = config.width, config.head
    scored = Effort(flops=2 * cells * width * classes)
    read = Effort(kept=tokens * width)  # all that the layers gave, padding as zeros
    match head:
        case FillConfig():
            chosen = Effort() if asked is None else read + Effort(sums=2 * cells)  # what is chosen from, and the places
            return scored + chosen + _turn(head.activation, head.norm, width, cells, device)
        case TagConfig():
            return scored + (_dropped(cells * width) if head.dropout else read)
        case ClassifyConfig(pooling="pooler"):
            pooled = Effort(flops=2 * width**2, kept=width) + read
            return scored + pooled + (_dropped(width) if head.dropout else Effort())
        case ClassifyConfig():
            return scored + (
                _dropped(width) if head.dropout else read if head.pooling == "first" else Effort(kept=width)
            )
    return Effort()


def _view(config: VisionTransformerConfig, tokens: int, classes: int) -> Effort:
    """The class token's vector, which keeps those beside it in memory, or the mean of the patches."""
    width, middle = config.width, config.representation
    read = Effort(kept=tokens * width if config.pooling == "class" else width)
    if middle is not None:
        return read + Effort(flops=2 * middle * (width + classes), kept=middle)
    return read + Effort(flops=2 * width * classes) if classes else Effort()


def _turn(activation: str, norm: NormConfig, width: int, cells: int, device: Device) -> Effort:
    """Vectors are turned once more before they are compared with words: what enters, what is bent, the norm."""
    bent = 0 if activation in _KEEP_RESULTS else cells * width
    turned = Effort(flops=2 * cells * width**2, kept=cells * width + bent)
    return turned + normalise(cells, width, norm.kind, device)


def _dropped(numbers: int) -> Effort:
    """Numbers behind dropout, and its mask."""
    return Effort(kept=numbers, masks=numbers)
