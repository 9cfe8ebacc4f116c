"""A whole encoder on a CPU in one compiled function, from source tokens to the keys and values of cross-attention.

Sources are concatenated without padding, and each attends to itself alone, so the result for one source does not depend
on the others.
"""

from typing import Any

import numpy as np

from regard.kernels.cpu.embedding import apply_rotary, embed
from regard.kernels.cpu.jit import jit
from regard.kernels.cpu.norm import normalize
from regard.kernels.cpu.packed_gemm import TILE_COLUMNS, gemm_float32, packed_linear
from regard.kernels.cpu.vector_math import softmax


@jit
def encode(
    tokens: Any,
    positions: Any,
    starts: Any,
    table: Any,
    encodings: Any,
    rotary: Any,
    embedding_scale: Any,
    heads: Any,
    scale: Any,
    pre_norm: Any,
    centered: Any,
    norms: Any,
    eps: Any,
    final_norm: Any,
    weights: Any,
    sizes: Any,
    cross_kv_weights: Any,
    first: Any,
    cross_kv: Any,
) -> None:
    """The keys and values that each layer of the decoder attends to.

    tokens, positions: # (tokens of all sources,), int64; starts: # (sources + 1,), cumulative lengths, int64
    table: # (vocab_size, width); encodings, rotary, pre_norm, centered, final_norm: as in `decoder_step`
    norms: # (layers, 3, 2, width), of which the second of each three is not used
    weights: of qkv, attention output, up and down projections, packed; sizes: width of qkv, width of hidden
    cross_kv_weights: of the decoder's key and value projections, for each of its layers or one for all
    cross_kv: # (2, decoder layers, sources, positions, kv width), the output, from the source number `first` on
    """
    w_qkv, w_out, w_up, w_down = weights
    rows, width, kv_width = tokens.shape[0], table.shape[1], cross_kv.shape[4]
    x, normed = np.empty((rows, width), np.float32), np.empty((rows, width), np.float32)
    attended, qkv = np.empty((rows, width), np.float32), np.empty((rows, sizes[0]), np.float32)
    hidden, kv = np.empty((rows, sizes[1]), np.float32), np.empty((rows, 2 * kv_width), np.float32)
    embed(tokens, positions, table, encodings, embedding_scale, x)
    for layer in range(norms.shape[0]):
        for sublayer in range(0, 3, 2):
            norm_weight, norm_bias = norms[layer, sublayer, 0], norms[layer, sublayer, 1]
            inputs = x
            if pre_norm:
                normalize(x, norm_weight, norm_bias, eps, centered, normed)
                inputs = normed
            if sublayer == 0:
                packed_linear(inputs, w_qkv, layer, qkv, False, False)
                if rotary.shape[0]:
                    apply_rotary(qkv, positions, rotary, width)
                for number in range(starts.shape[0] - 1):
                    _self_attention(qkv, starts[number], starts[number + 1], heads, scale, attended)
                packed_linear(attended, w_out, layer, x, True, False)
            else:
                packed_linear(inputs, w_up, layer, hidden, False, True)
                packed_linear(hidden, w_down, layer, x, True, False)
            if not pre_norm:
                normalize(x, norm_weight, norm_bias, eps, centered, x)
    if final_norm.shape[0]:
        normalize(x, final_norm[0], final_norm[1], eps, centered, x)
    for layer in range(cross_kv.shape[1]):
        if layer < cross_kv_weights[-1].shape[0]:
            packed_linear(x, cross_kv_weights, layer, kv, False, False)
        for number in range(starts.shape[0] - 1):
            for j in range(starts[number + 1] - starts[number]):
                row = starts[number] + j
                for i in range(kv_width):
                    cross_kv[0, layer, first + number, j, i] = kv[row, i]
                    cross_kv[1, layer, first + number, j, i] = kv[row, kv_width + i]


@jit
def _self_attention(qkv: Any, start: Any, end: Any, heads: Any, scale: Any, out: Any) -> None:
    """Each token of one source attends to all of them.

    qkv: # (rows, query + key + value width), of which rows from `start` to `end` are the source's
    out: # (rows, width), of which the same rows are written
    """
    count, width = end - start, out.shape[1]
    kv_width, head_dim = (qkv.shape[1] - width) // 2, width // heads
    group = width // kv_width  # query heads that share a key head
    keys = np.zeros((-(-count // TILE_COLUMNS), head_dim, TILE_COLUMNS), np.float32)  # packed as weights are
    values = np.zeros((-(-head_dim // TILE_COLUMNS), count, TILE_COLUMNS), np.float32)
    query, attended = np.empty((count, head_dim), np.float32), np.empty((count, head_dim), np.float32)
    scores = np.empty((count, count), np.float32)
    no_bias = np.zeros(TILE_COLUMNS * max(keys.shape[0], values.shape[0]), np.float32)
    for head in range(heads):
        if head % group == 0:
            first = width + head // group * head_dim
            for j in range(count):
                for i in range(head_dim):
                    keys[j // TILE_COLUMNS, i, j % TILE_COLUMNS] = qkv[start + j, first + i]
                    values[i // TILE_COLUMNS, j, i % TILE_COLUMNS] = qkv[start + j, first + kv_width + i]
        for j in range(count):
            for i in range(head_dim):
                query[j, i] = scale * qkv[start + j, head * head_dim + i]
        gemm_float32(query, keys, no_bias, scores, False, False)
        for j in range(count):
            softmax(scores[j], count)
        gemm_float32(scores, values, no_bias, attended, False, False)
        for j in range(count):
            for i in range(head_dim):
                out[start + j, head * head_dim + i] = attended[j, i]
