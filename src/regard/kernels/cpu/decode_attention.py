"""Attention of one decode step on a CPU, compiled with numba: self-attention over the KV cache, and cross-attention.

Beams never copy the keys and values that their hypotheses share: `beam_indices` says which row of the cache holds the
token at each position.
"""

from typing import Any

from regard.kernels.cpu.jit import jit
from regard.kernels.cpu.vector_math import add_weighted, dot, softmax


@jit
def self_attention_decode(
    qkv: Any,
    keys: Any,
    values: Any,
    beam_indices: Any,
    rows: Any,
    lengths: Any,
    heads: Any,
    scale: Any,
    scores: Any,
    out: Any,
) -> None:
    """The new token of some rows of the cache attends to the tokens before it and to itself.

    rows, lengths: # (some,), int64: the rows, and how many tokens are before
    qkv: # (some, query + key + value width), of the new tokens; keys and values are written to the cache
    keys, values: # (positions, cache rows, kv_heads · head_dim)
    beam_indices: # (positions, cache rows), int64: the row that wrote the token at this position of a row's hypothesis
    scores: # (heads, positions), workspace; out: # (some, width)
    """
    width, kv_width = out.shape[1], keys.shape[2]
    head_dim = width // heads
    group = width // kv_width  # query heads that share a key head
    for number in range(out.shape[0]):
        row, position = rows[number], lengths[number]
        for i in range(kv_width):
            keys[position, row, i] = qkv[number, width + i]
            values[position, row, i] = qkv[number, width + kv_width + i]
        beam_indices[position, row] = row
    for number in range(out.shape[0]):
        row, count = rows[number], lengths[number] + 1
        for j in range(count):
            key = keys[j, beam_indices[j, row]]
            for head in range(heads):
                first = head // group * head_dim
                query = qkv[number, head * head_dim : head * head_dim + head_dim]
                scores[head, j] = scale * dot(query, key[first : first + head_dim])
        for head in range(heads):
            softmax(scores[head], count)
        for j in range(count):
            value = values[j, beam_indices[j, row]]
            for head in range(heads):
                first = head // group * head_dim
                head_out = out[number, head * head_dim : head * head_dim + head_dim]
                add_weighted(scores[head, j], value[first : first + head_dim], head_out, j == 0)


@jit
def cross_attention_decode(
    query: Any,
    keys: Any,
    values: Any,
    rows: Any,
    rows_per_source: Any,
    lengths: Any,
    heads: Any,
    scale: Any,
    scores: Any,
    out: Any,
) -> None:
    """Some rows of the cache attend to their sources; the rows of one source are adjacent.

    query, out: # (some, width); keys, values: # (sources, positions, kv_heads · head_dim); rows: # (some,), int64
    lengths: # (sources,); scores: # (heads, positions), workspace
    """
    width, kv_width = out.shape[1], keys.shape[2]
    head_dim = width // heads
    group = width // kv_width
    for number in range(out.shape[0]):
        source = rows[number] // rows_per_source
        count = lengths[source]
        for head in range(heads):
            head_query = query[number, head * head_dim : head * head_dim + head_dim]
            head_out = out[number, head * head_dim : head * head_dim + head_dim]
            first = head // group * head_dim
            for j in range(count):
                scores[head, j] = scale * dot(head_query, keys[source, j, first : first + head_dim])
            softmax(scores[head], count)
            for j in range(count):
                add_weighted(scores[head, j], values[source, j, first : first + head_dim], head_out, j == 0)


@jit
def reorder_beams(beam_indices: Any, rows: Any, count: Any, workspace: Any) -> None:
    """Row i's hypothesis becomes what row `rows[i]`'s was, in its first `count` positions.  workspace: # (rows,)"""
    for j in range(count):
        for row in range(rows.shape[0]):
            workspace[row] = beam_indices[j, rows[row]]
        for row in range(rows.shape[0]):
            beam_indices[j, row] = workspace[row]
