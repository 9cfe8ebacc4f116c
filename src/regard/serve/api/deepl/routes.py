"""The routes of DeepL's API, version 2, as far as they translate texts.

What a model cannot do (formality, glossaries) is refused; what makes no difference to it (context, a model type,
preserved formatting) is accepted.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, Field
from starlette.responses import JSONResponse, Response

from regard.data.text.markup import MarkupRules
from regard.errors import UserError
from regard.serve.api.access import key_in_headers
from regard.serve.api.errors import RefusedError
from regard.serve.api.fields import NoFields, describe, parse_fields, read_fields
from regard.serve.api.schema import BoundedBody
from regard.serve.api.service import Service
from regard.serve.api.translation import (
    TextOptions,
    all_languages,
    find_language,
    identify_all,
    source_languages,
    target_languages,
    translate_texts,
)
from regard.serve.languages.names import language_name

PREFIX = "/v2"
OWN_KEYS = (PREFIX,)
UNLIMITED = 1_000_000_000_000
"""The character limit that DeepL reports for accounts without one."""
_VARIANTS = {
    "en": {"EN-GB": "English (British)", "EN-US": "English (American)"},
    "pt": {"PT-BR": "Portuguese (Brazilian)", "PT-PT": "Portuguese (European)"},
}
"""Targets that DeepL's clients ask for with a region. A model has only one kind."""
_UNSUPPORTED = ("glossary_id", "glossary_ids", "style_id", "translation_memory_id", "custom_instructions")


def _listed(value: object) -> object:
    return value.split(",") if isinstance(value, str) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _number_as_text(value: object) -> object:
    return str(int(value)) if isinstance(value, bool | int) else value


Tags = Annotated[list[str], BeforeValidator(_listed)]


class DeepLRequest(BoundedBody):
    """Texts to translate."""

    text: Annotated[list[str], BeforeValidator(_as_list)] = Field(examples=[["The cat ate the mouse."]])
    target_lang: str = Field(max_length=50, examples=["TR"])
    source_lang: str | None = Field(None, max_length=50)
    split_sentences: Annotated[Literal["0", "1", "nonewlines"] | None, BeforeValidator(_number_as_text)] = None
    formality: Literal["default", "prefer_more", "prefer_less"] = "default"
    tag_handling: Literal["html", "xml", ""] | None = None
    splitting_tags: Tags = Field([])
    non_splitting_tags: Tags = Field([])
    ignore_tags: Tags = Field([])
    model_type: Literal["latency_optimized", "quality_optimized", "prefer_quality_optimized"] | None = None


class DeepLTranslation(BaseModel):
    """A translation, and the language of its text."""

    detected_source_language: str = Field(examples=["EN"])
    text: str = Field(examples=["Kedi fareyi yedi."])
    billed_characters: int
    model_type_used: str | None = None


class DeepLResponse(BaseModel):
    """The translations of all texts, in their order."""

    translations: list[DeepLTranslation]


class LanguagesRequest(BoundedBody):
    """Which languages are asked for."""

    type: Literal["source", "target"] = "source"


class DeepLLanguage(BaseModel):
    """A language of this server."""

    language: str = Field(examples=["TR"])
    name: str = Field(examples=["Turkish"])
    supports_formality: bool | None = None


class UsageResponse(BaseModel):
    """Characters translated since the server process began."""

    character_count: int
    character_limit: int


class ErrorResponse(BaseModel):
    """What was wrong."""

    message: str


def deepl_routes(service: Service) -> APIRouter:
    router, usage = APIRouter(tags=["DeepL"]), _Usage()
    service.error_shapes.register(PREFIX, error_shape)

    @router.post("/v2/translate", **describe(DeepLRequest, DeepLResponse, ErrorResponse))
    async def translate(request: Request) -> Response:
        """Translate texts, as DeepL does."""
        fields = await _fields(request, service)
        _check_supported(fields)
        body = parse_fields(DeepLRequest, fields)
        service.limits.check_texts("text", body.text)
        target = find_language(body.target_lang, all_languages(service.models))
        options = _options(body)
        if body.source_lang:
            sources = [find_language(body.source_lang, all_languages(service.models))] * len(body.text)
        else:
            guesses = await identify_all(service.models, body.text, target, options.markup)
            sources = [each[0].language for each in guesses]
        found = await translate_texts(service, request, body.text, sources, target, options)
        usage.add(sum(map(len, body.text)))
        answers = zip((each[0] for each in found), sources, body.text, strict=True)
        return JSONResponse({"translations": [_translation(*each, body) for each in answers]})

    @router.get("/v2/languages", include_in_schema=False)
    @router.post("/v2/languages", **describe(LanguagesRequest, list[DeepLLanguage], ErrorResponse))
    async def languages(request: Request) -> Response:
        """The languages of this server, as sources or as targets."""
        kind = parse_fields(LanguagesRequest, await _fields(request, service)).type
        return JSONResponse(_languages(service, kind))

    @router.post("/v2/usage", include_in_schema=False)
    @router.get("/v2/usage", **describe(NoFields, UsageResponse, ErrorResponse))
    async def get_usage(request: Request) -> Response:
        """The characters translated since the server has been started."""
        await _fields(request, service)
        return JSONResponse({"character_count": usage.characters, "character_limit": UNLIMITED})

    return router


def error_shape(status: int, message: str) -> Mapping[str, Any]:
    return {"message": message}


class _Usage:
    """The characters that were translated."""

    def __init__(self) -> None:
        self.characters = 0
        self._lock = threading.Lock()

    def add(self, characters: int) -> None:
        with self._lock:
            self.characters += characters


async def _fields(request: Request, service: Service) -> dict[str, Any]:
    """The fields of a request with a valid key."""
    fields = await read_fields(request, lists=("text", "splitting_tags", "non_splitting_tags", "ignore_tags"))
    if service.access.needs_key:
        key = key_in_headers(request.headers) or fields.get("auth_key")
        if not isinstance(key, str) or not service.access.is_valid(key):
            raise RefusedError(403, "This server needs a valid API key: `Authorization: DeepL-Auth-Key KEY`.")
    return fields


def _check_supported(fields: Mapping[str, Any]) -> None:
    for name in _UNSUPPORTED:
        if fields.get(name):
            raise UserError(f"This server's models do not support {name}; leave it out.")
    if str(fields.get("formality", "default")).lower() in ("more", "less"):
        raise UserError("This server's models do not support formality; leave it out, or send prefer_more.")


def _options(body: DeepLRequest) -> TextOptions:
    markup = None
    if body.tag_handling:
        splitting, non_splitting, ignored = (
            frozenset(tag.strip().lower() for tag in tags)
            for tags in (body.splitting_tags, body.non_splitting_tags, body.ignore_tags)
        )
        markup = MarkupRules(body.tag_handling == "xml", splitting, non_splitting, ignored)
    return TextOptions(
        markup=markup, split=body.split_sentences != "0", line_breaks=body.split_sentences != "nonewlines"
    )


def _translation(translation: str, source: str, text: str, body: DeepLRequest) -> dict[str, Any]:
    answer = {
        "detected_source_language": _code(source),
        "text": translation,
        "billed_characters": len(text),
    }
    if body.model_type is not None:
        answer["model_type_used"] = body.model_type.removeprefix("prefer_")
    return answer


def _languages(service: Service, kind: str) -> list[dict[str, Any]]:
    sources = source_languages(service.models)
    if kind == "source":
        return [{"language": _code(code), "name": language_name(code)} for code in sources]
    targets = sorted({target for source in sources for target in target_languages(service.models, source)})
    return [{"language": code, "name": name, "supports_formality": False} for code, name in _with_variants(targets)]


def _with_variants(targets: Iterable[str]) -> Iterable[tuple[str, str]]:
    for code in targets:
        yield from _VARIANTS.get(code, {_code(code): language_name(code)}).items()


def _code(language: str) -> str:
    return language.replace("_", "-").upper()
