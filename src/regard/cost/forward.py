"""The cost of a forward pass, counted sublayer by sublayer from the config alone.

**FLOPs** are those of matmuls, a multiply-add counting as 2. Attention counts the pairs that fused kernels compute, in
blocks of 256 queries: all pairs of a short text, about half of those of a long causal one, a band under a window.

**Saved for backward** is what autograd saves of the unfused model (`fused_forward.py` counts the fused one):

- a norm saves its input and one or two float32 statistics per token; its output is saved by the matmul that reads it;
- dropout saves a mask: a byte per value on a GPU, as much as the value itself on a CPU;
- see `attention.py` and `feed_forward.py` for those.

**Under activation checkpointing** only each layer's input is saved, and the source's keys and values for a decoder;
backward recomputes one layer at a time (`StackCost`).

**With a KV cache** a new token attends to all before it. A sliding window bounds the cache to that many positions
(attention/rolling_kv_cache.py), and a step attends to all of its slots, filled or not.
"""

from dataclasses import replace

from regard.attention import Causal, Pattern, RotaryConfig, read_pattern
from regard.cost.attention import attention_cost
from regard.cost.counted import KERNELS_PER_SUBLAYER, counted_cost, counted_step
from regard.cost.encoder_models import (
    EncoderModelConfig,
    TransformerConfig,
    head_cost,
    output_stack,
    patch_embedding_cost,
)
from regard.cost.feed_forward import feed_forward_cost
from regard.cost.op_cost import Device, OpCost, StackCost, norm_cost, stack_cost
from regard.cost.workload import BatchShape
from regard.model import (
    AnyModelConfig,
    EncoderDecoderConfig,
    GenerativeConfig,
    ModelConfig,
    SequenceConfig,
    StackConfig,
    VisionTransformerConfig,
)
from regard.model.feed_forward import NoFeedForwardConfig


def forward_cost(config: AnyModelConfig, batch: BatchShape, device: Device) -> tuple[OpCost, OpCost]:
    """A batch from ids or pixels to logits: the cost of the source and the cost of the target.

    The input of a model without a decoder is its target. Keys and values that the decoder projects from the source
    count for the source. The logits are not counted as saved: that depends on the loss.
    """
    source, target = stack_costs(config, batch, device)
    return source.total, target.total


def stack_costs(config: AnyModelConfig, batch: BatchShape, device: Device) -> tuple[StackCost, StackCost]:
    """The same with the layers apart from what is outside of them.

    A model that is no Transformer has no layers that could be recomputed: all of it is outside.
    """
    if isinstance(config, SequenceConfig):
        counted = counted_cost(config, batch)
        return stack_cost([], counted.source, 0), stack_cost([], counted.target, 0)
    if not isinstance(config, ModelConfig):
        return StackCost(), _encoder_model(config, batch, device)
    width, decoder, rows, length = config.width, config.decoder, batch.batch_size, batch.target_length
    layer, final = _stack(decoder, config, length, True, device)
    logits = OpCost(flops=2 * length * width * config.vocab_size)
    outside = (embedding_cost(config, length) + final + logits) * rows
    source, extra_kv = StackCost(), OpCost()
    if isinstance(config, EncoderDecoderConfig):
        attention = attention_cost(decoder.attention, width, device)
        layer += _residual(decoder, width, length, device) + attention.cross_attention(length, batch.source_length)
        source, extra_kv = _source(config, batch, device), attention.extra_kv(batch.source_length)
    layers = _layers(decoder, layer, width, rows, length, device, causal=True)
    target = stack_cost(layers, outside, rows * length * width)
    return source, target.with_recomputed(extra_kv * rows)


def decode_step_cost(
    config: GenerativeConfig, length: int, source_length: int = 0, capacity: int | None = None
) -> OpCost:
    """One new token of one row with a KV cache, as the last of `length`; inference, so nothing is saved for backward.

    `capacity` is the number of tokens the cache was allocated for, `length` if not given; under a window it decides how
    many slots there are.
    """
    if isinstance(config, SequenceConfig):
        return counted_step(config, length, source_length)
    width, decoder, slots = config.width, config.decoder, kv_cache_capacity(config)
    attention = attention_cost(decoder.attention, width, "cuda")
    layer = attention.decode_self_attention(length if slots is None else min(max(length, capacity or 0), slots))
    if isinstance(config, EncoderDecoderConfig):
        layer += attention.decode_cross_attention(source_length)
    feed_forwards = sum((feed_forward_cost(each, width, 1).flops_only for each in decoder.feed_forwards), OpCost())
    return layer * decoder.layers + feed_forwards + OpCost(flops=2 * width * config.vocab_size)


def kv_cache_capacity(config: ModelConfig) -> int | None:
    """How many positions a KV cache ever holds; None without a limit."""
    position = config.position
    if (
        isinstance(position, RotaryConfig)
        and position.scaling is not None
        and position.scaling.dynamic_from is not None
    ):
        return None  # keys are rotated again when the angles change, which takes all of them
    lookback = pattern_of(config.decoder, True).lookback()
    return None if lookback is None else sum(lookback)


def kv_cache_values(config: ModelConfig) -> tuple[int, int]:
    """Values a KV cache holds per generated token and per source token."""
    layers, attention = config.decoder.layers, config.decoder.attention
    generated = attention.kv_features(config.width) * layers
    if not isinstance(config, EncoderDecoderConfig):
        return generated, 0
    return generated, attention.cross_kv_features(config.width) * (1 if config.cross_kv == "shared" else layers)


def projected_source_kv(config: EncoderDecoderConfig, batch: BatchShape, device: Device) -> OpCost:
    """The source's keys and values as projected for the decoder: once where its layers share them."""
    projected = attention_cost(config.decoder.attention, config.width, device).projected_kv(batch.source_length)
    return projected * (batch.batch_size * (1 if config.cross_kv == "shared" else config.decoder.layers))


def attended_pairs(pattern: Pattern, queries: int, keys: int) -> int:
    """How many (query, key) pairs are computed, the last query being at the last key."""
    return round(pattern.bind(queries, keys).reachable_fraction() * queries * keys)


def sublayer_count(config: AnyModelConfig, batch: BatchShape) -> float:
    """Self-attention, cross-attention and feed-forward sublayers of all layers; elsewhere what launches as much."""
    if isinstance(config, SequenceConfig):
        return counted_cost(config, batch).kernels / KERNELS_PER_SUBLAYER
    if isinstance(config, EncoderDecoderConfig):
        return 3 * config.decoder.layers + 2 * config.encoder.layers
    return 2 * output_stack(config).layers


def pattern_of(config: StackConfig, causal: bool) -> Pattern:
    pattern = read_pattern(config.attention.pattern)
    return Causal() & pattern if causal else pattern


def saved_mask(config: StackConfig, tokens: int, causal: bool) -> OpCost:
    """An attention mask serves all rows, but each layer saves it; full and causal attention need none."""
    mask = pattern_of(config, causal).bind(tokens)
    if mask.is_full or mask.is_causal:
        return OpCost()
    return OpCost(saved=attended_pairs(mask.pattern, tokens, tokens))


def embedding_cost(config: TransformerConfig, tokens: int) -> OpCost:
    """The embedding saves its ids; its output is saved by what reads it."""
    if isinstance(config, VisionTransformerConfig):
        return patch_embedding_cost(config, tokens)
    values, norm = tokens * config.width, config.embedding.norm
    ids = OpCost(dropout_masks=values * (config.embedding.dropout > 0), float32_values=2 * tokens)
    if norm is None:
        return ids
    return ids + OpCost(saved=values, float32_values=tokens * (1 if norm.kind == "rms" else 2))


def unsaved_output(tokens: int, width: int) -> OpCost:
    """Subtracts the final output from what a stack saves, where its reader (head or loss) decides about that."""
    return OpCost(saved=-tokens * width)


def _encoder_model(config: EncoderModelConfig, batch: BatchShape, device: Device) -> StackCost:
    """One bidirectional stack, and a head."""
    width, encoder, tokens = config.width, config.encoder, batch.target_length
    layer, final = _stack(encoder, config, tokens, False, device)
    head = head_cost(config, tokens, batch.predicted_tokens, device)
    outside = embedding_cost(config, tokens) + final + unsaved_output(tokens, width) + head
    layers = _layers(encoder, layer, width, batch.batch_size, tokens, device, causal=False)
    return stack_cost(layers, outside * batch.batch_size, batch.batch_size * tokens * width)


def _source(config: EncoderDecoderConfig, batch: BatchShape, device: Device) -> StackCost:
    """The encoder, and the keys and values that are projected from its output for the decoder's layers."""
    width, encoder, decoder_layers = config.width, config.encoder, config.decoder.layers
    rows, length = batch.batch_size, batch.source_length
    attention = attention_cost(config.decoder.attention, width, device)
    layer, final = _stack(encoder, config, length, False, device)
    shared = config.cross_kv == "shared"
    outside = (
        embedding_cost(config, length) + final + attention.kv_projection(length) * (1 if shared else decoder_layers)
    )
    layers = _layers(encoder, layer, width, rows, length, device, causal=False)
    cost = stack_cost(layers, outside * rows, rows * length * width)
    copies = 1 if shared and attention.shares_cross_kv else decoder_layers
    return replace(
        cost,
        outside=cost.outside + attention.attended_kv(length) * (rows * copies),
        checkpointed=cost.checkpointed + projected_source_kv(config, batch, device),
    )


def _stack(
    config: StackConfig, model: TransformerConfig, tokens: int, causal: bool, device: Device
) -> tuple[OpCost, OpCost]:
    """One layer's self-attention with its norm, then what comes after the last layer.

    `stack_costs` adds cross-attention and `_layers` the feed-forwards.
    """
    width, rotary = model.width, isinstance(model.position, RotaryConfig)
    pairs = attended_pairs(pattern_of(config, causal), tokens, tokens)
    layer = attention_cost(config.attention, width, device).self_attention(tokens, pairs, rotary)
    layer += _residual(config, width, tokens, device)
    # Post-norm: the input of the first sublayer. Otherwise: input and output of the final norm.
    if config.norm_position == "post":
        return layer, OpCost(saved=tokens * width)
    return layer, norm_cost(tokens, width, config.norm.kind, device)


def _layers(
    config: StackConfig, layer: OpCost, width: int, rows: int, tokens: int, device: Device, *, causal: bool
) -> list[OpCost]:
    """All layers of a stack: what they have in common, each layer's feed-forward, and the mask for all rows."""
    mask, residual = saved_mask(config, tokens, causal), _residual(config, width, tokens, device)
    feed_forwards = [
        OpCost() if isinstance(each, NoFeedForwardConfig) else feed_forward_cost(each, width, tokens) + residual
        for each in config.feed_forwards
    ]
    return [(layer + feed_forward) * rows + mask for feed_forward in feed_forwards]


def _residual(config: StackConfig, width: int, tokens: int, device: Device) -> OpCost:
    """Norm, dropout and residual sum of a sublayer."""
    dropout = OpCost(dropout_masks=tokens * width * (config.dropout > 0))
    return norm_cost(tokens, width, config.norm.kind, device) + dropout
