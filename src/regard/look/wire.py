"""What goes between Python and the page: the same shapes as `web/src/contract.d.ts`, which says what each means.

A test holds the two against each other. What a person or a page asks for is read strictly; what is answered is made
here and not checked again.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TaskKind = Literal["translation", "language", "parsing", "pictures", "filling", "labelling", "tagging"]
Side = Literal["encoder", "decoder", "cross"]
How = Literal["zero", "mean"]
Measure = Literal["loss", "bleu"]
Method = Literal["beam", "greedy", "sample"]

LONGEST_TEXT = 100_000
"""Characters of a text that is to be looked at."""
MOST_BEAMS, MOST_WRITTEN = 32, 4096
"""Beams of a search, and tokens of an output."""


class Shape(BaseModel):
    """A shape of the contract. What it does not know it refuses."""

    model_config = ConfigDict(extra="forbid")

    def plain(self) -> dict[str, Any]:
        """As JSON has it; what is not there is left out."""
        return self.model_dump(exclude_none=True)


class AttentionFacts(Shape):
    side: Side
    layers: int
    heads: int


class DecodingSettings(Shape):
    method: Method
    beams: int
    longest: int
    temperature: float
    top_k: int
    top_p: float
    seed: int


class SomeDecodingSettings(Shape):
    """Those of them that are asked for; the others stay as the model has them."""

    method: Method | None = None
    beams: Annotated[int, Field(ge=1, le=MOST_BEAMS)] | None = None
    longest: Annotated[int, Field(ge=0, le=MOST_WRITTEN)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**53), le=2**53)] | None = None


class ModelSummary(Shape):
    id: str
    name: str
    task: TaskKind
    parameters: int
    example: str
    attention: list[AttentionFacts]
    decoding: DecodingSettings


class Parameter(Shape):
    name: str
    shape: list[int]


class AttentionPlace(Shape):
    side: Side
    layer: int


class Part(Shape):
    path: str
    label: str
    kind: Literal[
        "model", "input", "stack", "block", "attention", "feed-forward", "norm", "residual", "output", "other"
    ]
    parameters: list[Parameter]
    count: int
    shape: str
    attention: AttentionPlace | None = None
    about: str
    parts: list["Part"]


class Switched(Shape):
    side: Side
    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)]
    how: How


class RunRequest(Shape):
    text: Annotated[str, Field(max_length=LONGEST_TEXT)]
    picture: str | None = None
    decoding: SomeDecodingSettings | None = None
    source_tokens: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=20_000)] | None = None
    off: Annotated[list[Switched], Field(max_length=10_000)] | None = None


class TokenEvent(Shape):
    event: Literal["token"] = "token"
    text: str
    token: str
    probability: float
    step: int


class DoneEvent(Shape):
    event: Literal["done"] = "done"
    trace: str


class FailedEvent(Shape):
    event: Literal["failed"] = "failed"
    reason: str


RunEvent = TokenEvent | DoneEvent | FailedEvent


class Token(Shape):
    id: int
    piece: str
    text: str
    word: int
    special: bool


class Alternative(Shape):
    token: Token
    probability: float


class Written(Shape):
    token: Token
    probability: float
    alternatives: list[Alternative]


class BeamNode(Shape):
    id: int
    parent: int
    step: int
    token: Token
    log_probability: float
    total: float
    state: Literal["kept", "ended", "pruned"]
    won: bool
    row: int
    copied: bool
    attention: int


class Grid(Shape):
    rows: int
    columns: int
    picture: str


class Choice(Shape):
    label: str
    probability: float


class Labelled(Shape):
    of: str
    choices: list[Choice]


class ArrayFacts(Shape):
    name: str
    dtype: Literal["float16", "float32"]
    shape: list[int]


class Trace(Shape):
    format: Literal["regard trace"]
    version: Literal[1]
    id: str
    model: ModelSummary
    request: RunRequest
    source: list[Token]
    grid: Grid | None = None
    target: list[Token]
    written: list[Written]
    output: str
    labels: list[Labelled]
    total: float
    nodes: list[BeamNode]
    arrays: list[ArrayFacts]
    seconds: float


class NextToken(Shape):
    token: Token
    logit: float
    probability: float


class NodeAttention(Shape):
    node: int
    prefix: list[Token]
    decoder: list[list[list[float]]]
    cross: list[list[list[float]]]
    vector: list[float]
    vector_length: int
    next: list[NextToken]


class CellRequest(Shape):
    side: Side
    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)]
    query: Annotated[int, Field(ge=0)]


class Square(Shape):
    first_query: int
    first_key: int
    scores: list[list[float]]
    masked: list[list[float | None]]
    weights: list[list[float]]


class Cell(Shape):
    request: CellRequest
    scale: float
    similarity: str
    query: list[float]
    keys: list[list[float]]
    values: list[list[float]]
    products: list[float]
    scaled: list[float]
    masked: list[float | None]
    weights: list[float]
    result: list[float]
    square: Square


class WorthRequest(Shape):
    how: How
    measure: Measure
    lines: Annotated[list[Annotated[str, Field(max_length=10_000)]], Field(max_length=10_000)] | None = None


class HeadWorth(Shape):
    side: Side
    layer: int
    head: int
    value: float
    change: float


class Worth(Shape):
    measure: Measure
    whole: float
    sentences: int
    heads: list[HeadWorth]


class Job(Shape):
    id: str
    model: str
    done: int
    of: int
    state: Literal["running", "done", "failed", "stopped"]
    reason: str
    result: Worth | None = None


class Requirement(Shape):
    name: str
    holds: bool
    found: str


class Scheme(Shape):
    name: str
    about: str
    encoding: list[list[float]]
    similarity: list[list[float]]
    similarity_of: str
    requirements: list[Requirement]


class Positions(Shape):
    length: int
    width: int
    schemes: list[Scheme]


class RunSummary(Shape):
    id: str
    folder: str
    recipe: str
    steps: int
    step: int
    live: bool


class RunLines(Shape):
    next: int
    lines: list[dict[str, float | None]]


class Embedded(Shape):
    """What a standalone file carries. Arrays are in base64."""

    trace: Trace
    parts: Part
    arrays: dict[str, str]
    cells: list[Cell]
    nodes: list[NodeAttention]
    positions: list[Positions] | None = None


class Problem(Shape):
    detail: str
