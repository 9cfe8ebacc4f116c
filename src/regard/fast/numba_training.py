"""What training does besides matrix products, compiled for a CPU with numba: forward and backward.

Between two products lie a dropout, a sum and a norm, or a softmax over few words. Here each is one pass over rows that
are still in the cache. Rows are words: sentences lie one behind the other without padding, and attention knows where
each begins. All arrays are float32 and dense; a word's heads stand side by side in its row, as products leave them.

**Chance is a hash** of a number's place and of two keys that are new for every use. It costs a few operations on many
numbers at once, and the way back draws the same again instead of keeping what was drawn.
"""

from typing import Any

import numpy as np

from regard.fast.kernels import exp, inlined
from regard.fast.team import FIRST, fraction, integers, matrix, part_of_work, shared, table_at, take, vector

ROWS = 32
"""Rows of a part."""
_ZERO, _ONE, _HIDDEN = np.float32(0), np.float32(1), np.float32(-87)
_A, _B, _C = np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_13, _15, _16 = np.uint32(13), np.uint32(15), np.uint32(16)


@inlined
def _drawn(place: Any, first: Any, second: Any) -> Any:
    """Thirty-two bits that look like chance (the finaliser of MurmurHash3 with a key before and one within)."""
    bits = np.uint32(np.uint32(np.uint32(place) * _A) ^ first)
    bits = np.uint32(bits ^ (bits >> _16))
    bits = np.uint32(np.uint32(bits * _B) + second)
    bits = np.uint32(bits ^ (bits >> _13))
    bits = np.uint32(bits * _C)
    return np.uint32(bits ^ (bits >> _15))


# Dropout alone, and behind a rectifier


@part_of_work
def _drop(table: Any, part: Any) -> None:
    rows, width = table[FIRST], table[FIRST + 1]
    x, out = matrix(table[FIRST + 2], rows, width), matrix(table[FIRST + 3], rows, width)
    limit, first, second = np.uint32(table[FIRST + 4]), np.uint32(table[FIRST + 5]), np.uint32(table[FIRST + 6])
    gain = fraction(table[FIRST + 7])
    apart = table[FIRST + 2] != table[FIRST + 3]  # compilers compute many numbers at once only if they know
    for row in range(part * ROWS, min(rows, part * ROWS + ROWS)):
        given, made, place = x[row], out[row], row * width
        if apart:
            for i in range(width):
                factor = gain if _drawn(place + i, first, second) >= limit else _ZERO
                made[i] = given[i] * factor
        else:
            for i in range(width):
                factor = gain if _drawn(place + i, first, second) >= limit else _ZERO
                made[i] *= factor


@shared
def drop(address: Any) -> None:
    """rows, width, x, out (may be x), limit, keys (2), gain"""
    table = table_at(address)
    part = take(address)
    while part < table[1]:
        _drop(table, part)
        part = take(address)


@part_of_work
def _rectified_back(table: Any, part: Any) -> None:
    rows, width = table[FIRST], table[FIRST + 1]
    made, slope = matrix(table[FIRST + 2], rows, width), matrix(table[FIRST + 3], rows, width)
    gain = fraction(table[FIRST + 4])
    sums = matrix(table[FIRST + 5], table[1], width)[part]
    for i in range(width):
        sums[i] = _ZERO
    for row in range(part * ROWS, min(rows, part * ROWS + ROWS)):
        kept, back = made[row], slope[row]
        for i in range(width):
            value = back[i] * gain if kept[i] > _ZERO else _ZERO
            back[i] = value
            sums[i] += value


@shared
def rectified_back(address: Any) -> None:
    """rows, width, made, slope (changed in place), gain, sums of each part's rows  # (parts, width)"""
    table = table_at(address)
    part = take(address)
    while part < table[1]:
        _rectified_back(table, part)
        part = take(address)


# Sum and norm


@part_of_work
def _join(table: Any, part: Any) -> None:
    rows, width = table[FIRST], table[FIRST + 1]
    x, out = matrix(table[FIRST + 2], rows, width), matrix(table[FIRST + 5], rows, width)
    joined, centred, shifted = table[FIRST + 3] != 0, table[FIRST + 10], table[FIRST + 9] != 0
    change = matrix(table[FIRST + 3], rows, width)
    total = matrix(table[FIRST + 4], rows, width)
    means, scales = vector(table[FIRST + 6], rows), vector(table[FIRST + 7], rows)
    weight, bias = vector(table[FIRST + 8], width), vector(table[FIRST + 9], width)
    epsilon = fraction(table[FIRST + 11])
    limit, first, second = np.uint32(table[FIRST + 12]), np.uint32(table[FIRST + 13]), np.uint32(table[FIRST + 14])
    gain = fraction(table[FIRST + 15])
    share = _ONE / np.float32(width)
    for row in range(part * ROWS, min(rows, part * ROWS + ROWS)):
        here, made = total[row], out[row]
        if joined:
            before, added, place = x[row], change[row], row * width
            if limit > 0:
                for i in range(width):
                    factor = gain if _drawn(place + i, first, second) >= limit else _ZERO
                    here[i] = before[i] + added[i] * factor
            else:
                for i in range(width):
                    here[i] = before[i] + added[i]
        mean = _ZERO
        if centred:
            for i in range(width):
                mean += here[i]
            mean *= share
        square = _ZERO
        for i in range(width):
            away = here[i] - mean
            square += away * away
        scale = _ONE / np.sqrt(square * share + epsilon)
        if shifted:
            for i in range(width):
                made[i] = (here[i] - mean) * scale * weight[i] + bias[i]
        else:
            for i in range(width):
                made[i] = (here[i] - mean) * scale * weight[i]
        means[row], scales[row] = mean, scale


@shared
def join(address: Any) -> None:
    """rows, width, x, change or 0, total, normed, means, scales, weight, bias or 0, centred, epsilon, limit, keys, gain

    Without a change the total is x.
    """
    table = table_at(address)
    part = take(address)
    while part < table[1]:
        _join(table, part)
        part = take(address)


@part_of_work
def _join_back(table: Any, part: Any) -> None:
    rows, width = table[FIRST], table[FIRST + 1]
    later, dropped, centred = table[FIRST + 2] != 0, table[FIRST + 9] != 0, table[FIRST + 11]
    other, slope = matrix(table[FIRST + 2], rows, width), matrix(table[FIRST + 3], rows, width)
    total = matrix(table[FIRST + 4], rows, width)
    means, scales = vector(table[FIRST + 5], rows), vector(table[FIRST + 6], rows)
    weight = vector(table[FIRST + 7], width)
    x_slope, change_slope = matrix(table[FIRST + 8], rows, width), matrix(table[FIRST + 9], rows, width)
    sums = matrix(table[FIRST + 10], 2 * table[1], width)
    weight_sum, bias_sum = sums[2 * part], sums[2 * part + 1]
    limit, first, second = np.uint32(table[FIRST + 12]), np.uint32(table[FIRST + 13]), np.uint32(table[FIRST + 14])
    gain = fraction(table[FIRST + 15])
    share = _ONE / np.float32(width)
    for i in range(width):
        weight_sum[i] = _ZERO
        bias_sum[i] = _ZERO
    for row in range(part * ROWS, min(rows, part * ROWS + ROWS)):
        given, here, made = slope[row], total[row], x_slope[row]
        mean, scale = means[row], scales[row]
        along, level = _ZERO, _ZERO
        for i in range(width):
            away = (here[i] - mean) * scale
            weight_sum[i] += given[i] * away
            bias_sum[i] += given[i]
            back = given[i] * weight[i]
            along += back * away
            level += back
        along *= share
        level = level * share if centred else _ZERO
        if later:
            over = other[row]
            for i in range(width):
                made[i] = (given[i] * weight[i] - level - (here[i] - mean) * scale * along) * scale + over[i]
        else:
            for i in range(width):
                made[i] = (given[i] * weight[i] - level - (here[i] - mean) * scale * along) * scale
        if dropped:
            changed, place = change_slope[row], row * width
            for i in range(width):
                factor = gain if _drawn(place + i, first, second) >= limit else _ZERO
                changed[i] = made[i] * factor


@shared
def join_back(address: Any) -> None:
    """rows, width, slope of the total or 0, slope of the normed, total, means, scales, weight, slope of x, slope of the
    change (0 if it is that of x), sums # (parts, weight and bias, width), centred, limit, keys, gain"""
    table = table_at(address)
    part = take(address)
    while part < table[1]:
        _join_back(table, part)
        part = take(address)


# Attention


@inlined
def _dots(one: Any, many: Any, step: Any, count: Any, scale: Any, out: Any) -> None:
    """out[j] = scale · one · row j of many, which begins at address many + j · step"""
    size = one.shape[0]
    j = 0
    while j + 4 <= count:
        a, b = vector(many, size), vector(many + step, size)
        c, d = vector(many + 2 * step, size), vector(many + 3 * step, size)
        many += 4 * step
        p, q, r, s = _ZERO, _ZERO, _ZERO, _ZERO
        for i in range(size):
            p += one[i] * a[i]
            q += one[i] * b[i]
            r += one[i] * c[i]
            s += one[i] * d[i]
        out[j], out[j + 1], out[j + 2], out[j + 3] = p * scale, q * scale, r * scale, s * scale
        j += 4
    while j < count:
        a = vector(many, size)
        many += step
        p = _ZERO
        for i in range(size):
            p += one[i] * a[i]
        out[j] = p * scale
        j += 1


@inlined
def _mix(weights: Any, many: Any, step: Any, count: Any, out: Any) -> None:
    """out += Σ weights[j] · row j of many, which begins at address many + j · step"""
    size = out.shape[0]
    j = 0
    while j + 4 <= count:
        a, b = vector(many, size), vector(many + step, size)
        c, d = vector(many + 2 * step, size), vector(many + 3 * step, size)
        many += 4 * step
        p, q, r, s = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for i in range(size):
            out[i] += p * a[i] + q * b[i] + r * c[i] + s * d[i]
        j += 4
    while j < count:
        a = vector(many, size)
        many += step
        p = weights[j]
        for i in range(size):
            out[i] += p * a[i]
        j += 1


@inlined
def _softmax(block: Any, length: Any, keys: Any, causal: Any) -> None:
    """Shares of scores, row after row in one block, so that rows of few keys are raised many numbers at once."""
    for i in range(length):
        count = i + 1 if causal else keys
        row = block[i * keys : i * keys + keys]
        most = row[0]
        for j in range(1, count):
            most = max(most, row[j])
        for j in range(count):
            row[j] -= most
        for j in range(count, keys):
            row[j] = _HIDDEN
    for at in range(length * keys):
        block[at] = exp(block[at]) if block[at] > _HIDDEN else _ZERO
    for i in range(length):
        row = block[i * keys : i * keys + keys]
        total = _ZERO
        for j in range(keys):
            total += row[j]
        total = _ONE / total
        for j in range(keys):
            row[j] *= total


@part_of_work
def _attend(table: Any, part: Any) -> None:
    heads, group, size, causal = table[FIRST], table[FIRST + 1], table[FIRST + 2], table[FIRST + 3]
    rows, words = table[1], table[FIRST + 4]
    query_step, key_step = 4 * table[FIRST + 6], 4 * table[FIRST + 7]
    starts, key_starts = integers(table[FIRST + 13], rows + 1), integers(table[FIRST + 14], rows + 1)
    offsets = integers(table[FIRST + 15], rows + 1)
    shares, out = vector(table[FIRST + 16], offsets[rows]), matrix(table[FIRST + 17], words, heads * size)
    limit, first, second = np.uint32(table[FIRST + 18]), np.uint32(table[FIRST + 19]), np.uint32(table[FIRST + 20])
    gain = fraction(table[FIRST + 21])
    scale = np.float32(1.0 / np.sqrt(size))
    begin, length = starts[part], starts[part + 1] - starts[part]
    keys = key_starts[part + 1] - key_starts[part]
    query = table[FIRST + 8] + begin * query_step + 4 * table[FIRST + 10]
    key = table[FIRST + 9] + key_starts[part] * key_step + 4 * table[FIRST + 11]
    value = table[FIRST + 9] + key_starts[part] * key_step + 4 * table[FIRST + 12]
    kept = np.empty(length * keys, np.float32)
    for head in range(heads):
        place = offsets[part] + head * length * keys
        block = shares[place : place + length * keys]
        shift = 4 * (head // group * size)
        for i in range(length if keys > 0 else 0):
            asked = vector(query + i * query_step + 4 * head * size, size)
            row = block[i * keys : i * keys + keys]
            _dots(asked, key + shift, key_step, i + 1 if causal else keys, scale, row)
        if keys > 0:
            _softmax(block, length, keys, causal)
        if limit > 0:
            # What is dropped keeps its share, with a minus before it.
            for at in range(length * keys):
                stays = _drawn(place + at, first, second) >= limit
                kept[at] = block[at] * gain if stays else _ZERO
                block[at] = block[at] if stays else -block[at]
        else:
            for at in range(length * keys):
                kept[at] = block[at]
        for i in range(length):
            mixed = out[begin + i, head * size : head * size + size]
            for d in range(size):
                mixed[d] = _ZERO
            _mix(kept[i * keys : i * keys + keys], value + shift, key_step, min(i + 1, keys) if causal else keys, mixed)


@shared
def attend(address: Any) -> None:
    """heads, heads that share a key head, size of a head, causal, words, other words, width of a row with queries, of
    one with keys, those rows (2), columns where queries, keys and values begin, where sentences begin (2), where their
    shares do, shares, out, limit, keys, gain. A part is a sentence."""
    table = table_at(address)
    part = take(address)
    while part < table[1]:
        _attend(table, part)
        part = take(address)


@part_of_work
def _attend_back(table: Any, part: Any) -> None:
    heads, group, size, causal = table[FIRST], table[FIRST + 1], table[FIRST + 2], table[FIRST + 3]
    rows, words, others = table[1], table[FIRST + 4], table[FIRST + 5]
    query_width, key_width = table[FIRST + 6], table[FIRST + 7]
    query_first, key_first, value_first = table[FIRST + 10], table[FIRST + 11], table[FIRST + 12]
    query_step, key_step, slope_step = 4 * query_width, 4 * key_width, 4 * heads * size
    starts, key_starts = integers(table[FIRST + 13], rows + 1), integers(table[FIRST + 14], rows + 1)
    offsets = integers(table[FIRST + 15], rows + 1)
    shares, gain = vector(table[FIRST + 16], offsets[rows]), fraction(table[FIRST + 18])
    query_slope = matrix(table[FIRST + 19], words, query_width)
    key_slope = matrix(table[FIRST + 20], others, key_width)
    scale = np.float32(1.0 / np.sqrt(size))
    begin, length = starts[part], starts[part + 1] - starts[part]
    key_begin, keys = key_starts[part], key_starts[part + 1] - key_starts[part]
    query = table[FIRST + 8] + begin * query_step + 4 * query_first
    key = table[FIRST + 9] + key_begin * key_step + 4 * key_first
    value = table[FIRST + 9] + key_begin * key_step + 4 * value_first
    slope = table[FIRST + 17] + begin * slope_step
    change = np.empty(keys, np.float32)
    kept = np.empty((keys, length), np.float32)  # turned, as keys and values ask for them
    asked = np.empty((keys, length), np.float32)
    for head in range(heads):
        place = offsets[part] + head * length * keys
        at, shift = 4 * head * size, 4 * (head // group * size)
        for i in range(length):
            count = min(i + 1, keys) if causal else keys
            row = shares[place + i * keys : place + i * keys + keys]
            _dots(vector(slope + i * slope_step + at, size), value + shift, key_step, count, _ONE, change)
            along = _ZERO
            for j in range(count):
                along += change[j] * max(row[j], _ZERO)
            along *= gain
            for j in range(count):
                weight = max(row[j], _ZERO) * gain
                score = (weight * change[j] - abs(row[j]) * along) * scale
                change[j] = score
                kept[j, i] = weight
                asked[j, i] = score
            back = query_slope[begin + i, query_first + head * size : query_first + head * size + size]
            for d in range(size):
                back[d] = _ZERO
            _mix(change, key + shift, key_step, count, back)
        for j in range(keys):
            nearest = j if causal else 0
            column = head // group * size
            back = key_slope[key_begin + j, key_first + column : key_first + column + size]
            value_back = key_slope[key_begin + j, value_first + column : value_first + column + size]
            if head % group == 0:
                for d in range(size):
                    back[d] = _ZERO
                    value_back[d] = _ZERO
            left = length - nearest
            _mix(asked[j, nearest:], query + nearest * query_step + at, query_step, left, back)
            _mix(kept[j, nearest:], slope + nearest * slope_step + at, slope_step, left, value_back)


@shared
def attend_back(address: Any) -> None:
    """As `attend` up to the shares, then the slope of what came out, gain, and slopes of the rows with queries and with
    keys to be filled."""
    table = table_at(address)
    part = take(address)
    while part < table[1]:
        _attend_back(table, part)
        part = take(address)
