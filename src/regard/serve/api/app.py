"""The app of `regard serve`: all routes around the served models."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

import regard
from regard.serve.api.deepl.routes import OWN_KEYS as DEEPL_KEYS
from regard.serve.api.deepl.routes import deepl_routes
from regard.serve.api.errors import handle_errors
from regard.serve.api.health import health_routes
from regard.serve.api.libretranslate.routes import OWN_KEYS as LIBRETRANSLATE_KEYS
from regard.serve.api.libretranslate.routes import libretranslate_routes
from regard.serve.api.logs import log_request
from regard.serve.api.metrics import Metrics, metrics_routes
from regard.serve.api.middleware import ServiceMiddleware
from regard.serve.api.native.generate import generate_route
from regard.serve.api.native.translate import translate_route
from regard.serve.api.openai.routes import openai_routes
from regard.serve.api.service import Service


def create_service_app(service: Service, log: Callable[[dict[str, Any]], None] = log_request) -> FastAPI:
    """The app that serves some models. Its description is at /openapi.json."""
    app = FastAPI(
        title="regard",
        version=regard.__version__,
        description="Sequence models over HTTP.",
        docs_url=None,
        redoc_url=None,
    )
    own_keys = (*LIBRETRANSLATE_KEYS, *DEEPL_KEYS)
    service.metrics = Metrics(service)
    app.add_middleware(ServiceMiddleware, service=service, log=service.metrics.before(log), own_keys=own_keys)
    handle_errors(app, service.error_shapes)
    own = health_routes, metrics_routes, translate_route, generate_route
    for routes in (*own, openai_routes, libretranslate_routes, deepl_routes):
        app.include_router(routes(service))
    return app
