"""The computation behind one attention row: query, keys, values, scores, softmax and output, with the model's numbers.

The vectors are those that are actually compared: queries and keys after rotary embedding, keys and values projected
from a latent, a key head shared by several query heads; for cosine similarity, unit vectors with the learned scale.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from regard.attention.attend import Cosine
from regard.attention.mask import Mask
from regard.attention.multi_head import Attention
from regard.errors import UserError
from regard.look.analysis.attention_maps import find_attention
from regard.look.models.traced_model import TracedModel
from regard.look.schema import AttentionInputs, AttentionType, Cell, CellRequest, CellWindow
from regard.look.trace import Trace

WINDOW = 64
"""The window around a query has at most so many queries and keys."""


def compute_cell(traced_model: TracedModel, trace: Trace, request: CellRequest) -> Cell:
    """The row of one query in one head, teacher-forced over a trace's output."""
    module = find_attention(traced_model.model, request.attention_type, request.layer, request.head)
    recorder = _InputRecorder({module})
    traced_model.forward_trace(trace, recorder)
    return _cell(request, module.kind, _head_vectors(module, request.head, *recorder.inputs[module]))


def attention_inputs(
    traced_model: TracedModel, trace: Trace, heads: Sequence[tuple[AttentionType, int, int]]
) -> Iterator[AttentionInputs]:
    """What every row of some heads (attention type, layer, head) is computed from, after a single forward pass."""
    modules = [find_attention(traced_model.model, *each) for each in heads]
    recorder = _InputRecorder(set(modules))
    traced_model.forward_trace(trace, recorder)
    for (attention_type, layer, head), module in zip(heads, modules, strict=True):
        vectors = _head_vectors(module, head, *recorder.inputs[module])
        yield AttentionInputs(
            attention_type=attention_type,
            layer=layer,
            head=head,
            scale=vectors.scale,
            similarity=module.kind,
            queries=vectors.query.tolist(),
            keys=vectors.key.tolist(),
            values=vectors.value.tolist(),
            allowed=None if vectors.allowed is None else vectors.allowed.int().tolist(),
        )


class _HeadVectors(NamedTuple):
    """The vectors of a head as they are compared, and the factor of their dot products."""

    query: Tensor  # (queries, head_dim)
    key: Tensor  # (keys, head_dim)
    value: Tensor  # (keys, value_head_dim)
    allowed: Tensor | None  # (queries, keys)
    scale: float


class _InputRecorder:
    """An attention observer that keeps the queries, keys, values and mask of some modules."""

    def __init__(self, modules: Collection[Attention]) -> None:
        self.modules = modules
        self.inputs: dict[Attention, tuple[Tensor, Tensor, Tensor, Tensor | None]] = {}

    def __call__(self, module: nn.Module, weights: Tensor) -> None: ...

    def on_inputs(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> None:
        if not isinstance(module, Attention) or module not in self.modules:
            return
        dtype = torch.promote_types(query.dtype, torch.float32)
        vectors = (tensor[0].detach().to(device="cpu", dtype=dtype) for tensor in (query, key, value))
        size = (query.shape[2], key.shape[2])
        allowed = None if mask.is_full else mask.dense()[0, 0].expand(size).cpu()
        self.inputs[module] = (*vectors, allowed)  # type: ignore[assignment]


def _head_vectors(
    attention: Attention, head: int, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None
) -> _HeadVectors:
    """query: # (heads, queries, head_dim); key, value: # (kv_heads, keys, head_dim); allowed: # (queries, keys)"""
    kv_head = head * key.shape[0] // query.shape[0]
    similarity = attention.similarity()
    if isinstance(similarity, Cosine) and isinstance(similarity.scale, Tensor):
        scale = float(similarity.scale[head].detach())
        query, key = functional.normalize(query, dim=-1), functional.normalize(key, dim=-1)
    else:
        query, key, scale = similarity(query, key)
    return _HeadVectors(query[head], key[kv_head], value[kv_head], allowed, scale)


def _cell(request: CellRequest, similarity: str, vectors: _HeadVectors) -> Cell:
    position = request.query
    query, key, value, allowed, scale = vectors
    if position >= len(query):
        raise UserError(f"There is no token {position}; {len(query)} tokens are counted from 0.")
    scores = query @ key.mT  # (queries, keys)
    scaled = scale * scores
    visible = torch.ones_like(scaled, dtype=torch.bool) if allowed is None else allowed
    weights = scaled.masked_fill(~visible, torch.finfo(scaled.dtype).min).softmax(dim=-1).masked_fill(~visible, 0.0)
    first_query = _window_start(position, len(scaled))
    first_key = _window_start(min(position, scaled.shape[1] - 1), scaled.shape[1])
    window = slice(first_query, first_query + WINDOW), slice(first_key, first_key + WINDOW)
    return Cell(
        request=request,
        scale=scale,
        similarity=similarity,
        query=query[position].tolist(),
        keys=key.tolist(),
        values=value.tolist(),
        scores=scores[position].tolist(),
        scaled_scores=scaled[position].tolist(),
        masked_scores=_masked(scaled[position].tolist(), visible[position].tolist()),
        weights=weights[position].tolist(),
        output=(weights[position] @ value).tolist(),
        window=CellWindow(
            first_query=first_query,
            first_key=first_key,
            scaled_scores=scaled[window].tolist(),
            masked_scores=list(map(_masked, scaled[window].tolist(), visible[window].tolist())),
            weights=weights[window].tolist(),
        ),
    )


def _masked(scores: Sequence[float], visible: Sequence[bool]) -> list[float | None]:
    return [score if shown else None for score, shown in zip(scores, visible, strict=True)]


def _window_start(center: int, length: int) -> int:
    """The first position of a window of `WINDOW` positions around the center."""
    return max(0, min(center - WINDOW // 2, length - WINDOW))
