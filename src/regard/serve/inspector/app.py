"""The web app: the routes documented in `web/src/contract.d.ts`, and the page itself.

A route validates the request, calls `look`, and responds. Routes that take long are computed by workers (`worker.py`):
those that need a model by the model's own, one at a time, because heads ablated for one request would be ablated for
all; those that convert large arrays by a few threads. All others are answered at once, whatever the workers do.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from regard.look.analysis.activations.activations import module_activations, module_values
from regard.look.analysis.activations.times import measure_times
from regard.look.analysis.attention_maps import check_heads
from regard.look.analysis.attention_patterns import compare_patterns, model_patterns
from regard.look.analysis.attribution.contrast import explain_choice, find_choice
from regard.look.analysis.attribution.logit_lens import look_through_layers
from regard.look.analysis.embeddings.contextual import contextual_vectors
from regard.look.analysis.embeddings.neighbors import nearest_neighbors
from regard.look.analysis.embeddings.residual_stream import residual_stream
from regard.look.analysis.head_importance import measure_heads
from regard.look.analysis.head_roles.roles import check_roles, measure_roles
from regard.look.analysis.model_diagram import draw_model
from regard.look.analysis.patch_classes import patch_classes
from regard.look.models.autoregressive import require_generator
from regard.look.models.traced_model import TracedModel
from regard.look.positions.schemes import positions
from regard.look.runs import list_runs, read_run_metrics
from regard.look.schema import (
    CellRequest,
    ContextualVectorsRequest,
    ContrastRequest,
    HeadImportance,
    HeadImportanceRequest,
    HeadRolesRequest,
    LensRequest,
    Message,
    PatternsRequest,
    RunRequest,
    SentencesRequest,
    Side,
    TokenEvent,
)
from regard.look.trace import MAX_BYTES, Trace, trace_from_bytes
from regard.serve.inspector.attention import Rows, attention_response
from regard.serve.inspector.errors import handle_errors
from regard.serve.inspector.guard import LocalOnlyMiddleware
from regard.serve.inspector.jobs import Jobs
from regard.serve.inspector.secret import SecretMiddleware
from regard.serve.inspector.streaming import EventStream
from regard.serve.inspector.trace_store import NotFoundError, TraceStore
from regard.serve.page import StaticPage
from regard.serve.requests import compute, read_json
from regard.serve.worker import Worker

MAX_RUN_BODY, MAX_DEV_SET_BODY = 32 << 20, 16 << 20
"""Bytes of a request to run a model, which may contain an image, and of one to measure heads on a dev set."""
CONVERTER_THREADS, MAX_WAITING_CONVERSIONS = 4, 64
"""Threads that convert arrays and files, and the requests that may wait for them."""


class AppState:
    """What the routes share: models with a worker each, traces, and jobs."""

    def __init__(
        self, traced_models: Sequence[TracedModel], runs: Path | None = None, store: TraceStore | None = None
    ) -> None:
        self.workers: dict[str, Worker] = {}
        self._traced_models: dict[str, TracedModel] = {}
        for traced_model in traced_models:
            self.add_model(traced_model)
        self.runs = runs
        self.store = store or TraceStore()
        self.jobs = Jobs()
        self.converter = Worker("large responses", threads=CONVERTER_THREADS, max_waiting=MAX_WAITING_CONVERSIONS)

    @property
    def traced_models(self) -> Mapping[str, TracedModel]:
        """The models by their ids."""
        return self._traced_models

    def add_model(self, traced_model: TracedModel) -> None:
        """Serve a model under an unused id."""
        traced_model.id = _unique_id(traced_model.name, self._traced_models)
        self._traced_models[traced_model.id] = traced_model
        self.workers[traced_model.id] = Worker("this model")

    def close(self) -> None:
        """Stop what is being computed, and what waits for it."""
        self.jobs.stop_all()
        for worker in (*self.workers.values(), self.converter):
            worker.close()

    def traced_model(self, model_id: str) -> TracedModel:
        traced_models = self.traced_models
        if model_id not in traced_models:
            names = ", ".join(traced_models) or "none"
            raise NotFoundError(f"There is no model {model_id[:100]!r} on this server; it has {names}.")
        return traced_models[model_id]

    def add_trace(self, trace: Trace) -> str:
        """Store a trace and return its id. A trace from a file is matched with its model, if the server has it."""
        if trace.traced_model is None:
            saved = trace.header.model
            for candidate in self.traced_models.values():
                same = (candidate.name, candidate.task) == (saved.name, saved.task)
                if same and candidate.summary().attention == saved.attention:
                    trace.traced_model = candidate
                    trace.header = trace.header.model_copy(update={"model": candidate.summary()})
                    break
        return self.store.add(trace)

    def worker(self, trace: Trace) -> Worker:
        """The worker of a trace's model."""
        return self.workers[trace.require_model().id]


def create_app(state: AppState, page: StaticPage | None = None, secret: str | None = None) -> FastAPI:
    """The app that serves some models; with a `secret`, only to those who know it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    max_bodies = {"/api/traces": 2 * MAX_BYTES, "/traces": MAX_RUN_BODY}
    max_bodies |= dict.fromkeys(("/head-importance", "/head-roles"), MAX_DEV_SET_BODY)
    if secret is not None:
        app.add_middleware(SecretMiddleware, secret=secret)
    app.add_middleware(LocalOnlyMiddleware, max_bodies=max_bodies)
    handle_errors(app)
    add_page_routes(app, state, page)
    return app


def add_page_routes(app: FastAPI | APIRouter, state: AppState, page: StaticPage | None = None) -> None:
    """The page, and the routes that it uses."""
    _add_model_routes(app, state)
    _add_trace_routes(app, state)
    _add_attention_routes(app, state)
    _add_activation_routes(app, state)
    _add_attribution_routes(app, state)
    _add_embedding_routes(app, state)
    _add_pattern_routes(app, state)
    _add_job_routes(app, state)
    _add_run_routes(app, state)
    _add_static_routes(app, page or StaticPage())


def _add_model_routes(app: FastAPI | APIRouter, state: AppState) -> None:
    @app.get("/api/models")
    def models() -> Response:
        return JSONResponse([traced_model.summary().to_dict() for traced_model in state.traced_models.values()])

    @app.get("/api/models/{model_id}/diagram")
    def diagram(model_id: str) -> Response:
        traced_model = state.traced_model(model_id)
        return _json(draw_model(traced_model.model, traced_model.name))

    @app.post("/api/models/{model_id}/traces")
    async def run(model_id: str, request: Request) -> Response:
        message = await read_json(request, RunRequest)
        traced_model = state.traced_model(model_id)

        def record(on_token: Callable[[TokenEvent], None], should_stop: Callable[[], bool]) -> str:
            return state.add_trace(traced_model.trace(message, on_token, should_stop))

        return EventStream(state.workers[model_id], record)

    @app.post("/api/models/{model_id}/sentences")
    async def sentences(model_id: str, request: Request) -> Response:
        message = await read_json(request, SentencesRequest)
        traced_model = state.traced_model(model_id)
        return await compute(request, state.converter, lambda: _json(traced_model.split_text(message.text)))

    @app.get("/api/positions")
    async def position_schemes(request: Request, length: int = 64, width: int = 64) -> Response:
        return await compute(request, state.converter, lambda: _json(positions(length, width)))


def _add_trace_routes(app: FastAPI | APIRouter, state: AppState) -> None:
    @app.post("/api/traces")
    async def upload(request: Request) -> Response:
        content = await request.body()
        trace = await compute(request, state.converter, lambda: trace_from_bytes(content))
        return JSONResponse({"trace": state.add_trace(trace)})

    @app.get("/api/traces/{trace_id}")
    def header(trace_id: str) -> Response:
        return _json(state.store.get(trace_id).header)

    @app.get("/api/traces/{trace_id}/file")
    async def file(trace_id: str, request: Request) -> Response:
        trace = state.store.get(trace_id)
        content = await compute(request, state.converter, trace.to_bytes)
        headers = {"content-disposition": 'attachment; filename="trace.safetensors"'}
        return Response(content, headers=headers, media_type="application/octet-stream")

    @app.get("/api/traces/{trace_id}/page.html")
    async def standalone(trace_id: str, request: Request) -> Response:
        trace = state.store.get(trace_id)
        worker = state.converter if trace.traced_model is None else state.worker(trace)
        left = threading.Event()
        try:
            content = await compute(request, worker, lambda: trace.html(lambda: left.is_set() or worker.closed))
        finally:
            left.set()
        headers = {"content-disposition": 'attachment; filename="look.html"'}
        return Response(content, headers=headers, media_type="text/html; charset=utf-8")


def _add_attention_routes(app: FastAPI | APIRouter, state: AppState) -> None:
    @app.get("/api/traces/{trace_id}/attention/{attention_type}/{layer}/{head}")
    async def attention(
        request: Request,
        trace_id: str,
        attention_type: str,
        layer: str,
        head: str,
        pool: int | None = None,
        row: int | None = None,
        mean_from: int | None = None,
    ) -> Response:
        trace = state.store.get(trace_id)
        rows = Rows(row, mean_from)
        return await compute(
            request, state.converter, lambda: attention_response(trace, attention_type, layer, head, pool, rows)
        )

    @app.get("/api/traces/{trace_id}/patch-classes")
    async def classes(trace_id: str, request: Request) -> Response:
        trace = state.store.get(trace_id)
        return await compute(request, state.worker(trace), lambda: _json(patch_classes(trace)))

    @app.post("/api/traces/{trace_id}/nodes/{node_id}")
    async def node(trace_id: str, node_id: int, request: Request) -> Response:
        trace = state.store.get(trace_id)
        return await compute(request, state.worker(trace), lambda: _json(trace.node(node_id)))

    @app.post("/api/traces/{trace_id}/cell")
    async def cell(trace_id: str, request: Request) -> Response:
        message = await read_json(request, CellRequest)
        trace = state.store.get(trace_id)

        def respond() -> Response:
            return _json(trace.cell(message.attention_type, message.layer, message.head, message.query))

        return await compute(request, state.worker(trace), respond)


def _add_activation_routes(app: FastAPI | APIRouter, state: AppState) -> None:
    @app.get("/api/traces/{trace_id}/activations")
    async def activations(trace_id: str, request: Request) -> Response:
        trace = state.store.get(trace_id)
        return await compute(request, state.worker(trace), lambda: _json(module_activations(trace)))

    @app.get("/api/traces/{trace_id}/activations/values")
    async def values(trace_id: str, request: Request, path: str, first: int = 0) -> Response:
        trace = state.store.get(trace_id)
        return await compute(request, state.worker(trace), lambda: _json(module_values(trace, path, first)))

    @app.post("/api/traces/{trace_id}/module-times")
    async def times(trace_id: str) -> Response:
        trace = state.store.get(trace_id)
        model_id = trace.require_model().id
        return _json(state.jobs.start("module times", model_id, partial(measure_times, trace), state.worker(trace)))


def _add_attribution_routes(app: FastAPI | APIRouter, state: AppState) -> None:
    @app.post("/api/traces/{trace_id}/contrast")
    async def contrast(trace_id: str, request: Request) -> Response:
        message = await read_json(request, ContrastRequest)
        trace = state.store.get(trace_id)
        traced_model = require_generator(trace.require_model())
        # A request that means no choice is refused at once; what it takes is a tokenizer.
        await compute(request, state.converter, lambda: find_choice(traced_model, trace, message))
        steps = partial(explain_choice, traced_model, trace, message)
        return _json(state.jobs.start("contrast", traced_model.id, steps, state.worker(trace)))

    @app.post("/api/traces/{trace_id}/lens")
    async def lens(trace_id: str, request: Request) -> Response:
        message = await read_json(request, LensRequest)
        trace = state.store.get(trace_id)
        traced_model = require_generator(trace.require_model())
        return await compute(
            request, state.worker(trace), lambda: _json(look_through_layers(traced_model, trace, message))
        )


def _add_embedding_routes(app: FastAPI | APIRouter, state: AppState) -> None:
    @app.get("/api/models/{model_id}/neighbors")
    async def neighbors(model_id: str, request: Request, side: Side, token: int) -> Response:
        traced_model = state.traced_model(model_id)
        worker = state.workers[model_id]
        return await compute(request, worker, lambda: _json(nearest_neighbors(traced_model, side, token)))

    @app.post("/api/models/{model_id}/contextual-vectors")
    async def vectors(model_id: str, request: Request) -> Response:
        message = await read_json(request, ContextualVectorsRequest)
        traced_model = state.traced_model(model_id)
        worker = state.workers[model_id]
        return await compute(request, worker, lambda: _json(contextual_vectors(traced_model, message)))

    @app.get("/api/traces/{trace_id}/residual-stream")
    async def norms(trace_id: str, request: Request) -> Response:
        trace = state.store.get(trace_id)
        return await compute(request, state.worker(trace), lambda: _json(residual_stream(trace)))


def _add_pattern_routes(app: FastAPI | APIRouter, state: AppState) -> None:
    @app.get("/api/patterns")
    async def patterns(
        request: Request, length: int, window: int, step: int, tokens: int, causal: bool = False, own: str = ""
    ) -> Response:
        wanted = PatternsRequest(length=length, window=window, step=step, tokens=tokens, causal=causal, own=own)
        return await compute(
            request,
            state.converter,
            lambda: _json(compare_patterns(wanted)),
        )

    @app.get("/api/traces/{trace_id}/patterns")
    async def patterns_of_model(trace_id: str, request: Request) -> Response:
        trace = state.store.get(trace_id)
        return await compute(request, state.converter, lambda: _json(model_patterns(trace)))


def _add_job_routes(app: FastAPI | APIRouter, state: AppState) -> None:
    @app.post("/api/models/{model_id}/head-importance")
    async def head_importance(model_id: str, request: Request) -> Response:
        message = await read_json(request, HeadImportanceRequest)
        traced_model = state.traced_model(model_id)
        check_heads(traced_model.model)

        def steps() -> Iterator[tuple[int, HeadImportance]]:
            return measure_heads(traced_model, message, traced_model.folder)

        return _json(state.jobs.start("head importance", model_id, steps, state.workers[model_id]))

    @app.post("/api/models/{model_id}/head-roles")
    async def head_roles(model_id: str, request: Request) -> Response:
        message = await read_json(request, HeadRolesRequest)
        traced_model = state.traced_model(model_id)
        check_roles(traced_model)
        steps = partial(measure_roles, traced_model, message, traced_model.folder)
        worker, key = state.workers[model_id], message.model_dump_json()
        return _json(state.jobs.start("head roles", model_id, steps, worker, key))

    @app.get("/api/jobs/{job_id}")
    async def job(job_id: str) -> Response:
        return _json(state.jobs.get(job_id))

    @app.delete("/api/jobs/{job_id}")
    async def stop_job(job_id: str) -> Response:
        return _json(state.jobs.stop(job_id))


def _add_run_routes(app: FastAPI | APIRouter, state: AppState) -> None:
    @app.get("/api/runs")
    def runs() -> Response:
        return JSONResponse([run.to_dict() for run in (list_runs(state.runs) if state.runs is not None else [])])

    @app.get("/api/runs/{run_id}")
    def run_metrics(run_id: str, after: int = 0) -> Response:
        if state.runs is None:
            raise NotFoundError("The server was started without a folder of runs; name one with --runs.")
        # Not `_json`: values that are not finite are null, and must not be left out.
        content = read_run_metrics(state.runs, run_id, after).model_dump_json()
        return Response(content, media_type="application/json")


def _add_static_routes(app: FastAPI | APIRouter, page: StaticPage) -> None:
    @app.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        return page.respond("index.html", request)

    @app.api_route("/{stem}.{suffix}", methods=["GET", "HEAD"])
    async def asset(stem: str, suffix: str, request: Request) -> Response:
        return page.respond(f"{stem}.{suffix}", request)


def _json(message: Message) -> Response:
    return Response(message.model_dump_json(exclude_none=True), media_type="application/json")


def _unique_id(name: str, taken: dict[str, Any]) -> str:
    """An unused id made of characters that are safe in a URL."""
    safe = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in name) or "model"
    number, unique = 1, safe
    while unique in taken:
        number += 1
        unique = f"{safe}-{number}"
    return unique
