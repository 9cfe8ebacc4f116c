"""`POST /v1/translate`."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.serve.api.middleware import note
from regard.serve.api.schema import DecodingOptions, ModelName, Texts, as_list, first_or_all
from regard.serve.api.service import Service
from regard.serve.models.served_model import ServedModel
from regard.task.constraints import make_constraints
from regard.task.json_records import translation_record
from regard.task.translation.pipeline import Translator
from regard.task.translation.result import TranslatedText


class TranslateRequest(DecodingOptions):
    """Texts to translate."""

    text: Texts = Field(description="A text, or a list of texts.", examples=["The cat ate the mouse."])
    model: ModelName = None
    source: str | None = Field(None, description="The language of the text: with `target`, instead of a model.")
    target: str | None = Field(None, description="The language to translate into.")
    prefix: str = Field("", description="How the translation begins.")
    require: list[str] = Field([], description="Words that the translation contains.")
    forbid: list[str] = Field([], description="Texts that it does not contain.")
    split: bool = Field(True, description="Whether texts are split into sentences, which are translated one by one.")
    details: bool = Field(False, description="Add sentences with scores and the probability of every token.")


class TranslateResponse(BaseModel):
    """The translations: one for a text, a list for a list."""

    model: str = Field(examples=["en-tr"])
    translation: str | list[str] | list[list[str]] = Field(examples=["Kedi fareyi yedi."])
    details: Any = Field(None, description="With `details`: what `regard translate --json` prints.")


def translate_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/translate", response_model_exclude_none=True)
    async def translate(request: Request, body: TranslateRequest) -> TranslateResponse:
        """Translate a text, or a list of texts in batches. The layout of paragraphs is kept."""
        texts = as_list(body.text)
        service.limits.check_texts("text", texts)
        model = select_translator(service, body.model, body.source, body.target)
        decode = model.pipeline.decode.with_options(body.changes(service.limits))
        found = await service.compute(
            request, model, "translate", lambda pipeline: _translate(pipeline, texts, decode, body)
        )
        note(request, model=model.name, items=len(texts), tokens=count_tokens(found))
        several = body.nbest is not None
        results = [list(one.texts[: body.nbest]) if several else one.text for one in found]
        details = None
        if body.details:
            tokenizer = model.pipeline.target_tokenizer
            details = first_or_all(body.text, [translation_record(one, body.nbest or 1, tokenizer) for one in found])
        return TranslateResponse(model=model.name, translation=first_or_all(body.text, results), details=details)

    return router


def select_translator(service: Service, name: str | None, source: str | None, target: str | None) -> ServedModel:
    """The translator with a name, of a pair of languages, or the first."""
    if name is None and source is not None and target is not None:
        return service.models.find_translator(source, target)
    model = service.models.find(name, "translate")
    for language, known in zip((source, target), model.languages or (None, None), strict=True):
        if language is not None and known is not None and language != known:
            raise UserError(f"The model {model.name} translates from {model.languages[0]} to {model.languages[1]}.")  # type: ignore[index]
    return model


def count_tokens(found: list[TranslatedText]) -> int:
    """Tokens of the best translations."""
    return sum(len(each[0].tokens) for one in found for _, each in one.sentences)


def _translate(
    translator: Translator, texts: list[str], decode: DecodeConfig, body: TranslateRequest
) -> list[TranslatedText]:
    constraints = make_constraints(
        translator.target_tokenizer, prefix=body.prefix, required=body.require, forbidden=body.forbid
    )
    return translator.translate_batch(
        texts,
        decode if body.nbest is not None else decode.only_best(),
        constraints=constraints,
        seed_offsets=range(len(texts)),
        split=body.split,
    )
