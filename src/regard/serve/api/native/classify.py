"""`POST /v1/classify`: the classes of texts, or of images in JSON or as an upload."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData, UploadFile
from torch import Tensor

from regard.errors import UserError
from regard.serve.api.images import decode_base64, preprocess_images
from regard.serve.api.middleware import note
from regard.serve.api.schema import Body, ModelName, Texts, as_list
from regard.serve.api.service import Service
from regard.serve.limits import LimitError
from regard.serve.models.cancellation import current_cancellation
from regard.serve.models.served_model import ServedModel
from regard.serve.requests import as_request_error, read_json
from regard.task.classification.pipeline import Labels, TextLabeler
from regard.task.image_classification.pipeline import ImageClassifier
from regard.task.json_records import class_records


class ClassifyRequest(Body):
    """Texts or images to classify: one of the two."""

    text: Texts | None = Field(None, description="A text, or a list of texts.", examples=["A warm and clever film."])
    image: Texts | None = Field(None, description="An image in base64 or as a data: URL, or a list.", examples=[None])
    model: ModelName = None
    top: int | None = Field(None, ge=1, le=1_000_000, description="How many classes, most likely first. Default: all.")


class LabelProbability(BaseModel):
    """A class and its probability."""

    label: str = Field(examples=["positive"])
    probability: float = Field(examples=[0.97])


class ClassifyResponse(BaseModel):
    """The classes, most likely first: a list for a text or an image, and a list of lists for a list."""

    model: str
    classes: list[LabelProbability] | list[list[LabelProbability]]


_UPLOAD: dict[str, Any] = {
    "type": "object",
    "required": ["image"],
    "additionalProperties": False,
    "properties": {
        "image": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}},
        "model": {"type": "string"},
        "top": {"type": "integer", "minimum": 1},
    },
}


def classify_route(service: Service) -> APIRouter:
    router = APIRouter()
    content = {
        "application/json": {"schema": ClassifyRequest.model_json_schema()},
        "multipart/form-data": {"schema": _UPLOAD},
    }

    @router.post("/v1/classify", openapi_extra={"requestBody": {"content": content, "required": True}})
    async def classify(request: Request) -> ClassifyResponse:
        """Classify texts or images. Images can also be uploaded as a form (multipart/form-data)."""
        body, uploads = await _read(request, service)
        if (body.text is None) == (body.image is None and uploads is None):
            raise UserError("Give either text or image.")
        if body.text is not None:
            texts = as_list(body.text)
            service.limits.check_texts("text", texts)
            model = service.models.find(body.model, "classify")
            note(request, model=model.name, items=len(texts))
            found = await service.compute_batched(request, model, "classify", texts, _classify_texts)
            return _response(model.name, found, body.top, single=isinstance(body.text, str))
        images = uploads or []
        if body.image is not None:
            given = as_list(body.image)
            service.limits.check_items("image", len(given))
            images = [decode_base64("image", each) for each in given]
        service.limits.check_items("image", len(images))
        model = service.models.find(body.model, "classify-images")
        note(request, model=model.name, items=len(images))
        found = await _classify_images(request, service, model, images)
        return _response(model.name, found, body.top, single=isinstance(body.image, str))

    return router


async def _read(request: Request, service: Service) -> tuple[ClassifyRequest, list[bytes] | None]:
    """The request, and the images that were uploaded with it."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        body = await read_json(request, ClassifyRequest)
        if body.text is not None and len(await request.body()) > service.limits.body_bytes:
            raise LimitError(f"The request is too large: the limit for texts is {service.limits.body_bytes:,} bytes.")
        return body, None
    try:
        form = await request.form(max_files=service.limits.items, max_fields=len(ClassifyRequest.model_fields))
    except (FormParserError, KeyError, ValueError):  # python-multipart raises these for damaged forms
        raise UserError("The form is damaged; send it as multipart/form-data with files in the field image.") from None
    try:
        options = {name: value for name, value in form.multi_items() if isinstance(value, str)}
        return ClassifyRequest.model_validate(options), [await each.read() for each in _files(form)]
    except ValidationError as error:
        raise as_request_error(error) from None
    finally:
        await form.close()


def _files(form: FormData) -> list[UploadFile]:
    files = [(name, value) for name, value in form.multi_items() if isinstance(value, UploadFile)]
    if wrong := [name for name, _ in files if name != "image"]:
        raise UserError(f"There is a file in the field {wrong[0][:100]!r}; upload images in the field image.")
    return [value for _, value in files]


async def _classify_images(request: Request, service: Service, model: ServedModel, images: list[bytes]) -> list[Labels]:
    """Images are preprocessed for each request alone, so that a damaged one is refused, and classified together."""

    def preprocess(classifier: ImageClassifier) -> list[Tensor]:
        check = current_cancellation().check
        return preprocess_images(classifier, images, service.limits, check)

    pixels = await service.compute(request, model, "classify-images", preprocess)
    return await service.compute_batched(request, model, "classify-images", pixels, _classify_pixels)


def _classify_texts(labeler: TextLabeler, texts: Sequence[str], progress: Callable[[int], None]) -> list[Labels]:
    return labeler.classify(list(texts), progress=progress)


def _classify_pixels(
    classifier: ImageClassifier, pixels: Sequence[Tensor], progress: Callable[[int], None]
) -> list[Labels]:
    return classifier.classify_pixels(pixels)


def _response(model: str, found: list[Labels], top: int | None, *, single: bool) -> ClassifyResponse:
    classes = [class_records(each[:top]) for each in found]
    return ClassifyResponse.model_validate({"model": model, "classes": classes[0] if single else classes})
