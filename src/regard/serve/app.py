"""The web app: the routes documented in `web/src/contract.d.ts`, and the page itself.

A route validates the request, calls `look`, and responds. Every user error becomes a one-sentence message with a status
of 400 or above. Each model serves one request at a time: heads ablated for one request would be ablated for all.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from regard.errors import UserError
from regard.look.analysis.head_importance import measure_heads
from regard.look.analysis.model_diagram import draw_model
from regard.look.models.traced_model import TracedModel
from regard.look.positions.schemes import positions
from regard.look.runs import RunNotFoundError, list_runs, read_run_metrics
from regard.look.schema import CellRequest, HeadImportance, HeadImportanceRequest, Message, RunRequest, TokenEvent
from regard.look.trace import MAX_BYTES, Trace, max_pool, trace_from_bytes
from regard.serve.guard import LocalOnlyMiddleware
from regard.serve.jobs import BusyError, Jobs
from regard.serve.page import StaticPage
from regard.serve.streaming import stream_events
from regard.serve.trace_store import EvictedError, NotFoundError, TraceStore

MAX_UNPOOLED = 1024
"""Matrices with more rows or columns are max-pooled."""
MAX_RUN_BODY, MAX_HEAD_IMPORTANCE_BODY = 32 << 20, 16 << 20
"""Bytes of a request to run a model, which may contain an image, and of one to measure heads."""
_STATUS: dict[type[UserError], int] = {NotFoundError: 404, RunNotFoundError: 404, EvictedError: 410, BusyError: 409}


class AppState:
    """What the routes share: models, traces, jobs, and a lock for each model."""

    def __init__(
        self, traced_models: Sequence[TracedModel], runs: Path | None = None, store: TraceStore | None = None
    ) -> None:
        self.traced_models: dict[str, TracedModel] = {}
        for traced_model in traced_models:
            traced_model.id = _unique_id(traced_model.name, self.traced_models)
            self.traced_models[traced_model.id] = traced_model
        self.runs = runs
        self.store = store or TraceStore()
        self.jobs = Jobs()
        self.locks = {model_id: threading.RLock() for model_id in self.traced_models}

    def traced_model(self, model_id: str) -> TracedModel:
        if model_id not in self.traced_models:
            names = ", ".join(self.traced_models) or "none"
            raise NotFoundError(f"There is no model {model_id!r} on this server; it has {names}.")
        return self.traced_models[model_id]

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

    def lock(self, trace: Trace) -> threading.RLock:
        """The lock of a trace's model."""
        return self.locks[trace.require_model().id]


def create_app(state: AppState, page: StaticPage | None = None) -> FastAPI:
    """The app that serves some models."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    max_bodies = {"/api/traces": 2 * MAX_BYTES, "/traces": MAX_RUN_BODY, "/head-importance": MAX_HEAD_IMPORTANCE_BODY}
    app.add_middleware(LocalOnlyMiddleware, max_bodies=max_bodies)
    _handle_errors(app)
    _add_model_routes(app, state)
    _add_trace_routes(app, state)
    _add_job_routes(app, state)
    _add_run_routes(app, state)
    _add_page_routes(app, page or StaticPage())
    return app


def _add_model_routes(app: FastAPI, state: AppState) -> None:
    @app.get("/api/models")
    def models() -> Response:
        return JSONResponse([traced_model.summary().to_dict() for traced_model in state.traced_models.values()])

    @app.get("/api/models/{model_id}/diagram")
    def diagram(model_id: str) -> Response:
        traced_model = state.traced_model(model_id)
        return _json(draw_model(traced_model.model, traced_model.name))

    @app.post("/api/models/{model_id}/traces")
    def run(model_id: str, request: RunRequest) -> Response:
        traced_model = state.traced_model(model_id)

        def record(on_token: Callable[[TokenEvent], None], should_stop: Callable[[], bool]) -> str:
            with state.locks[model_id]:
                return state.add_trace(traced_model.trace(request, on_token, should_stop))

        return StreamingResponse(stream_events(record), media_type="application/x-ndjson")

    @app.get("/api/positions")
    def position_schemes(length: int = 64, width: int = 64) -> Response:
        return _json(positions(length, width))


def _add_trace_routes(app: FastAPI, state: AppState) -> None:
    @app.post("/api/traces")
    async def upload(request: Request) -> Response:
        content = await request.body()
        return JSONResponse({"trace": state.add_trace(trace_from_bytes(content))})

    @app.get("/api/traces/{trace_id}")
    def header(trace_id: str) -> Response:
        return _json(state.store.get(trace_id).header)

    @app.get("/api/traces/{trace_id}/file")
    def file(trace_id: str) -> Response:
        trace = state.store.get(trace_id)
        headers = {"content-disposition": 'attachment; filename="trace.safetensors"'}
        return Response(trace.to_bytes(), headers=headers, media_type="application/octet-stream")

    @app.get("/api/traces/{trace_id}/page.html")
    def standalone(trace_id: str) -> Response:
        trace = state.store.get(trace_id)
        with nullcontext() if trace.traced_model is None else state.lock(trace):
            page = trace.html()
        headers = {"content-disposition": 'attachment; filename="look.html"'}
        return Response(page, headers=headers, media_type="text/html; charset=utf-8")

    @app.get("/api/traces/{trace_id}/attention/{attention_type}/{layer}/{head}")
    def attention(
        trace_id: str, attention_type: str, layer: str, head: str, pool: int | None = None, row: int | None = None
    ) -> Response:
        weights = state.store.get(trace_id).array(f"attention/{attention_type}")
        return _attention_response(weights, layer, head, pool, row)

    @app.post("/api/traces/{trace_id}/nodes/{node_id}")
    def node(trace_id: str, node_id: int) -> Response:
        trace = state.store.get(trace_id)
        with state.lock(trace):
            return _json(trace.node(node_id))

    @app.post("/api/traces/{trace_id}/cell")
    def cell(trace_id: str, request: CellRequest) -> Response:
        trace = state.store.get(trace_id)
        with state.lock(trace):
            return _json(trace.cell(request.attention_type, request.layer, request.head, request.query))


def _add_job_routes(app: FastAPI, state: AppState) -> None:
    @app.post("/api/models/{model_id}/head-importance")
    def head_importance(model_id: str, request: HeadImportanceRequest) -> Response:
        traced_model = state.traced_model(model_id)

        def steps() -> Iterator[tuple[int, HeadImportance]]:
            return measure_heads(traced_model, request, traced_model.folder, lambda: state.locks[model_id])

        return _json(state.jobs.start(model_id, steps))

    @app.get("/api/jobs/{job_id}")
    def job(job_id: str) -> Response:
        return _json(state.jobs.get(job_id))

    @app.delete("/api/jobs/{job_id}")
    def stop_job(job_id: str) -> Response:
        return _json(state.jobs.stop(job_id))


def _add_run_routes(app: FastAPI, state: AppState) -> None:
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


def _add_page_routes(app: FastAPI, page: StaticPage) -> None:
    @app.get("/")
    def index(request: Request) -> Response:
        return page.respond("index.html", request)

    @app.get("/{name}")
    def asset(name: str, request: Request) -> Response:
        return page.respond(name, request)


def _handle_errors(app: FastAPI) -> None:
    """Respond to every error with an `ErrorResponse`."""

    @app.exception_handler(UserError)
    async def user_error(request: Request, error: UserError) -> Response:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
        return JSONResponse({"detail": str(error)}, status)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        found = f"{field}: {first['msg']}" if field else str(first["msg"])
        return JSONResponse({"detail": f"The request is not valid: {found.rstrip('.')}."}, 422)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        messages = {
            400: "The request cannot be read: it is nested too deeply, or has a number of thousands of digits.",
            404: "There is nothing at this address.",
            405: "This address does not take that kind of request.",
        }
        return JSONResponse({"detail": messages.get(error.status_code, str(error.detail))}, error.status_code)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": f"Internal error ({type(error).__name__}: {error})."}, 500)


def _attention_response(weights: torch.Tensor, layer: str, head: str, pool: int | None, row: int | None) -> Response:
    """Attention weights in float16, row by row, max-pooled if there are many.

    weights: # (layers, heads, queries, keys)
    """
    rows, columns = weights.shape[-2:]
    size = 1
    if row is not None:
        if not 0 <= row < rows:
            raise UserError(f"There is no row {row}; {rows} rows are counted from 0.")
        weights = weights[..., row : row + 1, :]
    else:
        if pool is not None and not 1 <= pool <= 1 << 20:
            raise UserError(f"pool: expected a block size of 1 or more, found {pool}.")
        size = max(-(-max(rows, columns) // MAX_UNPOOLED), pool or 1)
    weights = _select(weights, layer, "layer", 0)
    head_dimension = 1 if layer == "all" else 0
    if head == "mean":
        weights = weights.float().mean(dim=head_dimension).to(weights.dtype)
    else:
        weights = _select(weights, head, "head", head_dimension)
    values = np.ascontiguousarray(max_pool(weights, size).numpy(), dtype="<f2")
    headers = {
        "x-rows": str(values.shape[-2]),
        "x-columns": str(values.shape[-1]),
        "x-pooled": str(size),
        "cache-control": "private, max-age=3600",
    }
    return Response(values.tobytes(), headers=headers, media_type="application/octet-stream")


def _select(weights: torch.Tensor, index: str, name: str, dimension: int) -> torch.Tensor:
    """One index of a dimension, or all of them for "all"."""
    if index == "all":
        return weights
    size = weights.shape[dimension]
    if not index.isdecimal() or len(index) > 9 or int(index) >= size:
        raise UserError(f"There is no {name} {index[:20]!r}; expected 0 to {size - 1}, or 'all'.")
    return weights.select(dimension, int(index))


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
