"""The routes of LibreTranslate 1.9. Fields may be JSON, a form or in the address, and the API key is one of them.

Clients put addresses together in several ways, so the paths also work with two slashes at the start.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, Field
from starlette.responses import JSONResponse, Response

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
from regard.serve.languages.identification import Guess
from regard.serve.languages.names import language_name
from regard.task.translation.markup import HTML

PATHS = ("/translate", "/languages", "/detect", "/frontend")
OWN_KEYS = tuple(prefix + path for prefix in ("", "/") for path in PATHS)
"""The beginnings of the paths of this protocol, which check the API key themselves."""

_Blank = BeforeValidator(lambda value: None if value == "" else value)


class LibreTranslateRequest(BoundedBody):
    """Texts to translate. Fields that LibreTranslate does not have are ignored, as it does."""

    q: str | list[str] = Field(examples=["The cat ate the mouse."])
    source: str = Field(max_length=50, description="A language, or `auto`.", examples=["en"])
    target: str = Field(max_length=50, examples=["tr"])
    format: Annotated[Literal["text", "html"] | None, _Blank] = None
    alternatives: Annotated[int | None, _Blank] = Field(None, ge=0)


class Detection(BaseModel):
    """A language, and how sure that is, in percent."""

    confidence: float = Field(examples=[98.0])
    language: str = Field(examples=["en"])


class LibreTranslateResponse(BaseModel):
    """The translations: one for a text, a list for a list."""

    translatedText: str | list[str] = Field(examples=["Kedi fareyi yedi."])  # noqa: N815
    detectedLanguage: Detection | list[Detection] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None


class DetectRequest(BoundedBody):
    """A text whose language is asked for."""

    q: str = Field(examples=["Where is the station?"])


class LanguageResponse(BaseModel):
    """A language that can be translated from, and those that it can be translated into."""

    code: str = Field(examples=["en"])
    name: str = Field(examples=["English"])
    targets: list[str] = Field(examples=[["en", "tr"]])


class ErrorResponse(BaseModel):
    """What was wrong."""

    error: str


def libretranslate_routes(service: Service) -> APIRouter:
    router, limits = APIRouter(), service.limits
    for path in OWN_KEYS:
        service.error_shapes.register(path, error_shape)

    async def translate(request: Request) -> Response:
        """Translate a text, or a list of texts, as LibreTranslate does."""
        fields = await _fields(request, service, "q", "source", "target")
        body = parse_fields(LibreTranslateRequest, fields)
        answer = await _translate(service, request, body)
        if isinstance(body.q, str):
            answer = {key: values[0] for key, values in answer.items()}
        return JSONResponse(answer)

    async def languages(request: Request) -> Response:
        """The languages of this server, and what each can be translated into."""
        models = service.models
        return JSONResponse(
            [
                {"code": code, "name": language_name(code), "targets": [code, *target_languages(models, code)]}
                for code in source_languages(models)
            ]
        )

    async def detect(request: Request) -> Response:
        """The languages that a text may be written in, likeliest first."""
        body = parse_fields(DetectRequest, await _fields(request, service, "q"))
        limits.check_texts("q", [body.q])
        first, *others = (await identify_all(service.models, [body.q]))[0]
        return JSONResponse(
            [_detection(guess) for guess in (first, *others) if guess is first or guess.confidence >= 0.01]
        )

    async def settings(request: Request) -> Response:
        """What the page of LibreTranslate asks for first."""
        return JSONResponse(_settings(service))

    described: tuple[tuple[str, str, Any, type[BaseModel], Any], ...] = (
        ("/translate", "POST", translate, LibreTranslateRequest, LibreTranslateResponse),
        ("/detect", "POST", detect, DetectRequest, list[Detection]),
        ("/languages", "GET", languages, NoFields, list[LanguageResponse]),
        ("/frontend/settings", "GET", settings, NoFields, dict[str, Any]),
    )
    for path, method, route, kind, answer in described:
        facts = describe(kind, answer, ErrorResponse)
        router.add_api_route(path, route, methods=[method], tags=["LibreTranslate"], **facts)
        router.add_api_route(f"/{path}", route, methods=[method], include_in_schema=False)
    return router


def error_shape(status: int, message: str) -> Mapping[str, Any]:
    return {"error": message}


async def _fields(request: Request, service: Service, *required: str) -> dict[str, Any]:
    """The fields of a request with a valid key."""
    fields = await read_fields(request, lists=("q",))
    access = service.access
    if access.needs_key:
        key = fields.get("api_key") or key_in_headers(request.headers)
        if not key:
            raise UserError("This server needs an API key; send it as api_key.")
        if not isinstance(key, str) or not access.is_valid(key):
            raise RefusedError(403, "The API key is not valid.")
    for name in required:
        if fields.get(name) in (None, "", []):
            raise UserError(f"Invalid request: missing {name} parameter.")
    return fields


async def _translate(service: Service, request: Request, body: LibreTranslateRequest) -> dict[str, list[Any]]:
    """The fields of the answer, with an item for each text."""
    texts = [body.q] if isinstance(body.q, str) else body.q
    service.limits.check_texts("q", texts)
    nbest = 1 + (body.alternatives or 0)
    service.limits.check_search(None, nbest)
    target = find_language(body.target, all_languages(service.models))
    options = TextOptions(markup=HTML if body.format == "html" else None, nbest=nbest)
    guesses = None
    if body.source.lower() == "auto":
        guesses = [each[0] for each in await identify_all(service.models, texts, target, options.markup)]
        sources = [guess.language for guess in guesses]
    else:
        sources = [find_language(body.source, all_languages(service.models))] * len(texts)
    found = await translate_texts(service, request, texts, sources, target, options)
    answer: dict[str, list[Any]] = {"translatedText": [each[0] for each in found]}
    if guesses is not None:
        answer["detectedLanguage"] = [_detection(guess) for guess in guesses]
    if body.alternatives:
        answer["alternatives"] = [list(each[1:]) for each in found]
    return answer


def _detection(guess: Guess) -> dict[str, Any]:
    return {"confidence": round(100 * guess.confidence, 1), "language": guess.language}


def _settings(service: Service) -> dict[str, Any]:
    sources = source_languages(service.models)
    source = sources[0] if sources else "en"
    targets = target_languages(service.models, source) or [source]
    return {
        "apiKeys": service.access.needs_key,
        "keyRequired": service.access.needs_key,
        "charLimit": service.limits.characters,
        "frontendTimeout": 500,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "suggestions": False,
        "language": {
            "source": {"code": source, "name": language_name(source)},
            "target": {"code": targets[0], "name": language_name(targets[0])},
        },
    }
