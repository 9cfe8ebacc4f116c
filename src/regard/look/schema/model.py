"""A model: what it can do, its diagram, and what its modules compute and cost."""

from typing import Literal

from regard.look.schema.message import AttentionType, Message, Method, Metric


class AttentionSpec(Message):
    attention_type: AttentionType
    layers: int
    heads: int
    weights_only: bool | None = None


class DecodingSettings(Message):
    method: Method
    beam_size: int
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


class ModelSummary(Message):
    id: str
    name: str
    task: str
    input: Literal["text", "image"]
    generates: bool
    parameters: int
    example: str
    examples: list[str] | None = None
    language: str | None = None
    splits_sentences: bool | None = None
    target_language: str | None = None
    attention: list[AttentionSpec]
    decoding: DecodingSettings
    metrics: list[Metric]


class Parameter(Message):
    name: str
    shape: list[int]


class AttentionRef(Message):
    attention_type: AttentionType
    layer: int


class ModuleBox(Message):
    path: str
    label: str
    kind: Literal[
        "model",
        "input",
        "position",
        "stack",
        "block",
        "attention",
        "feed-forward",
        "norm",
        "residual",
        "output",
        "other",
    ]
    parameters: list[Parameter]
    parameter_count: int
    shape: str
    attention: AttentionRef | None = None
    position: Literal["added", "concatenated", "rotary"] | None = None
    description: str
    children: list["ModuleBox"]


class ModuleTime(Message):
    path: str
    seconds: float


class ModuleTimes(Message):
    passes: int
    device: str
    boxes: list[ModuleTime]
