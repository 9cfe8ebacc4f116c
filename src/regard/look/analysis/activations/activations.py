"""The shapes, norms and values of what leaves each box of the model diagram, in one pass over input and output.

Of every tensor only its shape and the norms of its vectors are kept, so that a long text takes little memory; the
values of one box are computed when they are asked for.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import UserError
from regard.look.analysis.activations.box_costs import BoxCosts
from regard.look.analysis.activations.box_observer import observe_boxes
from regard.look.analysis.diagram_box import all_boxes
from regard.look.analysis.model_diagram import draw_model
from regard.look.models.traced_model import TracedModel
from regard.look.schema import ModuleActivation, ModuleActivations, ModuleValues, Side, Token
from regard.look.trace import Trace
from regard.model import CausalLM, Seq2SeqLM, SequenceConfig

MAX_ROWS, DIMENSIONS = 256, 16
"""Tokens and dimensions whose values are sent at a time."""


def module_activations(trace: Trace) -> ModuleActivations:
    """The shape, norm and cost of every box."""
    traced_model = trace.require_model()
    root = draw_model(traced_model.model, traced_model.name)
    recorder = _ShapesAndNorms()
    traced_model.observed_pass(trace, observe_boxes(traced_model.model, root, recorder))
    costs = BoxCosts(traced_model.model, root, *_lengths(trace, traced_model))
    boxes = []
    for box in all_boxes(root):
        flops, size = costs.by_path.get(box.path, (None, None))
        shape, norm = recorder.of(box.path)
        boxes.append(ModuleActivation(path=box.path, shape=shape, norm=norm, flops=flops, bytes=size))
    return ModuleActivations(boxes=boxes, flops=costs.flops, bytes=costs.bytes, notes=_notes(traced_model, boxes))


def module_values(trace: Trace, path: str, first: int = 0) -> ModuleValues:
    """The norms of what leaves one box, and its values from dimension `first` on."""
    traced_model = trace.require_model()
    root = draw_model(traced_model.model, traced_model.name)
    if path not in {box.path for box in all_boxes(root)}:
        raise UserError(f"The diagram of {traced_model.name} has no box {path[:100]!r}.")
    recorder = _Values(path)
    traced_model.observed_pass(trace, observe_boxes(traced_model.model, root, recorder))
    output = _joined(recorder.outputs)
    if output is None:
        raise UserError("The pass does not call this box as one module, so nothing can be read from it.")
    rows = output.reshape(-1, output.shape[-1])
    if not 0 <= first < rows.shape[1]:
        raise UserError(f"What leaves {path!r} has {rows.shape[1]} dimensions, counted from 0; found {first}.")
    shown = rows[:MAX_ROWS].double().cpu()
    side, tokens = _row_tokens(trace, traced_model, path, len(rows))
    return ModuleValues(
        path=path,
        side=side if tokens else None,
        tokens=tokens[:MAX_ROWS],
        rows=len(rows),
        norms=shown.norm(dim=-1).tolist(),
        width=rows.shape[1],
        first=first,
        values=shown[:, first : first + DIMENSIONS].tolist(),
        limit=float(shown.abs().amax()),
    )


class _ShapesAndNorms:
    """Keeps the shape of each tensor, and the norms of its vectors."""

    def __init__(self) -> None:
        self._shapes: dict[str, list[torch.Size]] = {}
        self._norms: dict[str, list[Tensor]] = {}

    def start(self, name: str) -> None:
        """Nothing: the time does not matter."""

    def leave(self, path: str, output: Tensor, since: str | None = None) -> None:
        self._shapes.setdefault(path, []).append(output.shape)
        if output.is_floating_point():
            self._norms.setdefault(path, []).append(output.detach().double().norm(dim=-1).flatten())

    def of(self, path: str) -> tuple[list[int] | None, float | None]:
        """The shape of all that left a box, and the mean norm."""
        shapes, norms = self._shapes.get(path), self._norms.get(path)
        if shapes is None or (shape := _joined([torch.empty(each, device="meta") for each in shapes])) is None:
            return None, None
        mean = None if norms is None or not shape.numel() else float(torch.cat(norms).mean())
        return list(shape.shape), mean


class _Values:
    """Keeps what leaves one box."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.outputs: list[Tensor] = []

    def start(self, name: str) -> None:
        """Nothing: the time does not matter."""

    def leave(self, path: str, output: Tensor, since: str | None = None) -> None:
        if path == self.path:
            self.outputs.append(output.detach())


def _joined(outputs: Sequence[Tensor]) -> Tensor | None:
    """What left a module in all calls: a recurrent one may be called for each token.  # (batch, tokens, width)"""
    if not outputs or any(each.dim() < 2 for each in outputs):
        return None
    if len(outputs) == 1:
        return outputs[0]
    rows = [each[:, None] if each.dim() == 2 else each for each in outputs]
    first = rows[0]
    if any((each.dim(), each.shape[0], each.shape[-1]) != (3, first.shape[0], first.shape[-1]) for each in rows):
        return None
    return torch.cat(rows, dim=1)


def _lengths(trace: Trace, traced_model: TracedModel) -> tuple[int, int]:
    """Source and target tokens, as the cost model counts them: what an encoder reads is its target."""
    source, target = len(trace.header.source), len(trace.header.target)
    model = traced_model.model
    if not isinstance(model, Seq2SeqLM | CausalLM):
        return 0, source
    limit = model.max_positions
    return source if isinstance(model, Seq2SeqLM) else 0, target if limit is None else min(target, limit)


def _row_tokens(trace: Trace, traced_model: TracedModel, path: str, rows: int) -> tuple[Side, list[Token]]:
    """The tokens that the rows belong to; none if there are more or fewer."""
    model, header = traced_model.model, trace.header
    side: Side = "target" if isinstance(model, CausalLM) else "source"
    if isinstance(model, Seq2SeqLM):
        side = "source" if path.startswith(("encoder", "source")) or path == "decoder.cross_kv" else "target"
    if side == "target":
        tokens = header.target[: _lengths(trace, traced_model)[1]]
    elif path in ("patch_embed", "embed_positions") and header.grid is not None:  # special tokens are prepended later
        tokens = header.source[-rows:]
    else:
        tokens = header.source
    return side, tokens if rows == len(tokens) else []


def _notes(traced_model: TracedModel, boxes: Sequence[ModuleActivation]) -> list[str]:
    notes = []
    if isinstance(getattr(traced_model.model, "config", None), SequenceConfig):
        notes.append("The cost model counts this model as a whole, so its boxes have no FLOPs and bytes of their own.")
    if not any(box.shape for box in boxes[1:]):
        notes.append("The pass calls none of these boxes as a module, so they have no live shapes and values.")
    return notes
