"""`POST /v1/score`."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from regard.data.text.pairs import Pair
from regard.errors import UserError
from regard.serve.api.middleware import note
from regard.serve.api.schema import Body, ModelName, Texts, as_list, first_or_all
from regard.serve.api.service import Service
from regard.task.forced_scoring import ForcedScore, score_lines
from regard.task.translation.pipeline import Translator


class ScoreRequest(Body):
    """Translations with their sources, for a translator, or texts, for a language model."""

    text: Texts = Field(description="A translation, or a text; or a list of them.", examples=["Kedi fareyi yedi."])
    source: Texts | None = Field(
        None, description="What the translation is of; a list for a list.", examples=["The cat ate the mouse."]
    )
    model: ModelName = None


class ScoredToken(BaseModel):
    """A token, and its log-probability given those before it. That of the end has an empty text."""

    text: str = Field(examples=["Kedi"])
    logprob: float = Field(examples=[-0.21])


class ScoredText(BaseModel):
    """How probable a text is: the sum over its tokens, and per token."""

    logprob: float = Field(examples=[-1.93])
    perplexity: float | None = Field(description="None if no token is predicted.", examples=[1.38])
    tokens: list[ScoredToken]


class ScoreResponse(BaseModel):
    """The scores: one for a text, a list for a list."""

    model: str
    scored: ScoredText | list[ScoredText]


def score_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/score")
    async def score(request: Request, body: ScoreRequest) -> ScoreResponse:
        """The log-probabilities that a model gives to translations, or to texts. Nothing is generated."""
        texts = as_list(body.text)
        service.limits.check_texts("text", texts)
        if body.source is not None:
            service.limits.check_texts("source", as_list(body.source))
        model = service.models.find(body.model, "score")
        note(request, model=model.name, items=len(texts))
        items = _items(body, texts, model.name, translates=isinstance(model.pipeline, Translator))
        found = await service.compute_batched(request, model, "score", items, _score)
        note(request, tokens=sum(len(each.tokens) for each in found))
        scored = [ScoredText.model_validate(each.record()) for each in found]
        return ScoreResponse(model=model.name, scored=first_or_all(body.text, scored))

    return router


def _items(body: ScoreRequest, texts: list[str], name: str, *, translates: bool) -> Sequence[Pair | str]:
    if not translates:
        if body.source is not None:
            raise UserError(f"source is for translators, and {name} is a language model; leave it out.")
        return texts
    if body.source is None or isinstance(body.source, str) != isinstance(body.text, str):
        raise UserError(f"{name} scores translations; give a source for each text, both as strings or both as lists.")
    sources = as_list(body.source)
    if len(sources) != len(texts):
        raise UserError(f"There are {len(sources)} sources and {len(texts)} texts; give one for each.")
    return [Pair(*each) for each in zip(sources, texts, strict=True)]


def _score(scorer: Any, items: Sequence[Pair | str], progress: Callable[[int], None]) -> list[ForcedScore]:
    return score_lines(scorer, items, progress)
