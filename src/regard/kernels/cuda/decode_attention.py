"""Attention of one decode step, written in Triton for a GPU: self-attention over the KV cache, and cross-attention.

A decode step has little arithmetic, so what counts is how many kernels are launched and how often memory is read. Each
function here is one pass over its inputs, with an online softmax; sums are in float32 in any precision. Beams never
copy the keys and values that their hypotheses share: `beam_indices` says which row of the cache holds the token at each
position.
"""

import triton
import triton.language as tl
from torch import Tensor

_HEAD_DIM = 64
_BLOCK_SIZES = ((256, 256, 8), (1024, 128, 4), (4096, 64, 2), (2**31, 32, 1))
"""For up to so many programs: positions at a time for a head_dim of 64, and warps."""
_GROUP_POSITIONS, _MIN_DOT = 128, 16
"""Positions at a time where the rows of a source share a product, and the smallest side of a product."""


@triton.jit
def _load_rotated(qkv, first, cols, mask, cos, sin, position, head_dim):
    """A head with rotary position embedding (RoPE)."""
    half = head_dim // 2
    pair = cols % half
    partner = tl.where(cols < half, cols + half, cols - half)
    x = tl.load(qkv + first + cols, mask, 0.0).to(tl.float32)
    other = tl.load(qkv + first + partner, mask, 0.0).to(tl.float32)
    c = tl.load(cos + position * half + pair, mask, 0.0)
    s = tl.load(sin + position * half + pair, mask, 0.0)
    return x * c + tl.where(cols < half, -other, other) * s


@triton.jit
def _online_softmax(keys, values, valid, query, maximum, total, acc):
    """Update the maximum, the sum of weights and the weighted sum of values of a row with some more positions."""
    scores = tl.where(valid, tl.sum(keys.to(tl.float32) * query[None, :], 1), float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, 0))
    weights, rescale = tl.exp(scores - new_maximum), tl.exp(maximum - new_maximum)
    acc = acc * rescale + tl.sum(weights[:, None] * values.to(tl.float32), 0)
    return new_maximum, total * rescale + tl.sum(weights, 0), acc


@triton.jit
def _self_attention_decode(
    qkv, keys, values, beam_indices, lengths, out, cos, sin, scale,
    rows, capacity, width, kv_width, head_dim,
    group: tl.constexpr, has_rotary: tl.constexpr, block: tl.constexpr, block_dim: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, block_dim)
    mask = cols < head_dim
    first_positions = tl.arange(0, block)
    # Loaded before the length is known, so that the loads overlap.
    writers = tl.load(beam_indices + first_positions * rows + row, first_positions < capacity, 0)
    length = tl.minimum(tl.load(lengths + row), capacity - 1).to(tl.int32)
    begin = row * (width + 2 * kv_width)
    kv_head = head // group
    if has_rotary:
        query = _load_rotated(qkv, begin + head * head_dim, cols, mask, cos, sin, length, head_dim)
        key = _load_rotated(qkv, begin + width + kv_head * head_dim, cols, mask, cos, sin, length, head_dim)
    else:
        query = tl.load(qkv + begin + head * head_dim + cols, mask, 0.0).to(tl.float32)
        key = tl.load(qkv + begin + width + kv_head * head_dim + cols, mask, 0.0).to(tl.float32)
    value = tl.load(qkv + begin + width + kv_width + kv_head * head_dim + cols, mask, 0.0).to(tl.float32)
    key, query = key.to(keys.dtype.element_ty), query * scale
    if head % group == 0:
        new = (length * rows + row).to(tl.int64) * kv_width + kv_head * head_dim
        tl.store(keys + new + cols, key, mask)
        tl.store(values + new + cols, value.to(values.dtype.element_ty), mask)
    if head == 0:
        tl.store(beam_indices + length * rows + row, row)
    maximum = tl.sum(query * key.to(tl.float32), 0)
    total = 1.0
    acc = value
    for first in range(0, length, block):
        positions = first + tl.arange(0, block)
        valid = positions < length
        start = (positions * rows + writers).to(tl.int64) * kv_width + kv_head * head_dim
        kv_mask = valid[:, None] & mask[None, :]
        k = tl.load((keys + start)[:, None] + cols[None, :], kv_mask, 0.0)
        v = tl.load((values + start)[:, None] + cols[None, :], kv_mask, 0.0)
        writers = tl.load(beam_indices + (positions + block) * rows + row, positions + block < length, 0)
        maximum, total, acc = _online_softmax(k, v, valid, query, maximum, total, acc)
    tl.store(out + row * width + head * head_dim + cols, (acc / total).to(out.dtype.element_ty), mask)


@triton.jit
def _cross_attention_decode(
    query, keys, values, lengths, out, scale,
    positions, width, kv_width, head_dim, rows_per_source,
    group: tl.constexpr, block: tl.constexpr, block_dim: tl.constexpr,
):  # fmt: skip
    """The rows of a source one after another in one program, so that its keys and values stay in the cache."""
    source, head = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, block_dim)
    mask = cols < head_dim
    length = tl.load(lengths + source).to(tl.int32)
    begin = (source * positions).to(tl.int64) * kv_width + head // group * head_dim
    for row in range(source * rows_per_source, (source + 1) * rows_per_source):
        q = tl.load(query + row * width + head * head_dim + cols, mask, 0.0).to(tl.float32) * scale
        maximum = float("-inf")
        total = 0.0
        acc = tl.zeros([block_dim], tl.float32)
        for first in range(0, length, block):
            position = first + tl.arange(0, block)
            valid = position < length
            index = position[:, None] * kv_width + cols[None, :]
            kv_mask = valid[:, None] & mask[None, :]
            k = tl.load(keys + begin + index, kv_mask, 0.0)
            v = tl.load(values + begin + index, kv_mask, 0.0)
            maximum, total, acc = _online_softmax(k, v, valid, q, maximum, total, acc)
        acc = acc / tl.maximum(total, 1e-30)
        tl.store(out + row * width + head * head_dim + cols, acc.to(out.dtype.element_ty), mask)


@triton.jit
def _cross_attention_decode_grouped(
    query, keys, values, lengths, out, scale,
    positions, width, kv_width, head_dim, rows_per_source,
    group: tl.constexpr, rows: tl.constexpr, block: tl.constexpr, block_dim: tl.constexpr,
):  # fmt: skip
    """All rows of a source in one product, for 16-bit numbers. Weights are split into two, so that none is rounded."""
    source, head = tl.program_id(0), tl.program_id(1)
    cols = tl.arange(0, block_dim)
    mask = cols < head_dim
    row = tl.arange(0, rows)
    index = (source * rows_per_source + row)[:, None] * width + head * head_dim + cols[None, :]
    row_mask = (row < rows_per_source)[:, None] & mask[None, :]
    length = tl.load(lengths + source).to(tl.int32)
    q = tl.load(query + index, row_mask, 0.0)
    begin = (source * positions).to(tl.int64) * kv_width + head // group * head_dim
    maximum = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, block_dim], tl.float32)
    for first in range(0, length, block):
        position = first + tl.arange(0, block)
        valid = position < length
        kv_index = position[:, None] * kv_width + cols[None, :]
        kv_mask = valid[:, None] & mask[None, :]
        k = tl.load(keys + begin + kv_index, kv_mask, 0.0)
        v = tl.load(values + begin + kv_index, kv_mask, 0.0)
        scores = tl.where(valid[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, 1))
        weights, rescale = tl.exp(scores - new_maximum[:, None]), tl.exp(maximum - new_maximum)
        high = weights.to(v.dtype)
        low = (weights - high.to(tl.float32)).to(v.dtype)
        acc = tl.dot(low, v, tl.dot(high, v, acc * rescale[:, None]))
        total = total * rescale + tl.sum(weights, 1)
        maximum = new_maximum
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + index, acc.to(out.dtype.element_ty), row_mask)


@triton.jit
def _reorder_beams(beam_indices, lengths, sources, rows, capacity, block: tl.constexpr):
    """Each program reorders one position of all rows; the last one reorders the lengths."""
    position = tl.program_id(0)
    row = tl.arange(0, block)
    mask = row < rows
    source = tl.load(sources + row, mask, 0)
    if position < capacity:
        writer = tl.load(beam_indices + position * rows + source, mask, 0)
        tl.debug_barrier()
        tl.store(beam_indices + position * rows + row, writer, mask)
    else:
        length = tl.load(lengths + source, mask, 0)
        tl.debug_barrier()
        tl.store(lengths + row, length, mask)


def self_attention_decode(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    beam_indices: Tensor,
    lengths: Tensor,
    heads: int,
    rotary: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Each row's new token attends to the tokens before it and to itself; its key and value are added to the cache.

    qkv: # (rows, query + key + value width); keys, values: # (positions, rows, kv_heads · head_dim)
    beam_indices: # (positions, rows), int32: the row that wrote the token at this position of this row's hypothesis
    rotary: cosine and sine of every position  # (positions, head_dim / 2), float32, with rotary positions
    """
    capacity, rows, kv_width = keys.shape
    width = qkv.shape[1] - 2 * kv_width
    head_dim = width // heads
    out = qkv.new_empty(rows, width)
    cos, sin = (beam_indices, beam_indices) if rotary is None else rotary
    block_dim = triton.next_power_of_2(head_dim)
    block, warps = _block_size(rows * heads, capacity, block_dim)
    _self_attention_decode[(rows, heads)](
        qkv, keys, values, beam_indices, lengths, out, cos, sin, head_dim**-0.5,
        rows, capacity, width, kv_width, head_dim,
        group=width // kv_width, has_rotary=rotary is not None, block=block, block_dim=block_dim, num_warps=warps,
    )  # fmt: skip
    return out


def cross_attention_decode(query: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, heads: int) -> Tensor:
    """Each row attends to its source; the rows of one source are adjacent.

    query: # (rows, width); keys, values: # (sources, positions, kv_heads · head_dim); lengths: # (sources,)
    """
    rows, width = query.shape
    sources, positions, kv_width = keys.shape
    head_dim, group = width // heads, width // kv_width
    out = query.new_empty(rows, width)
    rows_per_source, block_dim = rows // sources, triton.next_power_of_2(head_dim)
    args = (
        query, keys, values, lengths, out, head_dim**-0.5, positions, width, kv_width, head_dim, rows_per_source,
    )  # fmt: skip
    block, warps = _block_size(sources * heads, positions, block_dim)
    if rows_per_source == 1 or query.element_size() != 2:
        _cross_attention_decode[(sources, heads)](*args, group=group, block=block, block_dim=block_dim, num_warps=warps)
    else:
        block, block_dim = min(block, _GROUP_POSITIONS), max(block_dim, _MIN_DOT)
        _cross_attention_decode_grouped[(sources, heads)](
            *args, group=group, rows=max(triton.next_power_of_2(rows_per_source), _MIN_DOT), block=block,
            block_dim=block_dim, num_warps=min(warps, block // 16), num_stages=1 if positions <= block else 2,
        )  # fmt: skip
    return out


def reorder_beams(beam_indices: Tensor, lengths: Tensor, rows: Tensor) -> None:
    """Row i of a cache becomes what row `rows[i]` was, in place.

    beam_indices: # (positions, rows), int32; lengths, rows: # (rows,)
    """
    capacity, count = beam_indices.shape
    block = triton.next_power_of_2(count)
    _reorder_beams[(capacity + 1,)](
        beam_indices, lengths, rows, count, capacity, block=block, num_warps=min(8, max(1, block // 128))
    )


def _block_size(programs: int, positions: int, block_dim: int) -> tuple[int, int]:
    """How many positions a program reads at a time, and with how many warps.

    Few programs leave most of the device idle and take as long as their loads, one after another: so they read all
    positions at once. Many keep it busy: so they read no more positions than there are, with no warps that wait for
    each other.
    """
    at_once, warps = next(sizes for most, *sizes in _BLOCK_SIZES if programs <= most)
    block = min(at_once * _HEAD_DIM // block_dim, triton.next_power_of_2(positions))
    return max(block, 16), warps
