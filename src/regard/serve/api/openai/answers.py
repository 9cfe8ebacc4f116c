"""Answers of completions and chats: at once, or as server-sent events while they are decoded.

The two protocols differ in how they write a choice; what is the same is here.
"""

import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Literal, NamedTuple, Protocol

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from regard.serve.api.errors import status_and_message
from regard.serve.api.middleware import note
from regard.serve.api.openai.errors import error_shape
from regard.serve.api.openai.options import SamplingBody
from regard.serve.api.openai.outputs import Piece
from regard.serve.api.service import Service
from regard.serve.models.registry import ModelRegistry
from regard.serve.models.served_model import ServedModel

Capability = Literal["generate", "translate"]
LOWEST_LOGPROB = -9999.0
"""What is written for a log-probability of minus infinity, which JSON does not have."""
EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}, "text/event-stream": {}}}}
"""The answers of these routes, for the description of the API."""


class ChoiceFormat(Protocol):
    """How a protocol writes what is generated."""

    id_prefix: str
    answer: str
    """The name of an answer at once."""
    chunk: str
    """The name of an answer's chunk."""

    def choice(self, output: Piece) -> dict[str, Any]:
        """A whole output."""
        ...

    def chunk_choice(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        """A piece of an output, which may be its first."""
        ...


class Job(NamedTuple):
    """What a request asks of a model."""

    model: ServedModel
    capability: Capability
    pieces: Callable[[Any], Iterator[Piece]]
    """Makes the outputs, given the model's pipeline."""
    format: ChoiceFormat


def find_text_model(models: ModelRegistry, name: str | None) -> tuple[ServedModel, Capability]:
    """The model with a name, which may be a translator; without a name, the first that generates text."""
    named = [model for model in models if name in (None, model.name)]
    capability: Capability = "generate"
    if not any("generate" in model.capabilities for model in named) and any(
        "translate" in model.capabilities for model in named
    ):
        capability = "translate"
    return models.find(name, capability), capability


async def answer(request: Request, service: Service, body: SamplingBody, job: Job) -> Response:
    """The response to a request."""
    note(request, model=job.model.name)
    if body.stream:
        pieces = await service.stream(request, job.model, job.capability, job.pieces)
        include_usage = body.stream_options is not None and body.stream_options.include_usage
        events = _events(request, pieces, job, include_usage)
        # nginx would hold the chunks back otherwise.
        return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
    found = await service.compute(request, job.model, job.capability, lambda pipeline: list(job.pieces(pipeline)))
    outputs = join_pieces(found)
    usage = _usage(outputs)
    note(request, items=len(outputs), tokens=usage["completion_tokens"])
    choices = [job.format.choice(output) for output in outputs]
    return JSONResponse({**_head(job, job.format.answer), "choices": choices, "usage": usage})


def join_pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """Whole outputs, in order."""
    parts: dict[int, list[Piece]] = {}
    for piece in pieces:
        parts.setdefault(piece.number, []).append(piece)
    return [
        each[-1]._replace(
            text="".join(piece.text for piece in each), tokens=tuple(token for piece in each for token in piece.tokens)
        )
        for _, each in sorted(parts.items())
    ]


def finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)


async def _events(request: Request, pieces: AsyncIterator[Piece], job: Job, include_usage: bool) -> AsyncIterator[str]:
    """The chunks of a stream. An error in the middle of it is a chunk too."""
    head, ends, begun = _head(job, job.format.chunk), [], set()
    extra = {"usage": None} if include_usage else {}
    try:
        async with aclosing(pieces):  # type: ignore[type-var]
            async for piece in pieces:
                choice = job.format.chunk_choice(piece, first=piece.number not in begun)
                begun.add(piece.number)
                if piece.finish_reason is not None:
                    ends.append(piece)
                yield _event({**head, "choices": [choice], **extra})
        usage = _usage(ends)
        note(request, items=len(ends), tokens=usage["completion_tokens"])
        if include_usage:
            yield _event({**head, "choices": [], "usage": usage})
        yield "data: [DONE]\n\n"
    except Exception as error:
        request.state.error = error  # for the log
        yield _event(dict(error_shape(*status_and_message(error, request.state.id))))


def _head(job: Job, name: str) -> dict[str, Any]:
    identifier = f"{job.format.id_prefix}{secrets.token_hex(12)}"
    return {"id": identifier, "object": name, "created": int(time.time()), "model": job.model.name}


def _usage(outputs: Iterable[Piece]) -> dict[str, int]:
    """Tokens read and generated. A prompt counts once, however many outputs it has."""
    pairs = [(output.prompt_tokens, output.output_tokens) for output in outputs]
    prompt, completion = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
