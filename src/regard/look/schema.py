"""The messages between Python and the page: the same fields as `web/src/contract.d.ts`, which documents each.

A test compares the two. Requests are validated strictly; responses are built here and not validated again.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

AttentionType = Literal["encoder", "decoder", "cross"]
Ablation = Literal["zero", "mean"]
Side = Literal["source", "target"]
Metric = Literal["loss", "bleu"]
Method = Literal["beam", "greedy", "sample"]

MAX_TEXT_LENGTH = 100_000
"""Characters of a text to trace."""
MAX_BEAM_SIZE, MAX_NEW_TOKENS = 32, 4096
MAX_SENTENCES = 64
"""Sentences whose words are compared."""


class Message(BaseModel):
    """Base class of the contract's messages. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON data, without the fields that are not set."""
        return self.model_dump(exclude_none=True)


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


class DecodingOverrides(Message):
    """The decoding settings that a request sets; the others keep the model's defaults."""

    method: Method | None = None
    beam_size: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] | None = None
    max_new_tokens: Annotated[int, Field(ge=0, le=MAX_NEW_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**53), le=2**53)] | None = None


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


class AblatedHead(Message):
    attention_type: AttentionType
    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)]
    ablation: Ablation


Words = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)]


class RunRequest(Message):
    text: Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]
    image: str | None = None
    decoding: DecodingOverrides | None = None
    source_tokens: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=20_000)] | None = None
    ablated_heads: Annotated[list[AblatedHead], Field(max_length=10_000)] | None = None
    prefix_tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_NEW_TOKENS)] | None = None
    require: Words | None = None
    forbid: Words | None = None


class SentencesRequest(Message):
    text: Annotated[str, Field(max_length=MAX_TEXT_LENGTH)]


class Sentences(Message):
    sentences: list[str]
    note: str | None = None


class TokenEvent(Message):
    event: Literal["token"] = "token"
    text: str
    token: str
    probability: float
    step: int


class DoneEvent(Message):
    event: Literal["done"] = "done"
    trace: str


class FailedEvent(Message):
    event: Literal["failed"] = "failed"
    error: str
    status: int


RunEvent = TokenEvent | DoneEvent | FailedEvent


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


class ModuleTime(Message):
    path: str
    seconds: float


class ModuleTimes(Message):
    passes: int
    device: str
    boxes: list[ModuleTime]


JobResult = HeadImportance | HeadRoles | Contrast | ModuleTimes


class Job(Message):
    id: str
    model: str
    done: int
    total: int
    state: Literal["running", "done", "failed", "stopped"]
    error: str
    result: JobResult | None = None


class ModuleActivation(Message):
    path: str
    shape: list[int] | None = None
    norm: float | None = None
    flops: int | None = None
    bytes: int | None = None


class ModuleActivations(Message):
    boxes: list[ModuleActivation]
    flops: int
    bytes: int
    notes: list[str]


class ModuleValues(Message):
    path: str
    side: Side | None = None
    tokens: list[Token]
    rows: int
    norms: list[float]
    width: int
    first: int
    values: list[list[float]]
    limit: float


class LensRequest(Message):
    first: Annotated[int, Field(ge=0)] | None = None


class LensCell(Message):
    tokens: list[Alternative]
    probability: float
    rank: int
    norm: float
    cosine: float | None = None


class Lens(Message):
    first: int
    read: list[Token]
    written: list[Token]
    layers: list[list[LensCell]]


class Neighbor(Message):
    token: Token
    similarity: float


class Neighbors(Message):
    side: Side
    token: Token
    vocab_size: int
    width: int
    neighbors: list[Neighbor]


class GroupedSentence(Message):
    text: Annotated[str, Field(max_length=2000)]
    group: Annotated[int, Field(ge=0, le=100)]


class ContextualVectorsRequest(Message):
    sentences: Annotated[list[GroupedSentence], Field(min_length=1, max_length=MAX_SENTENCES)]
    words: Words | None = None
    word: Annotated[str, Field(max_length=200)] | None = None


class SentenceWord(Message):
    sentence: int
    text: str


class GroupSimilarity(Message):
    first: int
    second: int
    pairs: int
    mean: float


class LayerVectors(Message):
    name: str
    points: list[list[float]]
    variance: float
    cosines: list[list[float]]
    groups: list[GroupSimilarity]


class ContextualVectors(Message):
    words: list[SentenceWord]
    shown: list[int]
    occurrences: list[int]
    layers: list[LayerVectors]


class ResidualStream(Message):
    tokens: list[Token]
    norms: list[list[float]]
    cosines: list[list[float]]


class AttentionPattern(Message):
    name: str
    pattern: str
    description: str
    pairs: int
    blocks: int
    full_blocks: int
    all_blocks: int
    computed_pairs: int
    cells: list[list[int]]
    tiles: list[list[int]]


class PatternsRequest(Message):
    length: int
    window: int
    step: int
    tokens: int
    causal: bool
    own: str


class Patterns(Message):
    request: PatternsRequest
    block: int
    cell: int
    dense: int
    patterns: list[AttentionPattern]


class LayerPattern(Message):
    attention_type: AttentionType
    layer: int
    pattern: str
    pairs: int
    dense: int


class ModelPatterns(Message):
    layers: list[LayerPattern]


class Requirement(Message):
    name: str
    holds: bool
    evidence: str


class Scheme(Message):
    name: str
    description: str
    encoding: list[list[float]]
    similarity: list[list[float]]
    similarity_description: str
    requirements: list[Requirement]


class TokenClass(Message):
    label: str
    probability: float
    image_class_probability: float


class PatchClasses(Message):
    pooling: Literal["cls", "mean"]
    label: str
    tokens: list[TokenClass]


class Positions(Message):
    length: int
    width: int
    schemes: list[Scheme]


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
