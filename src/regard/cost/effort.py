"""What a forward pass does and keeps, counted sublayer by sublayer from a config alone.

**Arithmetic** is matrix products, a multiply-add being 2 FLOPs. Attention is counted over the pairs within reach of
strips of 256 queries, which is what fused kernels compute: all pairs of a short text, about half of those of a long
causal one, a band under a window.

**What is kept for backward** is what autograd saves, tensor by tensor:

- a norm keeps what enters it and one or two float32 sums a token; what leaves it is kept by the products that read it;
- fused attention keeps queries, keys, values, its result, and the float32 sum of each softmax;
- a CPU has no fused attention with dropout on its weights, or with values that are not as wide as keys. It then keeps
  the weights, and with dropout their mask and what is left of them;
- dropout keeps a mask: a byte for each number on a GPU, on a CPU as much as the number itself;
- the feed-forward keeps what enters and leaves its bend, gated ones both widened copies, the bent one and the product.
"""

from dataclasses import dataclass
from typing import Literal

from regard.attention import Causal, HeadsConfig, Pattern, RotaryConfig, read_pattern
from regard.attention.heads import HeadSizes
from regard.model import EncoderDecoderConfig, FeedForwardConfig, ModelConfig, NormConfig, StackConfig

Precision = Literal["fp32", "bf16"]
Device = Literal["cuda", "cpu"]
"""Which rules of keeping hold: those of a GPU, or those of a CPU."""


@dataclass(frozen=True)
class Effort:
    """Part of a forward pass. Only `flops` and `attention` are FLOPs; the rest counts numbers kept for backward."""

    flops: int = 0
    attention: int = 0
    """Of the FLOPs, those that compare queries with keys and mix values."""
    kept: int = 0
    """In the precision of the model."""
    masks: int = 0
    """Of dropout, one for each number that it may drop."""
    sums: int = 0
    """In float32 whatever the precision; an id of a token counts twice."""

    def __add__(self, other: "Effort") -> "Effort":
        return Effort(
            self.flops + other.flops,
            self.attention + other.attention,
            self.kept + other.kept,
            self.masks + other.masks,
            self.sums + other.sums,
        )

    def __mul__(self, times: int) -> "Effort":
        return Effort(
            times * self.flops, times * self.attention, times * self.kept, times * self.masks, times * self.sums
        )

    def bytes(self, precision: Precision, device: Device) -> int:
        size = number_size(precision)
        return size * self.kept + (size if device == "cpu" else 1) * self.masks + 4 * self.sums


def number_size(precision: Precision) -> int:
    """Bytes of a number."""
    return 4 if precision == "fp32" else 2


def forward(config: ModelConfig, rows: int, source: int, target: int, device: Device) -> tuple[Effort, Effort]:
    """A batch, from ids to logits: what the source takes, and what the target takes.

    Keys and values that the decoder makes of the source count for the source. The logits themselves are left out of
    what is kept: that is for the loss to say.
    """
    width, decoder = config.width, config.decoder
    rotary = isinstance(config.position, RotaryConfig)
    theirs, own = Effort(), _embedding(config, target) + _stack(decoder, width, target, True, rotary, device)
    own += Effort(flops=2 * target * width * config.vocabulary)
    if isinstance(config, EncoderDecoderConfig):
        shared = config.memory == "shared"
        theirs += _embedding(config, source) + _stack(config.encoder, width, source, False, rotary, device)
        theirs += _make_keys_and_values(decoder.attention, width, source) * (1 if shared else decoder.layers)
        copies = 1 if shared and _fused(decoder.attention, width, device) else decoder.layers
        theirs += _hold_keys_and_values(decoder.attention, width, source, device) * copies
        cross = _around(decoder, width, target, device)
        cross += _heads(decoder.attention, width, target, source, target * source, False, device)
        own += cross * decoder.layers
        theirs = theirs * rows + _mask(config.encoder, source, causal=False)
    return theirs, own * rows + _mask(decoder, target, causal=True)


def step(config: ModelConfig, length: int, source: int = 0) -> Effort:
    """One new token of one row behind a cache, when there are `length` tokens with it. Nothing is kept for backward."""
    width, decoder = config.width, config.decoder
    heads, sizes = decoder.attention, decoder.attention.sizes(config.width)
    seen = pairs(_pattern(decoder, True), 1, length)
    layer = _make_keys_and_values(heads, width, 1) + _ask_and_mix(heads, sizes, width, 1, seen)
    if isinstance(config, EncoderDecoderConfig):
        layer += _ask_and_mix(heads, sizes, width, 1, source)
    layer += Effort(flops=_feed_forward(decoder.feed_forward, width, 1).flops)
    return layer * decoder.layers + Effort(flops=2 * width * config.vocabulary)


def cache_numbers(config: ModelConfig) -> tuple[int, int]:
    """What a cache holds for one token written and for one token of the source."""
    decoder = config.decoder
    sizes = decoder.attention.sizes(config.width)
    one = sizes.key_heads * (sizes.head_width + sizes.value_width)
    if not isinstance(config, EncoderDecoderConfig):
        return one * decoder.layers, 0
    return one * decoder.layers, one * (1 if config.memory == "shared" else decoder.layers)


def pairs(pattern: Pattern, queries: int, keys: int) -> int:
    """How many pairs of a query and a key are computed, the last query standing at the last key."""
    return round(pattern.over(queries, keys).share_in_strips() * queries * keys)


def sublayers(config: ModelConfig) -> int:
    """Self-attention, cross-attention and feed-forward, over all layers."""
    if isinstance(config, EncoderDecoderConfig):
        return 3 * config.decoder.layers + 2 * config.encoder.layers
    return 2 * config.decoder.layers


def _pattern(config: StackConfig, causal: bool) -> Pattern:
    seen = read_pattern(config.attention.pattern)
    return Causal() & seen if causal else seen


def _mask(config: StackConfig, tokens: int, causal: bool) -> Effort:
    """A mask serves all rows, but every layer keeps it as numbers; none where all, or all before, is seen."""
    scope = _pattern(config, causal).over(tokens)
    if scope.everything or scope.triangle:
        return Effort()
    return Effort(kept=config.layers * pairs(scope.pattern, tokens, tokens))


def _embedding(config: ModelConfig, tokens: int) -> Effort:
    """The ids are kept; its result is kept by what comes next."""
    cells, norm = tokens * config.width, config.embedding.norm
    sums = 2 * tokens + (0 if norm is None else tokens * _sums(norm))
    return Effort(kept=cells * (norm is not None), masks=cells * (config.embedding.dropout > 0), sums=sums)


def _stack(config: StackConfig, width: int, tokens: int, causal: bool, rotary: bool, device: Device) -> Effort:
    """Self-attention and feed-forward in every layer; cross-attention is counted by `forward`."""
    reached = pairs(_pattern(config, causal), tokens, tokens)
    layer = _make_keys_and_values(config.attention, width, tokens)
    layer += _hold_keys_and_values(config.attention, width, tokens, device)
    layer += _heads(config.attention, width, tokens, tokens, reached, rotary, device)
    layer += _feed_forward(config.feed_forward, width, tokens) + _around(config, width, tokens, device) * 2
    # What enters the first sublayer of post-norm, or enters and leaves the last norm of the others.
    if config.order == "post":
        return layer * config.layers + Effort(kept=tokens * width)
    last = Effort(kept=(2 + _copies(config.norm, device)) * tokens * width, sums=tokens * _sums(config.norm))
    return layer * config.layers + last


def _around(config: StackConfig, width: int, tokens: int, device: Device) -> Effort:
    """Norm, dropout and residual of a sublayer: what enters the norm and what leaves it."""
    cells = tokens * width
    kept = (2 + _copies(config.norm, device)) * cells
    return Effort(kept=kept, masks=cells * (config.dropout > 0), sums=tokens * _sums(config.norm))


def _sums(config: NormConfig) -> int:
    """Mean and deviation of each token, or its root mean square alone."""
    return 1 if config.kind == "rms" else 2


def _copies(config: NormConfig, device: Device) -> int:
    """A CPU has no fused root-mean-square norm: what is not yet scaled is kept too."""
    return 1 if config.kind == "rms" and device == "cpu" else 0


def _fused(config: HeadsConfig, width: int, device: Device) -> bool:
    sizes = config.sizes(width)
    return device == "cuda" or (config.dropout == 0 and sizes.head_width == sizes.value_width)


def _make_keys_and_values(config: HeadsConfig, width: int, keys: int) -> Effort:
    sizes = config.sizes(width)
    return Effort(flops=2 * width * keys * sizes.key_heads * (sizes.head_width + sizes.value_width))


def _hold_keys_and_values(config: HeadsConfig, width: int, keys: int, device: Device) -> Effort:
    """As attention reads them: where it is not fused, a copy for each query head. Cosine keeps keys as made too."""
    sizes = config.sizes(width)
    heads = sizes.key_heads if _fused(config, width, device) else sizes.heads
    kept = keys * heads * (sizes.head_width + sizes.value_width)
    if config.similarity == "cosine":
        return Effort(kept=kept + keys * sizes.key_heads * sizes.head_width, sums=2 * keys * sizes.key_heads)
    return Effort(kept=kept)


def _heads(
    config: HeadsConfig, width: int, queries: int, keys: int, reached: int, rotary: bool, device: Device
) -> Effort:
    """Make queries, compare them with keys, mix values, put the heads together."""
    sizes = config.sizes(width)
    asked, mixed = queries * sizes.heads * sizes.head_width, queries * sizes.heads * sizes.value_width
    cosine = config.similarity == "cosine"
    kept = (3 if cosine else 1) * asked  # as made, normalised, scaled
    masks, sums = 0, 2 * queries * sizes.heads * cosine
    if _fused(config, width, device):
        sums += queries * sizes.heads
        # Turned queries lie head by head, and so does the result: it is laid out again for the output.
        kept += (2 if rotary and config.output else 1) * mixed
    else:
        weights = sizes.heads * queries * keys
        kept += (2 if config.dropout else 1) * weights + mixed * config.output
        masks = weights if config.dropout else 0
    work = _ask_and_mix(config, sizes, width, queries, reached)
    return work + Effort(kept=kept, masks=masks, sums=sums)


def _ask_and_mix(config: HeadsConfig, sizes: HeadSizes, width: int, queries: int, reached: int) -> Effort:
    """The products of one attention, keys and values being there."""
    compared = 2 * reached * sizes.heads * (sizes.head_width + sizes.value_width)
    around = 2 * width * queries * sizes.heads * (sizes.head_width + (sizes.value_width if config.output else 0))
    return Effort(flops=around + compared, attention=compared)


def _feed_forward(config: FeedForwardConfig, width: int, tokens: int) -> Effort:
    hidden = tokens * config.hidden
    if "glu" in config.activation:  # both widened copies, the bent one, and their product
        maps, kept = 3, 4
    else:  # before and after the bend; ReLU's gradient needs only what comes after, if dropout leaves it alone
        maps, kept = 2, 1 if config.activation == "relu" and config.dropout == 0 else 2
    return Effort(flops=2 * width * hidden * maps, kept=hidden * kept, masks=hidden * (config.dropout > 0))
