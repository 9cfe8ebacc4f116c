"""`POST /v1/embed`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from torch import Tensor

from regard.data.text.treebank_tokenizer import treebank_tokenize
from regard.serve.api.middleware import note
from regard.serve.api.schema import Body, ModelName, Texts, as_list, first_or_all
from regard.serve.api.service import Service
from regard.serve.limits import LimitError
from regard.task.contextual_vectors.model import TextVectors
from regard.task.contextual_vectors.vectors import sentence_vectors
from regard.task.pipeline import Pipeline

MAX_WORDS = 1024
"""Words of a request that get vectors of their own: the response is a hundred times as large as the text."""


class EmbedRequest(Body):
    """Texts to embed."""

    text: Texts = Field(description="A text, or a list of texts.", examples=["The cat ate the mouse."])
    model: ModelName = None
    layer: int | None = Field(None, ge=0, le=10_000, description="0 is the embeddings. Default: the last layer.")
    truncate: bool = Field(False, description="Read only the beginning of texts that are too long for the model.")
    words: bool = Field(False, description="Add a vector for each word in its sentence.")
    pooling: Literal["mean", "first", "last"] = Field(
        "mean", description="The vector of a word of several tokens: their mean, or that of one."
    )


class WordVectorsOfText(BaseModel):
    """The words of a text, and a vector for each."""

    words: list[str] = Field(examples=[["The", "cat"]])
    vectors: list[list[float]] = Field(examples=[[[0.12, -0.3], [0.5, 0.07]]])


class EmbedResponse(BaseModel):
    """The vectors: one for a text, a list for a list."""

    model: str
    embedding: list[float] | list[list[float]] = Field(
        description="Unit vectors: a dot product is a cosine. Zeros for a text without tokens.", examples=[[0.6, -0.8]]
    )
    words: WordVectorsOfText | list[WordVectorsOfText] | None = None


def embed_route(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/embed", response_model_exclude_none=True)
    async def embed(request: Request, body: EmbedRequest) -> EmbedResponse:
        """Vectors of texts, and of the words in them."""
        texts = as_list(body.text)
        service.limits.check_texts("text", texts)
        if body.words:
            await run_in_threadpool(_check_words, texts)
        model = service.models.find(body.model, "embed")
        note(request, model=model.name, items=len(texts))

        def embed_texts(pipeline: Pipeline, texts: Sequence[str], progress: Callable[[int], None]) -> list[Tensor]:
            return list(sentence_vectors(pipeline, texts, layer=body.layer, truncate=body.truncate, progress=progress))

        key = ("embed", body.layer, body.truncate)
        vectors = [each.tolist() for each in await service.compute_batched(request, model, key, texts, embed_texts)]
        words = await _word_vectors(service, request, model, texts, body) if body.words else None
        return EmbedResponse(
            model=model.name,
            embedding=first_or_all(body.text, vectors),
            words=None if words is None else first_or_all(body.text, words),
        )

    return router


def _check_words(texts: list[str]) -> None:
    if (count := sum(len(treebank_tokenize(text)) for text in texts)) > MAX_WORDS:
        raise LimitError(
            f"text has {count:,} words, and this server gives vectors to {MAX_WORDS:,} in a request; send several."
        )


async def _word_vectors(
    service: Service, request: Request, model: Any, texts: list[str], body: EmbedRequest
) -> list[WordVectorsOfText]:
    def embed_words(pipeline: Pipeline, texts: Sequence[str], progress: Callable[[int], None]) -> list[TextVectors]:
        found: list[TextVectors] = pipeline.contextual_vectors(
            texts, layer=body.layer, pooling=body.pooling, progress=progress
        )
        return found

    key = ("words", body.layer, body.pooling)
    found = await service.compute_batched(request, model, key, texts, embed_words)
    return [WordVectorsOfText(words=list(words), vectors=vectors.tolist()) for words, vectors in found]
