"""The one door to attention.

`attend` computes softmax(similarity(query, key)) · value where a pattern allows it, by the fastest way that is right:

- `reference`: written to be read, and the only one that can show its weights;
- `sdpa`: PyTorch's fused kernels, with no mask where none is needed, else with a dense one;
- `strips`: the same for a strip of queries at a time, over the keys it can reach: long local attention where there is
  no FlexAttention for it, on a CPU and with gradients;
- `flex`: FlexAttention, which skips the blocks a pattern leaves empty, so that long local attention is linear;
- `products`: two products with a softmax between them, keys and values read as they lie: for heads wider than CUDA's
  fused kernels take, where SDPA would first make copies in float32.

They agree to rounding, and on every one of them a query that may see nothing gets zeros, with finite gradients.
Which is taken is decided in `choose` and nowhere else.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from regard.attention.pattern import Full, Pattern
from regard.attention.scope import SIDE, Scope
from regard.attention.similarity import ScaledDot, Similarity
from regard.errors import UserError

Path = Literal["reference", "sdpa", "strips", "flex", "products"]

FLEX_FROM = 2048
"""Shortest length at which FlexAttention is taken on a GPU: below it the gain over a dense mask is not worth seconds of
compiling (benchmarks/attention.py measures both)."""


STRIPS_FROM = 1024
"""Shortest length at which local attention is computed in strips off the GPU."""

WIDEST, MOST_SCORES = 256, 1 << 28
"""The widest heads that CUDA's fused kernels take, and how many scores may be held where they cannot be used."""


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern | Scope | None = None,
    *,
    start: int | Tensor | None = None,
    similarity: Similarity | None = None,
    dropout: float = 0.0,
    path: Path | None = None,
) -> Tensor:
    """Attention of every query over the keys its pattern allows.

    query: # (batch, heads, queries, width)
    key:   # (batch, key heads, keys, width)        key heads divide heads: each is shared by a group of query heads
    value: # (batch, key heads, keys, value width)
    returns # (batch, heads, queries, value width)

    `pattern` is a `Pattern` (everything, if not given), or a `Scope` already laid over this work, whose masks are then
    shared between calls. `start` is the position of the first query; see `Scope` for what it means when left out.
    `dropout` is the chance to drop a weight; pass 0 outside training. `path` forces one of the five ways.
    """
    scope = _scope(query, key, value, pattern, start)
    query, key, scale = (similarity or ScaledDot())(query, key)
    path = path or choose(query, value, scope, dropout)
    if path == "sdpa":
        return _sdpa(query, key, value, scope, scale, dropout)
    if path == "strips":
        return _in_strips(query, key, value, scope, scale, dropout)
    if path == "flex":
        return _flex(query, key, value, scope, scale, dropout)
    if path == "products":
        return _products(query, key, value, scope, scale, dropout)
    if path == "reference":
        return _reference(query, key, value, scope, scale, dropout)[0]
    raise UserError(f"There is no attention path {path!r}; choose one of {', '.join(get_args(Path))}.")


def attend_and_show(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern | Scope | None = None,
    *,
    start: int | Tensor | None = None,
    similarity: Similarity | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Like `attend` on the reference path, with the weights.  # (batch, heads, queries, keys)"""
    scope = _scope(query, key, value, pattern, start)
    query, key, scale = (similarity or ScaledDot())(query, key)
    return _reference(query, key, value, scope, scale, dropout)


def choose(query: Tensor, value: Tensor, scope: Scope, dropout: float = 0.0) -> Path:
    """The fastest way that is right for this work.

    FlexAttention pays on a GPU when the pattern leaves enough out of a long sequence. It has no dropout, no float64, no
    heads narrower than 16, and on other devices no gradients and a compile time of seconds for each shape. There a
    long sequence is cut into strips if that leaves out half of the work. SDPA does all the rest, but for heads too wide
    for its kernels on a GPU.
    """
    if query.is_cuda and _too_wide(query, value, scope):
        return "products"
    if scope.everything or scope.triangle:
        return "sdpa"
    length = min(scope.queries, scope.keys)
    wide = min(query.shape[-1], value.shape[-1]) >= 16
    if query.is_cuda:
        able = wide and not dropout and query.dtype != torch.float64
        return "flex" if able and length >= FLEX_FROM else "sdpa"
    return "strips" if length >= STRIPS_FROM and scope.share_in_strips() <= 0.5 else "sdpa"


def _reference(
    query: Tensor, key: Tensor, value: Tensor, scope: Scope, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attention as the paper writes it (Vaswani et al. 2017, eq. 1), in float32 or better."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    precise = torch.promote_types(query.dtype, torch.float32)
    scores = scale * (query.to(precise) @ key.to(precise).mT)  # (batch, heads, query, key)
    if scope.everything:
        weights = scores.softmax(dim=-1)
    else:
        allowed = scope.mask()
        # The lowest finite number instead of -inf: a row that sees nothing then has no 0/0, only weights to clear.
        scores = scores.masked_fill(~allowed, torch.finfo(precise).min)
        weights = scores.softmax(dim=-1).masked_fill(~allowed, 0.0)  # (batch, heads, query, key)
    mixed = functional.dropout(weights, dropout) @ value.to(precise)  # (batch, heads, query, value width)
    return mixed.to(query.dtype), weights


def _too_wide(query: Tensor, value: Tensor, scope: Scope) -> bool:
    """Whether work on a GPU has heads too wide for fused kernels, and few enough scores to be held."""
    learning = torch.is_grad_enabled() and (query.requires_grad or value.requires_grad)
    scores = query.shape[0] * query.shape[1] * scope.queries * scope.keys
    return max(query.shape[-1], value.shape[-1]) > WIDEST and scores <= MOST_SCORES and not learning


def _products(query: Tensor, key: Tensor, value: Tensor, scope: Scope, scale: float, dropout: float) -> Tensor:
    """Scores in float32 or better; keys and values are read in their own precision, once for all heads of a group."""
    rows, key_heads, keys, _ = key.shape
    group, queries = query.shape[1] // key_heads, query.shape[2]
    scores = _wide(query.reshape(rows * key_heads, group * queries, query.shape[3]), key.flatten(0, 1).mT)
    scores = scale * scores.view(rows, key_heads, group, queries, keys)
    if not scope.everything:
        allowed = scope.mask()[:, :, None]
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if not scope.everything:
        weights = weights.masked_fill(~allowed, 0.0)
    weights = functional.dropout(weights, dropout).to(value.dtype)
    mixed = torch.bmm(weights.view(rows * key_heads, group * queries, keys), value.flatten(0, 1))
    return mixed.view(rows, key_heads * group, queries, value.shape[3])


def _wide(one: Tensor, other: Tensor) -> Tensor:
    """Products of matrices, their sums as they come out in float32 at least."""
    if one.is_cuda and one.dtype in (torch.bfloat16, torch.float16):
        return torch.bmm(one, other, out_dtype=torch.float32)
    precise = torch.promote_types(one.dtype, torch.float32)
    return torch.bmm(one.to(precise), other.to(precise))


def _sdpa(query: Tensor, key: Tensor, value: Tensor, scope: Scope, scale: float, dropout: float) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    if scope.everything or scope.triangle:
        return functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=not scope.everything, scale=scale, enable_gqa=grouped
        )
    # CUDA kernels do not agree on what a row gives that may see nothing; elsewhere it gives zeros.
    allowed, empty = scope.open_mask() if query.is_cuda else (scope.mask(), None)
    mixed = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=allowed, dropout_p=dropout, scale=scale, enable_gqa=grouped
    )
    return mixed if empty is None else mixed.masked_fill(empty, 0.0)


def _in_strips(query: Tensor, key: Tensor, value: Tensor, scope: Scope, scale: float, dropout: float) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    # Blocks instead of slices: a slice's gradient is as large as the whole tensor, one for every strip.
    key_blocks, value_blocks = key.split(SIDE, dim=2), value.split(SIDE, dim=2)
    mixed = []
    for part, (_, keys, allowed) in zip(query.split(SIDE, dim=2), scope.strips(), strict=False):
        seen = slice(keys.start // SIDE, -(-keys.stop // SIDE))
        if seen.start >= seen.stop:
            mixed.append(part.new_zeros(*part.shape[:3], value.shape[3]))
            continue
        # As in `_sdpa`: where kernels do not agree on it, a query that may see nothing is let see all and cleared.
        empty = ~allowed.any(dim=-1, keepdim=True) if query.is_cuda else None
        strip = functional.scaled_dot_product_attention(
            part,
            torch.cat(key_blocks[seen], dim=2),
            torch.cat(value_blocks[seen], dim=2),
            attn_mask=allowed if empty is None else allowed | empty,
            dropout_p=dropout,
            scale=scale,
            enable_gqa=grouped,
        )
        mixed.append(strip if empty is None else strip.masked_fill(empty, 0.0))
    return torch.cat(mixed, dim=2) if mixed else query.new_zeros(*query.shape[:3], value.shape[3])


def _flex(query: Tensor, key: Tensor, value: Tensor, scope: Scope, scale: float, dropout: float) -> Tensor:
    if dropout > 0:
        raise UserError("The flex path has no dropout on attention weights; set it to 0 or take the sdpa path.")
    if not (scope.queries and scope.keys):
        return query.new_zeros(*query.shape[:3], value.shape[3])  # there is no block to look at
    if not query.is_cuda and any(tensor.requires_grad for tensor in (query, key, value)):
        if torch.is_grad_enabled():
            raise UserError(f"The flex path has no gradients on {query.device.type}; take the sdpa path or a GPU.")
        query, key, value = query.detach(), key.detach(), value.detach()  # it asks the tensors, not the mode
    run = _compiled_flex() if query.is_cuda else flex_attention
    grouped = query.shape[1] != key.shape[1]
    mixed: Tensor = run(query, key, value, block_mask=scope.block_mask(), scale=scale, enable_gqa=grouped)  # type: ignore[operator]
    return mixed


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., Tensor]:
    """FlexAttention is fast only when compiled, once for each pattern and shape.

    After 8 of them the compiler would give up and quietly run the form that builds every score. So: room for more, and
    an error (fullgraph) instead of a silent, quadratic fall-back.
    """
    settings = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, 64)
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def _scope(
    query: Tensor, key: Tensor, value: Tensor, pattern: Pattern | Scope | None, start: int | Tensor | None
) -> Scope:
    """Check that the shapes fit each other, and lay the pattern over them."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4:
        raise UserError(f"attend wants (batch, heads, length, width) for query, key and value; found {shapes}.")
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise UserError(f"attend: query, key and value differ in their number of rows; found {shapes}.")
    if key.shape[1:3] != value.shape[1:3]:
        raise UserError(f"attend: every key needs one value, in the same heads; found {shapes}.")
    if query.shape[3] != key.shape[3]:
        raise UserError(f"attend: queries and keys must have the same width to be compared; found {shapes}.")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise UserError(f"attend: {query.shape[1]} query heads cannot share {key.shape[1]} key heads evenly; {shapes}.")
    rows, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    if not isinstance(pattern, Scope):
        return Scope(Full() if pattern is None else pattern, queries, keys, rows, start, query.device)
    if start is not None:
        raise UserError("attend: the scope already says where its queries start; leave start out, or give a pattern.")
    if (pattern.queries, pattern.keys) != (queries, keys) or (not pattern.rows_alike and pattern.rows != rows):
        raise UserError(
            f"attend: the scope was laid over {pattern.rows} rows, {pattern.queries} queries and {pattern.keys} keys; "
            f"found {shapes}."
        )
    return pattern
