"""A trace: everything recorded while a model processed one input. A header describes it; arrays hold the attention.

A trace is saved as one safetensors file with the header as JSON in its metadata. Nothing in it is ever executed. The
header has a format and a version; files of another version, damaged files and files too large to be a trace are each
refused with an error message.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from safetensors import SafetensorError
from safetensors.torch import save as save_to_bytes
from torch import Tensor

from regard.config import parse_json
from regard.errors import UserError
from regard.files import new_file
from regard.look import schema
from regard.look.schema import ArraySpec, AttentionType, CellRequest

if TYPE_CHECKING:
    from regard.look.models.traced_model import TracedModel

FORMAT: Literal["regard trace"] = "regard trace"
VERSION: Literal[1] = 1
MAX_BYTES = 1 << 30
"""Size limit of a trace's arrays. A file may be twice as large."""
_METADATA_KEY = "regard"
_QUOTED_CHARACTERS = 80
"""Characters of a text that `repr` shows."""
_DTYPE_NAMES: dict[torch.dtype, Any] = {torch.float16: "float16", torch.float32: "float32"}


class Trace:
    """Everything recorded while a model processed one input: `model.trace(text)`.

        trace = regard.load("en-tr").trace("The cat ate the mouse.", beam_size=4)
        trace.output                              # "Kedi fareyi yedi."
        trace.attention("cross", layer=0, head=2) # a tensor: target tokens × source tokens
        Path("cat.html").write_text(trace.html()) # the interactive page as one file; a notebook shows it in a frame

    `header` describes the model, the tokens, their probabilities and the search; `arrays` has the attention by name. A
    trace that was just recorded keeps its `traced_model` and can compute more with it: `node` and `cell`. A trace
    loaded from a file has none until one is assigned.
    """

    def __init__(
        self, header: schema.Trace, arrays: Mapping[str, Tensor], traced_model: "TracedModel | None" = None
    ) -> None:
        self.header, self.arrays, self.traced_model = header, dict(arrays), traced_model

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name} {tuple(array.shape)}" for name, array in self.arrays.items())
        return f"Trace({_short(self.text)} → {_short(self.output)}; {arrays})"

    @property
    def text(self) -> str:
        """The input."""
        return self.header.request.text

    @property
    def output(self) -> str:
        """The model's output as text."""
        return self.header.output

    def attention(self, attention_type: AttentionType, layer: int | None = None, head: int | None = None) -> Tensor:
        """Attention weights over the output in float32, of all layers and heads or of the selected ones.

        # (layers, heads, queries, keys), without the dimensions that were selected
        """
        weights = self.array(f"attention/{attention_type}")
        for name, index, size in (("layer", layer, weights.shape[0]), ("head", head, weights.shape[1])):
            if index is not None and not 0 <= index < size:
                raise UserError(f"{attention_type!r} has no {name} {index}: its {size} {name}s are counted from 0.")
        selected = weights if layer is None else weights[layer]
        if head is not None:
            selected = selected[:, head] if layer is None else selected[head]
        return selected.float()

    def rollout(self, attention_type: AttentionType, layer: int, start: Tensor | None = None) -> Tensor:
        """Attention rollout up to a layer (`analysis/attention_rollout.py`).  # (tokens, tokens)

        With `start` (rows × tokens), that of weighted sums of the tokens after the layer.  # (rows, tokens)
        """
        from regard.look.analysis.attention_rollout import attention_rollout

        weights = self.array(f"attention/{attention_type}")
        if not can_roll_out(self.header.model, attention_type):
            raise UserError(
                "Attention rollout multiplies the self-attention of a Transformer's layers, and "
                f"{attention_type!r} attention of this model cannot be multiplied."
            )
        if not 0 <= layer < len(weights):
            raise UserError(f"{attention_type!r} has no layer {layer}: its {len(weights)} layers are counted from 0.")
        return attention_rollout(weights, layer, start)

    def array(self, name: str) -> Tensor:
        if name not in self.arrays:
            raise UserError(f"This trace has no array {name!r}; it has {', '.join(self.arrays) or 'none'}.")
        return self.arrays[name]

    def node(self, node_id: int) -> schema.NodeAttention:
        """The attention of a search node, active or pruned, and its likeliest next tokens; −1 is the root."""
        return self.require_model().node(self, node_id)

    def cell(self, attention_type: AttentionType, layer: int, head: int, query: int) -> schema.Cell:
        """The computation behind one attention row: query, keys, values, scores, weights and output."""
        from regard.look.analysis.attention_cell import compute_cell

        request = CellRequest(attention_type=attention_type, layer=layer, head=head, query=query)
        return compute_cell(self.require_model(), self, request)

    def require_model(self) -> "TracedModel":
        """The traced model, or an error if the trace has none."""
        if self.traced_model is None:
            raise UserError(
                f"This trace was loaded without its model, {self.header.model.name!r}; load that model as well to "
                "compute more than was saved."
            )
        return self.traced_model

    def save(self, path: str | Path) -> Path:
        """Write it to a file."""
        target = Path(path)
        with new_file(target) as temporary:
            temporary.write_bytes(self.to_bytes())
        return target

    @property
    def nbytes(self) -> int:
        """The size of its arrays in bytes."""
        return sum(array.nbytes for array in self.arrays.values())

    def to_bytes(self) -> bytes:
        """The contents of its file."""
        try:
            header = self.header.model_copy(update={"id": ""}).model_dump_json(exclude_none=True)
        except PydanticSerializationError:
            raise UserError("The trace cannot be saved: its header has text that is not valid Unicode.") from None
        arrays = {name: array.contiguous() for name, array in self.arrays.items()}
        content: bytes = save_to_bytes(arrays, metadata={_METADATA_KEY: header})
        return content

    def html(self, should_stop: Callable[[], bool] = lambda: False) -> str:
        """The page with this trace embedded, as one self-contained HTML file."""
        from regard.look.standalone import standalone_page

        return standalone_page(self, should_stop=should_stop)

    def _repr_html_(self) -> str:
        from regard.look.standalone import notebook_frame

        return notebook_frame(self)


def can_roll_out(model: schema.ModelSummary, attention_type: AttentionType) -> bool:
    """Whether a model has self-attention of this type in layers with residual connections: those of a Transformer."""
    types = {spec.attention_type for spec in model.attention if not spec.weights_only}
    return attention_type in types - {"cross"}


def array_specs(arrays: Mapping[str, Tensor]) -> list[ArraySpec]:
    return [
        ArraySpec(name=name, dtype=_DTYPE_NAMES[array.dtype], shape=list(array.shape)) for name, array in arrays.items()
    ]


def check_size(nbytes: int) -> None:
    """Refuse more attention than a trace may hold."""
    if nbytes > MAX_BYTES:
        raise UserError(
            f"The attention of this text would take {nbytes / 2**20:,.0f} MiB, and a trace holds at most "
            f"{MAX_BYTES >> 20:,} MiB; use a shorter text or a smaller beam."
        )


def load_trace(path: str | Path) -> Trace:
    """Load a file written by `Trace.save`."""
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > 2 * MAX_BYTES:
            raise UserError(f"{file} has {size:,} bytes; no trace is larger than {2 * MAX_BYTES:,} bytes.")
        content = file.read_bytes()
    except OSError as error:
        raise UserError(f"{file} cannot be opened ({error.strerror}).") from None
    return trace_from_bytes(content, str(file))


def trace_from_bytes(content: bytes, name: str = "The file") -> Trace:
    """A trace from the contents of its file; `name` identifies the file in error messages."""
    if len(content) > 2 * MAX_BYTES:
        raise UserError(f"{name} has {len(content):,} bytes; no trace is larger than {2 * MAX_BYTES:,} bytes.")
    values, arrays = _parse(content, name)
    if values.get("format") != FORMAT:
        raise UserError(f"{name} is not a trace: the format in its header is not {FORMAT!r}.")
    if values.get("version") != VERSION:
        raise UserError(
            f"{name} is a trace of version {values.get('version')!r}, but this version of regard reads version "
            f"{VERSION}; record it again, or open it with the version that wrote it."
        )
    try:
        header = schema.Trace.model_validate(values)
    except ValidationError as error:
        field = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{name} is damaged: {field or 'its header'} is not valid.") from None
    expected = {spec.name: (spec.dtype, spec.shape) for spec in header.arrays}
    found = {key: (_DTYPE_NAMES.get(array.dtype), list(array.shape)) for key, array in arrays.items()}
    if expected != found:
        raise UserError(f"{name} is damaged: its arrays are not those that its header lists.")
    _check_consistency(header, name)
    return Trace(header, arrays)


def _short(text: str) -> str:
    """A text in quotes, or its beginning."""
    return repr(text if len(text) <= _QUOTED_CHARACTERS else f"{text[:_QUOTED_CHARACTERS]}…")


def max_pool(weights: Tensor, size: int) -> Tensor:
    """The maximum of each block of `size` × `size` weights.  # (…, queries, keys) → (…, queries / size, keys / size)

    Weights are never negative, and the bit patterns of non-negative floats sort like the floats. So they are compared
    as integers, which a CPU does several times faster than float16.
    """
    if size == 1 or weights.numel() == 0:
        return weights
    bits = weights.contiguous().view(torch.int16 if weights.dtype == torch.float16 else torch.int32)
    return _pool_axis(_pool_axis(bits, -2, size), -1, size).view(weights.dtype)


def _pool_axis(bits: Tensor, axis: int, size: int) -> Tensor:
    """The maximum of each `size` values along an axis. What is padded is at most as large as the axis itself."""
    size = min(size, bits.shape[axis])
    if missing := -bits.shape[axis] % size:
        bits = torch.nn.functional.pad(bits, (0, 0, 0, missing) if axis == -2 else (0, missing))
    blocks: Tensor = bits.unflatten(axis, (-1, size)).amax(dim=axis)
    return blocks


def _parse(content: bytes, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and arrays of a safetensors file, not yet validated."""
    from safetensors.torch import load

    try:
        arrays = load(content)  # first, because it limits the size of the header
        length = int.from_bytes(content[:8], "little")
        file_header: Any = parse_json(content[8 : 8 + length])
        values: Any = parse_json(file_header["__metadata__"][_METADATA_KEY])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, KeyError):
            raise UserError(f"{name} is not a trace: its metadata have no entry {_METADATA_KEY!r}.") from None
        raise UserError(f"{name} is damaged or truncated, or not a trace.") from None
    if not isinstance(values, dict):
        raise UserError(f"{name} is damaged: its header is not a JSON object.")
    try:
        json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        raise UserError(f"{name} is damaged: its header has text that is not valid Unicode.") from None
    except ValueError:
        raise UserError(f"{name} is damaged: its header has a number that is not finite.") from None
    return values, arrays


def _check_consistency(header: schema.Trace, name: str) -> None:
    """Refuse arrays whose shapes contradict the header's tokens, and search trees that are out of order."""
    source, target = len(header.source), len(header.target)
    sizes = {"encoder": [source, source], "decoder": [target, target], "cross": [target, source]}
    heads: dict[str, list[int]] = {spec.attention_type: [spec.layers, spec.heads] for spec in header.model.attention}
    recorded_nodes = 1 + max((node.attention_index for node in header.nodes), default=-1)
    for spec in header.arrays:
        kind, _, attention_type = spec.name.partition("/")
        valid = kind in ("attention", "beam") and attention_type in heads
        if valid and kind == "attention":
            valid = spec.shape == [*heads[attention_type], *sizes[attention_type]]
        elif valid:
            valid = spec.shape[:3] == [recorded_nodes, *heads[attention_type]]
        if not valid:
            raise UserError(f"{name} is damaged: its array {spec.name!r} does not match its header.")
    if any(node.id != index or not -1 <= node.parent < index for index, node in enumerate(header.nodes)):
        raise UserError(f"{name} is damaged: the nodes of its search tree are out of order.")
