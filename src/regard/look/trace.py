"""What was seen of a model at work: a header that says what everything is, and arrays of weights.

A trace is kept in one file: safetensors, whose metadata hold the header as JSON. Nothing in it is ever executed. The
header has a format and a version; a file of another version, a damaged one, and one that is larger than anything a
trace can be are each refused with a sentence.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import save as as_bytes
from torch import Tensor

from regard.errors import UserError
from regard.files import new_file
from regard.look import wire
from regard.look.wire import ArrayFacts, CellRequest, Side

if TYPE_CHECKING:
    from regard.look.subject import Subject

FORMAT: Literal["regard trace"] = "regard trace"
VERSION: Literal[1] = 1
LARGEST = 1 << 30
"""Bytes of a trace's arrays, and of a file that is opened."""
_KEY = "regard"
_NAMES: dict[torch.dtype, Any] = {torch.float16: "float16", torch.float32: "float32"}


class Trace:
    """A header, as `web/src/contract.d.ts` describes it, and arrays by their names.

    A trace that has just been made knows the model it is of, its `subject`, and can ask it for more: `node` and `cell`.
    One that was loaded from a file knows no model until it is given one.
    """

    def __init__(self, header: wire.Trace, arrays: Mapping[str, Tensor], subject: "Subject | None" = None) -> None:
        self.header, self.arrays, self.subject = header, dict(arrays), subject

    def __repr__(self) -> str:
        kept = ", ".join(f"{name} {tuple(array.shape)}" for name, array in self.arrays.items())
        return f"Trace({self.header.request.text!r} → {self.header.output!r}; {kept})"

    @property
    def text(self) -> str:
        """What was read."""
        return self.header.request.text

    @property
    def output(self) -> str:
        """What came of it."""
        return self.header.output

    def attention(self, side: Side, layer: int | None = None, head: int | None = None) -> Tensor:
        """Weights of one side over the answer, in float32, of all layers and heads or of some.

        # (layers, heads, queries, keys), less what is chosen
        """
        array = self.array(f"attention/{side}")
        for what, number, size in (("layer", layer, array.shape[0]), ("head", head, array.shape[1])):
            if number is not None and not 0 <= number < size:
                raise UserError(f"There is no {what} {number} in {side!r}; its {size} {what}s count from 0.")
        chosen = array if layer is None else array[layer]
        if head is not None:
            chosen = chosen[:, head] if layer is None else chosen[head]
        return chosen.float()

    def array(self, name: str) -> Tensor:
        if name not in self.arrays:
            raise UserError(f"This trace has no array {name!r}; it has {', '.join(self.arrays) or 'none'}.")
        return self.arrays[name]

    def node(self, number: int) -> wire.NodeAttention:
        """The attention of a node of the search, kept or pruned, and what may follow it; −1 is what all begin with."""
        return self.live().node(self, number)

    def cell(self, side: Side, layer: int, head: int, query: int) -> wire.Cell:
        """One row of one head opened: what was compared, and what was mixed."""
        from regard.look.cell import open_cell

        return open_cell(self.live(), self, CellRequest(side=side, layer=layer, head=head, query=query))

    def live(self) -> "Subject":
        """The model it is of; refused where it is not at hand."""
        if self.subject is None:
            raise UserError(
                f"This trace was saved without its model, {self.header.model.name!r}; open that model to ask for more "
                "than was kept."
            )
        return self.subject

    def save(self, path: str | Path) -> Path:
        """Write it to a file."""
        place = Path(path)
        with new_file(place) as beside:
            beside.write_bytes(self.packed())
        return place

    @property
    def size(self) -> int:
        """The bytes that its arrays take."""
        return sum(array.nbytes for array in self.arrays.values())

    def packed(self) -> bytes:
        """The bytes of its file."""
        header = self.header.model_copy(update={"id": ""}).model_dump_json(exclude_none=True)
        arrays = {name: array.contiguous() for name, array in self.arrays.items()}
        packed: bytes = as_bytes(arrays, metadata={_KEY: header})
        return packed

    def html(self) -> str:
        """The whole page with this trace in it, as one file that needs nothing else."""
        from regard.look.standalone import standalone

        return standalone(self)

    def _repr_html_(self) -> str:
        from regard.look.standalone import in_notebook

        return in_notebook(self)


def facts_of_arrays(arrays: Mapping[str, Tensor]) -> list[ArrayFacts]:
    return [ArrayFacts(name=name, dtype=_NAMES[one.dtype], shape=list(one.shape)) for name, one in arrays.items()]


def check_size(size: int) -> None:
    """Refuse to keep more bytes than a trace may hold."""
    if size > LARGEST:
        raise UserError(
            f"The attention of this text would take {size / 2**20:,.0f} MiB, and at most {LARGEST >> 20:,} are kept; "
            "give a shorter text, or fewer beams."
        )


def load_trace(path: str | Path) -> Trace:
    """Open a file that `save` has written."""
    place = Path(path)
    try:
        size = place.stat().st_size
    except OSError as error:
        raise UserError(f"{place} cannot be opened ({error.strerror}).") from None
    if size > 2 * LARGEST:
        raise UserError(f"{place} has {size:,} bytes; no trace is larger than {2 * LARGEST:,}.")
    return unpack(place.read_bytes(), str(place))


def unpack(packed: bytes, name: str = "The file") -> Trace:
    """A trace from the bytes of its file."""
    if len(packed) > 2 * LARGEST:
        raise UserError(f"{name} has {len(packed):,} bytes; no trace is larger than {2 * LARGEST:,}.")
    header, arrays = _opened(packed, name)
    stated = header.get("format"), header.get("version")
    if stated[0] != FORMAT:
        raise UserError(f"{name} is no trace: its header does not say {FORMAT!r}.")
    if stated[1] != VERSION:
        raise UserError(
            f"{name} is a trace of version {stated[1]!r}, and this regard reads version {VERSION}; make it anew, or "
            "open it with the regard that wrote it."
        )
    try:
        facts = wire.Trace.model_validate(header)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{name} is damaged: {where or 'its header'} is not as a trace has it.") from None
    wanted = {one.name: (one.dtype, one.shape) for one in facts.arrays}
    found = {one_name: (_NAMES.get(array.dtype), list(array.shape)) for one_name, array in arrays.items()}
    if wanted != found:
        raise UserError(f"{name} is damaged: its arrays are not those that its header tells of.")
    _check(facts, name)
    return Trace(facts, arrays)


def _opened(packed: bytes, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The header and the arrays, nothing of them checked but that they are there."""
    from safetensors.torch import load

    try:
        length = int.from_bytes(packed[:8], "little")
        stated: Any = json.loads(packed[8 : 8 + length])
        header: Any = json.loads(stated["__metadata__"][_KEY])
        arrays = load(packed)
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, UnicodeDecodeError) as error:
        if isinstance(error, KeyError):
            raise UserError(f"{name} is no trace: it has no header of regard in it.") from None
        raise UserError(f"{name} is damaged or cut short, or no trace at all.") from None
    if not isinstance(header, dict):
        raise UserError(f"{name} is damaged: its header is no table of facts.")
    return header, arrays


def _check(facts: wire.Trace, name: str) -> None:
    """Refuse arrays that do not fit what the header says was read and written."""
    sizes = {"encoder": len(facts.source), "decoder": len(facts.target), "cross": len(facts.source)}
    heads = {one.side: [one.layers, one.heads] for one in facts.model.attention}
    read = 1 + max((node.attention for node in facts.nodes), default=-1)
    for one in facts.arrays:
        kind, _, side = one.name.partition("/")
        queries = len(facts.source) if side == "encoder" else len(facts.target)
        known = kind in ("attention", "beam") and side in heads
        if known and kind == "attention":
            known = one.shape == [*heads[side], queries, sizes[side]]  # type: ignore[index]
        elif known:
            known = one.shape[:3] == [read, *heads[side]]  # type: ignore[index]
        if not known:
            raise UserError(f"{name} is damaged: its array {one.name!r} does not fit the rest of it.")
    if any(not math.isfinite(node.total) or node.parent >= node.id for node in facts.nodes):
        raise UserError(f"{name} is damaged: its tree of candidates is not in order.")


def pooled(weights: Tensor, size: int) -> Tensor:
    """Blocks of `size` × `size` weights, each as its greatest.  # (…, queries, keys), fewer of both

    Weights are never negative, and the bits of such numbers are in the same order as the numbers. So they are compared
    as whole numbers, which is several times as fast as 16-bit floats are on a CPU.
    """
    if size == 1:
        return weights
    queries, keys = weights.shape[-2:]
    missing = (0, -keys % size, 0, -queries % size)
    bits = weights.contiguous().view(torch.int16 if weights.dtype == torch.float16 else torch.int32)
    if any(missing):
        bits = torch.nn.functional.pad(bits, missing)
    rows: Tensor = bits.unflatten(-2, (-1, size)).amax(dim=-2)  # (…, blocks, keys)
    blocks: Tensor = rows.unflatten(-1, (-1, size)).amax(dim=-1)
    return blocks.view(weights.dtype)
