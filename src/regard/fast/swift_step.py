"""A whole step of a fast writer in one compiled function: words in, scores out, with no Python in between.

Between two products of a step there are a few microseconds of other work. Called one by one they would cost as much
again, and threads that work side by side would wait for each other at every call.
"""

from typing import Any

from regard.fast.kernels import attend_memory, attend_past, compiled, embed, normalise, turn
from regard.fast.swift_tiles import multiply


@compiled
def take_step(
    tokens: Any,
    lengths: Any,
    table: Any,
    codes: Any,
    turns: Any,
    factor: Any,
    keys: Any,
    values: Any,
    origin: Any,
    memory_keys: Any,
    memory_values: Any,
    memory_lengths: Any,
    heads: Any,
    scale: Any,
    before: Any,
    centred: Any,
    norms: Any,
    epsilon: Any,
    last: Any,
    products: Any,
    room: Any,
    weights: Any,
    logits: Any,
) -> None:
    """Logits for the word after each new token, which is put at the end of its row.

    tokens, lengths: # (rows,), int64; table: # (vocabulary, width); codes: # (positions, width), or none
    turns: # (positions, 2, half a head's width), cosine and sine of positions that turn heads, or none
    keys, values: # (layers, positions, rows, key width); origin: # (positions, rows), int64
    memory_keys, memory_values: # (layers, sources, positions, key width), no layers where nothing is read
    norms: # (layers, 3, 2, width), weight and bias of each sublayer's
    before: whether norms stand before their sublayer or behind the sum; centred: whether they take the mean away
    last: # (2, width), weight and bias of the norm behind the last layer, or (0, width)
    products: what each sublayer's projections multiply with, and at the end what scores words
    room: # (rows, width) four times, (rows, query + key + value), (rows, hidden); weights: # (heads, positions)
    logits: # (rows, vocabulary), comes out
    """
    x, normed, asked, mixed, made, hidden = room
    w_made, w_past, w_query, w_memory, w_wide, w_narrow, w_scores = products
    embed(tokens, lengths, table, codes, factor, x)
    for layer in range(norms.shape[0]):
        for part in range(3):
            if part == 1 and memory_keys.shape[0] == 0:
                continue
            weight, bias = norms[layer, part, 0], norms[layer, part, 1]
            source = x
            if before:
                normalise(x, weight, bias, epsilon, centred, normed)
                source = normed
            if part == 0:
                multiply(source, w_made, layer, made, False, False)
                if turns.shape[0]:
                    turn(made, lengths, turns, x.shape[1])
                attend_past(made, keys[layer], values[layer], origin, lengths, heads, scale, weights, mixed)
                multiply(mixed, w_past, layer, x, True, False)
            elif part == 1:
                multiply(source, w_query, layer, asked, False, False)
                attend_memory(
                    asked, memory_keys[layer], memory_values[layer], memory_lengths, heads, scale, weights, mixed
                )
                multiply(mixed, w_memory, layer, x, True, False)
            else:
                multiply(source, w_wide, layer, hidden, False, True)
                multiply(hidden, w_narrow, layer, x, True, False)
            if not before:
                normalise(x, weight, bias, epsilon, centred, x)
    if last.shape[0]:
        normalise(x, last[0], last[1], epsilon, centred, normed)
        multiply(normed, w_scores, 0, logits, False, False)
    else:
        multiply(x, w_scores, 0, logits, False, False)
