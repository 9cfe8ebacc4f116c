"""Token embeddings and positions, written in Triton for a GPU: for training forward and backward, and for decoding.

The gradient of an embedding is the sum over all occurrences of its token. Occurrences are sorted by token and cut into
chunks, one for each program. A token that begins and ends within a chunk is finished there. One that continues beyond
its chunk leaves a partial sum, and a second kernel adds these up from chunk to chunk. So sums are in float32 and always
in the same order, and every gradient is read once. A tied embedding, which is the output projection too, first gets
its gradient from there; the sums are then added to that, in place.

Scaling an embedding, adding its position and dropout are one pass over memory. The backward pass draws the dropout
mask again.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from regard.kernels.cuda.add_norm import normalize_row
from regard.kernels.cuda.dropout_rng import keep_scale
from regard.kernels.params import Dropout

_CHUNK, _COLUMNS = 32, 1024
"""Occurrences, and at most so many columns, that a program sums."""


@triton.jit
def _store(pointers, total, mask, accumulate: tl.constexpr):
    if accumulate:
        total += tl.load(pointers, mask, 0.0).to(tl.float32)
    tl.store(pointers, total.to(pointers.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["count"])
def _sum_chunks(
    grads, tokens, order, out, heads, tails, count, width,
    accumulate: tl.constexpr, chunk: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < width
    first = program * chunk
    # Whether the token that is being summed begins in this chunk.
    begins = tl.load(tokens + first - 1, first > 0, -1) != tl.load(tokens + first)
    total = tl.zeros([block], tl.float32)
    for i in range(first, tl.minimum(first + chunk, count)):
        token = tl.load(tokens + i)
        row = tl.load(order + i)
        total += tl.load(grads + row * width + cols, mask, 0.0).to(tl.float32)
        ends = tl.load(tokens + i + 1, i + 1 < count, -1) != token
        if ends & begins:
            _store(out + token.to(tl.int64) * width + cols, total, mask, accumulate)
        elif ends | (i + 1 == first + chunk):
            tl.store(tl.where(begins, tails, heads) + program * width + cols, total, mask)
        total = tl.where(ends, 0.0, total)
        begins = begins | ends


@triton.jit(do_not_specialize=["count"])
def _sum_across_chunks(
    tokens, out, heads, tails, count, width, accumulate: tl.constexpr, chunk: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Finish the tokens that continue beyond the chunk in which they begin."""
    program = tl.program_id(0)
    cols = tl.program_id(1) * block + tl.arange(0, block)
    mask = cols < width
    first, after = program * chunk, (program + 1) * chunk
    token = tl.load(tokens + after, after < count, -1)
    continues = tl.load(tokens + after - 1, after < count, -2) == token
    if continues & (tl.load(tokens + first - 1, first > 0, -1) != token):
        total = tl.load(tails + program * width + cols, mask, 0.0)
        other = program + 1
        total += tl.load(heads + other * width + cols, mask, 0.0)
        while _continues(tokens, token, other, count, chunk):
            other += 1
            total += tl.load(heads + other * width + cols, mask, 0.0)
        _store(out + token.to(tl.int64) * width + cols, total, mask, accumulate)


@triton.jit
def _continues(tokens, token, chunk_number, count, chunk: tl.constexpr):
    """Whether a token continues beyond a chunk."""
    after = (chunk_number + 1) * chunk
    exists = after < count
    return (tl.load(tokens + after - 1, exists, -1) == token) & (tl.load(tokens + after, exists, -1) == token)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        context.save_for_backward(ids)
        context.vocab_size = len(weight)
        context.set_materialize_grads(False)
        return functional.embedding(ids, weight), weight

    @staticmethod
    @once_differentiable
    def backward(context: Any, grads: Tensor | None, weight_grad: Tensor | None) -> tuple[None, Tensor | None]:
        (ids,) = context.saved_tensors
        if grads is None:
            return None, weight_grad
        grads = grads.contiguous()
        width, count = grads.shape[-1], ids.numel()
        out = grads.new_zeros(context.vocab_size, width) if weight_grad is None else weight_grad.contiguous()
        tokens, order = ids.flatten().int().sort(stable=True)  # half as many passes as for int64
        chunks, block = triton.cdiv(count, _CHUNK), min(_COLUMNS, triton.next_power_of_2(width))
        heads, tails = torch.empty(2, chunks, width, device=grads.device)
        grid = (chunks, triton.cdiv(width, block))
        settings = {"chunk": _CHUNK, "block": block, "num_warps": max(1, min(4, block // 128))}
        settings["accumulate"] = weight_grad is not None
        _sum_chunks[grid](grads, tokens, order, out, heads, tails, count, width, **settings)
        _sum_across_chunks[grid](tokens, out, heads, tails, count, width, **settings)
        return None, out


def embedding(ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The embeddings of tokens, and the weight again for a tied output projection.

    The gradient of that output is overwritten with the sum of both gradients.
    ids: # (…); weight: # (vocab_size, width); gives (…, width)
    """
    outputs: tuple[Tensor, Tensor] = _Embedding.apply(ids, weight)  # type: ignore[no-untyped-call]
    return outputs


@triton.jit(do_not_specialize=["offset", "positions"])
def _scale_add_dropout(
    x, encoding, out, seed, offset, p, scale, positions, width,
    has_encoding: tl.constexpr, has_dropout: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, block)
    mask = cols < width
    y = tl.load(x + row * width + cols, mask, 0.0).to(tl.float32) * scale
    if has_encoding:
        y += tl.load(encoding + row % positions * width + cols, mask, 0.0).to(tl.float32)
    if has_dropout:
        y *= keep_scale(seed, offset, row * width + cols, p)
    tl.store(out + row * width + cols, y.to(out.dtype.element_ty), mask)


class _AddPositions(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, encoding: Tensor, scale: float, dropout: Dropout[Tensor] | None) -> Tensor:
        context.scale, context.dropout = scale, None if dropout is None else (dropout.p, dropout.offset)
        context.encoding = (encoding.shape, encoding.dtype)
        context.save_for_backward(*(() if dropout is None else (dropout.seed,)))
        return _run_scale_add_dropout(x.contiguous(), encoding.contiguous(), scale, dropout)

    @staticmethod
    @once_differentiable
    def backward(context: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        seeds = context.saved_tensors
        dropout = Dropout(context.dropout[0], seeds[0], context.dropout[1]) if seeds else None
        x_grad, dropped_grad = grad, grad
        if context.needs_input_grad[0] and (dropout is not None or context.scale != 1):
            x_grad = _run_scale_add_dropout(grad.contiguous(), None, context.scale, dropout)
        encoding_grad = None
        if context.needs_input_grad[1]:
            shape, dtype = context.encoding
            if dropout is not None:
                dropped_grad = _run_scale_add_dropout(grad.contiguous(), None, 1.0, dropout)
            encoding_grad = dropped_grad.sum_to_size(shape).to(dtype)
        return x_grad if context.needs_input_grad[0] else None, encoding_grad, None, None


def _run_scale_add_dropout(x: Tensor, encoding: Tensor | None, scale: float, dropout: Dropout[Tensor] | None) -> Tensor:
    width = x.shape[-1]
    rows, block = x.numel() // width, triton.next_power_of_2(width)
    out = torch.empty_like(x)
    p, seed, offset = dropout or (0.0, x, 0)
    _scale_add_dropout[(rows,)](
        x, x if encoding is None else encoding, out, seed, offset, p, scale,
        1 if encoding is None else encoding.numel() // width, width,
        has_encoding=encoding is not None, has_dropout=dropout is not None, block=block,
        num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
    return out


def add_positions(x: Tensor, encoding: Tensor, scale: float, dropout: Dropout[Tensor] | None) -> Tensor:
    """Embeddings times a scale, plus positional encodings, with dropout.

    x: # (rows, tokens, width); encoding: # (tokens, width) or (rows, tokens, width)
    """
    out: Tensor = _AddPositions.apply(x, encoding, scale, dropout)  # type: ignore[no-untyped-call]
    return out


@triton.jit
def _embed_decode(
    tokens, lengths, table, encodings, x, out, weight, bias, scale, eps, width, positions,
    pre_norm: tl.constexpr, centered: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, block)
    mask = cols < width
    token = tl.maximum(tl.load(tokens + row), 0)  # finished rows may hold -1
    position = tl.minimum(tl.load(lengths + row), positions - 1)
    embedded = tl.load(table + token * width + cols, mask, 0.0).to(tl.float32)
    embedded = embedded * scale + tl.load(encodings + position * width + cols, mask, 0.0)
    tl.store(x + row * width + cols, embedded, mask)
    if pre_norm:
        embedded = normalize_row(embedded, weight, bias, cols, mask, eps, width, centered)
    tl.store(out + row * width + cols, embedded.to(out.dtype.element_ty), mask)


def embed_decode(
    tokens: Tensor,
    lengths: Tensor,
    table: Tensor,
    encodings: Tensor,
    scale: float,
    norm: Any,
    x: Tensor,
    *,
    pre_norm: bool,
) -> Tensor:
    """The embeddings of new tokens, written to x in float32; returns the first layer's input.

    tokens, lengths: # (rows,); table: # (vocab_size, width); encodings: # (positions, width), float32
    x: # (rows, width); norm: weight, bias, eps and centered of the first layer's norm
    """
    rows, width = x.shape
    out = table.new_empty(rows, width)
    _embed_decode[(rows,)](
        tokens, lengths, table, encodings, x, out, norm.weight, norm.bias, scale, norm.eps, width, encodings.shape[0],
        pre_norm=pre_norm, centered=norm.centered, block=triton.next_power_of_2(width),
    )  # fmt: skip
    return out
