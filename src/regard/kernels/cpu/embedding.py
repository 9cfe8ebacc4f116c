"""Token embeddings and positions for the decode step and the encoder on a CPU, compiled with numba."""

from typing import Any

from regard.kernels.cpu.jit import jit


@jit
def embed(tokens: Any, positions: Any, table: Any, encodings: Any, scale: Any, x: Any) -> None:
    """Scaled embeddings, with positional encodings added if there are any.

    tokens, positions: # (rows,), int64; encodings: # (positions or 0, width); x: # (rows, width), the output
    """
    for row in range(x.shape[0]):
        embedding = table[tokens[row]]
        for i in range(x.shape[1]):
            x[row, i] = embedding[i] * scale
        if encodings.shape[0]:
            encoding = encodings[positions[row]]
            for i in range(x.shape[1]):
                x[row, i] += encoding[i]


@jit
def apply_rotary(qkv: Any, positions: Any, rotary: Any, width: Any) -> None:
    """Rotary position embedding (RoPE) of queries and keys, in place.

    qkv: # (rows, query + key + value width), with queries `width` wide; positions: # (rows,), int64
    rotary: # (positions, 2, head_dim / 2), cosine and sine
    """
    half = rotary.shape[2]
    kv_width = (qkv.shape[1] - width) // 2
    for row in range(qkv.shape[0]):
        cos, sin = rotary[positions[row], 0], rotary[positions[row], 1]
        for head in range(0, width + kv_width, 2 * half):
            for i in range(half):
                a, b = qkv[row, head + i], qkv[row, head + half + i]
                qkv[row, head + i] = a * cos[i] - b * sin[i]
                qkv[row, head + half + i] = b * cos[i] + a * sin[i]
