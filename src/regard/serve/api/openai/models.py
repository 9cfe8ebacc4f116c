"""`GET /v1/models` and `GET /v1/models/{id}`."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from regard.serve.api.openai.errors import OpenAIRoute
from regard.serve.api.service import Service
from regard.serve.models.registry import UnknownModelError
from regard.serve.models.served_model import ServedModel


class ModelCard(BaseModel):
    """A model of this server."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "regard"
    capabilities: list[str]
    """What it can be asked for. Not in OpenAI's protocol."""


class ModelList(BaseModel):
    """All models of this server."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def models_routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=OpenAIRoute)

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """The models of this server."""
        return ModelList(data=[_card(model) for model in service.models])

    @router.get("/v1/models/{name}")
    async def retrieve_model(name: str) -> ModelCard:
        """One model."""
        for model in service.models:
            if model.name == name:
                return _card(model)
        raise UnknownModelError(f"There is no model {name[:100]!r} on this server.")

    return router


def _card(model: ServedModel) -> ModelCard:
    return ModelCard(id=model.name, created=model.created, capabilities=list(model.capabilities))
