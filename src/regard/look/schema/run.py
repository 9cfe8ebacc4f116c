"""Running a model: the request, and the events while it runs."""

from typing import Annotated, Literal

from pydantic import Field

from regard.look.schema.message import (
    MAX_BEAM_SIZE,
    MAX_NEW_TOKENS,
    MAX_TEXT_LENGTH,
    Ablation,
    AttentionType,
    Message,
    Method,
    Words,
)


class DecodingOverrides(Message):
    """The decoding settings that a request sets; the others keep the model's defaults."""

    method: Method | None = None
    beam_size: Annotated[int, Field(ge=1, le=MAX_BEAM_SIZE)] | None = None
    max_new_tokens: Annotated[int, Field(ge=0, le=MAX_NEW_TOKENS)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**53), le=2**53)] | None = None


class AblatedHead(Message):
    attention_type: AttentionType
    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)]
    ablation: Ablation


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
