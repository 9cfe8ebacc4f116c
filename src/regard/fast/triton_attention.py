"""Attention over short texts in training, written in Triton for a GPU: forward and backward.

Up to some length all scores of a head fit into one program. Weights are not kept for the way back but computed again,
and what was dropped of them is drawn again.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.fast.triton_chance import Chance, stays

LONGEST = 128
"""Words on each side up to which attention fits into one program."""


@triton.jit
def _shares(
    query, key, lengths, seed, call, share, scale, row, head, heads, queries, keys,
    causal: tl.constexpr, ragged: tl.constexpr, dropped: tl.constexpr, block_q: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """How much each query takes of each key, and the same with some dropped.  # (queries, keys) each"""
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    i = tl.arange(0, block_q)[:, None]
    j = tl.arange(0, block_k)[None, :]
    count = tl.load(lengths + row).to(tl.int32) if ragged else keys
    seen = j < tl.minimum(count, keys)
    if causal:
        seen = seen & (j <= i + keys - queries)
    scores = tl.where(seen, scores, float("-inf"))
    top = tl.max(scores, 1)
    top = tl.where(top == float("-inf"), 0.0, top)
    raised = tl.exp(scores - top[:, None])
    shares = raised / tl.maximum(tl.sum(raised, 1), 1e-30)[:, None]
    if dropped:
        at = ((row * heads + head) * block_q + i) * block_k + j
        kept = shares * stays(seed, call, at, share)
    else:
        kept = shares
    return shares, kept


@triton.jit(do_not_specialize=["call", "heads", "queries", "keys"])
def _attend_forward(
    query, key, value, out, lengths, seed, call, share, scale, heads, queries, keys, size,
    query_row, query_word, key_row, key_word, value_row, value_word, out_row, out_word,
    group: tl.constexpr, causal: tl.constexpr, ragged: tl.constexpr, dropped: tl.constexpr,
    block_q: tl.constexpr, block_k: tl.constexpr, features: tl.constexpr,
):  # fmt: skip
    row, shared = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, features)[None, :]
    i, j = tl.arange(0, block_q)[:, None], tl.arange(0, block_k)[:, None]
    in_q, in_k = (i < queries) & (at < size), (j < keys) & (at < size)
    k = tl.load(key + row * key_row + j * key_word + shared * size + at, in_k, 0.0)
    v = tl.load(value + row * value_row + j * value_word + shared * size + at, in_k, 0.0)
    for number in range(group):
        head = shared * group + number
        q = tl.load(query + row * query_row + i * query_word + head * size + at, in_q, 0.0)
        _, kept = _shares(
            q, k, lengths, seed, call, share, scale, row, head, heads, queries, keys,
            causal, ragged, dropped, block_q, block_k,
        )  # fmt: skip
        mixed = tl.dot(kept.to(v.dtype), v, input_precision="ieee")
        tl.store(out + row * out_row + i * out_word + head * size + at, mixed.to(out.dtype.element_ty), in_q)


@triton.jit(do_not_specialize=["call", "heads", "queries", "keys"])
def _attend_backward(
    query, key, value, slope, query_slope, key_slope, value_slope, lengths, seed, call, share, scale,
    heads, queries, keys, size,
    query_row, query_word, key_row, key_word, value_row, value_word, slope_row, slope_word,
    query_slope_row, query_slope_word, key_slope_row, key_slope_word, value_slope_row, value_slope_word,
    group: tl.constexpr, causal: tl.constexpr, ragged: tl.constexpr, dropped: tl.constexpr,
    block_q: tl.constexpr, block_k: tl.constexpr, features: tl.constexpr,
):  # fmt: skip
    row, shared = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, features)[None, :]
    i, j = tl.arange(0, block_q)[:, None], tl.arange(0, block_k)[:, None]
    in_q, in_k = (i < queries) & (at < size), (j < keys) & (at < size)
    k = tl.load(key + row * key_row + j * key_word + shared * size + at, in_k, 0.0)
    v = tl.load(value + row * value_row + j * value_word + shared * size + at, in_k, 0.0)
    key_sum = tl.zeros([block_k, features], tl.float32)
    value_sum = tl.zeros([block_k, features], tl.float32)
    for number in range(group):
        head = shared * group + number
        q = tl.load(query + row * query_row + i * query_word + head * size + at, in_q, 0.0)
        back = tl.load(slope + row * slope_row + i * slope_word + head * size + at, in_q, 0.0)
        shares, kept = _shares(
            q, k, lengths, seed, call, share, scale, row, head, heads, queries, keys,
            causal, ragged, dropped, block_q, block_k,
        )  # fmt: skip
        value_sum += tl.dot(tl.trans(kept).to(back.dtype), back, input_precision="ieee")
        change = tl.dot(back, tl.trans(v), input_precision="ieee")  # of the shares that were kept
        # kept = shares · mask, so what flows to shares is change · mask, and shares · mask is kept.
        along = tl.sum(kept * change, 1)
        scores = (kept * change - shares * along[:, None]) * scale
        narrow = scores.to(k.dtype)
        asked = tl.dot(narrow, k, input_precision="ieee")
        place = row * query_slope_row + i * query_slope_word + head * size + at
        tl.store(query_slope + place, asked.to(query_slope.dtype.element_ty), in_q)
        key_sum += tl.dot(tl.trans(narrow), q, input_precision="ieee")
    place = row * key_slope_row + j * key_slope_word + shared * size + at
    tl.store(key_slope + place, key_sum.to(key_slope.dtype.element_ty), in_k)
    place = row * value_slope_row + j * value_slope_word + shared * size + at
    tl.store(value_slope + place, value_sum.to(value_slope.dtype.element_ty), in_k)


class Shape(NamedTuple):
    """How heads lie side by side in a word's vector, and what they may see."""

    heads: int
    key_heads: int
    size: int
    causal: bool


def _attend(
    parts: tuple[Tensor, Tensor, Tensor], lengths: Tensor | None, shape: Shape, chance: Chance | None
) -> Tensor:
    """parts: query, key and value, each # (rows, words, heads · size), dense in the last dimension"""
    query, key, value = parts
    rows, queries, _ = query.shape
    out = torch.empty(rows, queries, shape.heads * shape.size, dtype=query.dtype, device=query.device)
    share, seed, call = chance or (0.0, query, 0)
    strides = [stride for tensor in (query, key, value, out) for stride in tensor.stride()[:2]]
    _attend_forward[(rows, shape.key_heads)](
        query, key, value, out, query if lengths is None else lengths, seed, call, share, shape.size**-0.5,
        shape.heads, queries, key.shape[1], shape.size, *strides,
        group=shape.heads // shape.key_heads, causal=shape.causal, ragged=lengths is not None,
        dropped=chance is not None, **_blocks(queries, key.shape[1], shape.size),
    )  # fmt: skip
    return out


def _attend_back(
    parts: tuple[Tensor, Tensor, Tensor],
    slopes: tuple[Tensor, Tensor, Tensor],
    slope: Tensor,
    lengths: Tensor | None,
    shape: Shape,
    chance: Chance | None,
) -> None:
    """Fills the slopes of query, key and value, which lie as those do."""
    query, key, value = parts
    rows, queries, _ = query.shape
    share, seed, call = chance or (0.0, query, 0)
    strides = [stride for tensor in (*parts, slope, *slopes) for stride in tensor.stride()[:2]]
    _attend_backward[(rows, shape.key_heads)](
        query, key, value, slope, *slopes, query if lengths is None else lengths, seed, call, share,
        shape.size**-0.5, shape.heads, queries, key.shape[1], shape.size, *strides,
        group=shape.heads // shape.key_heads, causal=shape.causal, ragged=lengths is not None,
        dropped=chance is not None, **_blocks(queries, key.shape[1], shape.size),
    )  # fmt: skip


def _blocks(queries: int, keys: int, size: int) -> dict[str, int]:
    block_q, block_k, features = (max(16, triton.next_power_of_2(each)) for each in (queries, keys, size))
    return {
        "block_q": block_q,
        "block_k": block_k,
        "features": features,
        "num_warps": 4 if block_q * block_k <= 64 * 64 else 8,
    }


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, made: Tensor, lengths: Tensor | None, shape: Shape, chance: Chance | None) -> Tensor:
        out = _attend(_parts(made, shape), lengths, shape, chance)
        context.save_for_backward(made, lengths, *(() if chance is None else (chance.seed,)))
        context.shape, context.drop = shape, None if chance is None else (chance.share, chance.call)
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Any, ...]:
        made, lengths, *seeds = context.saved_tensors
        chance = Chance(context.drop[0], seeds[0], context.drop[1]) if seeds else None
        made_slope = torch.empty_like(made)
        shape = context.shape
        _attend_back(_parts(made, shape), _parts(made_slope, shape), slope.contiguous(), lengths, shape, chance)
        return made_slope, None, None, None


class _OtherAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, query: Tensor, both: Tensor, lengths: Tensor | None, shape: Shape, chance: Chance | None
    ) -> Tensor:
        key, value = both.chunk(2, dim=2)
        out = _attend((query, key, value), lengths, shape, chance)
        context.save_for_backward(query, both, lengths, *(() if chance is None else (chance.seed,)))
        context.shape, context.drop = shape, None if chance is None else (chance.share, chance.call)
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Any, ...]:
        query, both, lengths, *seeds = context.saved_tensors
        chance = Chance(context.drop[0], seeds[0], context.drop[1]) if seeds else None
        query_slope, both_slope = torch.empty_like(query), torch.empty_like(both)
        parts, slopes = (query, *both.chunk(2, dim=2)), (query_slope, *both_slope.chunk(2, dim=2))
        _attend_back(parts, slopes, slope.contiguous(), lengths, context.shape, chance)  # type: ignore[arg-type]
        return query_slope, both_slope, None, None, None


def attend_self(made: Tensor, lengths: Tensor | None, shape: Shape, chance: Chance | None) -> Tensor:
    """Words look at each other.  made: # (rows, words, query + key + value); gives (rows, words, heads · size)

    lengths: # (rows,): how many words of each row are there to be seen, all if None
    """
    mixed: Tensor = _SelfAttention.apply(made.contiguous(), lengths, shape, chance)  # type: ignore[no-untyped-call]
    return mixed


def attend_other(query: Tensor, both: Tensor, lengths: Tensor | None, shape: Shape, chance: Chance | None) -> Tensor:
    """Words look at those of another text.  query: # (rows, words, …); both: # (rows, other words, key + value)"""
    mixed: Tensor = _OtherAttention.apply(query.contiguous(), both.contiguous(), lengths, shape, chance)  # type: ignore[no-untyped-call]
    return mixed


def _parts(made: Tensor, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    narrow = shape.key_heads * shape.size
    query, key, value = made.split([shape.heads * shape.size, narrow, narrow], dim=2)
    return query, key, value
