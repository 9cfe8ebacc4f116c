"""The page of `regard look` on the server of the API, at `/`.

The page ablates heads by hooks on a model's modules, which must not change what the API answers at the same time. So it
has modules of its own for each model, which share the tensors of the served ones. They are made when the page is first
used, and again after the model was replaced.
"""

import copy
import threading
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from torch import nn

from regard.errors import UserError
from regard.look.models.auto import make_traced_model
from regard.look.models.traced_model import TracedModel
from regard.look.runs import RunNotFoundError
from regard.run import LoadedModel
from regard.serve.api.errors import RefusedError
from regard.serve.api.service import Service
from regard.serve.inspector.app import AppState, add_page_routes
from regard.serve.inspector.errors import error_response
from regard.serve.inspector.jobs import BusyError
from regard.serve.inspector.trace_store import EvictedError, NotFoundError, TraceStore
from regard.serve.models.served_model import ServedModel
from regard.task.parsing.pipeline import Parser
from regard.task.pipeline import Pipeline

MAX_TRACE_BYTES = 512 << 20
"""Total size of the traces of all users of the page."""


def add_page(app: FastAPI, service: Service) -> None:
    """Serve the page, and the routes under /api that it uses."""
    for kind in (NotFoundError, RunNotFoundError, EvictedError, BusyError):
        app.add_exception_handler(kind, error_response)
    router = APIRouter(include_in_schema=False, dependencies=[Depends(_refuse_other_sites)])
    add_page_routes(router, ServedAppState(service))
    app.include_router(router)


class ServedAppState(AppState):
    """The served models as the page has them."""

    def __init__(self, service: Service) -> None:
        super().__init__([], store=TraceStore(MAX_TRACE_BYTES))
        self._service = service
        self._made_from: dict[str, ServedModel] = {}
        self._ids: dict[str, str] = {}
        """By the models' names."""
        self._lock = threading.Lock()

    @property
    def traced_models(self) -> Mapping[str, TracedModel]:
        with self._lock:
            for model in self._service.models:
                if self._made_from.get(model.name) is not model:
                    self._made_from[model.name] = model
                    self._add(model)
            return dict(self._traced_models)

    def _add(self, model: ServedModel) -> None:
        try:
            traced_model = make_traced_model(pipeline_for_page(model.pipeline), model.name)
        except UserError:  # word vectors, for example, have nothing to trace
            return
        if model.name not in self._ids:
            self.add_model(traced_model)
            self._ids[model.name] = traced_model.id
        else:  # it takes the place of the old one, with the same worker
            traced_model.id = self._ids[model.name]
            self._traced_models[traced_model.id] = traced_model


def pipeline_for_page(pipeline: Pipeline) -> Pipeline:
    """A pipeline with modules of its own, which share the parameters of the given one."""
    loaded = pipeline.loaded
    copied = LoadedModel(
        copy_modules(loaded.model),
        loaded.tokenizer,
        loaded.target_tokenizer,
        path=loaded.path,
        origin=loaded.origin,
        checkpoint=loaded.checkpoint,
    )
    kind: Any = type(pipeline)
    return Parser(copied, pipeline.symbols, pipeline.decode) if isinstance(pipeline, Parser) else kind(copied)


def copy_modules(model: nn.Module) -> nn.Module:
    """A copy of all modules, with the same parameters and buffers and without hooks."""
    tensors = [*model.parameters(), *model.buffers()]
    copied: nn.Module = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    return copied


async def _refuse_other_sites(request: Request) -> None:
    """Refuse requests from pages of other sites: a browser that knows the API key would send it along."""
    from_elsewhere = request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    if from_elsewhere and request.url.path.startswith("/api/"):  # other sites may link to the page itself
        raise RefusedError(403, "This address is for the server's own page; the request came from another site.")
