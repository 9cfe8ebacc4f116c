"""What the fast form of a model keeps for backward (fast/swift_training.py), which is how a GPU trains it.

Its kernels keep nothing that can be made again: no mask of dropout, no weights of attention. Sublayer by sublayer:

- the sum and norm around it keep the sum and two float32 numbers a token; what leaves the norm is kept by the product
  that reads it;
- the way in keeps ids only, where a code of positions is added there;
- attention over short texts keeps what its one product made, and its result; that product keeps the weights of query,
  key and value laid below each other, unless they are copies in bf16 that lie so already;
- long attention keeps what PyTorch's own does, and where queries and keys are turned also what they were before;
- a feed-forward keeps what enters and leaves its bend; ReLU only what leaves it.

What the kernels do not know goes the plain way, and is counted as in `forward.py`: heads that share a
latent, and experts, sublayer by sublayer.

Where layers are computed again, chance that the kernels drew is drawn again from its seed. PyTorch's own cannot be
drawn again in a recorded pass: layers with such chance keep everything there (`draw_their_own`), and a stack that has
no fast form is not recorded (`is_recordable`).
"""

from dataclasses import replace

from regard.attention import Full, LatentConfig, RotaryConfig, read_pattern
from regard.attention.kinds import AnyAttention
from regard.attention.position import EncodingConfig
from regard.cost.attention import attention_of
from regard.cost.effort import Device, Effort, Part, part_of
from regard.cost.forward import embed, hold_mask, made_of_source, pairs, pattern_of, unkept
from regard.cost.middle import feed_forward_of
from regard.cost.readers import head_of, stack_of
from regard.model import (
    AnyModelConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    ModelConfig,
    StackConfig,
    VisionTransformerConfig,
)

LONGEST = 128
"""Words on each side up to which attention is one kernel."""
WIDEST = 128
"""Features of a head up to which it is."""
BENDS = ("relu", "gelu", "gelu-tanh", "silu")
"""What the kernel for a feed-forward's middle knows."""


def is_fast(config: AnyModelConfig) -> bool:
    """Whether training has a fast form for every stack of a model."""
    return all(stack.order != "none" for stack in _stacks(config))


def is_recordable(config: AnyModelConfig) -> bool:
    """Whether a pass that computes layers again can be recorded (`recomputes_recorded`, of a model not yet built)."""
    return not any(stack.order == "none" and _has_dropout(stack) for stack in _stacks(config))


def draw_their_own(config: AnyModelConfig, source: int, target: int) -> tuple[bool, bool]:
    """Of the encoder's layers and of the decoder's: whether PyTorch draws chance inside of some.

    Where only some do, the others are computed again all the same; that they keep everything too is said of all. The
    layers of a model that does not write count as a decoder's.
    """
    own = _draws_its_own(stack_of(config), config, target)
    if not isinstance(config, EncoderDecoderConfig):
        return False, own
    width, heads = config.width, config.decoder.attention
    cross = heads.dropout > 0 and not _known(heads, width, max(source, target))
    return _draws_its_own(config.encoder, config, source), own or cross


def fast_forward(
    config: AnyModelConfig,
    rows: int,
    source: int,
    target: int,
    device: Device = "cuda",
    asked: int | None = None,
    *,
    late: bool,
) -> Effort:
    """What a batch keeps from ids to scores, these left out. FLOPs are left to `forward`.

    `late`: the loss scores words itself, and does not keep the vectors it was given. Passes of several processes are
    not late, and make copies of weights one by one.
    """
    theirs, own = fast_parts(config, rows, source, target, device, asked, late=late)
    return theirs.whole + own.whole


def fast_parts(
    config: AnyModelConfig,
    rows: int,
    source: int,
    target: int,
    device: Device,
    asked: int | None = None,
    *,
    late: bool,
) -> tuple[Part, Part]:
    """The same of each side. Keys and values that the decoder makes of the source are the target's here."""
    if not isinstance(config, ModelConfig):
        part = _stack(config.encoder, config, rows, target, False, device, late)
        head = (head_of(config, target, asked, device) + unkept(target, config.width)) * rows
        return Part(), replace(part, outside=part.outside + head, lasting=part.lasting + head)
    theirs, own = Part(), _stack(config.decoder, config, rows, target, True, device, late)
    if late:
        vectors = unkept(target, config.width) * rows
        own = replace(own, outside=own.outside + vectors, lasting=own.lasting + vectors)
    if isinstance(config, EncoderDecoderConfig):
        theirs = _stack(config.encoder, config, rows, source, False, device, late)
        cross, made, again, copied = _cross(config, rows, source, target, device, late)
        own = replace(
            own.holding(cross + copied),
            layers=own.layers + cross * config.decoder.layers,
            outside=own.outside + made,
            lasting=own.lasting + again,
        )
    return theirs, own


def _stack(
    config: StackConfig, model: AnyModelConfig, rows: int, tokens: int, causal: bool, device: Device, late: bool
) -> Part:
    """Word vectors, self-attention and feed-forward of every layer, and what leaves the last norm."""
    heads, width, rotary = config.attention, model.width, isinstance(model.position, RotaryConfig)
    if _known_of_itself(config, model, tokens):
        sizes = heads.sizes(width)
        made = (sizes.heads + 2 * sizes.key_heads) * sizes.head_width
        layer = Effort(kept=tokens * (made + sizes.heads * sizes.head_width)) * rows
        layer += _stacked(made * width, late)
    else:
        reached = pairs(pattern_of(config, causal), tokens, tokens)
        layer = attention_of(heads, width, device).own(tokens, reached, rotary) * rows
        layer += hold_mask(config, tokens, causal)
        if rotary and not isinstance(heads, LatentConfig):
            # Turned queries and keys are kept, and values, which are part of what one product made: all of that.
            sizes = heads.sizes(width)
            layer += Effort(kept=tokens * (sizes.heads + sizes.key_heads) * sizes.head_width) * rows
    layer += _around(width, tokens) * (2 * rows)
    layers = [layer + _feed_forward(each, width, tokens) * rows for each in config.feed_forwards]
    first, cells = _embed(model, tokens) * rows, rows * tokens * width
    if config.order == "post":  # what leaves the last norm
        return part_of(layers, first + Effort(kept=cells), cells)
    # Where norms stand before sublayers also what enters it. Computed again, that is inside of the last layer.
    part = part_of(layers, first + _around(width, tokens) * rows, cells)
    entering = Effort(kept=cells)
    return replace(part.holding(entering), lasting=part.lasting + entering * -1)


def _stacked(weights: int, late: bool) -> Effort:
    """Weights laid below each other."""
    return Effort(stacked=weights) if late else Effort(kept=weights)


def _embed(config: AnyModelConfig, tokens: int) -> Effort:
    """As the plain form does, without a mask where the way in is one kernel."""
    made = embed(config, tokens)
    if not isinstance(config.position, EncodingConfig) or config.position.join != "add":
        return made
    return made if isinstance(config, VisionTransformerConfig) or config.embedding.norm else replace(made, masks=0)


def _cross(
    config: EncoderDecoderConfig, rows: int, source: int, target: int, device: Device, late: bool
) -> tuple[Effort, Effort, Effort, Effort]:
    """A decoder layer's attention to the source; the keys and values made of that for all layers.

    Then the latter where layers are computed again, and what such a layer copies of them.
    """
    width, layers, heads = config.width, config.decoder.layers, config.decoder.attention
    sizes, attention, one = heads.sizes(width), attention_of(heads, width, device), config.memory == "shared"
    # Of keys and values, side by side; a latent is one, and comes of its own weights.
    side_by_side = 0 if isinstance(heads, LatentConfig) else heads.remembered(width)
    weights = _stacked(side_by_side * width, late) * (1 if one else layers)
    made = made_of_source(config, rows, source, device)
    around = _around(width, target) * rows
    if _known(heads, width, max(source, target)):
        cross = Effort(kept=2 * target * sizes.heads * sizes.head_width) * rows  # queries and result
        return cross + around, weights + made, weights + made, Effort()
    cross, held = attention.other(target, source) * rows, attention.held(source)
    kept = held * (rows * (1 if one and held == attention.made(source) else layers))
    return cross + around, weights + kept, weights + made, attention.copied(source) * rows


def _stacks(config: AnyModelConfig) -> list[StackConfig]:
    return [stack_of(config), *([config.encoder] if isinstance(config, EncoderDecoderConfig) else [])]


def _has_dropout(config: StackConfig) -> bool:
    return max(config.dropout, config.attention.dropout, *(each.dropout for each in config.feed_forwards)) > 0


def _draws_its_own(config: StackConfig, model: AnyModelConfig, tokens: int) -> bool:
    """Whether PyTorch draws chance in the self-attention or some feed-forward of a stack."""
    attention = config.attention.dropout > 0 and not _known_of_itself(config, model, tokens)
    return attention or any(each.dropout > 0 and not _known_middle(each) for each in config.feed_forwards)


def _known_of_itself(config: StackConfig, model: AnyModelConfig, tokens: int) -> bool:
    """Whether one kernel does a stack's attention to its own words."""
    full = not isinstance(model.position, RotaryConfig) and read_pattern(config.attention.pattern) == Full()
    return full and _known(config.attention, model.width, tokens)


def _known(config: AnyAttention, width: int, longest: int) -> bool:
    """Whether one kernel does the attention of texts up to this length."""
    sizes = config.sizes(width)
    alike = sizes.value_width == sizes.head_width <= WIDEST
    return config.similarity == "scaled" and config.output and alike and longest <= LONGEST


def _around(width: int, tokens: int) -> Effort:
    """What enters a sublayer, and the sum behind it with its two numbers a token."""
    return Effort(kept=2 * tokens * width, sums=2 * tokens)


def _feed_forward(config: FeedForwardConfig, width: int, tokens: int) -> Effort:
    if not _known_middle(config):
        return feed_forward_of(config, width, tokens)
    return Effort(kept=tokens * config.hidden * (1 if config.activation == "relu" else 2))


def _known_middle(config: FeedForwardConfig) -> bool:
    """Whether one kernel does the middle of a feed-forward: of a plain one, not of those made of several."""
    return type(config) is FeedForwardConfig and config.activation in BENDS
