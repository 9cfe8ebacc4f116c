"""Attention weights as binary responses."""

import numpy as np
import torch
from starlette.responses import Response

from regard.errors import UserError
from regard.look.trace import max_pool

MAX_UNPOOLED = 1024
"""Matrices with more rows or columns are max-pooled."""


def attention_response(weights: torch.Tensor, layer: str, head: str, pool: int | None, row: int | None) -> Response:
    """Attention weights in float16, row by row, max-pooled if there are many.

    weights: # (layers, heads, queries, keys)
    """
    rows, columns = weights.shape[-2:]
    size = 1
    if row is not None:
        if not 0 <= row < rows:
            raise UserError(f"There is no row {row}; {rows} rows are counted from 0.")
        weights = weights[..., row : row + 1, :]
    else:
        if pool is not None and pool < 1:
            raise UserError(f"pool: expected a block size of 1 or more, found {pool}.")
        longest = max(rows, columns)
        size = max(-(-longest // MAX_UNPOOLED), min(pool or 1, longest))
    weights = _select(weights, layer, "layer", 0)
    head_dimension = 1 if layer == "all" else 0
    weights = _mean(weights, head_dimension) if head == "mean" else _select(weights, head, "head", head_dimension)
    values = np.ascontiguousarray(max_pool(weights, size).numpy(), dtype="<f2")
    headers = {
        "x-rows": str(values.shape[-2]),
        "x-columns": str(values.shape[-1]),
        "x-pooled": str(size),
        "cache-control": "private, max-age=3600",
    }
    return Response(values.tobytes(), headers=headers, media_type="application/octet-stream")


def _mean(weights: torch.Tensor, dimension: int) -> torch.Tensor:
    """The mean over a dimension, one index at a time: a float32 copy of everything would be large."""
    total = torch.zeros_like(weights.select(dimension, 0), dtype=torch.float32)
    for part in weights.unbind(dimension):
        total += part
    return (total / weights.shape[dimension]).to(weights.dtype)


def _select(weights: torch.Tensor, index: str, name: str, dimension: int) -> torch.Tensor:
    """One index of a dimension, or all of them for "all"."""
    if index == "all":
        return weights
    size = weights.shape[dimension]
    if not index.isdecimal() or len(index) > len(str(size)) or int(index) >= size:
        raise UserError(f"There is no {name} {index[:20]!r}; expected 0 to {size - 1}, or 'all'.")
    return weights.select(dimension, int(index))
