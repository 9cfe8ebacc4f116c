"""The cost of a forward pass part by part: embeddings, every sublayer and its norm, and the head.

`forward.py` adds up whole stacks. Here is the same sum in its terms, under the names that the parts have in the model,
such as `encoder.layers.0.self_attn` and `encoder.layers.0.self_attn_norm`. A test compares the two for every kind of
model. What a post-norm stack saves of its input counts for the embedding; the keys and values of the source count for
the cross-attention that reads them, or for `decoder.cross_kv` where all layers share them.
"""

from regard.attention import RotaryConfig
from regard.cost.attention import attention_cost
from regard.cost.encoder_models import TransformerConfig, head_cost
from regard.cost.feed_forward import feed_forward_cost
from regard.cost.forward import attended_pairs, embedding_cost, pattern_of, saved_mask, unsaved_output
from regard.cost.op_cost import Device, OpCost, norm_cost
from regard.cost.workload import BatchShape
from regard.model import EncoderDecoderConfig, ModelConfig, StackConfig, VisionTransformerConfig
from regard.model.feed_forward import NoFeedForwardConfig

Parts = dict[str, OpCost]


def part_costs(config: TransformerConfig, batch: BatchShape, device: Device) -> Parts:
    """Each part of a batch from ids or pixels to logits. Their sum is that of `forward_cost`."""
    if isinstance(config, ModelConfig):
        return _generative(config, batch, device)
    embedding = "patch_embed" if isinstance(config, VisionTransformerConfig) else "embedding"
    rows, length, name = batch.batch_size, batch.target_length, "encoder"
    parts = _stack(name, embedding, config.encoder, config, rows, length, device, causal=False)
    # What reads the output of the layers decides whether it is saved.
    last_norm = _last_norm(name, config.encoder)
    parts[last_norm] += unsaved_output(length, config.width) * rows
    head = head_cost(config, length, batch.predicted_tokens, device) * rows
    if head.flops:
        parts["head"] = head
    else:  # a model without a head: what is read of its output
        parts[last_norm] += head
    return parts


def _generative(config: ModelConfig, batch: BatchShape, device: Device) -> Parts:
    rows, length, decoder = batch.batch_size, batch.target_length, config.decoder
    parts: Parts = {}
    if isinstance(config, EncoderDecoderConfig):
        source = ("encoder", "source_embedding", config.encoder, config, rows, batch.source_length, device)
        parts |= _stack(*source, causal=False)
    parts |= _stack("decoder", "embedding", decoder, config, rows, length, device, causal=True)
    if isinstance(config, EncoderDecoderConfig):
        parts |= _cross_attention(config, batch, device)
    parts["lm_head"] = OpCost(flops=2 * length * config.width * config.vocab_size) * rows
    return parts


def _stack(
    name: str,
    embedding: str,
    stack: StackConfig,
    model: TransformerConfig,
    rows: int,
    tokens: int,
    device: Device,
    *,
    causal: bool,
) -> Parts:
    """The embedding of a stack, self-attention and feed-forward of its layers with their norms, and the final norm."""
    width, rotary = model.width, isinstance(model.position, RotaryConfig)
    pairs = attended_pairs(pattern_of(stack, causal), tokens, tokens)
    attention = attention_cost(stack.attention, width, device).self_attention(tokens, pairs, rotary)
    norm, dropout = _norm_and_dropout(stack, width, tokens, device)
    parts: Parts = {embedding: embedding_cost(model, tokens) * rows}
    for index, feed_forward in enumerate(stack.feed_forwards):
        layer = f"{name}.layers.{index}"
        parts[f"{layer}.self_attn"] = (attention + dropout) * rows + saved_mask(stack, tokens, causal)
        parts[f"{layer}.self_attn_norm"] = norm * rows
        if not isinstance(feed_forward, NoFeedForwardConfig):
            parts[f"{layer}.feed_forward"] = (feed_forward_cost(feed_forward, width, tokens) + dropout) * rows
            parts[f"{layer}.feed_forward_norm"] = norm * rows
    if stack.norm_position == "post":
        parts[embedding] += OpCost(saved=tokens * width) * rows
    else:
        parts[f"{name}.final_norm"] = norm * rows
    return parts


def _cross_attention(config: EncoderDecoderConfig, batch: BatchShape, device: Device) -> Parts:
    """The cross-attention of each decoder layer, and the keys and values that it reads."""
    decoder, rows, length = config.decoder, batch.batch_size, batch.target_length
    attention = attention_cost(decoder.attention, config.width, device)
    norm, dropout = _norm_and_dropout(decoder, config.width, length, device)
    cross = attention.cross_attention(length, batch.source_length) + dropout
    projected, attended = attention.kv_projection(batch.source_length), attention.attended_kv(batch.source_length)
    parts: Parts = {}
    if config.cross_kv == "shared":
        shared = projected + attended if attention.shares_cross_kv else projected
        parts["decoder.cross_kv"] = shared * rows
        cross += OpCost() if attention.shares_cross_kv else attended
    else:
        cross += projected + attended
    for index in range(decoder.layers):
        parts[f"decoder.layers.{index}.cross_attn"] = cross * rows
        parts[f"decoder.layers.{index}.cross_attn_norm"] = norm * rows
    return parts


def _norm_and_dropout(stack: StackConfig, width: int, tokens: int, device: Device) -> tuple[OpCost, OpCost]:
    """The norm of a sublayer, and the dropout of its output."""
    dropout = OpCost(dropout_masks=tokens * width * (stack.dropout > 0))
    return norm_cost(tokens, width, stack.norm.kind, device), dropout


def _last_norm(name: str, stack: StackConfig) -> str:
    """The norm whose output is that of the stack."""
    if stack.norm_position != "post":
        return f"{name}.final_norm"
    last = len(stack.feed_forwards) - 1
    has_feed_forward = not isinstance(stack.feed_forwards[last], NoFeedForwardConfig)
    return f"{name}.layers.{last}.{'feed_forward' if has_feed_forward else 'self_attn'}_norm"
