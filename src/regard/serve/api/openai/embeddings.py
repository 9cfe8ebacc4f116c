"""`POST /v1/embeddings`: a unit vector for each text, from any model that reads texts."""

import base64
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from regard.errors import UserError
from regard.serve.api.middleware import note
from regard.serve.api.openai.completions import Prompts, TextOrTokens, check_prompts, prompt_list
from regard.serve.api.openai.errors import OpenAIRoute
from regard.serve.api.schema import BoundedBody
from regard.serve.api.service import Service
from regard.task.contextual_vectors.vectors import count_tokens


class EmbeddingsBody(BoundedBody):
    """Texts to embed."""

    model_config = ConfigDict(extra="ignore")

    input: Prompts = Field(description="A text or several, or their token ids.", examples=["The cat ate the mouse."])
    model: str | None = Field(None, description="A model of this server. Default: the first that can do this.")
    encoding_format: Literal["float", "base64"] | None = Field(None, description="base64: little-endian float32.")
    dimensions: int | None = Field(None, ge=1, description="That of the model, or an error.")


class Embedding(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsResponse(BaseModel):
    """The vectors, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def embeddings_route(service: Service) -> APIRouter:
    router = APIRouter(route_class=OpenAIRoute)

    @router.post("/v1/embeddings")
    async def create_embeddings(request: Request, body: EmbeddingsBody) -> EmbeddingsResponse:
        """A vector for each text. A dot product of two is their cosine similarity."""
        texts = prompt_list(body.input)
        check_prompts("input", texts, service.limits)
        model = service.models.find(body.model, "embed")
        note(request, model=model.name, items=len(texts))
        vectors, tokens = await service.compute(request, model, "embed", lambda pipeline: _embed(pipeline, texts))
        note(request, tokens=tokens)
        if body.dimensions not in (None, vectors.shape[1]):
            raise UserError(
                f"dimensions: found {body.dimensions}, and vectors of {model.name} have {vectors.shape[1]}."
            )
        write = _base64 if body.encoding_format == "base64" else Tensor.tolist
        data = [Embedding(index=index, embedding=write(vector)) for index, vector in enumerate(vectors)]
        usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
        return EmbeddingsResponse(data=data, model=model.name, usage=usage)

    return router


def _embed(pipeline: Any, texts: Sequence[TextOrTokens]) -> tuple[Tensor, int]:
    return pipeline.sentence_vectors(texts).float(), count_tokens(pipeline, texts)


def _base64(vector: Tensor) -> str:
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode("ascii")
