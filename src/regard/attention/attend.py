"""The entry point of attention.

`attend` computes softmax(similarity(query, key)) · value over the keys that a pattern allows, with one of five
backends:

- `reference`: written to be read, and the only one that returns the attention weights;
- `sdpa`: PyTorch's scaled_dot_product_attention, without a mask where none is needed, else with a dense one;
- `blockwise`: SDPA for one block of queries at a time over the range of its keys: for long sequences with a local
  pattern on a CPU, where FlexAttention has no gradients;
- `flex`: FlexAttention, which skips empty blocks of the mask, so that local patterns have linear cost;
- `matmul`: two matmuls with a softmax in between, without copies of keys and values: for heads that are too wide for
  CUDA's fused kernels, where SDPA would first copy them to float32.

All agree up to rounding, and in all of them a query that may attend to nothing gets zeros with finite gradients.
`select_backend` alone decides which is used.

A similarity transforms queries and keys so that their dot product, times `scale`, is the attention score before the
softmax. Backends therefore need not know which similarity they compute.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, get_args

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from regard.attention.mask import QUERY_BLOCK, Mask
from regard.attention.pattern import Full, Pattern
from regard.errors import UserError

Backend = Literal["reference", "sdpa", "blockwise", "flex", "matmul"]

FLEX_MIN_LENGTH = 2048
"""The shortest length for FlexAttention on a GPU: below it, the gain over a dense mask is not worth seconds of
compilation (benchmarks/attention.py measures both)."""


BLOCKWISE_MIN_LENGTH = 1024
"""The shortest length for blockwise attention, on other devices."""

MAX_FUSED_HEAD_DIM, MAX_SCORES = 256, 1 << 28
"""The widest heads that CUDA's fused kernels support, and how many scores may be materialized for wider ones."""


class Similarity(Protocol):
    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        """Transformed queries and keys, and a scale: the score is scale · (query · key)."""
        ...


@dataclass(frozen=True)
class ScaledDot:
    """q·k / √d_k (Vaswani et al. 2017, §3.2.1): the standard deviation of the scores is about 1 at any head_dim."""

    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        return query, key, query.shape[-1] ** -0.5


@dataclass(frozen=True)
class Dot:
    """q·k, times a constant `scale`."""

    scale: float = 1.0

    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        return query, key, self.scale


class Cosine:
    """The cosine similarity of query and key, times `scale`.

    Scores of at most 1 make a nearly uniform softmax, so a model learns a scale for each head (query–key normalization,
    Henry et al. 2020): a tensor that broadcasts with (batch, heads, query, head_dim).
    """

    def __init__(self, scale: float | Tensor = 1.0) -> None:
        self.scale = scale

    def __call__(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, float]:
        query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
        if isinstance(self.scale, Tensor):
            return query * self.scale.to(query.dtype), key, 1.0
        return query, key, self.scale


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern | Mask | None = None,
    *,
    start: int | Tensor | None = None,
    similarity: Similarity | None = None,
    dropout: float = 0.0,
    backend: Backend | None = None,
) -> Tensor:
    """Attention of every query over the keys that the pattern allows.

    query: # (batch, heads, queries, head_dim)
    key:   # (batch, kv_heads, keys, head_dim)        kv_heads divides heads: each is shared by a group of query heads
    value: # (batch, kv_heads, keys, value_head_dim)
    returns # (batch, heads, queries, value_head_dim)

    `pattern` is a `Pattern` (by default full attention) or a bound `Mask`, whose cached forms are then shared between
    calls. `start` is the position of the first query; see `Mask` for its default. `dropout` is the dropout probability
    of the attention weights; pass 0 outside training. `backend` overrides the automatic selection.
    """
    mask = _bind_mask(query, key, value, pattern, start)
    query, key, scale = (similarity or ScaledDot())(query, key)
    backend = backend or select_backend(query, value, mask, dropout)
    if backend == "sdpa":
        return _sdpa(query, key, value, mask, scale, dropout)
    if backend == "blockwise":
        return _blockwise(query, key, value, mask, scale, dropout)
    if backend == "flex":
        return _flex(query, key, value, mask, scale, dropout)
    if backend == "matmul":
        return _matmul(query, key, value, mask, scale, dropout)
    if backend == "reference":
        return _reference(query, key, value, mask, scale, dropout)[0]
    raise UserError(f"There is no attention backend {backend!r}; choose one of {', '.join(get_args(Backend))}.")


def attend_with_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    pattern: Pattern | Mask | None = None,
    *,
    start: int | Tensor | None = None,
    similarity: Similarity | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """`attend` with the reference backend, and its attention weights.  # (batch, heads, queries, keys)"""
    mask = _bind_mask(query, key, value, pattern, start)
    query, key, scale = (similarity or ScaledDot())(query, key)
    return _reference(query, key, value, mask, scale, dropout)


def select_backend(query: Tensor, value: Tensor, mask: Mask, dropout: float = 0.0) -> Backend:
    """The fastest backend that supports these inputs.

    FlexAttention pays off on a GPU for long sequences with a sparse pattern. It has no dropout, no float64, no heads
    narrower than 16, and on other devices no gradients and seconds of compilation for each shape. There, blockwise
    attention is used for long sequences if it skips at least half of the pairs. SDPA handles everything else, except
    heads that are too wide for its kernels on a GPU.
    """
    if query.is_cuda and _too_wide(query, value, mask):
        return "matmul"
    if mask.is_full or mask.is_causal:
        return "sdpa"
    length = min(mask.queries, mask.keys)
    wide = min(query.shape[-1], value.shape[-1]) >= 16
    if query.is_cuda:
        supported = wide and not dropout and query.dtype != torch.float64
        return "flex" if supported and length >= FLEX_MIN_LENGTH else "sdpa"
    return "blockwise" if length >= BLOCKWISE_MIN_LENGTH and mask.reachable_fraction() <= 0.5 else "sdpa"


def _reference(
    query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float
) -> tuple[Tensor, Tensor]:
    """Attention as the paper writes it (Vaswani et al. 2017, eq. 1), in float32 or better."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    precise = torch.promote_types(query.dtype, torch.float32)
    scores = scale * (query.to(precise) @ key.to(precise).mT)  # (batch, heads, query, key)
    if mask.is_full:
        weights = scores.softmax(dim=-1)
    else:
        allowed = mask.dense()
        # The lowest finite number instead of -inf: a fully masked row then has no 0/0, only weights to set to zero.
        scores = scores.masked_fill(~allowed, torch.finfo(precise).min)
        weights = scores.softmax(dim=-1).masked_fill(~allowed, 0.0)  # (batch, heads, query, key)
    mixed = functional.dropout(weights, dropout) @ value.to(precise)  # (batch, heads, query, value width)
    return mixed.to(query.dtype), weights


def _too_wide(query: Tensor, value: Tensor, mask: Mask) -> bool:
    """Whether the heads are too wide for fused CUDA kernels, and the scores few enough to be materialized."""
    needs_grad = torch.is_grad_enabled() and (query.requires_grad or value.requires_grad)
    scores = query.shape[0] * query.shape[1] * mask.queries * mask.keys
    return max(query.shape[-1], value.shape[-1]) > MAX_FUSED_HEAD_DIM and scores <= MAX_SCORES and not needs_grad


def _matmul(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float) -> Tensor:
    """Scores in float32 or better; keys and values are read in their own dtype, once for all heads of a group."""
    rows, kv_heads, keys, _ = key.shape
    group, queries = query.shape[1] // kv_heads, query.shape[2]
    scores = _wide(query.reshape(rows * kv_heads, group * queries, query.shape[3]), key.flatten(0, 1).mT)
    scores = scale * scores.view(rows, kv_heads, group, queries, keys)
    if not mask.is_full:
        allowed = mask.dense()[:, :, None]
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if not mask.is_full:
        weights = weights.masked_fill(~allowed, 0.0)
    weights = functional.dropout(weights, dropout).to(value.dtype)
    mixed = torch.bmm(weights.view(rows * kv_heads, group * queries, keys), value.flatten(0, 1))
    return mixed.view(rows, kv_heads * group, queries, value.shape[3])


def _wide(one: Tensor, other: Tensor) -> Tensor:
    """A batched matmul with an output of float32 or better."""
    if one.is_cuda and one.dtype in (torch.bfloat16, torch.float16):
        return torch.bmm(one, other, out_dtype=torch.float32)
    precise = torch.promote_types(one.dtype, torch.float32)
    return torch.bmm(one.to(precise), other.to(precise))


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    if mask.is_full or mask.is_causal:
        return functional.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=not mask.is_full, scale=scale, enable_gqa=grouped
        )
    # CUDA kernels differ in what they return for a fully masked row; on other devices it is zeros.
    allowed, empty = mask.nonempty_mask() if query.is_cuda else (mask.dense(), None)
    mixed = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=allowed, dropout_p=dropout, scale=scale, enable_gqa=grouped
    )
    return mixed if empty is None else mixed.masked_fill(empty, 0.0)


def _blockwise(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    # `split` instead of slices: the gradient of each slice would be as large as the whole tensor.
    key_blocks, value_blocks = key.split(QUERY_BLOCK, dim=2), value.split(QUERY_BLOCK, dim=2)
    mixed = []
    for part, (_, keys, allowed) in zip(query.split(QUERY_BLOCK, dim=2), mask.query_blocks(), strict=False):
        seen = slice(keys.start // QUERY_BLOCK, -(-keys.stop // QUERY_BLOCK))
        if seen.start >= seen.stop:
            mixed.append(part.new_zeros(*part.shape[:3], value.shape[3]))
            continue
        # As in `_sdpa`: on CUDA a fully masked query attends to all keys, and its output is set to zero.
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


def _flex(query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float, dropout: float) -> Tensor:
    if dropout > 0:
        raise UserError("The flex backend has no attention dropout; set dropout to 0 or use the sdpa backend.")
    if not (mask.queries and mask.keys):
        return query.new_zeros(*query.shape[:3], value.shape[3])  # there is no block
    if not query.is_cuda and any(tensor.requires_grad for tensor in (query, key, value)):
        if torch.is_grad_enabled():
            raise UserError(f"The flex backend has no gradients on {query.device.type}; use the sdpa backend or a GPU.")
        query, key, value = query.detach(), key.detach(), value.detach()  # it checks the tensors, not the grad mode
    run = _compiled_flex() if query.is_cuda else flex_attention
    grouped = query.shape[1] != key.shape[1]
    mixed: Tensor = run(query, key, value, block_mask=mask.block_mask(), scale=scale, enable_gqa=grouped)  # type: ignore[operator]
    return mixed


@lru_cache(maxsize=1)
def _compiled_flex() -> Callable[..., Tensor]:
    """FlexAttention is fast only when compiled, once for each pattern and shape.

    After 8 recompilations the compiler would silently fall back to the eager form, which materializes all scores.
    Therefore a higher limit, and an error (fullgraph) instead of the quadratic fallback.
    """
    settings = torch._dynamo.config
    settings.recompile_limit = max(settings.recompile_limit, 64)
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def _bind_mask(
    query: Tensor, key: Tensor, value: Tensor, pattern: Pattern | Mask | None, start: int | Tensor | None
) -> Mask:
    """Check that the shapes fit each other, and bind the pattern to them."""
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.dim() == key.dim() == value.dim() == 4:
        raise UserError(f"attend needs (batch, heads, length, head_dim) for query, key and value; found {shapes}.")
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        raise UserError(f"attend: query, key and value must have the same batch size; found {shapes}.")
    if key.shape[1:3] != value.shape[1:3]:
        raise UserError(f"attend: keys and values must have the same heads and length; found {shapes}.")
    if query.shape[3] != key.shape[3]:
        raise UserError(f"attend: queries and keys must have the same head_dim; found {shapes}.")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise UserError(f"attend: {key.shape[1]} KV heads do not divide {query.shape[1]} query heads; found {shapes}.")
    rows, queries, keys = query.shape[0], query.shape[2], key.shape[2]
    if not isinstance(pattern, Mask):
        return Mask(Full() if pattern is None else pattern, queries, keys, rows, start, query.device)
    if start is not None:
        raise UserError("attend: a Mask already has its start; leave start out, or pass a Pattern.")
    if (pattern.queries, pattern.keys) != (queries, keys) or (not pattern.same_for_all_rows and pattern.rows != rows):
        raise UserError(
            f"attend: the mask was made for {pattern.rows} rows, {pattern.queries} queries and {pattern.keys} keys; "
            f"found {shapes}."
        )
    return pattern
