"""A whole decode step on a CPU in one compiled function: tokens in, logits out, with no Python in between.

Between two products of a step there are a few microseconds of other work. Called one by one the products would cost as
much again, and threads that decode side by side would wait for Python's lock at every call.
"""

from typing import Any

from regard.kernels.cpu.decode_attention import cross_attention_decode, self_attention_decode
from regard.kernels.cpu.embedding import apply_rotary, embed
from regard.kernels.cpu.jit import jit
from regard.kernels.cpu.norm import normalize
from regard.kernels.cpu.packed_gemm import packed_linear


@jit
def decoder_step(
    tokens: Any,
    lengths: Any,
    rows: Any,
    table: Any,
    encodings: Any,
    rotary: Any,
    embedding_scale: Any,
    keys: Any,
    values: Any,
    beam_indices: Any,
    cross_keys: Any,
    cross_values: Any,
    source_lengths: Any,
    rows_per_source: Any,
    heads: Any,
    scale: Any,
    pre_norm: Any,
    centered: Any,
    norms: Any,
    eps: Any,
    final_norm: Any,
    weights: Any,
    workspace: Any,
    scores: Any,
    logits: Any,
) -> None:
    """Logits for the token after the new token of some rows of the cache, to which its key and value are added.

    rows: # (some,), int64; tokens, lengths: # (some,), int64, their new tokens, and how many are before
    table: # (vocab_size, width); encodings: # (positions, width), or none
    rotary: # (positions, 2, head_dim / 2), cosine and sine of rotary positions, or none
    keys, values: # (layers, positions, cache rows, kv width); beam_indices: # (positions, cache rows), int64
    cross_keys, cross_values: # (layers, sources, positions, kv width), no layers without cross-attention
    pre_norm: whether norms come before their sublayer or after the residual sum
    centered: whether they are layer normalization or RMSNorm
    norms: # (layers, 3, 2, width), weight and bias of each sublayer's norm
    final_norm: # (2, width), weight and bias of the norm after the last layer, or (0, width)
    weights: of qkv, self-attention output, query, cross-attention output, up, down and output projections, packed
    workspace: # (some, width) four times, (some, query + key + value), (some, hidden); scores: # (heads, positions)
    logits: # (some, vocab_size), the output
    """
    x, normed, query, attended, qkv, hidden = workspace
    w_qkv, w_self_out, w_query, w_cross_out, w_up, w_down, w_logits = weights
    embed(tokens, lengths, table, encodings, embedding_scale, x)
    for layer in range(norms.shape[0]):
        for sublayer in range(3):
            if sublayer == 1 and cross_keys.shape[0] == 0:
                continue
            norm_weight, norm_bias = norms[layer, sublayer, 0], norms[layer, sublayer, 1]
            inputs = x
            if pre_norm:
                normalize(x, norm_weight, norm_bias, eps, centered, normed)
                inputs = normed
            if sublayer == 0:
                packed_linear(inputs, w_qkv, layer, qkv, False, False)
                if rotary.shape[0]:
                    apply_rotary(qkv, lengths, rotary, x.shape[1])
                self_attention_decode(
                    qkv, keys[layer], values[layer], beam_indices, rows, lengths, heads, scale, scores, attended
                )
                packed_linear(attended, w_self_out, layer, x, True, False)
            elif sublayer == 1:
                packed_linear(inputs, w_query, layer, query, False, False)
                cross_attention_decode(
                    query,
                    cross_keys[layer],
                    cross_values[layer],
                    rows,
                    rows_per_source,
                    source_lengths,
                    heads,
                    scale,
                    scores,
                    attended,
                )
                packed_linear(attended, w_cross_out, layer, x, True, False)
            else:
                packed_linear(inputs, w_up, layer, hidden, False, True)
                packed_linear(hidden, w_down, layer, x, True, False)
            if not pre_norm:
                normalize(x, norm_weight, norm_bias, eps, centered, x)
    if final_norm.shape[0]:
        normalize(x, final_norm[0], final_norm[1], eps, centered, normed)
        packed_linear(normed, w_logits, 0, logits, False, False)
    else:
        packed_linear(x, w_logits, 0, logits, False, False)
