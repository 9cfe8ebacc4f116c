"""`GET /health`: whether the server lives, and whether it takes requests."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from regard.serve.api.service import Service


def health_routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    @router.get("/health/live")
    async def live() -> dict[str, str]:
        """The server lives."""
        return {"status": "ok"}

    @router.get("/health/ready")
    async def ready() -> Response:
        """Whether the server takes requests: not while it shuts down."""
        if service.draining:
            return JSONResponse({"status": "shutting down"}, 503)
        return JSONResponse({"status": "ok", "models": [model.name for model in service.models]})

    return router
