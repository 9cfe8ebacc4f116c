"""`POST /v1/generate`, all at once or streamed as JSON lines."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.serve.api.middleware import note
from regard.serve.api.schema import DecodingOptions, ModelName, Texts, as_list, first_or_all
from regard.serve.api.service import Service
from regard.serve.models.served_model import ServedModel
from regard.task.constraints import make_constraints
from regard.task.json_records import generation_record
from regard.task.language_modeling.pipeline import SAMPLING, GeneratedText, TextGenerator, generation_search

NEW_TOKENS = 200


class GenerateRequest(DecodingOptions):
    """Prompts to continue."""

    prompt: Texts = Field(description="A prompt, or a list of prompts.", examples=["Once upon a time"])
    model: ModelName = None
    max_new_tokens: int | None = Field(
        None,
        ge=1,
        description=f"At most how many tokens are generated. Default: {NEW_TOKENS}, if the server allows it.",
    )
    stop: list[str] = Field([], max_length=16, description="The text ends before the first of these strings.")
    require: list[str] = Field([], description="Words that the text contains; needs `beam_size`.")
    forbid: list[str] = Field([], description="Texts that it does not contain.")
    stream: bool = Field(False, description="One JSON object a line for each piece of text, as soon as it is final.")
    details: bool = Field(False, description="Add scores and the probability of every token.")


class GenerateResponse(BaseModel):
    """The continuations, without the prompts: one for a prompt, a list for a list."""

    model: str
    text: str | list[str] | list[list[str]] = Field(examples=[" there was a king."])
    details: Any = Field(None, description="With `details`: what `regard generate --json` prints.")


def generate_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/generate", response_model=GenerateResponse, response_model_exclude_none=True)
    async def generate(request: Request, body: GenerateRequest) -> Any:
        """Continue a prompt, or a list of prompts."""
        prompts = as_list(body.prompt)
        service.limits.check_texts("prompt", prompts)
        body.max_new_tokens = body.max_new_tokens or min(NEW_TOKENS, service.limits.new_tokens)
        service.limits.check_new_tokens("max_new_tokens", body.max_new_tokens)
        model = service.models.find(body.model, "generate")
        note(request, model=model.name, items=len(prompts))
        if body.stream:
            return await _stream(request, service, model, body)
        decode = generation_search(SAMPLING, body.changes(service.limits))
        found = await service.compute(
            request, model, "generate", lambda pipeline: _generate(pipeline, prompts, body, decode)
        )
        note(request, tokens=sum(len(one.tokens) for each in found for one in each))
        plain: list[Any] = [[one.text for one in each] for each in found]
        tokenizer = model.pipeline.tokenizer
        details: list[Any] = [[generation_record(one, tokenizer) for one in each] for each in found]
        if body.nbest is None:
            plain, details = [each[0] for each in plain], [each[0] for each in details]
        return GenerateResponse(
            model=model.name,
            text=first_or_all(body.prompt, plain),
            details=first_or_all(body.prompt, details) if body.details else None,
        )

    return router


def _generate(
    generator: TextGenerator, prompts: list[str], body: GenerateRequest, decode: DecodeConfig
) -> list[list[GeneratedText]]:
    if body.require and decode.sample:
        raise UserError("require: required words need beam search; give a beam_size.")
    return generator.generate_nbest(
        prompts,
        body.nbest or 1,
        decode,
        seed_offsets=range(len(prompts)),
        max_new_tokens=body.max_new_tokens,
        stop=body.stop,
        constraints=make_constraints(generator.tokenizer, required=body.require, forbidden=body.forbid, continues=True),
    )


async def _stream(request: Request, service: Service, model: ServedModel, body: GenerateRequest) -> StreamingResponse:
    if not isinstance(body.prompt, str) or body.nbest is not None or body.details or body.require or body.forbid:
        raise UserError(
            "A stream is the text of one prompt; leave out nbest, details, require and forbid, or stream = true."
        )
    prompt, decode = body.prompt, generation_search(SAMPLING, body.changes(service.limits))

    def pieces(generator: TextGenerator) -> Iterator[str]:
        return generator.stream(prompt, max_new_tokens=body.max_new_tokens or NEW_TOKENS, decode=decode, stop=body.stop)

    items = await service.stream(request, model, "generate", pieces)
    return StreamingResponse(_lines(items), media_type="application/x-ndjson")


async def _lines(items: AsyncIterator[str]) -> AsyncIterator[str]:
    async for piece in items:
        yield json.dumps({"text": piece}, ensure_ascii=False) + "\n"
