"""Sources read in one compiled function, as steps are taken.

Sources stand behind each other, without padding, and each looks at itself alone. So what is read of one does not depend
on the others.
"""

from typing import Any

import numpy as np

from regard.fast.kernels import compiled, embed, normalise, softmax, turn
from regard.fast.swift_tiles import COLUMNS, multiply, multiply_floats


@compiled
def read_sources(
    tokens: Any,
    positions: Any,
    starts: Any,
    table: Any,
    codes: Any,
    turns: Any,
    factor: Any,
    heads: Any,
    scale: Any,
    before: Any,
    centred: Any,
    norms: Any,
    epsilon: Any,
    last: Any,
    products: Any,
    sizes: Any,
    remembered: Any,
    first: Any,
    memory: Any,
) -> None:
    """Keys and values that the layers of a decoder look at.

    tokens, positions: # (tokens of all sources,), int64; starts: # (sources + 1,), where each begins and ends, int64
    table: # (vocabulary, width); codes, turns: what positions add or turn, as in a step
    norms: # (layers, 3, 2, width), the second of each three unused; before, centred, last: as in a step
    sizes: numbers in query, key and value, and in the wide middle of a feed-forward
    products: what each sublayer's projections multiply with; remembered: what makes keys and values for the decoder, of
    each of its layers or once for all
    memory: # (2, decoder's layers, sources, positions, key width), comes out from the source number `first` on
    """
    w_made, w_out, w_wide, w_narrow = products
    rows, width, narrow = tokens.shape[0], table.shape[1], memory.shape[4]
    x, normed = np.empty((rows, width), np.float32), np.empty((rows, width), np.float32)
    mixed, made = np.empty((rows, width), np.float32), np.empty((rows, sizes[0]), np.float32)
    hidden, pairs = np.empty((rows, sizes[1]), np.float32), np.empty((rows, 2 * narrow), np.float32)
    embed(tokens, positions, table, codes, factor, x)
    for layer in range(norms.shape[0]):
        for part in range(0, 3, 2):
            weight, bias = norms[layer, part, 0], norms[layer, part, 1]
            source = x
            if before:
                normalise(x, weight, bias, epsilon, centred, normed)
                source = normed
            if part == 0:
                multiply(source, w_made, layer, made, False, False)
                if turns.shape[0]:
                    turn(made, positions, turns, width)
                for number in range(starts.shape[0] - 1):
                    attend_source(made, starts[number], starts[number + 1], heads, scale, mixed)
                multiply(mixed, w_out, layer, x, True, False)
            else:
                multiply(source, w_wide, layer, hidden, False, True)
                multiply(hidden, w_narrow, layer, x, True, False)
            if not before:
                normalise(x, weight, bias, epsilon, centred, x)
    if last.shape[0]:
        normalise(x, last[0], last[1], epsilon, centred, x)
    for layer in range(memory.shape[1]):
        if layer < remembered[-1].shape[0]:
            multiply(x, remembered, layer, pairs, False, False)
        for number in range(starts.shape[0] - 1):
            for j in range(starts[number + 1] - starts[number]):
                row = starts[number] + j
                for i in range(narrow):
                    memory[0, layer, first + number, j, i] = pairs[row, i]
                    memory[1, layer, first + number, j, i] = pairs[row, narrow + i]


@compiled
def attend_source(made: Any, start: Any, end: Any, heads: Any, scale: Any, mixed: Any) -> None:
    """Each token of one source looks at all of them.

    made: # (rows, query + key + value width), of which rows from `start` to `end` are the source's
    mixed: # (rows, width), comes out in the same rows
    """
    count, width = end - start, mixed.shape[1]
    narrow, size = (made.shape[1] - width) // 2, width // heads
    share = width // narrow  # query heads that share a key head
    keys = np.zeros((-(-count // COLUMNS), size, COLUMNS), np.float32)  # in the order of tiles, as values are
    values = np.zeros((-(-size // COLUMNS), count, COLUMNS), np.float32)
    query, seen = np.empty((count, size), np.float32), np.empty((count, size), np.float32)
    scores = np.empty((count, count), np.float32)
    nothing = np.zeros(COLUMNS * max(keys.shape[0], values.shape[0]), np.float32)
    for head in range(heads):
        if head % share == 0:
            first = width + head // share * size
            for j in range(count):
                for i in range(size):
                    keys[j // COLUMNS, i, j % COLUMNS] = made[start + j, first + i]
                    values[i // COLUMNS, j, i % COLUMNS] = made[start + j, first + narrow + i]
        for j in range(count):
            for i in range(size):
                query[j, i] = scale * made[start + j, head * size + i]
        multiply_floats(query, keys, nothing, scores, False, False)
        for j in range(count):
            softmax(scores[j], count)
        multiply_floats(scores, values, nothing, seen, False, False)
        for j in range(count):
            for i in range(size):
                mixed[start + j, head * size + i] = seen[j, i]
