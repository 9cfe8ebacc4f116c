"""A trace: tokens, output and search, and the attention of single nodes and rows."""

from typing import Annotated, Literal

from pydantic import Field

from regard.look.schema.message import AttentionType, Message
from regard.look.schema.model import ModelSummary
from regard.look.schema.run import RunRequest


class Token(Message):
    id: int
    piece: str
    text: str
    word: int
    special: bool


class Alternative(Message):
    token: Token
    probability: float


class GeneratedToken(Message):
    token: Token
    probability: float
    alternatives: list[Alternative]


class BeamNode(Message):
    id: int
    parent: int
    step: int
    token: Token
    log_probability: float
    total_log_probability: float
    state: Literal["active", "finished", "pruned"]
    in_output: bool
    cache_row: int
    cache_copied: bool
    attention_index: int


class LengthPenalty(Message):
    kind: Literal["gnmt", "power", "none"]
    alpha: float


class Hypothesis(Message):
    node: int
    text: str
    length: int
    ended: bool
    kept: bool
    log_probability: float
    length_penalty: float
    coverage: float | None = None
    score: float


class PatchGrid(Message):
    rows: int
    columns: int
    image: str


class Choice(Message):
    label: str
    probability: float


class Prediction(Message):
    item: str
    choices: list[Choice]


class ArraySpec(Message):
    name: str
    dtype: Literal["float16", "float32"]
    shape: list[int]


class Trace(Message):
    format: Literal["regard trace"]
    version: Literal[1]
    id: str
    model: ModelSummary
    request: RunRequest
    source: list[Token]
    grid: PatchGrid | None = None
    target: list[Token]
    generated: list[GeneratedToken]
    output: str
    predictions: list[Prediction]
    log_probability: float
    nodes: list[BeamNode]
    hypotheses: list[Hypothesis] | None = None
    length_penalty: LengthPenalty | None = None
    cuts: list[str] | None = None
    arrays: list[ArraySpec]
    seconds: float


class NextToken(Message):
    token: Token
    logit: float
    probability: float


class NodeAttention(Message):
    node: int
    prefix: list[Token]
    decoder: list[list[list[float]]]
    cross: list[list[list[float]]]
    hidden_state: list[float]
    hidden_size: int
    next_tokens: list[NextToken]


class CellRequest(Message):
    attention_type: AttentionType
    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)]
    query: Annotated[int, Field(ge=0)]


class CellWindow(Message):
    first_query: int
    first_key: int
    scaled_scores: list[list[float]]
    masked_scores: list[list[float | None]]
    weights: list[list[float]]


class Cell(Message):
    request: CellRequest
    scale: float
    similarity: str
    query: list[float]
    keys: list[list[float]]
    values: list[list[float]]
    scores: list[float]
    scaled_scores: list[float]
    masked_scores: list[float | None]
    weights: list[float]
    output: list[float]
    window: CellWindow


class AttentionInputs(Message):
    attention_type: AttentionType
    layer: int
    head: int
    scale: float
    similarity: str
    queries: list[list[float]]
    keys: list[list[float]]
    values: list[list[float]]
    allowed: list[list[int]] | None = None
