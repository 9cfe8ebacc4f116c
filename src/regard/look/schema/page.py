"""What the page loads besides: training runs, the data of a standalone file, and errors."""

from regard.look.schema.message import Message
from regard.look.schema.model import ModuleBox
from regard.look.schema.patterns import ModelPatterns, Patterns, Positions
from regard.look.schema.trace import AttentionInputs, NodeAttention, Trace
from regard.look.schema.vectors import ModuleActivations, Neighbors, PatchClasses


class RunSummary(Message):
    id: str
    folder: str
    recipe: str
    steps: int
    step: int
    live: bool
    problem: str


class RunMetrics(Message):
    next_line: int
    records: list[dict[str, float | None]]


class Embedded(Message):
    """The data in a standalone file, unpacked (see `standalone_data.py`). Arrays are base64-encoded."""

    trace: Trace
    diagram: ModuleBox
    arrays: dict[str, str]
    attention_inputs: list[AttentionInputs]
    nodes: list[NodeAttention]
    positions: list[Positions] | None = None
    neighbors: list[Neighbors] | None = None
    patterns: list[Patterns] | None = None
    model_patterns: ModelPatterns | None = None
    rollout: dict[str, str] | None = None
    patch_classes: PatchClasses | None = None
    activations: ModuleActivations | None = None


class ErrorResponse(Message):
    detail: str
