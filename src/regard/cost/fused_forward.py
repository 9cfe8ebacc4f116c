"""What the fused model (fused/training.py), which a GPU trains, saves for backward.

Fused kernels save nothing they can recompute: no dropout masks, no attention weights. Sublayer by sublayer:

- dropout + residual add + norm saves the sum and two float32 statistics per token; the norm's output is saved by the
  matmul that reads it;
- the embedding saves only its ids where an absolute positional encoding is added;
- attention over short texts saves the output of its one QKV matmul and its own result; that matmul also saves the
  concatenated weights of query, key and value, unless they are bfloat16 copies that are stored that way already;
- attention over long texts saves what PyTorch's does, and with RoPE also queries and keys before rotation;
- a feed-forward saves the input and output of its activation; with ReLU only the output.

Sublayers without a fused kernel (latent attention, mixtures of experts) are unfused and counted as in `forward.py`.

Under activation checkpointing fused kernels draw their dropout again from its seed. PyTorch's own dropout cannot be
drawn again inside a captured CUDA graph: layers with it save everything there (`uses_torch_dropout`), and a stack
without a fused form is not captured (`is_capturable`).
"""

from dataclasses import dataclass, replace

from regard.attention import Full, LatentAttentionConfig, RotaryConfig, read_pattern
from regard.attention.positions.config import EncodingConfig
from regard.cost.attention import attention_cost
from regard.cost.encoder_models import TransformerConfig, head_cost, output_stack
from regard.cost.feed_forward import feed_forward_cost
from regard.cost.forward import (
    attended_pairs,
    embedding_cost,
    pattern_of,
    projected_source_kv,
    saved_mask,
    unsaved_output,
)
from regard.cost.op_cost import Device, OpCost, StackCost, stack_cost
from regard.cost.workload import BatchShape
from regard.model import (
    AnyModelConfig,
    EncoderDecoderConfig,
    FeedForwardConfig,
    ModelConfig,
    SequenceConfig,
    StackConfig,
    VisionTransformerConfig,
)
from regard.model.stack import AnyAttention, AnyFeedForward

MAX_LENGTH = 128
"""Tokens per side up to which attention is one fused kernel."""
MAX_HEAD_DIM = 128
"""Features per head up to which it is."""
FUSED_ACTIVATIONS = ("relu", "gelu", "gelu-tanh", "silu")
"""Activations of the fused feed-forward kernel."""


def has_fused_form(config: AnyModelConfig) -> bool:
    """Whether every stack of a model can be trained on fused kernels."""
    return not isinstance(config, SequenceConfig) and all(stack.residual for stack in _stacks(config))


def is_capturable(config: AnyModelConfig) -> bool:
    """Whether passes with activation checkpointing can be captured (`can_capture_checkpointing`, by its config)."""
    if isinstance(config, SequenceConfig):
        return False
    return not any(not stack.residual and _has_dropout(stack) for stack in _stacks(config))


def has_static_rotations(config: AnyModelConfig) -> bool:
    """Whether no rotation depends on the length of the sequence; passes of other models cannot be captured."""
    if isinstance(config, SequenceConfig):
        return True
    scaling = config.position.scaling if isinstance(config.position, RotaryConfig) else None
    return scaling is None or scaling.dynamic_from is None


def uses_torch_dropout(config: TransformerConfig, batch: BatchShape) -> tuple[bool, bool]:
    """Whether some layer of the encoder, and of the decoder, contains PyTorch's own dropout.

    Where only some layers do, the others are recomputed all the same; the estimate treats all as if they did. The
    layers of an encoder model count as a decoder's.
    """
    decoder = _stack_uses_torch_dropout(output_stack(config), config, batch.target_length)
    if not isinstance(config, EncoderDecoderConfig):
        return False, decoder
    attention, length = config.decoder.attention, max(batch.source_length, batch.target_length)
    cross = attention.dropout > 0 and not _is_fused_attention(attention, config.width, length)
    return _stack_uses_torch_dropout(config.encoder, config, batch.source_length), decoder or cross


def fused_forward_cost(
    config: TransformerConfig, batch: BatchShape, device: Device = "cuda", *, deferred_logits: bool
) -> OpCost:
    """What a batch saves from ids to logits, without these; for FLOPs see `forward_cost`.

    `deferred_logits`: the loss computes the logits itself and does not save its input. Passes of several processes do
    not defer logits, and cast their weights one by one.
    """
    source, target = fused_stack_costs(config, batch, device, deferred_logits=deferred_logits)
    return source.total + target.total


def fused_stack_costs(
    config: TransformerConfig, batch: BatchShape, device: Device, *, deferred_logits: bool
) -> tuple[StackCost, StackCost]:
    """The same of encoder and decoder; keys and values projected from the source count for the decoder here."""
    rows, target_length = batch.batch_size, batch.target_length
    if not isinstance(config, ModelConfig):
        encoder = _stack(config.encoder, config, rows, target_length, False, device, deferred_logits)
        head = head_cost(config, target_length, batch.predicted_tokens, device)
        head = (head + unsaved_output(target_length, config.width)) * rows
        return StackCost(), replace(encoder, outside=encoder.outside + head, checkpointed=encoder.checkpointed + head)
    source = StackCost()
    target = _stack(config.decoder, config, rows, target_length, True, device, deferred_logits)
    if deferred_logits:
        output = unsaved_output(target_length, config.width) * rows
        target = replace(target, outside=target.outside + output, checkpointed=target.checkpointed + output)
    if isinstance(config, EncoderDecoderConfig):
        source = _stack(config.encoder, config, rows, batch.source_length, False, device, deferred_logits)
        cross = _cross_attention(config, batch, device, deferred_logits)
        target = replace(
            target.with_recomputed(cross.layer + cross.extra_kv),
            layers=target.layers + cross.layer * config.decoder.layers,
            outside=target.outside + cross.kv,
            checkpointed=target.checkpointed + cross.checkpointed_kv,
        )
    return source, target


def _stack(
    config: StackConfig,
    model: TransformerConfig,
    rows: int,
    tokens: int,
    causal: bool,
    device: Device,
    deferred_logits: bool,
) -> StackCost:
    """Embedding, self-attention and feed-forward of every layer, and the output of the final norm."""
    attention, width, rotary = config.attention, model.width, isinstance(model.position, RotaryConfig)
    if _is_fused_self_attention(config, model, tokens):
        sizes = attention.sizes(width)
        qkv = (sizes.heads + 2 * sizes.kv_heads) * sizes.head_dim
        layer = OpCost(saved=tokens * (qkv + sizes.heads * sizes.head_dim)) * rows
        layer += _concatenated_weights(qkv * width, deferred_logits)
    else:
        pairs = attended_pairs(pattern_of(config, causal), tokens, tokens)
        layer = attention_cost(attention, width, device).self_attention(tokens, pairs, rotary) * rows
        layer += saved_mask(config, tokens, causal)
        if rotary and not isinstance(attention, LatentAttentionConfig):
            # Beside rotated queries and keys, values are saved: a view that keeps the whole QKV output alive.
            sizes = attention.sizes(width)
            layer += OpCost(saved=tokens * (sizes.heads + sizes.kv_heads) * sizes.head_dim) * rows
    layer += _residual(width, tokens) * (2 * rows)
    layers = [layer + _feed_forward(each, width, tokens) * rows for each in config.feed_forwards]
    embedding, values = _embedding(model, tokens) * rows, rows * tokens * width
    if config.norm_position == "post":  # the output of the last norm
        return stack_cost(layers, embedding + OpCost(saved=values), values)
    # Pre-norm: also the input of the final norm. When recomputed, that belongs to the last layer.
    cost = stack_cost(layers, embedding + _residual(width, tokens) * rows, values)
    final_input = OpCost(saved=values)
    return replace(cost.with_recomputed(final_input), checkpointed=cost.checkpointed + final_input * -1)


@dataclass(frozen=True)
class _CrossAttention:
    layer: OpCost
    """Of one decoder layer."""
    kv: OpCost
    """The keys and values of the source, for all layers."""
    checkpointed_kv: OpCost
    """The same under activation checkpointing."""
    extra_kv: OpCost
    """What a recomputed layer holds of them on top of that."""


def _cross_attention(
    config: EncoderDecoderConfig, batch: BatchShape, device: Device, deferred_logits: bool
) -> _CrossAttention:
    width, layers, heads = config.width, config.decoder.layers, config.decoder.attention
    rows, source_length, target_length = batch.batch_size, batch.source_length, batch.target_length
    sizes, attention, shared = heads.sizes(width), attention_cost(heads, width, device), config.cross_kv == "shared"
    # Keys and values come from one matmul with concatenated weights; a latent has weights of its own.
    kv_width = 0 if isinstance(heads, LatentAttentionConfig) else heads.cross_kv_features(width)
    weights = _concatenated_weights(kv_width * width, deferred_logits) * (1 if shared else layers)
    projected = projected_source_kv(config, batch, device)
    residual = _residual(width, target_length) * rows
    if _is_fused_attention(heads, width, max(source_length, target_length)):
        layer = OpCost(saved=2 * target_length * sizes.heads * sizes.head_dim) * rows  # queries and result
        return _CrossAttention(layer + residual, weights + projected, weights + projected, OpCost())
    layer, attended = (
        attention.cross_attention(target_length, source_length) * rows,
        attention.attended_kv(source_length),
    )
    once = shared and attended == attention.projected_kv(source_length)
    return _CrossAttention(
        layer + residual,
        weights + attended * (rows * (1 if once else layers)),
        weights + projected,
        attention.extra_kv(source_length) * rows,
    )


def _concatenated_weights(count: int, deferred_logits: bool) -> OpCost:
    return OpCost(concatenated_weights=count) if deferred_logits else OpCost(saved=count)


def _embedding(config: TransformerConfig, tokens: int) -> OpCost:
    """As in the unfused model, but without a dropout mask where the embedding is one kernel."""
    cost = embedding_cost(config, tokens)
    if not isinstance(config.position, EncodingConfig) or config.position.combine != "add":
        return cost
    if isinstance(config, VisionTransformerConfig) or config.embedding.norm:
        return cost
    return replace(cost, dropout_masks=0)


def _residual(width: int, tokens: int) -> OpCost:
    """A sublayer's input, and the residual sum after it with two statistics per token."""
    return OpCost(saved=2 * tokens * width, float32_values=2 * tokens)


def _feed_forward(config: AnyFeedForward, width: int, tokens: int) -> OpCost:
    if not _is_fused_feed_forward(config):
        return feed_forward_cost(config, width, tokens)
    return OpCost(saved=tokens * config.hidden * (1 if config.activation == "relu" else 2))


def _stacks(config: TransformerConfig) -> list[StackConfig]:
    return [output_stack(config), *([config.encoder] if isinstance(config, EncoderDecoderConfig) else [])]


def _has_dropout(config: StackConfig) -> bool:
    return max(config.dropout, config.attention.dropout, *(each.dropout for each in config.feed_forwards)) > 0


def _stack_uses_torch_dropout(config: StackConfig, model: TransformerConfig, tokens: int) -> bool:
    """Whether the self-attention or some feed-forward of a stack contains PyTorch's own dropout."""
    attention = config.attention.dropout > 0 and not _is_fused_self_attention(config, model, tokens)
    return attention or any(each.dropout > 0 and not _is_fused_feed_forward(each) for each in config.feed_forwards)


def _is_fused_self_attention(config: StackConfig, model: TransformerConfig, tokens: int) -> bool:
    """Whether a stack's self-attention is one fused kernel."""
    full = not isinstance(model.position, RotaryConfig) and read_pattern(config.attention.pattern) == Full()
    return full and _is_fused_attention(config.attention, model.width, tokens)


def _is_fused_attention(config: AnyAttention, width: int, length: int) -> bool:
    """Whether attention over texts of this length is one fused kernel."""
    sizes = config.sizes(width)
    equal_widths = sizes.value_head_dim == sizes.head_dim <= MAX_HEAD_DIM
    return config.similarity == "scaled" and config.output_projection and equal_widths and length <= MAX_LENGTH


def _is_fused_feed_forward(config: AnyFeedForward) -> bool:
    """Whether a feed-forward is fused: a dense one that is not gated."""
    return type(config) is FeedForwardConfig and config.activation in FUSED_ACTIVATIONS
