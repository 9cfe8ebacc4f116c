"""Attention weights as binary responses."""

from typing import NamedTuple

import numpy as np
import torch
from starlette.responses import Response

from regard.errors import UserError
from regard.look.trace import Trace, max_pool

MAX_UNPOOLED = 1024
"""Matrices with more rows or columns are max-pooled."""


class Rows(NamedTuple):
    """The rows of a matrix to send: all of them, a single one, or the mean of those from one on."""

    row: int | None = None
    mean_from: int | None = None


def attention_response(
    trace: Trace, attention_type: str, layer: str, head: str, pool: int | None, rows: Rows
) -> Response:
    """Attention weights in float16, row by row, max-pooled if there are many; of single rows, never pooled.

    `head` may be "mean", or "rollout" for attention rollout up to the layer.
    """
    recorded = trace.array(f"attention/{attention_type}")  # (layers, heads, queries, keys)
    count, columns = recorded.shape[-2:]
    start = _row_weights(rows, count)
    size = 1
    if start is None:
        if pool is not None and pool < 1:
            raise UserError(f"pool: expected a block size of 1 or more, found {pool}.")
        longest = max(count, columns)
        size = max(-(-longest // MAX_UNPOOLED), min(pool or 1, longest))
    if head == "rollout":
        number = _index(layer, "layer", recorded.shape[0])
        weights = trace.rollout(attention_type, number, start)  # type: ignore[arg-type]
    else:
        weights = _select(recorded, layer, "layer", 0)
        if rows.row is not None:
            weights = weights[..., rows.row : rows.row + 1, :]
        elif rows.mean_from is not None:
            weights = weights[..., rows.mean_from :, :].float().mean(dim=-2, keepdim=True)
        head_dimension = 1 if layer == "all" else 0
        weights = _mean(weights, head_dimension) if head == "mean" else _select(weights, head, "head", head_dimension)
    values = np.ascontiguousarray(max_pool(weights.to(recorded.dtype), size).numpy(), dtype="<f2")
    headers = {
        "x-rows": str(values.shape[-2]),
        "x-columns": str(values.shape[-1]),
        "x-pooled": str(size),
        "cache-control": "private, max-age=3600",
    }
    return Response(values.tobytes(), headers=headers, media_type="application/octet-stream")


def _row_weights(rows: Rows, count: int) -> torch.Tensor | None:
    """The weights of all rows in what is sent; None if all of them are sent.  # (1, rows)"""
    for name, row in (("row", rows.row), ("row to start from", rows.mean_from)):
        if row is not None and not 0 <= row < count:
            raise UserError(f"There is no {name} {row}; {count} rows are counted from 0.")
    weights = torch.zeros(1, count)
    if rows.row is not None:
        weights[0, rows.row] = 1
    elif rows.mean_from is not None:
        weights[0, rows.mean_from :] = 1 / (count - rows.mean_from)
    else:
        return None
    return weights


def _mean(weights: torch.Tensor, dimension: int) -> torch.Tensor:
    """The mean over a dimension, one index at a time: a float32 copy of everything would be large."""
    total = torch.zeros_like(weights.select(dimension, 0), dtype=torch.float32)
    for part in weights.unbind(dimension):
        total += part
    return (total / weights.shape[dimension]).to(weights.dtype)


def _select(weights: torch.Tensor, index: str, name: str, dimension: int) -> torch.Tensor:
    """One index of a dimension, or all of them for "all"."""
    return weights if index == "all" else weights.select(dimension, _index(index, name, weights.shape[dimension]))


def _index(text: str, name: str, size: int) -> int:
    if not text.isdecimal() or len(text) > len(str(size)) or int(text) >= size:
        raise UserError(f"There is no {name} {text[:20]!r}; expected 0 to {size - 1}, or 'all'.")
    return int(text)
