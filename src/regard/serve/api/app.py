"""The app of `regard serve`: all routes around the served models."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

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
from regard.serve.api.native.classify import classify_route
from regard.serve.api.native.embed import embed_route
from regard.serve.api.native.fill import fill_route
from regard.serve.api.native.generate import generate_route
from regard.serve.api.native.parse import parse_route
from regard.serve.api.native.score import score_route
from regard.serve.api.native.tag import tag_route
from regard.serve.api.native.translate import translate_route
from regard.serve.api.openai.routes import openai_routes
from regard.serve.api.page import add_page
from regard.serve.api.responses import ERRORS
from regard.serve.api.service import Service

NATIVE_ROUTES = (
    translate_route,
    generate_route,
    parse_route,
    fill_route,
    tag_route,
    classify_route,
    embed_route,
    score_route,
)


def create_service_app(
    service: Service, log: Callable[[dict[str, Any]], None] = log_request, *, page: bool = True
) -> FastAPI:
    """The app that serves some models, and a page at /. Its description is at /openapi.json."""
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
    if service.access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.access.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-api-key"],
        )
    handle_errors(app, service.error_shapes)
    for routes in (health_routes, metrics_routes, *NATIVE_ROUTES):
        app.include_router(routes(service), responses=ERRORS)
    for routes in (openai_routes, libretranslate_routes, deepl_routes):
        app.include_router(routes(service))
    if page:
        add_page(app, service)
    return app
