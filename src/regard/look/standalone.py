"""The page as a standalone file: the built page with a trace embedded, which opens from disk and needs nothing else.

The page is `static/standalone.html`, with its styles and script inline and a content-security policy that allows them
by their hashes. Its one empty element receives what the server would have answered: the trace, its arrays, the model
diagram, some search nodes, and the vectors from which the page computes attention rows. The file refuses all other
requests with an error message.
"""

import base64
import html
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
from regard.look.analysis.attention_cell import attention_inputs
from regard.look.analysis.attention_patterns import compare_patterns, model_patterns
from regard.look.analysis.attention_rollout import rollout_of_each_layer
from regard.look.analysis.embeddings.neighbors import nearest_neighbors
from regard.look.analysis.model_diagram import draw_model
from regard.look.analysis.patch_classes import patch_classes
from regard.look.analysis.search_recorder import StoppedError
from regard.look.models.images import TracedImageClassifier
from regard.look.positions.schemes import positions
from regard.look.schema import (
    AttentionInputs,
    Message,
    ModuleBox,
    Neighbors,
    NodeAttention,
    PatternsRequest,
    Side,
    Token,
)
from regard.look.standalone_data import PackedData
from regard.look.trace import Trace, array_specs, can_roll_out

MAX_FILE_BYTES = 96 << 20
MAX_NOTEBOOK_BYTES = 16 << 20
"""Size limit of a page in a notebook, which stores it."""
HEAD_BYTES, NODE_BYTES = 4 << 20, 1 << 20
"""Budgets for the vectors of heads and the nodes in a file, before compression; a quarter of that in a notebook."""
NEIGHBOR_BYTES = 128 << 10
"""Budget for the nearest neighbors of the text's tokens."""
MAX_NODES = 100
POSITIONS = ((64, 64), (7, 4), (8, 4), (16, 4))
"""Lengths and widths whose positional encodings are embedded: the default, and those of the lecture's example."""
PATTERNS = PatternsRequest(length=1024, window=128, step=2, tokens=16, causal=False, own="")
"""The sequence over which attention patterns are embedded: what the page shows at first."""
_PLACEHOLDER = '<script type="application/json" id="embedded"></script>'


def standalone_page(
    trace: Trace, max_bytes: int = MAX_FILE_BYTES, should_stop: Callable[[], bool] = lambda: False
) -> str:
    """The page with a trace embedded. `should_stop` is asked between computations, of which there may be hundreds."""
    page = _built_page()
    divisor = 1 if max_bytes >= MAX_FILE_BYTES else 4
    small, without_beams = _shrink(trace, max_bytes)
    data = PackedData()

    def add_within_budget(name: str, messages: Iterable[Message], budget: int) -> None:
        data.start_list(name)
        for message in messages:
            if should_stop():
                raise StoppedError
            budget = data.append(name, message.to_dict(), budget)
            if budget < 0:
                return

    data.set("trace", small.header.to_dict())
    data.set("diagram", _diagram(trace).to_dict())
    data.set("arrays", {name: _base64(array) for name, array in small.arrays.items()})
    add_within_budget("attention_inputs", _attention_inputs(trace), HEAD_BYTES // divisor)
    add_within_budget("nodes", () if without_beams else _nodes(trace), NODE_BYTES // divisor)
    data.set("positions", _positions())
    add_within_budget("neighbors", _neighbors(trace), NEIGHBOR_BYTES // divisor)
    data.set("patterns", _patterns())
    data.set("rollout", {name: _base64(array) for name, array in _rollout(small, max_bytes).items()})
    if isinstance(trace.traced_model, TracedImageClassifier):
        data.set("patch_classes", patch_classes(trace).to_dict())
    if trace.traced_model is not None:
        data.set("model_patterns", model_patterns(trace).to_dict())
        data.set("activations", module_activations(trace).to_dict())
    return page.replace(_PLACEHOLDER, _PLACEHOLDER.replace("></", f">{data.to_json()}</"))


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
    return (max_bytes - HEAD_BYTES - NODE_BYTES) * 3 // 4


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


def _attention_inputs(trace: Trace) -> Iterator[AttentionInputs]:
    """What the rows of every head are computed from; those of the attention types that come last first."""
    heads = [
        (spec.attention_type, layer, head)
        for spec in reversed(trace.header.model.attention)
        if not spec.weights_only
        for layer in range(spec.layers)
        for head in range(spec.heads)
    ]
    if trace.traced_model is not None and heads:
        yield from attention_inputs(trace.traced_model, trace, heads)


@cache
def _positions() -> list[dict[str, Any]]:
    return [positions(length, width).to_dict() for length, width in POSITIONS]


@cache
def _patterns() -> list[dict[str, Any]]:
    return [compare_patterns(PATTERNS).to_dict()]
