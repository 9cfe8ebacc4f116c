"""All routes of OpenAI's protocol."""

from fastapi import APIRouter

from regard.serve.api.openai.chat import chat_route
from regard.serve.api.openai.completions import completions_route
from regard.serve.api.openai.embeddings import embeddings_route
from regard.serve.api.openai.errors import ERROR_RESPONSES, error_shape
from regard.serve.api.openai.models import models_routes
from regard.serve.api.service import Service

PATHS = ("/v1/models", "/v1/completions", "/v1/chat/completions", "/v1/embeddings")


def openai_routes(service: Service) -> APIRouter:
    """The routes; errors at their paths have OpenAI's shape from now on."""
    for path in PATHS:
        service.error_shapes.register(path, error_shape)
    router = APIRouter(responses=ERROR_RESPONSES, tags=["OpenAI"])
    for routes in (models_routes, completions_route, chat_route, embeddings_route):
        router.include_router(routes(service))
    return router
