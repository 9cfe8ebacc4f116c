"""What a step of decoding does besides matrix products, written in Triton for a GPU.

A step has little arithmetic, so what counts is how often a kernel is started and how often memory is walked through.
Each function here is one pass over what it reads; sums are made in float32 whatever the numbers are kept in. Beams
never copy what their texts share: an index says which row wrote the token at each position.

With the environment variable TRITON_INTERPRET=1 the same functions run on a CPU, slowly, which is how they are tested.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

_HEAD = 64
_SHAPES = ((256, 256, 8), (1024, 128, 4), (4096, 64, 2), (2**31, 32, 1))
"""Up to so many programs: so many positions at a time for heads of 64 features, and so many warps."""
_TOGETHER, _LEAST = 128, 16
"""Positions that rows look at together, and the smallest side of a product."""


@triton.jit
def _normalised(x, weight, bias, at, inside, epsilon, width, centred: tl.constexpr):
    """Layer normalisation of one row, or without its mean taken off (RMS)."""
    mean = tl.sum(x, 0) / width if centred else 0.0
    away = tl.where(inside, x - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(away * away, 0) / width + epsilon)
    factor = tl.load(weight + at, inside, 0.0).to(tl.float32)
    shift = tl.load(bias + at, inside, 0.0).to(tl.float32)
    return away * scale * factor + shift


@triton.jit
def _embed(
    tokens, lengths, table, codes, x, out, weight, bias, factor, epsilon, width, places,
    before: tl.constexpr, centred: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < width
    token, place = tl.load(tokens + row), tl.minimum(tl.load(lengths + row), places - 1)
    word = tl.load(table + token * width + at, inside, 0.0).to(tl.float32)
    placed = word * factor + tl.load(codes + place * width + at, inside, 0.0)
    tl.store(x + row * width + at, placed, inside)
    if before:
        placed = _normalised(placed, weight, bias, at, inside, epsilon, width, centred)
    tl.store(out + row * width + at, placed.to(out.dtype.element_ty), inside)


@triton.jit
def _join(
    x, change, out, weight, bias, epsilon, width,
    before: tl.constexpr, centred: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < width
    total = tl.load(x + row * width + at, inside, 0.0) + tl.load(change + row * width + at, inside, 0.0).to(tl.float32)
    normed = _normalised(total, weight, bias, at, inside, epsilon, width, centred)
    tl.store(x + row * width + at, total if before else normed, inside)
    tl.store(out + row * width + at, normed.to(out.dtype.element_ty), inside)


@triton.jit
def _turned(made, first, at, inside, cosines, sines, place, size):
    """A head's features, each pair turned by the angle of a position."""
    half = size // 2
    pair = at % half
    partner = tl.where(at < half, at + half, at - half)
    mine = tl.load(made + first + at, inside, 0.0).to(tl.float32)
    other = tl.load(made + first + partner, inside, 0.0).to(tl.float32)
    cosine = tl.load(cosines + place * half + pair, inside, 0.0)
    sine = tl.load(sines + place * half + pair, inside, 0.0)
    return mine * cosine + tl.where(at < half, -other, other) * sine


@triton.jit
def _looked(keys, values, real, query, greatest, total, mixed):
    """A row's attention after some positions more: its greatest score, and sums of weights and of weighted values."""
    scores = tl.where(real, tl.sum(keys.to(tl.float32) * query[None, :], 1), float("-inf"))
    top = tl.maximum(greatest, tl.max(scores, 0))
    weights, less = tl.exp(scores - top), tl.exp(greatest - top)
    mixed = mixed * less + tl.sum(weights[:, None] * values.to(tl.float32), 0)
    return top, total * less + tl.sum(weights, 0), mixed


@triton.jit
def _attend_past(
    made, keys, values, origin, lengths, out, cosines, sines, scale,
    rows, capacity, width, narrow, size,
    share: tl.constexpr, turned: tl.constexpr, block: tl.constexpr, features: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, features)
    inside = at < size
    ahead = tl.arange(0, block)
    writer = tl.load(origin + ahead * rows + row, ahead < capacity, 0)  # at once: how many of them count comes later
    here = tl.minimum(tl.load(lengths + row), capacity - 1).to(tl.int32)
    begin = row * (width + 2 * narrow)
    shared = head // share
    if turned:
        query = _turned(made, begin + head * size, at, inside, cosines, sines, here, size)
        key = _turned(made, begin + width + shared * size, at, inside, cosines, sines, here, size)
    else:
        query = tl.load(made + begin + head * size + at, inside, 0.0).to(tl.float32)
        key = tl.load(made + begin + width + shared * size + at, inside, 0.0).to(tl.float32)
    value = tl.load(made + begin + width + narrow + shared * size + at, inside, 0.0).to(tl.float32)
    key, query = key.to(keys.dtype.element_ty), query * scale
    if head % share == 0:
        mine = (here * rows + row).to(tl.int64) * narrow + shared * size
        tl.store(keys + mine + at, key, inside)
        tl.store(values + mine + at, value.to(values.dtype.element_ty), inside)
    if head == 0:
        tl.store(origin + here * rows + row, row)
    greatest = tl.sum(query * key.to(tl.float32), 0)
    total = 1.0
    mixed = value
    for first in range(0, here, block):
        place = first + tl.arange(0, block)
        past = place < here
        start = (place * rows + writer).to(tl.int64) * narrow + shared * size
        both = past[:, None] & inside[None, :]
        seen = tl.load((keys + start)[:, None] + at[None, :], both, 0.0)
        looked = tl.load((values + start)[:, None] + at[None, :], both, 0.0)
        writer = tl.load(origin + (place + block) * rows + row, place + block < here, 0)
        greatest, total, mixed = _looked(seen, looked, past, query, greatest, total, mixed)
    tl.store(out + row * width + head * size + at, (mixed / total).to(out.dtype.element_ty), inside)


@triton.jit
def _attend_memory(
    query, keys, values, lengths, out, scale,
    positions, width, narrow, size, group,
    share: tl.constexpr, block: tl.constexpr, features: tl.constexpr,
):  # fmt: skip
    """One row after another, beside the others of its source, so that what they look at stays near."""
    source, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, features)
    inside = at < size
    count = tl.load(lengths + source).to(tl.int32)
    begin = (source * positions).to(tl.int64) * narrow + head // share * size
    for row in range(source * group, (source + 1) * group):
        asked = tl.load(query + row * width + head * size + at, inside, 0.0).to(tl.float32) * scale
        greatest = float("-inf")
        total = 0.0
        mixed = tl.zeros([features], tl.float32)
        for first in range(0, count, block):
            place = first + tl.arange(0, block)
            real = place < count
            where = place[:, None] * narrow + at[None, :]
            both = real[:, None] & inside[None, :]
            seen = tl.load(keys + begin + where, both, 0.0)
            looked = tl.load(values + begin + where, both, 0.0)
            greatest, total, mixed = _looked(seen, looked, real, asked, greatest, total, mixed)
        mixed = mixed / tl.maximum(total, 1e-30)
        tl.store(out + row * width + head * size + at, mixed.to(out.dtype.element_ty), inside)


@triton.jit
def _attend_memory_together(
    query, keys, values, lengths, out, scale,
    positions, width, narrow, size, group,
    share: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, features: tl.constexpr,
):  # fmt: skip
    """All rows of a source in one product, for 16-bit numbers; weights are two of them, so that none is rounded."""
    source, head = tl.program_id(0), tl.program_id(1)
    at = tl.arange(0, features)
    inside = at < size
    each = tl.arange(0, rows)
    mine = (source * group + each)[:, None] * width + head * size + at[None, :]
    asks = (each < group)[:, None] & inside[None, :]
    count = tl.load(lengths + source).to(tl.int32)
    asked = tl.load(query + mine, asks, 0.0)
    begin = (source * positions).to(tl.int64) * narrow + head // share * size
    greatest = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    mixed = tl.zeros([rows, features], tl.float32)
    for first in range(0, count, block):
        place = first + tl.arange(0, block)
        real = place < count
        where = place[:, None] * narrow + at[None, :]
        both = real[:, None] & inside[None, :]
        seen = tl.load(keys + begin + where, both, 0.0)
        looked = tl.load(values + begin + where, both, 0.0)
        scores = tl.where(real[None, :], tl.dot(asked, tl.trans(seen)) * scale, float("-inf"))
        top = tl.maximum(greatest, tl.max(scores, 1))
        weights, less = tl.exp(scores - top[:, None]), tl.exp(greatest - top)
        high = weights.to(looked.dtype)
        low = (weights - high.to(tl.float32)).to(looked.dtype)
        mixed = tl.dot(low, looked, tl.dot(high, looked, mixed * less[:, None]))
        total = total * less + tl.sum(weights, 1)
        greatest = top
    mixed = mixed / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + mine, mixed.to(out.dtype.element_ty), asks)


@triton.jit
def _move_rows(origin, lengths, sources, rows, capacity, block: tl.constexpr):
    """One position of every row, or behind the last position their lengths."""
    position = tl.program_id(0)
    at = tl.arange(0, block)
    inside = at < rows
    source = tl.load(sources + at, inside, 0)
    if position < capacity:
        writer = tl.load(origin + position * rows + source, inside, 0)
        tl.debug_barrier()
        tl.store(origin + position * rows + at, writer, inside)
    else:
        length = tl.load(lengths + source, inside, 0)
        tl.debug_barrier()
        tl.store(lengths + at, length, inside)


def embed(tokens: Tensor, lengths: Tensor, table: Tensor, codes: Tensor, factor: float, norm: Any, x: Tensor) -> Tensor:
    """Word vectors at their positions: into x in float32, and given back as the first layer takes them.

    tokens, lengths: # (rows,); table: # (vocabulary, width); codes: # (positions, width), float32; x: # (rows, width)
    norm: weight, bias, epsilon, and whether it stands before a sublayer and takes the mean off
    """
    rows, width = x.shape
    out = table.new_empty(rows, width)
    _embed[(rows,)](
        tokens, lengths, table, codes, x, out, norm.weight, norm.bias, factor, norm.epsilon, width, codes.shape[0],
        before=norm.before, centred=norm.centred, block=triton.next_power_of_2(width),
    )  # fmt: skip
    return out


def join(x: Tensor, change: Tensor, norm: Any, *, before: bool) -> Tensor:
    """Add a sublayer's change to x and normalise the sum.

    Where norms stand `before` sublayers x becomes the sum, where they stand behind it becomes the normalised sum. What
    the next product takes is given back.  x: # (rows, width), float32; change: # (rows, width)
    """
    rows, width = x.shape
    out = change.new_empty(rows, width)
    block = triton.next_power_of_2(width)
    _join[(rows,)](
        x, change, out, norm.weight, norm.bias, norm.epsilon, width,
        before=before, centred=norm.centred, block=block,
    )  # fmt: skip
    return out


def attend_past(
    made: Tensor,
    keys: Tensor,
    values: Tensor,
    origin: Tensor,
    lengths: Tensor,
    heads: int,
    rotation: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Each row's new token looks at those before it and at itself; its key and value are written at its position.

    made: # (rows, query + key + value width); keys, values: # (positions, rows, key heads · head width)
    origin: # (positions, rows), int32: which row wrote the token that stands at this position of this row's text
    rotation: cosine and sine of every position  # (positions, head width / 2), float32, where heads are turned
    """
    capacity, rows, narrow = keys.shape
    width = made.shape[1] - 2 * narrow
    size = width // heads
    out = made.new_empty(rows, width)
    cosines, sines = (origin, origin) if rotation is None else rotation
    features = triton.next_power_of_2(size)
    block, warps = _cut_up(rows * heads, capacity, features)
    _attend_past[(rows, heads)](
        made, keys, values, origin, lengths, out, cosines, sines, size**-0.5,
        rows, capacity, width, narrow, size,
        share=width // narrow, turned=rotation is not None, block=block, features=features, num_warps=warps,
    )  # fmt: skip
    return out


def attend_memory(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """Each row looks at its source; rows of one source stand side by side.

    query: # (rows, width); keys, values: # (sources, positions, key heads · head width); lengths: # (sources,)
    """
    rows, width = query.shape
    sources, positions, narrow = keys.shape
    size = width // heads
    out = query.new_empty(rows, width)
    group, features = rows // sources, triton.next_power_of_2(size)
    facts = (query, keys, values, lengths, out, size**-0.5, positions, width, narrow, size, group)
    block, warps = _cut_up(sources * heads, positions, features)
    if group == 1 or query.element_size() != 2:
        _attend_memory[(sources, heads)](*facts, share=width // narrow, block=block, features=features, num_warps=warps)
    else:
        block, features = min(block, _TOGETHER), max(features, _LEAST)
        _attend_memory_together[(sources, heads)](
            *facts, share=width // narrow, rows=max(triton.next_power_of_2(group), _LEAST), block=block,
            features=features, num_warps=min(warps, block // 16), num_stages=1 if positions <= block else 2,
        )  # fmt: skip
    return out


def move_rows(origin: Tensor, lengths: Tensor, sources: Tensor) -> None:
    """Let row i of a cache be what row `sources[i]` was, in place: who wrote its tokens, and how many there are.

    origin: # (positions, rows), int32; lengths, sources: # (rows,)
    """
    capacity, rows = origin.shape
    block = triton.next_power_of_2(rows)
    _move_rows[(capacity + 1,)](
        origin, lengths, sources, rows, capacity, block=block, num_warps=min(8, max(1, block // 128))
    )


def _cut_up(programs: int, positions: int, features: int) -> tuple[int, int]:
    """How many positions a program looks at in one go, and by how many warps.

    Few programs leave most of the device idle and take as long as their loads, one after another: so all positions at
    once. Many keep it busy: so no more positions than are there, and no warps that wait for each other.
    """
    at_once, warps = next(shape for most, *shape in _SHAPES if programs <= most)
    block = min(at_once * _HEAD // features, triton.next_power_of_2(positions))
    return max(block, 16), warps
