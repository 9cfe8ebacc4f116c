"""`POST /v1/chat/completions`: messages become a prompt by the chat template that the model brought.

A translator has no template: it translates the last message of the user.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from regard.errors import UserError
from regard.serve.api.openai.answers import EVENTS, Job, answer, find_text_model, finite
from regard.serve.api.openai.chat_prompt import ChatPrompts
from regard.serve.api.openai.errors import OpenAIRoute
from regard.serve.api.openai.options import OutputOptions, SamplingBody
from regard.serve.api.openai.outputs import Piece, generated_pieces, translated_pieces
from regard.serve.api.openai.token_texts import TokenLogprob
from regard.serve.api.service import Service
from regard.serve.limits import LimitError, Limits


class ContentPart(BaseModel):
    """A part of a message. Only texts are read."""

    type: str = Field("text", max_length=100)
    text: str | None = None


class Message(BaseModel):
    """A message of a chat."""

    model_config = ConfigDict(extra="ignore")

    role: str = Field(max_length=100, examples=["user"])
    content: str | list[ContentPart] | None = Field(None, examples=["Hello!"])
    name: str | None = None
    tool_calls: list[Any] | None = None


class ChatBody(SamplingBody):
    """A chat to continue."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, description="Default: as many as server and model allow.")
    max_tokens: int | None = Field(None, ge=1, description="The old name of max_completion_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None


def chat_route(service: Service) -> APIRouter:
    router = APIRouter(route_class=OpenAIRoute)
    prompts = ChatPrompts()

    @router.post("/v1/chat/completions", response_model=None, responses=EVENTS)
    async def create_chat_completion(request: Request, body: ChatBody) -> Response:
        """The next message of a chat."""
        messages = _messages(body.messages, service.limits)
        options = _options(body, service.limits)
        model, capability = find_text_model(service.models, body.model)

        def pieces(pipeline: Any) -> Iterator[Piece]:
            if capability == "translate":
                return translated_pieces(pipeline, [_last_of_user(messages)], options)
            prompt, ends = prompts.make(pipeline, messages)
            return generated_pieces(pipeline, [prompt], options, ends)

        return await answer(request, service, body, Job(model, capability, pieces, ChatFormat()))

    return router


class ChatFormat:
    """Choices with a message, or in a stream with what is added to it."""

    id_prefix, answer, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def choice(self, output: Piece) -> dict[str, Any]:
        message = {"role": "assistant", "content": output.text, "refusal": None}
        return {"index": output.number, "message": message, **_rest(output)}

    def chunk_choice(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        delta = {"role": "assistant", "content": piece.text} if first else {"content": piece.text}
        if not piece.text and not first:
            delta = {}
        return {"index": piece.number, "delta": delta, **_rest(piece)}


def _rest(piece: Piece) -> dict[str, Any]:
    logprobs = {"content": [_token_record(token) for token in piece.tokens], "refusal": None} if piece.tokens else None
    return {"logprobs": logprobs, "finish_reason": piece.finish_reason}


def _token_record(token: TokenLogprob) -> dict[str, Any]:
    top = [_text_record(text, logprob) for text, logprob in token.top]
    return {**_text_record(token.text, token.logprob), "top_logprobs": top}


def _text_record(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "bytes": list(text.encode("utf-8")), "logprob": finite(logprob)}


def _options(body: ChatBody, limits: Limits) -> OutputOptions:
    body.refuse("tools", "functions", "audio", "web_search_options", "reasoning_effort", "verbosity")
    if body.response_format is not None and body.response_format.get("type") != "text":
        raise UserError("response_format: this server only writes text; leave it out.")
    if body.modalities not in (None, [], ["text"]):
        raise UserError("modalities: this server only writes text; leave it out.")
    if body.top_logprobs is not None and not body.logprobs:
        raise UserError("top_logprobs: it needs logprobs; set logprobs to true.")
    max_tokens = body.max_completion_tokens or body.max_tokens
    return body.options(limits, max_tokens, (body.top_logprobs or 0) if body.logprobs else None)


def _messages(given: Sequence[Message], limits: Limits) -> list[dict[str, str]]:
    """The messages as a template reads them."""
    messages = []
    for number, message in enumerate(given):
        if message.tool_calls:
            raise UserError(f"messages[{number}].tool_calls: this server does not support tools; leave them out.")
        content = _text(message.content, f"messages[{number}].content")
        name = {} if message.name is None else {"name": message.name}
        messages.append({"role": message.role, "content": content, **name})
    if (total := sum(len(each) for message in messages for each in message.values())) > limits.total_characters:
        raise LimitError(
            f"messages: they have {total:,} characters in all, and this server takes {limits.total_characters:,}; "
            "leave out old ones."
        )
    return messages


def _text(content: str | list[ContentPart] | None, field: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for part in content or []:
        if part.type != "text" or part.text is None:
            raise UserError(f"{field}: it has a part of type {part.type!r}; this server only reads text.")
        texts.append(part.text)
    return "\n".join(texts)


def _last_of_user(messages: Sequence[dict[str, str]]) -> str:
    texts = [message["content"] for message in messages if message["role"] == "user"]
    if not texts:
        raise UserError("messages: there is none of the user, which a translator translates; add one.")
    return texts[-1]
