"""What is computed in the background."""

from typing import Annotated, Literal

from pydantic import Field

from regard.look.schema.message import Ablation, AttentionType, Message, Metric
from regard.look.schema.model import ModuleTimes
from regard.look.schema.trace import Token


class HeadImportanceRequest(Message):
    ablation: Ablation
    metric: Metric
    lines: Annotated[list[Annotated[str, Field(max_length=10_000)]], Field(max_length=10_000)] | None = None


class HeadScore(Message):
    attention_type: AttentionType
    layer: int
    head: int
    value: float
    change: float


class HeadImportance(Message):
    metric: Metric
    baseline: float
    examples: int
    heads: list[HeadScore]


class HeadRolesRequest(Message):
    lines: Annotated[list[Annotated[str, Field(max_length=10_000)]], Field(max_length=10_000)] | None = None


class RoleMeasure(Message):
    attention_type: AttentionType
    name: str
    label: str
    tag: str
    description: str
    count: int
    is_error: bool


class HeadRole(Message):
    attention_type: AttentionType
    layer: int
    head: int
    measure: str
    value: float
    maximum: float | None = None
    baseline: float
    strategy: str
    tagged: bool


class HeadRoles(Message):
    examples: int
    sentences: int
    rule: str
    notes: list[str]
    measures: list[RoleMeasure]
    heads: list[HeadRole]


class ContrastRequest(Message):
    position: Annotated[int, Field(ge=0)]
    contrast: Annotated[str, Field(max_length=200)] | int


class ContrastPart(Message):
    kind: Literal["embedding", "decoder", "cross", "feed-forward", "bias"]
    layer: int | None = None
    head: int | None = None
    value: float


class HeadEffect(Message):
    attention_type: AttentionType
    layer: int
    head: int
    change: float


class FeedForwardEffect(Message):
    stack: Literal["encoder", "decoder"]
    layer: int
    change: float


class WordEffect(Message):
    side: Literal["source", "target"]
    positions: list[int]
    change: float


class Contrast(Message):
    position: int
    read: Token
    token: Token
    contrast: Token
    contrast_tokens: list[Token]
    probability: float
    contrast_probability: float
    margin: float
    parts: list[ContrastPart]
    heads: list[HeadEffect]
    feed_forwards: list[FeedForwardEffect]
    words: list[WordEffect]


JobResult = HeadImportance | HeadRoles | Contrast | ModuleTimes


class Job(Message):
    id: str
    model: str
    done: int
    total: int
    state: Literal["running", "done", "failed", "stopped"]
    error: str
    result: JobResult | None = None
