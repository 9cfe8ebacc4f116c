"""One cell opened: a query, the keys it is compared with, and the values that are mixed, with the real numbers.

What is shown is what is compared: queries and keys turned by rotary positions, keys and values made of a latent, a key
head shared by several query heads, and where cosines are compared vectors of length 1 and the scale that was learned.
"""

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from regard.attention.heads import Attention
from regard.attention.scope import Scope
from regard.attention.similarity import Cosine
from regard.errors import UserError
from regard.look.attentions import attention_at
from regard.look.subject import Subject
from regard.look.trace import Trace
from regard.look.wire import Cell, CellRequest, Square

SIDE = 64
"""The square around a query has at most so many queries and keys."""


class _Opened:
    """A watch that keeps what some attentions were given, by the attention."""

    def __init__(self, wanted: Collection[Attention]) -> None:
        self.wanted = wanted
        self.given: dict[Attention, tuple[Tensor, Tensor, Tensor, Tensor | None]] = {}

    def __call__(self, module: nn.Module, weights: Tensor) -> None: ...

    def inside(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, scope: Scope) -> None:
        if not isinstance(module, Attention) or module not in self.wanted:
            return
        precise = torch.promote_types(query.dtype, torch.float32)
        parts = (one[0].detach().to(device="cpu", dtype=precise) for one in (query, key, value))
        size = (query.shape[2], key.shape[2])
        allowed = None if scope.everything else scope.mask()[0, 0].expand(size).cpu()
        self.given[module] = (*parts, allowed)  # type: ignore[assignment]


def open_cell(subject: Subject, trace: Trace, request: CellRequest) -> Cell:
    """The row of one query in one head of one attention, over the answer of a trace."""
    return open_cells(subject, trace, [request])[0]


def open_cells(subject: Subject, trace: Trace, requests: Sequence[CellRequest]) -> list[Cell]:
    """Several cells, seen in one pass."""
    attentions = [attention_at(subject.model, one.side, one.layer, one.head) for one in requests]
    opened = _Opened(set(attentions))
    subject.forced(trace, opened)
    return [
        _cell(one, attention, *opened.given[attention]) for one, attention in zip(requests, attentions, strict=True)
    ]


def _cell(
    request: CellRequest, attention: Attention, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None
) -> Cell:
    """query: # (heads, queries, width); key, value: # (key heads, keys, width); allowed: # (queries, keys)"""
    at, head = request.query, request.head
    if at >= query.shape[1]:
        raise UserError(f"There is no token {at}; {query.shape[1]} tokens count from 0.")
    shared = head * key.shape[0] // query.shape[0]
    similarity = attention.similarity()
    if isinstance(similarity, Cosine) and isinstance(similarity.scale, Tensor):
        scale = float(similarity.scale[head].detach())
        query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
    else:
        query, key, scale = similarity(query, key)
    query, key, value = query[head], key[shared], value[shared]  # (queries or keys, width)
    products = query @ key.mT  # (queries, keys)
    scaled = scale * products
    seen = torch.ones_like(scaled, dtype=torch.bool) if allowed is None else allowed
    weights = scaled.masked_fill(~seen, torch.finfo(scaled.dtype).min).softmax(dim=-1).masked_fill(~seen, 0.0)
    first_query, first_key = _first(at, len(scaled)), _first(min(at, scaled.shape[1] - 1), scaled.shape[1])
    around = slice(first_query, first_query + SIDE), slice(first_key, first_key + SIDE)
    return Cell(
        request=request,
        scale=scale,
        similarity=attention.kind,
        query=query[at].tolist(),
        keys=key.tolist(),
        values=value.tolist(),
        products=products[at].tolist(),
        scaled=scaled[at].tolist(),
        masked=_masked(scaled[at].tolist(), seen[at].tolist()),
        weights=weights[at].tolist(),
        result=(weights[at] @ value).tolist(),
        square=Square(
            first_query=first_query,
            first_key=first_key,
            scores=scaled[around].tolist(),
            masked=[_masked(*row) for row in zip(scaled[around].tolist(), seen[around].tolist(), strict=True)],
            weights=weights[around].tolist(),
        ),
    )


def _masked(scores: Sequence[float], allowed: Sequence[bool]) -> list[float | None]:
    return [score if seen else None for score, seen in zip(scores, allowed, strict=True)]


def _first(middle: int, length: int) -> int:
    """Where a stretch of `SIDE` around the middle begins."""
    return max(0, min(middle - SIDE // 2, length - SIDE))
