"""Attention over unpadded sequences for training on a CPU, compiled with numba: forward and backward.

The sequences of a batch are concatenated (`UnpaddedLayout`), and each attends to itself or to its source. All arrays
are contiguous float32; a token's heads lie side by side in its row, as linear layers leave them. The attention weights
of all pairs are stored for the backward pass, so this is for sequences of moderate length.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from regard.kernels.cpu.add_norm import dropout_args, random_bits
from regard.kernels.cpu.jit import jit_inline
from regard.kernels.cpu.linear import UnpaddedLayout
from regard.kernels.cpu.openmp import (
    ARGS,
    float32_arg,
    int64_vector,
    kernel_args,
    kernel_function,
    matrix,
    next_chunk,
    openmp_kernel,
    parallel_for,
    vector,
)
from regard.kernels.cpu.vector_math import exp
from regard.kernels.params import Dropout, HeadShape

_ZERO, _ONE, _MASKED = np.float32(0), np.float32(1), np.float32(-87)
_WEIGHTS_MULTIPLE = 1 << 16
"""The stored attention weights of a batch are allocated in multiples of this, so that few sizes occur."""


def self_attention(qkv: Tensor, layout: UnpaddedLayout, shape: HeadShape, dropout: Dropout[int] | None) -> Tensor:
    """Tokens attend to their own sequence.  qkv: # (tokens, query + key + value); gives (tokens, heads · head_dim)"""
    return cast(Tensor, _Attention.apply(qkv, None, layout, layout, shape, dropout))  # type: ignore[no-untyped-call]


def cross_attention(
    query: Tensor,
    kv: Tensor,
    layout: UnpaddedLayout,
    kv_layout: UnpaddedLayout,
    shape: HeadShape,
    dropout: Dropout[int] | None,
) -> Tensor:
    """Tokens attend to their source.  query: # (tokens, heads · head_dim); kv: # (source tokens, key + value)"""
    return cast(Tensor, _Attention.apply(query, kv, layout, kv_layout, shape, dropout))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """Without `kv`, keys and values follow the queries in the same rows."""

    @staticmethod
    def forward(
        context: Any,
        query: Tensor,
        kv: Tensor | None,
        layout: UnpaddedLayout,
        kv_layout: UnpaddedLayout,
        shape: HeadShape,
        dropout: Dropout[int] | None,
    ) -> Tensor:
        offsets = torch.zeros_like(layout.starts)
        torch.cumsum(layout.lengths * kv_layout.lengths * shape.heads, 0, out=offsets[1:])
        weights = torch.empty(-(-int(offsets[-1]) // _WEIGHTS_MULTIPLE) * _WEIGHTS_MULTIPLE)
        out = torch.empty(query.shape[0], shape.heads * shape.head_dim)
        out[layout.count :] = 0  # padding belongs to no sequence
        random = dropout_args(dropout)
        args = _attention_args(query, kv, layout, kv_layout, shape, offsets)
        parallel_for(attention_kernel, layout.batch, *args, weights, out, *random)
        context.save_for_backward(query, kv, weights, offsets)
        context.settings = (layout, kv_layout, shape, random[3])
        return out

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, kv, weights, offsets = context.saved_tensors
        layout, kv_layout, shape, keep_scale = context.settings
        query_grad = torch.empty_like(query)
        kv_grad = None if kv is None else torch.empty_like(kv)
        query_grad[layout.count :] = 0
        if kv_grad is not None:
            kv_grad[kv_layout.count :] = 0
        args = _attention_args(query, kv, layout, kv_layout, shape, offsets)
        key_value_grad = query_grad if kv_grad is None else kv_grad
        parallel_for(
            attention_backward_kernel, layout.batch, *args, weights, grad.contiguous(), keep_scale, query_grad,
            key_value_grad,
        )  # fmt: skip
        return query_grad, kv_grad, None, None, None, None


def _attention_args(
    query: Tensor,
    kv: Tensor | None,
    layout: UnpaddedLayout,
    kv_layout: UnpaddedLayout,
    shape: HeadShape,
    offsets: Tensor,
) -> tuple[Tensor | int, ...]:
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    key_column = width if kv is None else 0
    keys = query if kv is None else kv
    return (
        shape.heads, shape.heads // shape.kv_heads, shape.head_dim, shape.causal, query.shape[0], keys.shape[0],
        query.shape[1], keys.shape[1], query, keys, 0, key_column, key_column + kv_width,
        layout.starts, kv_layout.starts, offsets,
    )  # fmt: skip


@jit_inline
def _dot_rows(x: Any, rows: Any, stride: Any, count: Any, scale: Any, out: Any) -> None:
    """out[j] = scale · x · row j, which begins at address rows + j · stride"""
    size = x.shape[0]
    j = 0
    while j + 4 <= count:
        a, b = vector(rows, size), vector(rows + stride, size)
        c, d = vector(rows + 2 * stride, size), vector(rows + 3 * stride, size)
        rows += 4 * stride
        p, q, r, s = _ZERO, _ZERO, _ZERO, _ZERO
        for i in range(size):
            p += x[i] * a[i]
            q += x[i] * b[i]
            r += x[i] * c[i]
            s += x[i] * d[i]
        out[j], out[j + 1], out[j + 2], out[j + 3] = p * scale, q * scale, r * scale, s * scale
        j += 4
    while j < count:
        a = vector(rows, size)
        rows += stride
        p = _ZERO
        for i in range(size):
            p += x[i] * a[i]
        out[j] = p * scale
        j += 1


@jit_inline
def _add_weighted_rows(weights: Any, rows: Any, stride: Any, count: Any, out: Any) -> None:
    """out += Σ weights[j] · row j, which begins at address rows + j · stride"""
    size = out.shape[0]
    j = 0
    while j + 4 <= count:
        a, b = vector(rows, size), vector(rows + stride, size)
        c, d = vector(rows + 2 * stride, size), vector(rows + 3 * stride, size)
        rows += 4 * stride
        p, q, r, s = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for i in range(size):
            out[i] += p * a[i] + q * b[i] + r * c[i] + s * d[i]
        j += 4
    while j < count:
        a = vector(rows, size)
        rows += stride
        p = weights[j]
        for i in range(size):
            out[i] += p * a[i]
        j += 1


@jit_inline
def _softmax_rows(scores: Any, length: Any, keys: Any, causal: Any) -> None:
    """Softmax of each row, in place; all rows share one exp loop, so that it vectorizes for rows of few keys too."""
    for i in range(length):
        count = i + 1 if causal else keys
        row = scores[i * keys : i * keys + keys]
        maximum = row[0]
        for j in range(1, count):
            maximum = max(maximum, row[j])
        for j in range(count):
            row[j] -= maximum
        for j in range(count, keys):
            row[j] = _MASKED
    for n in range(length * keys):
        scores[n] = exp(scores[n]) if scores[n] > _MASKED else _ZERO
    for i in range(length):
        row = scores[i * keys : i * keys + keys]
        total = _ZERO
        for j in range(keys):
            total += row[j]
        total = _ONE / total
        for j in range(keys):
            row[j] *= total


@kernel_function
def _attention_sequence(args: Any, chunk: Any) -> None:
    heads, group, head_dim, causal = args[ARGS], args[ARGS + 1], args[ARGS + 2], args[ARGS + 3]
    batch, tokens = args[1], args[ARGS + 4]
    query_stride, key_stride = 4 * args[ARGS + 6], 4 * args[ARGS + 7]
    starts, key_starts = int64_vector(args[ARGS + 13], batch + 1), int64_vector(args[ARGS + 14], batch + 1)
    offsets = int64_vector(args[ARGS + 15], batch + 1)
    weights, out = vector(args[ARGS + 16], offsets[batch]), matrix(args[ARGS + 17], tokens, heads * head_dim)
    threshold, key0, key1 = np.uint32(args[ARGS + 18]), np.uint32(args[ARGS + 19]), np.uint32(args[ARGS + 20])
    keep_scale = float32_arg(args[ARGS + 21])
    scale = np.float32(1.0 / np.sqrt(head_dim))
    start, length = starts[chunk], starts[chunk + 1] - starts[chunk]
    keys = key_starts[chunk + 1] - key_starts[chunk]
    query = args[ARGS + 8] + start * query_stride + 4 * args[ARGS + 10]
    key = args[ARGS + 9] + key_starts[chunk] * key_stride + 4 * args[ARGS + 11]
    value = args[ARGS + 9] + key_starts[chunk] * key_stride + 4 * args[ARGS + 12]
    dropped = np.empty(length * keys, np.float32)
    for head in range(heads):
        first = offsets[chunk] + head * length * keys
        head_weights = weights[first : first + length * keys]
        kv_head = 4 * (head // group * head_dim)
        for i in range(length if keys > 0 else 0):
            query_row = vector(query + i * query_stride + 4 * head * head_dim, head_dim)
            row = head_weights[i * keys : i * keys + keys]
            _dot_rows(query_row, key + kv_head, key_stride, i + 1 if causal else keys, scale, row)
        if keys > 0:
            _softmax_rows(head_weights, length, keys, causal)
        if threshold > 0:
            # A dropped weight is stored with a minus sign, so that the mask need not be stored or drawn again.
            for n in range(length * keys):
                keep = random_bits(first + n, key0, key1) >= threshold
                dropped[n] = head_weights[n] * keep_scale if keep else _ZERO
                head_weights[n] = head_weights[n] if keep else -head_weights[n]
        else:
            for n in range(length * keys):
                dropped[n] = head_weights[n]
        for i in range(length):
            head_out = out[start + i, head * head_dim : head * head_dim + head_dim]
            for d in range(head_dim):
                head_out[d] = _ZERO
            count = min(i + 1, keys) if causal else keys
            _add_weighted_rows(dropped[i * keys : i * keys + keys], value + kv_head, key_stride, count, head_out)


@openmp_kernel
def attention_kernel(address: Any) -> None:
    """Arguments: heads, query heads per key head, head_dim, causal, query rows, key rows, width of a query row, width
    of a key row, queries, keys, first columns of queries, keys and values, starts of the sequences, starts of their
    keys, offsets of their weights, weights, out, threshold, keys (2), keep_scale. A chunk is a sequence."""
    args = kernel_args(address)
    chunk = next_chunk(address)
    while chunk < args[1]:
        _attention_sequence(args, chunk)
        chunk = next_chunk(address)


@kernel_function
def _attention_backward_sequence(args: Any, chunk: Any) -> None:
    heads, group, head_dim, causal = args[ARGS], args[ARGS + 1], args[ARGS + 2], args[ARGS + 3]
    batch, tokens, key_tokens = args[1], args[ARGS + 4], args[ARGS + 5]
    query_width, key_width = args[ARGS + 6], args[ARGS + 7]
    query_column, key_column, value_column = args[ARGS + 10], args[ARGS + 11], args[ARGS + 12]
    query_stride, key_stride, grad_stride = 4 * query_width, 4 * key_width, 4 * heads * head_dim
    starts, key_starts = int64_vector(args[ARGS + 13], batch + 1), int64_vector(args[ARGS + 14], batch + 1)
    offsets = int64_vector(args[ARGS + 15], batch + 1)
    weights, keep_scale = vector(args[ARGS + 16], offsets[batch]), float32_arg(args[ARGS + 18])
    query_grad = matrix(args[ARGS + 19], tokens, query_width)
    key_grad = matrix(args[ARGS + 20], key_tokens, key_width)
    scale = np.float32(1.0 / np.sqrt(head_dim))
    start, length = starts[chunk], starts[chunk + 1] - starts[chunk]
    key_start, keys = key_starts[chunk], key_starts[chunk + 1] - key_starts[chunk]
    query = args[ARGS + 8] + start * query_stride + 4 * query_column
    key = args[ARGS + 9] + key_start * key_stride + 4 * key_column
    value = args[ARGS + 9] + key_start * key_stride + 4 * value_column
    grad = args[ARGS + 17] + start * grad_stride
    score_grad_row = np.empty(keys, np.float32)
    dropped = np.empty((keys, length), np.float32)  # transposed, as the gradients of keys and values need them
    score_grad = np.empty((keys, length), np.float32)
    for head in range(heads):
        first = offsets[chunk] + head * length * keys
        q_head, kv_head = 4 * head * head_dim, 4 * (head // group * head_dim)
        for i in range(length):
            count = min(i + 1, keys) if causal else keys
            row = weights[first + i * keys : first + i * keys + keys]
            grad_row = vector(grad + i * grad_stride + q_head, head_dim)
            _dot_rows(grad_row, value + kv_head, key_stride, count, _ONE, score_grad_row)
            total = _ZERO
            for j in range(count):
                total += score_grad_row[j] * max(row[j], _ZERO)
            total *= keep_scale
            for j in range(count):
                weight = max(row[j], _ZERO) * keep_scale
                score = (weight * score_grad_row[j] - abs(row[j]) * total) * scale
                score_grad_row[j] = score
                dropped[j, i] = weight
                score_grad[j, i] = score
            query_grad_row = query_grad[
                start + i, query_column + head * head_dim : query_column + head * head_dim + head_dim
            ]
            for d in range(head_dim):
                query_grad_row[d] = _ZERO
            _add_weighted_rows(score_grad_row, key + kv_head, key_stride, count, query_grad_row)
        for j in range(keys):
            first_query = j if causal else 0
            column = head // group * head_dim
            key_grad_row = key_grad[key_start + j, key_column + column : key_column + column + head_dim]
            value_grad_row = key_grad[key_start + j, value_column + column : value_column + column + head_dim]
            if head % group == 0:
                for d in range(head_dim):
                    key_grad_row[d] = _ZERO
                    value_grad_row[d] = _ZERO
            count = length - first_query
            query_rows, grad_rows = (
                query + first_query * query_stride + q_head,
                grad + first_query * grad_stride + q_head,
            )
            _add_weighted_rows(score_grad[j, first_query:], query_rows, query_stride, count, key_grad_row)
            _add_weighted_rows(dropped[j, first_query:], grad_rows, grad_stride, count, value_grad_row)


@openmp_kernel
def attention_backward_kernel(address: Any) -> None:
    """Arguments: as `attention_kernel` up to the weights, then the gradient of the output, keep_scale, and the
    gradients of the query rows and of the key rows, which are written."""
    args = kernel_args(address)
    chunk = next_chunk(address)
    while chunk < args[1]:
        _attention_backward_sequence(args, chunk)
        chunk = next_chunk(address)
