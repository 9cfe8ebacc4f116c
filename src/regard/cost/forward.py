"""What a forward pass does and keeps, counted sublayer by sublayer from a config alone.

**Arithmetic** is matrix products, a multiply-add being 2 FLOPs. Attention is counted over the pairs within reach of
strips of 256 queries, which is what fused kernels compute: all pairs of a short text, about half of those of a long
causal one, a band under a window.

**What is kept for backward** is what autograd saves of a model as it is written (for its fast form see `fast.py`):

- a norm keeps what enters it and one or two float32 sums a token; what leaves it is kept by the products that read it;
- dropout keeps a mask: a byte for each number on a GPU, on a CPU as much as the number itself;
- for attention see `attention.py`, for the feed-forward `middle.py`.

**Where layers are computed again** (train.recompute) only what enters each is kept, and what was made of the source for
a decoder. The inside of one layer at a time is there on the way back (`Part`).

**Behind a cache** a token looks at all before it. Where a window bounds how far it sees, the cache has slots for that
many positions and no more (attention/ring.py), and all of them are looked at, filled or not.
"""

from dataclasses import replace

from regard.attention import Causal, Pattern, RotaryConfig, read_pattern
from regard.cost.attention import attention_of
from regard.cost.effort import Device, Effort, Part, normalise, part_of
from regard.cost.middle import feed_forward_of
from regard.cost.readers import ReaderConfig, cut_patches, head_of, stack_of
from regard.model import (
    AnyModelConfig,
    EncoderDecoderConfig,
    ModelConfig,
    StackConfig,
    VisionTransformerConfig,
)


def forward(
    config: AnyModelConfig, rows: int, source: int, target: int, device: Device, asked: int | None = None
) -> tuple[Effort, Effort]:
    """A batch, from ids or pixels to scores: what the source takes, and what the target takes.

    What a model reads that does not write is its target. Keys and values that the decoder makes of the source count for
    the source. The scores themselves are left out of what is kept: that is for the loss to say. `asked`: of how many
    tokens a word is asked, where gaps are filled.
    """
    theirs, own = parts(config, rows, source, target, device, asked)
    return theirs.whole, own.whole


def parts(
    config: AnyModelConfig, rows: int, source: int, target: int, device: Device, asked: int | None = None
) -> tuple[Part, Part]:
    """The same, layers apart from what is outside of them."""
    if not isinstance(config, ModelConfig):
        return Part(), _of_reader(config, rows, target, device, asked)
    width, decoder = config.width, config.decoder
    layer, last = _stack(decoder, config, target, True, device)
    outside = (embed(config, target) + last + Effort(flops=2 * target * width * config.vocabulary)) * rows
    theirs, copied = Part(), Effort()
    if isinstance(config, EncoderDecoderConfig):
        attention = attention_of(decoder.attention, width, device)
        layer += _around(decoder, width, target, device) + attention.other(target, source)
        theirs, copied = _of_source(config, rows, source, device), attention.copied(source)
    own = part_of(_layers(decoder, layer, width, rows, target, causal=True), outside, rows * target * width)
    return theirs, own.holding(copied * rows)


def _of_reader(config: ReaderConfig, rows: int, tokens: int, device: Device, asked: int | None) -> Part:
    """One stack that sees both sides of each token, and a head."""
    width, encoder = config.width, config.encoder
    layer, last = _stack(encoder, config, tokens, False, device)
    around = embed(config, tokens) + last + unkept(tokens, width) + head_of(config, tokens, asked, device)
    inner = _layers(encoder, layer, width, rows, tokens, causal=False)
    return part_of(inner, around * rows, rows * tokens * width)


def unkept(tokens: int, width: int) -> Effort:
    """What leaves the last layer is for a head to keep, or not."""
    return Effort(kept=-tokens * width)


def _of_source(config: EncoderDecoderConfig, rows: int, source: int, device: Device) -> Part:
    """What the source takes, and what is made of it for the decoder's layers."""
    width, encoder, layers = config.width, config.encoder, config.decoder.layers
    attention = attention_of(config.decoder.attention, width, device)
    layer, last = _stack(encoder, config, source, False, device)
    shared = config.memory == "shared"
    outside = embed(config, source) + last + attention.make(source) * (1 if shared else layers)
    inner = _layers(encoder, layer, width, rows, source, causal=False)
    part = part_of(inner, outside * rows, rows * source * width)
    held = attention.held(source) * (rows * (1 if shared and attention.lends else layers))
    made = made_of_source(config, rows, source, device)
    return replace(part, outside=part.outside + held, lasting=part.lasting + made)


def step(config: ModelConfig, length: int, source: int = 0, room: int | None = None) -> Effort:
    """One new token of one row behind a cache, when there are `length` tokens with it. Nothing is kept for backward.

    `room` is for how many the cache was made: as many, if not given.
    """
    width, decoder, slots = config.width, config.decoder, cache_slots(config)
    attention = attention_of(decoder.attention, width, "cuda")
    layer = attention.step(length if slots is None else min(max(length, room or 0), slots))
    if isinstance(config, EncoderDecoderConfig):
        layer += attention.step_other(source)
    middles = sum((feed_forward_of(each, width, 1).products for each in decoder.feed_forwards), Effort())
    return layer * decoder.layers + middles + Effort(flops=2 * width * config.vocabulary)


def cache_slots(config: ModelConfig) -> int | None:
    """How many positions a cache ever holds of a text that is written; None if all of them."""
    position = config.position
    if isinstance(position, RotaryConfig) and position.scaling is not None and position.scaling.changes_at is not None:
        return None  # keys are turned anew, by where they stand
    horizon = pattern_of(config.decoder, True).horizon()
    return None if horizon is None else sum(horizon)


def cache_numbers(config: ModelConfig) -> tuple[int, int]:
    """What a cache holds for one position written and for one token of the source."""
    layers, attention = config.decoder.layers, config.decoder.attention
    written = attention.cached(config.width) * layers
    if not isinstance(config, EncoderDecoderConfig):
        return written, 0
    return written, attention.remembered(config.width) * (1 if config.memory == "shared" else layers)


def made_of_source(config: EncoderDecoderConfig, rows: int, source: int, device: Device) -> Effort:
    """What decoder layers have of the source, as it was made: once where they share it."""
    made = attention_of(config.decoder.attention, config.width, device).made(source)
    return made * (rows * (1 if config.memory == "shared" else config.decoder.layers))


def pairs(pattern: Pattern, queries: int, keys: int) -> int:
    """How many pairs of a query and a key are computed, the last query standing at the last key."""
    return round(pattern.over(queries, keys).share_in_strips() * queries * keys)


def sublayers(config: AnyModelConfig) -> int:
    """Self-attention, cross-attention and feed-forward, over all layers."""
    if isinstance(config, EncoderDecoderConfig):
        return 3 * config.decoder.layers + 2 * config.encoder.layers
    return 2 * stack_of(config).layers


def pattern_of(config: StackConfig, causal: bool) -> Pattern:
    seen = read_pattern(config.attention.pattern)
    return Causal() & seen if causal else seen


def hold_mask(config: StackConfig, tokens: int, causal: bool) -> Effort:
    """A mask serves all rows, but each layer keeps it as numbers; none where all, or all before, is seen."""
    scope = pattern_of(config, causal).over(tokens)
    if scope.everything or scope.triangle:
        return Effort()
    return Effort(kept=pairs(scope.pattern, tokens, tokens))


def embed(config: AnyModelConfig, tokens: int) -> Effort:
    """The ids are kept; its result is kept by what comes next."""
    if isinstance(config, VisionTransformerConfig):
        return cut_patches(config, tokens)
    cells, norm = tokens * config.width, config.embedding.norm
    ids = Effort(masks=cells * (config.embedding.dropout > 0), sums=2 * tokens)
    if norm is None:
        return ids
    return ids + Effort(kept=cells, sums=tokens * (1 if norm.kind == "rms" else 2))


def _stack(
    config: StackConfig, model: AnyModelConfig, tokens: int, causal: bool, device: Device
) -> tuple[Effort, Effort]:
    """Self-attention of one layer and what is around it and the feed-forward, then what is behind the last layer.

    Cross-attention is for `parts`, feed-forwards are for `_layers`.
    """
    width, rotary = model.width, isinstance(model.position, RotaryConfig)
    reached = pairs(pattern_of(config, causal), tokens, tokens)
    layer = attention_of(config.attention, width, device).own(tokens, reached, rotary)
    layer += _around(config, width, tokens, device) * 2
    # What enters the first sublayer of post-norm, or enters and leaves the last norm of the others.
    if config.order == "post":
        return layer, Effort(kept=tokens * width)
    return layer, normalise(tokens, width, config.norm.kind, device)


def _layers(config: StackConfig, layer: Effort, width: int, rows: int, tokens: int, *, causal: bool) -> list[Effort]:
    """All layers of a stack: what a row takes in each of them alike, its feed-forward, and the mask for all rows."""
    mask = hold_mask(config, tokens, causal)
    return [(layer + feed_forward_of(each, width, tokens)) * rows + mask for each in config.feed_forwards]


def _around(config: StackConfig, width: int, tokens: int, device: Device) -> Effort:
    """Norm, dropout and residual of a sublayer: what enters the norm and what leaves it."""
    dropped = Effort(masks=tokens * width * (config.dropout > 0))
    return normalise(tokens, width, config.norm.kind, device) + dropped
