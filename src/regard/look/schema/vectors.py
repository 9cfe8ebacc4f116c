"""Vectors inside a model: the logit lens, embeddings, the residual stream, and what patches say."""

from typing import Annotated, Literal

from pydantic import Field

from regard.look.schema.message import MAX_SENTENCES, Message, Side, Words
from regard.look.schema.trace import Alternative, Token


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


class TokenClass(Message):
    label: str
    probability: float
    image_class_probability: float


class PatchClasses(Message):
    pooling: Literal["cls", "mean"]
    label: str
    tokens: list[TokenClass]


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
