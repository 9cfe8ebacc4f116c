"""The whole page as one file: the built page with a trace in it, which opens from disk and needs nothing else.

The page is `static/standalone.html`, with its styles and its script inside and a content-security policy that knows
them by their hashes. Into its one empty element goes what the server would have answered: the trace, its arrays, the
drawn stack, some nodes of the search and some cells. All else a file refuses with a sentence.
"""

import base64
import html
import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from regard.errors import UserError
from regard.look.cell import open_cells
from regard.look.parts import parts_of
from regard.look.positions import positions
from regard.look.trace import Trace, facts_of_arrays
from regard.look.wire import Cell, CellRequest, NodeAttention, Part, Shape

LARGEST = 96 << 20
"""Bytes of a file."""
LARGEST_SHOWN = 16 << 20
"""Bytes of what is shown in a notebook, which keeps it."""
CELLS, NODES = 4 << 20, 1 << 20
"""Bytes of cells, and of nodes, that go with a trace in a file; a quarter of it in a notebook."""
MOST_NODES = 100
POSITIONS = ((64, 64), (7, 4), (8, 4), (16, 4))
"""Lengths and widths whose tables go with a file: the usual one, and those of the slide's example."""
_PLACE = '<script type="application/json" id="embedded"></script>'
_DIGITS = 6


def standalone(trace: Trace, largest: int = LARGEST) -> str:
    """The page with a trace in it."""
    page = _page()
    share = 1 if largest >= LARGEST else 4
    small, left_out = _fitting(trace, largest)
    content = {
        "trace": _written(small.header.plain()),
        "parts": _written(_parts(trace).plain()),
        "arrays": _written({name: _packed(array) for name, array in small.arrays.items()}),
        "cells": _list(_within(CELLS // share, _cells(trace))),
        "nodes": _list(() if left_out else _within(NODES // share, _nodes(trace))),
        "positions": _positions(),
    }
    text = "{" + ",".join(f'"{name}":{written}' for name, written in content.items()) + "}"
    return page.replace(_PLACE, _PLACE.replace("></", f">{text.replace('<', chr(92) + 'u003c')}</"))


def in_notebook(trace: Trace) -> str:
    """The page in a frame of its own, for a notebook; a sentence where that cannot be."""
    try:
        page = standalone(trace, LARGEST_SHOWN)
    except UserError as error:
        return f"<p>{html.escape(str(error))}</p><pre>{html.escape(repr(trace))}</pre>"
    return (
        f'<iframe srcdoc="{html.escape(page)}" sandbox="allow-scripts allow-downloads" title="A model at work" '
        'style="width: 100%; height: 720px; border: 1px solid #8888; border-radius: 6px"></iframe>'
    )


def _page() -> str:
    place = Path(str(resources.files("regard") / "look" / "static" / "standalone.html"))
    try:
        page = place.read_text(encoding="utf-8")
    except OSError:
        raise UserError("The page was not built, so there is nothing to put a trace into; run `make page`.") from None
    if page.count(_PLACE) != 1:
        raise UserError(f"{place} has no place for a trace; build it again with `make page`.")
    return page


def _fitting(trace: Trace, largest: int) -> tuple[Trace, bool]:
    """The trace as a file can carry it: in 16 bits, and without what single beams saw where that is too much."""
    arrays = {name: array.half() for name, array in trace.arrays.items()}
    room = (largest - CELLS - NODES) * 3 // 4  # base64 takes four signs for three bytes
    without = {name: array for name, array in arrays.items() if not name.startswith("beam/")}
    left_out = _size(arrays) > room and len(without) < len(arrays)
    arrays = without if left_out else arrays
    if _size(arrays) > room:
        raise UserError(
            f"The page would have {_size(arrays) * 4 // 3 >> 20:,} MiB of attention in it, and at most "
            f"{largest >> 20} MiB are written; give a shorter text, or save the trace to a file instead."
        )
    nodes = trace.header.nodes
    if left_out:
        nodes = [node.model_copy(update={"attention": -1}) for node in nodes]
    header = trace.header.model_copy(update={"id": "embedded", "arrays": facts_of_arrays(arrays), "nodes": nodes})
    return Trace(header, arrays), left_out


def _size(arrays: dict[str, Tensor]) -> int:
    return sum(array.nbytes for array in arrays.values())


def _packed(array: Tensor) -> str:
    return base64.b64encode(np.ascontiguousarray(array.numpy(), dtype="<f2").tobytes()).decode("ascii")


def _parts(trace: Trace) -> Part:
    """The drawn stack; an empty one where the model is not at hand."""
    name = trace.header.model.name
    if trace.subject is not None:
        return parts_of(trace.subject.model, name)
    about = "The model was not at hand when this page was written, so it cannot be drawn."
    count = trace.header.model.parameters
    return Part(path="", label=name, kind="model", parameters=[], count=count, shape="", about=about, parts=[])


def _nodes(trace: Trace) -> Iterator[NodeAttention]:
    """What is behind the nodes of the search: first those of the answer, then those that went on, then others."""
    nodes = trace.header.nodes
    if trace.subject is None or not nodes:
        return
    order = sorted(nodes, key=lambda node: (not node.won, node.state == "pruned", node.id))
    for number in [-1, *(node.id for node in order[:MOST_NODES])]:
        try:
            yield trace.node(number)
        except UserError:  # the model has no position for it
            continue


def _cells(trace: Trace) -> Iterator[Cell]:
    """Cells of every head: of its middle query first, then of those around it."""
    if trace.subject is None:
        return
    sizes = {"encoder": len(trace.header.source), "decoder": len(trace.header.target)}
    sizes["cross"] = sizes["decoder"]
    turns = max(sizes.values())
    for turn in range(turns):
        wanted = [
            CellRequest(side=facts.side, layer=layer, head=head, query=query)
            for facts in reversed(trace.header.model.attention)
            if (query := _around(turn, sizes[facts.side])) is not None
            for layer in range(facts.layers)
            for head in range(facts.heads)
        ]
        yield from open_cells(trace.subject, trace, wanted)


def _around(turn: int, size: int) -> int | None:
    """The middle, then one to its right, one to its left, and so on."""
    place = size // 2 + (turn + 1) // 2 * (1 if turn % 2 else -1)
    return place if 0 <= place < size else None


def _within(room: int, items: Iterable[Shape]) -> Iterator[str]:
    """Items as JSON, as long as there is room for it."""
    for item in items:
        written = _written(item.plain())
        room -= len(written)
        if room < 0:
            return
        yield written


@cache
def _positions() -> str:
    return _list(_written(positions(length, width).plain()) for length, width in POSITIONS)


def _list(items: Iterable[str]) -> str:
    return f"[{','.join(items)}]"


def _written(value: Any) -> str:
    return json.dumps(_rounded(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _rounded(value: Any) -> Any:
    """Numbers with as many digits as they have a use for."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return value
