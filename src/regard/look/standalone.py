"""The page as a standalone file: the built page with a trace embedded, which opens from disk and needs nothing else.

The page is `static/standalone.html`, with its styles and script inline and a content-security policy that allows them
by their hashes. Its one empty element receives what the server would have answered: the trace, its arrays, the model
diagram, some search nodes and some cells. The file refuses all other requests with an error message.
"""

import base64
import html
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import UserError
from regard.look.analysis.activations.activations import module_activations
from regard.look.analysis.attention_cell import compute_cells
from regard.look.analysis.attention_patterns import compare_patterns, model_patterns
from regard.look.analysis.attention_rollout import rollout_of_each_layer
from regard.look.analysis.embeddings.neighbors import nearest_neighbors
from regard.look.analysis.model_diagram import draw_model
from regard.look.analysis.patch_classes import patch_classes
from regard.look.analysis.search_recorder import StoppedError
from regard.look.models.images import TracedImageClassifier
from regard.look.positions.schemes import positions
from regard.look.schema import (
    Cell,
    CellRequest,
    Message,
    ModuleBox,
    Neighbors,
    NodeAttention,
    PatternsRequest,
    Side,
    Token,
)
from regard.look.trace import Trace, array_specs, can_roll_out

MAX_FILE_BYTES = 96 << 20
MAX_NOTEBOOK_BYTES = 16 << 20
"""Size limit of a page in a notebook, which stores it."""
CELL_BYTES, NODE_BYTES = 4 << 20, 1 << 20
"""Budgets for the cells and nodes in a file; a quarter of that in a notebook."""
NEIGHBOR_BYTES = 128 << 10
"""Budget for the nearest neighbors of the text's tokens."""
MAX_NODES = 100
POSITIONS = ((64, 64), (7, 4), (8, 4), (16, 4))
"""Lengths and widths whose positional encodings are embedded: the default, and those of the lecture's example."""
PATTERNS = PatternsRequest(length=1024, window=128, step=2, tokens=16, causal=False, own="")
"""The sequence over which attention patterns are embedded: what the page shows at first."""
_PLACEHOLDER = '<script type="application/json" id="embedded"></script>'
_DIGITS = 6


def standalone_page(
    trace: Trace, max_bytes: int = MAX_FILE_BYTES, should_stop: Callable[[], bool] = lambda: False
) -> str:
    """The page with a trace embedded. `should_stop` is asked between computations, of which there may be hundreds."""
    page = _built_page()
    divisor = 1 if max_bytes >= MAX_FILE_BYTES else 4
    small, without_beams = _shrink(trace, max_bytes)
    content = {
        "trace": _json(small.header.to_dict()),
        "diagram": _json(_diagram(trace).to_dict()),
        "arrays": _json({name: _base64(array) for name, array in small.arrays.items()}),
        "cells": _json_list(_within_budget(CELL_BYTES // divisor, _cells(trace), should_stop)),
        "nodes": _json_list(() if without_beams else _within_budget(NODE_BYTES // divisor, _nodes(trace), should_stop)),
        "positions": _positions(),
        "neighbors": _json_list(_within_budget(NEIGHBOR_BYTES // divisor, _neighbors(trace), should_stop)),
        "patterns": _patterns(),
        "rollout": _json({name: _base64(array) for name, array in _rollout(small, max_bytes).items()}),
    }
    if isinstance(trace.traced_model, TracedImageClassifier):
        content["patch_classes"] = _json(patch_classes(trace).to_dict())
    if trace.traced_model is not None:
        content["model_patterns"] = _json(model_patterns(trace).to_dict())
        content["activations"] = _json(module_activations(trace).to_dict())
    text = "{" + ",".join(f'"{name}":{value}' for name, value in content.items()) + "}"
    return page.replace(_PLACEHOLDER, _PLACEHOLDER.replace("></", f">{text.replace('<', chr(92) + 'u003c')}</"))


def notebook_frame(trace: Trace) -> str:
    """The page in an iframe for a notebook; an error message if it is too large."""
    try:
        page = standalone_page(trace, MAX_NOTEBOOK_BYTES)
    except UserError as error:
        return f"<p>{html.escape(str(error))}</p><pre>{html.escape(repr(trace))}</pre>"
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-downloads" title="Trace of a model" '
        'style="width: 100%; height: 720px; border: 1px solid #8888; border-radius: 6px"></iframe>'
    )


def _built_page() -> str:
    path = Path(str(resources.files("regard") / "look" / "static" / "standalone.html"))
    try:
        page = path.read_text(encoding="utf-8")
    except OSError:
        raise UserError(f"{path} is missing; build the page with `make page`.") from None
    if page.count(_PLACEHOLDER) != 1:
        raise UserError(f"{path} has no placeholder for a trace; build the page again with `make page`.")
    return page


def _shrink(trace: Trace, max_bytes: int) -> tuple[Trace, bool]:
    """The trace in float16, and without the attention of single beams if that is too large; whether it was removed."""
    arrays = {name: array.half() for name, array in trace.arrays.items()}
    budget = _array_bytes(max_bytes)
    remaining = {name: array for name, array in arrays.items() if not name.startswith("beam/")}
    without_beams = _nbytes(arrays) > budget and len(remaining) < len(arrays)
    arrays = remaining if without_beams else arrays
    if _nbytes(arrays) > budget:
        raise UserError(
            f"The page would contain {_nbytes(arrays) * 4 // 3 >> 20:,} MiB of attention, and the limit is "
            f"{max_bytes >> 20} MiB; use a shorter text, or save the trace instead."
        )
    nodes = trace.header.nodes
    if without_beams:
        nodes = [node.model_copy(update={"attention_index": -1}) for node in nodes]
    header = trace.header.model_copy(update={"id": "embedded", "arrays": array_specs(arrays), "nodes": nodes})
    return Trace(header, arrays), without_beams


def _rollout(trace: Trace, max_bytes: int) -> dict[str, Tensor]:
    """Attention rollout up to each layer, by attention type, if there is room for it.  # (layers, tokens, tokens)"""
    model = trace.header.model
    specs = [spec for spec in model.attention if can_roll_out(model, spec.attention_type)]
    sizes = [trace.arrays[f"attention/{spec.attention_type}"].nbytes // spec.heads for spec in specs]
    if sum(sizes) > _array_bytes(max_bytes) - _nbytes(trace.arrays):
        return {}
    arrays = {spec.attention_type: trace.arrays[f"attention/{spec.attention_type}"] for spec in specs}
    return {
        name: torch.stack([layer.half() for layer in rollout_of_each_layer(weights)])
        for name, weights in arrays.items()
    }


def _array_bytes(max_bytes: int) -> int:
    """The size of the arrays in a page of this size: base64 takes four characters for three bytes."""
    return (max_bytes - CELL_BYTES - NODE_BYTES) * 3 // 4


def _nbytes(arrays: dict[str, Tensor]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _base64(array: Tensor) -> str:
    return base64.b64encode(np.ascontiguousarray(array.numpy(), dtype="<f2").tobytes()).decode("ascii")


def _diagram(trace: Trace) -> ModuleBox:
    """The model diagram; an empty box if the trace has no model."""
    summary = trace.header.model
    if trace.traced_model is not None:
        return draw_model(trace.traced_model.model, summary.name)
    return ModuleBox(
        path="",
        label=summary.name,
        kind="model",
        parameters=[],
        parameter_count=summary.parameters,
        shape="",
        description="This page was written without the model, so there is no diagram of it.",
        children=[],
    )


def _nodes(trace: Trace) -> Iterator[NodeAttention]:
    """The attention of search nodes: those of the output first, then the other active ones, then pruned ones."""
    nodes = trace.header.nodes
    if trace.traced_model is None or not nodes:
        return
    order = sorted(nodes, key=lambda node: (not node.in_output, node.state == "pruned", node.id))
    for node_id in [-1, *(node.id for node in order[:MAX_NODES])]:
        try:
            yield trace.node(node_id)
        except UserError:  # the model has no position for it
            continue


def _neighbors(trace: Trace) -> Iterator[Neighbors]:
    """The nearest neighbors of each token of the text and the output, in the static embeddings."""
    if trace.traced_model is None:
        return
    sides: dict[Side, list[Token]] = {"source": trace.header.source, "target": trace.header.target}
    for side, tokens in sides.items():
        for token in dict.fromkeys(token.id for token in tokens):
            try:
                yield nearest_neighbors(trace.traced_model, side, token)
            except UserError:  # a model of images, or without embeddings
                return


def _cells(trace: Trace) -> Iterator[Cell]:
    """Cells of every head: the middle query first, then the queries around it."""
    specs = [spec for spec in reversed(trace.header.model.attention) if not spec.weights_only]
    if trace.traced_model is None or not specs:
        return
    lengths = {"encoder": len(trace.header.source), "decoder": len(trace.header.target)}
    lengths["cross"] = lengths["decoder"]
    for rank in range(max(lengths.values())):
        requests = [
            CellRequest(attention_type=spec.attention_type, layer=layer, head=head, query=query)
            for spec in specs
            if (query := _from_middle(rank, lengths[spec.attention_type])) is not None
            for layer in range(spec.layers)
            for head in range(spec.heads)
        ]
        yield from compute_cells(trace.traced_model, trace, requests)


def _from_middle(rank: int, length: int) -> int | None:
    """The middle position, then one to its right, one to its left, and so on."""
    position = length // 2 + (rank + 1) // 2 * (1 if rank % 2 else -1)
    return position if 0 <= position < length else None


def _within_budget(budget: int, messages: Iterable[Message], should_stop: Callable[[], bool]) -> Iterator[str]:
    """Messages as JSON, as long as the budget lasts."""
    for message in messages:
        if should_stop():
            raise StoppedError
        text = _json(message.to_dict())
        budget -= len(text)
        if budget < 0:
            return
        yield text


@cache
def _positions() -> str:
    return _json_list(_json(positions(length, width).to_dict()) for length, width in POSITIONS)


@cache
def _patterns() -> str:
    return _json_list([_json(compare_patterns(PATTERNS).to_dict())])


def _json_list(items: Iterable[str]) -> str:
    return f"[{','.join(items)}]"


def _json(value: Any) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _rounded(value: Any) -> Any:
    """The same data with floats rounded to a few significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value
