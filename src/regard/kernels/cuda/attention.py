"""Attention over short sequences for training, written in Triton for a GPU: forward and backward.

Up to a maximum length all scores of a head fit into one program. The backward pass computes the attention weights
again, and draws their dropout mask again, instead of reading them.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.cuda.dropout_rng import keep_scale
from regard.kernels.params import Dropout, HeadShape

MAX_LENGTH = 128
"""The most queries, and the most keys, that fit into one program."""


@triton.jit
def _attention_weights(
    q, k, lengths, seed, offset, p, scale, row, head, heads, queries, keys,
    causal: tl.constexpr, has_lengths: tl.constexpr, has_dropout: tl.constexpr,
    block_q: tl.constexpr, block_k: tl.constexpr,
):  # fmt: skip
    """The softmax of the scores, and the same with dropout.  # (queries, keys) each"""
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    i = tl.arange(0, block_q)[:, None]
    j = tl.arange(0, block_k)[None, :]
    length = tl.load(lengths + row).to(tl.int32) if has_lengths else keys
    visible = j < tl.minimum(length, keys)
    if causal:
        visible = visible & (j <= i + keys - queries)
    scores = tl.where(visible, scores, float("-inf"))
    maximum = tl.max(scores, 1)
    maximum = tl.where(maximum == float("-inf"), 0.0, maximum)
    exponentials = tl.exp(scores - maximum[:, None])
    weights = exponentials / tl.maximum(tl.sum(exponentials, 1), 1e-30)[:, None]
    if has_dropout:
        index = ((row * heads + head) * block_q + i) * block_k + j
        dropped = weights * keep_scale(seed, offset, index, p)
    else:
        dropped = weights
    return weights, dropped


@triton.jit(do_not_specialize=["offset", "heads", "queries", "keys"])
def _attention_forward(
    query, key, value, out, lengths, seed, offset, p, scale, heads, queries, keys, head_dim,
    stride_q_row, stride_q_token, stride_k_row, stride_k_token, stride_v_row, stride_v_token,
    stride_out_row, stride_out_token,
    group: tl.constexpr, causal: tl.constexpr, has_lengths: tl.constexpr, has_dropout: tl.constexpr,
    block_q: tl.constexpr, block_k: tl.constexpr, block_dim: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cols = tl.arange(0, block_dim)[None, :]
    i, j = tl.arange(0, block_q)[:, None], tl.arange(0, block_k)[:, None]
    q_mask, k_mask = (i < queries) & (cols < head_dim), (j < keys) & (cols < head_dim)
    k = tl.load(key + row * stride_k_row + j * stride_k_token + kv_head * head_dim + cols, k_mask, 0.0)
    v = tl.load(value + row * stride_v_row + j * stride_v_token + kv_head * head_dim + cols, k_mask, 0.0)
    for number in range(group):
        head = kv_head * group + number
        q = tl.load(query + row * stride_q_row + i * stride_q_token + head * head_dim + cols, q_mask, 0.0)
        _, dropped = _attention_weights(
            q, k, lengths, seed, offset, p, scale, row, head, heads, queries, keys,
            causal, has_lengths, has_dropout, block_q, block_k,
        )  # fmt: skip
        attended = tl.dot(dropped.to(v.dtype), v, input_precision="ieee")
        index = row * stride_out_row + i * stride_out_token + head * head_dim + cols
        tl.store(out + index, attended.to(out.dtype.element_ty), q_mask)


@triton.jit(do_not_specialize=["offset", "heads", "queries", "keys"])
def _attention_backward(
    query, key, value, grad, query_grad, key_grad, value_grad, lengths, seed, offset, p, scale,
    heads, queries, keys, head_dim,
    stride_q_row, stride_q_token, stride_k_row, stride_k_token, stride_v_row, stride_v_token,
    stride_grad_row, stride_grad_token,
    stride_dq_row, stride_dq_token, stride_dk_row, stride_dk_token, stride_dv_row, stride_dv_token,
    group: tl.constexpr, causal: tl.constexpr, has_lengths: tl.constexpr, has_dropout: tl.constexpr,
    block_q: tl.constexpr, block_k: tl.constexpr, block_dim: tl.constexpr,
):  # fmt: skip
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cols = tl.arange(0, block_dim)[None, :]
    i, j = tl.arange(0, block_q)[:, None], tl.arange(0, block_k)[:, None]
    q_mask, k_mask = (i < queries) & (cols < head_dim), (j < keys) & (cols < head_dim)
    k = tl.load(key + row * stride_k_row + j * stride_k_token + kv_head * head_dim + cols, k_mask, 0.0)
    v = tl.load(value + row * stride_v_row + j * stride_v_token + kv_head * head_dim + cols, k_mask, 0.0)
    dk = tl.zeros([block_k, block_dim], tl.float32)
    dv = tl.zeros([block_k, block_dim], tl.float32)
    for number in range(group):
        head = kv_head * group + number
        q = tl.load(query + row * stride_q_row + i * stride_q_token + head * head_dim + cols, q_mask, 0.0)
        do = tl.load(grad + row * stride_grad_row + i * stride_grad_token + head * head_dim + cols, q_mask, 0.0)
        weights, dropped = _attention_weights(
            q, k, lengths, seed, offset, p, scale, row, head, heads, queries, keys,
            causal, has_lengths, has_dropout, block_q, block_k,
        )  # fmt: skip
        dv += tl.dot(tl.trans(dropped).to(do.dtype), do, input_precision="ieee")
        dropped_grad = tl.dot(do, tl.trans(v), input_precision="ieee")
        # dropped = weights · mask, so the gradient of weights is dropped_grad · mask, and weights · mask is dropped.
        total = tl.sum(dropped * dropped_grad, 1)
        score_grad = (dropped * dropped_grad - weights * total[:, None]) * scale
        ds = score_grad.to(k.dtype)
        dq = tl.dot(ds, k, input_precision="ieee")
        index = row * stride_dq_row + i * stride_dq_token + head * head_dim + cols
        tl.store(query_grad + index, dq.to(query_grad.dtype.element_ty), q_mask)
        dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
    index = row * stride_dk_row + j * stride_dk_token + kv_head * head_dim + cols
    tl.store(key_grad + index, dk.to(key_grad.dtype.element_ty), k_mask)
    index = row * stride_dv_row + j * stride_dv_token + kv_head * head_dim + cols
    tl.store(value_grad + index, dv.to(value_grad.dtype.element_ty), k_mask)


def _forward(
    qkv: tuple[Tensor, Tensor, Tensor], lengths: Tensor | None, shape: HeadShape, dropout: Dropout[Tensor] | None
) -> Tensor:
    """qkv: query, key and value, each # (rows, tokens, heads · head_dim), dense in the last dimension"""
    query, key, value = qkv
    rows, queries, _ = query.shape
    out = torch.empty(rows, queries, shape.heads * shape.head_dim, dtype=query.dtype, device=query.device)
    p, seed, offset = dropout or (0.0, query, 0)
    strides = [stride for tensor in (query, key, value, out) for stride in tensor.stride()[:2]]
    _attention_forward[(rows, shape.kv_heads)](
        query, key, value, out, query if lengths is None else lengths, seed, offset, p, shape.head_dim**-0.5,
        shape.heads, queries, key.shape[1], shape.head_dim, *strides,
        group=shape.heads // shape.kv_heads, causal=shape.causal, has_lengths=lengths is not None,
        has_dropout=dropout is not None, **_blocks(queries, key.shape[1], shape.head_dim),
    )  # fmt: skip
    return out


def _backward(
    qkv: tuple[Tensor, Tensor, Tensor],
    qkv_grads: tuple[Tensor, Tensor, Tensor],
    grad: Tensor,
    lengths: Tensor | None,
    shape: HeadShape,
    dropout: Dropout[Tensor] | None,
) -> None:
    """Fill the gradients of query, key and value."""
    query, key, value = qkv
    rows, queries, _ = query.shape
    p, seed, offset = dropout or (0.0, query, 0)
    strides = [stride for tensor in (*qkv, grad, *qkv_grads) for stride in tensor.stride()[:2]]
    _attention_backward[(rows, shape.kv_heads)](
        query, key, value, grad, *qkv_grads, query if lengths is None else lengths, seed, offset, p,
        shape.head_dim**-0.5, shape.heads, queries, key.shape[1], shape.head_dim, *strides,
        group=shape.heads // shape.kv_heads, causal=shape.causal, has_lengths=lengths is not None,
        has_dropout=dropout is not None, **_blocks(queries, key.shape[1], shape.head_dim),
    )  # fmt: skip


def _blocks(queries: int, keys: int, head_dim: int) -> dict[str, int]:
    block_q, block_k, block_dim = (max(16, triton.next_power_of_2(size)) for size in (queries, keys, head_dim))
    return {
        "block_q": block_q,
        "block_k": block_k,
        "block_dim": block_dim,
        "num_warps": 4 if block_q * block_k <= 64 * 64 else 8,
    }


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, qkv: Tensor, lengths: Tensor | None, shape: HeadShape, dropout: Dropout[Tensor] | None
    ) -> Tensor:
        out = _forward(_split(qkv, shape), lengths, shape, dropout)
        context.save_for_backward(qkv, lengths, *(() if dropout is None else (dropout.seed,)))
        context.shape, context.dropout = shape, None if dropout is None else (dropout.p, dropout.offset)
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Any, ...]:
        qkv, lengths, *seeds = context.saved_tensors
        dropout = Dropout(context.dropout[0], seeds[0], context.dropout[1]) if seeds else None
        qkv_grad = torch.empty_like(qkv)
        shape = context.shape
        _backward(_split(qkv, shape), _split(qkv_grad, shape), grad.contiguous(), lengths, shape, dropout)
        return qkv_grad, None, None, None


class _CrossAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        query: Tensor,
        kv: Tensor,
        lengths: Tensor | None,
        shape: HeadShape,
        dropout: Dropout[Tensor] | None,
    ) -> Tensor:
        key, value = kv.chunk(2, dim=2)
        out = _forward((query, key, value), lengths, shape, dropout)
        context.save_for_backward(query, kv, lengths, *(() if dropout is None else (dropout.seed,)))
        context.shape, context.dropout = shape, None if dropout is None else (dropout.p, dropout.offset)
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Any, ...]:
        query, kv, lengths, *seeds = context.saved_tensors
        dropout = Dropout(context.dropout[0], seeds[0], context.dropout[1]) if seeds else None
        query_grad, kv_grad = torch.empty_like(query), torch.empty_like(kv)
        qkv, qkv_grads = (query, *kv.chunk(2, dim=2)), (query_grad, *kv_grad.chunk(2, dim=2))
        _backward(qkv, qkv_grads, grad.contiguous(), lengths, context.shape, dropout)  # type: ignore[arg-type]
        return query_grad, kv_grad, None, None, None


def self_attention(qkv: Tensor, lengths: Tensor | None, shape: HeadShape, dropout: Dropout[Tensor] | None) -> Tensor:
    """Tokens attend to each other.  qkv: # (rows, tokens, query + key + value); gives (rows, tokens, heads · head_dim)

    lengths: # (rows,), how many keys of each row are not padding; None if none is
    """
    out: Tensor = _SelfAttention.apply(qkv.contiguous(), lengths, shape, dropout)  # type: ignore[no-untyped-call]
    return out


def cross_attention(
    query: Tensor, kv: Tensor, lengths: Tensor | None, shape: HeadShape, dropout: Dropout[Tensor] | None
) -> Tensor:
    """Tokens attend to their source.  query: # (rows, tokens, width); kv: # (rows, source tokens, key + value)"""
    out: Tensor = _CrossAttention.apply(query.contiguous(), kv.contiguous(), lengths, shape, dropout)  # type: ignore[no-untyped-call]
    return out


def _split(qkv: Tensor, shape: HeadShape) -> tuple[Tensor, Tensor, Tensor]:
    kv_width = shape.kv_heads * shape.head_dim
    query, key, value = qkv.split([shape.heads * shape.head_dim, kv_width, kv_width], dim=2)
    return query, key, value
