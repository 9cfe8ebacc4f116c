"""`POST /v1/completions`: a language model continues prompts, a translator translates them.

A translator searches as its recipe says, so its answers are always the same: temperature, top_p and seed mean nothing
to it. `n` asks for the n best translations.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field

from regard.errors import UserError
from regard.serve.api.openai.answers import EVENTS, Job, answer, find_text_model, finite
from regard.serve.api.openai.errors import OpenAIRoute
from regard.serve.api.openai.options import OutputOptions, SamplingBody, Token
from regard.serve.api.openai.outputs import Piece, Prompt, generated_pieces, translated_pieces
from regard.serve.api.openai.token_texts import TokenLogprob
from regard.serve.api.service import Service
from regard.serve.limits import LimitError, Limits

TextOrTokens = str | list[Token]
Prompts = str | list[str] | list[Token] | list[list[Token]]
DEFAULT_MAX_TOKENS = 16


class CompletionBody(SamplingBody):
    """Prompts to continue."""

    prompt: Prompts = Field(description="A prompt or several, as texts or as token ids.", examples=["Once upon a time"])
    max_tokens: int | None = Field(None, ge=1, description=f"Default: {DEFAULT_MAX_TOKENS}; of translations, no limit.")
    logprobs: int | None = Field(None, ge=0, le=5, description="So many of the most likely tokens at each place.")
    echo: bool | None = Field(None, description="Whether the text begins with the prompt.")
    best_of: int | None = None
    suffix: str | None = None


def completions_route(service: Service) -> APIRouter:
    router = APIRouter(route_class=OpenAIRoute)

    @router.post("/v1/completions", response_model=None, responses=EVENTS)
    async def create_completion(request: Request, body: CompletionBody) -> Response:
        """Continue a prompt, or each of several."""
        prompts = prompt_list(body.prompt)
        check_prompts("prompt", prompts, service.limits)
        options = _options(body, service.limits, len(prompts))
        model, capability = find_text_model(service.models, body.model)
        if capability == "generate":
            options = options.with_max_tokens(min(DEFAULT_MAX_TOKENS, service.limits.new_tokens))

        def pieces(pipeline: Any) -> Iterator[Piece]:
            if capability == "translate":
                return translated_pieces(pipeline, texts_of(pipeline.source_tokenizer, prompts), options)
            return generated_pieces(pipeline, [_prompt(pipeline, prompt) for prompt in prompts], options)

        tokenizer = model.pipeline.source_tokenizer if capability == "translate" else model.pipeline.tokenizer
        echo = texts_of(tokenizer, prompts) if body.echo else None
        form = CompletionFormat(options.n, options.logprobs, echo)
        return await answer(request, service, body, Job(model, capability, pieces, form))

    return router


@dataclass(frozen=True)
class CompletionFormat:
    """Choices with a text."""

    n: int
    logprobs: int | None
    echo: Sequence[str] | None
    """The prompts, if outputs begin with them."""

    id_prefix = "cmpl-"
    answer = chunk = "text_completion"

    def choice(self, output: Piece) -> dict[str, Any]:
        return self.chunk_choice(output, first=True)

    def chunk_choice(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        prompt = self.echo[piece.number // self.n] if first and self.echo is not None else ""
        return {
            "index": piece.number,
            "text": prompt + piece.text,
            "logprobs": None if self.logprobs is None else self._logprobs(piece.tokens),
            "finish_reason": piece.finish_reason,
        }

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        top: list[dict[str, float]] = []
        for token in tokens:
            found: dict[str, float] = {}
            for text, logprob in token.top:  # of two with the same text, the more likely one
                found.setdefault(text, finite(logprob))
            top.append(found)
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [finite(token.logprob) for token in tokens],
            "top_logprobs": top if self.logprobs else None,
            "text_offset": [token.offset for token in tokens],
        }


def prompt_list(given: Prompts) -> list[TextOrTokens]:
    """A list of prompts, whichever way they are given."""
    if isinstance(given, str):
        return [given]
    ids = [each for each in given if isinstance(each, int)]
    return [ids] if ids else [each for each in given if not isinstance(each, int)]


def check_prompts(field: str, prompts: Sequence[TextOrTokens], limits: Limits) -> None:
    """Refuse too many prompts, or too long ones. A token counts as a character."""
    limits.check_texts(field, [prompt if isinstance(prompt, str) else "." * len(prompt) for prompt in prompts])


def texts_of(tokenizer: Any, prompts: Sequence[TextOrTokens]) -> list[str]:
    return [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in prompts]


def _options(body: CompletionBody, limits: Limits, prompts: int) -> OutputOptions:
    body.refuse("suffix")
    options = body.options(limits, body.max_tokens, body.logprobs)
    if body.best_of not in (None, options.n):
        raise UserError(f"best_of: this server does not support it; leave it out, or set it to n ({options.n}).")
    if body.echo and options.logprobs is not None:
        raise UserError("echo: this server has no log-probabilities of prompts here; leave out echo or logprobs.")
    if prompts * options.n > limits.items:
        raise LimitError(
            f"n: {prompts} prompts with {options.n} outputs each are {prompts * options.n}, and this server generates "
            f"at most {limits.items} for a request; send several requests."
        )
    return options


def _prompt(generator: Any, prompt: TextOrTokens) -> Prompt:
    """Behind a start token, if the model has one. Token ids that begin with it are taken as they are."""
    tokenizer = generator.tokenizer
    if isinstance(prompt, str):
        return Prompt(tuple(generator.prompt_ids(tokenizer.encode(prompt))), prompt)
    tokenizer.decode(prompt)  # refuses ids that are not in the vocabulary
    start = generator.prompt_ids([])
    begins = bool(start) and list(prompt[:1]) == start
    return Prompt(tuple(prompt if begins else generator.prompt_ids(prompt)))
