"""The app that answers the page: the routes of `web/src/contract.d.ts`, and the page itself.

A route reads what is asked, asks `look`, and answers. Everything a person can get wrong comes back as one sentence with
a status from 400 on. A model does one thing at a time: heads that are switched off for one answer would be off for all.
"""

import threading
from collections.abc import AsyncIterator, Iterator, Sequence
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
from regard.look.parts import parts_of
from regard.look.positions import positions
from regard.look.runs import UnknownRunError, run_lines, runs_in
from regard.look.subject import Subject
from regard.look.trace import LARGEST, Trace, pooled, unpack
from regard.look.wire import CellRequest, RunRequest, Shape, Worth, WorthRequest
from regard.look.worth import head_worths
from regard.serve.guard import Guard
from regard.serve.jobs import BusyError, Jobs
from regard.serve.page import Page
from regard.serve.shelf import GoneError, Shelf, UnknownError
from regard.serve.streaming import events_of

POOLED_FROM = 1024
"""Rows or columns of a matrix from which on it is pooled."""
_STATUS: dict[type[UserError], int] = {UnknownError: 404, UnknownRunError: 404, GoneError: 410, BusyError: 409}
LARGEST_PICTURE = 32 << 20
"""Bytes of a request to run a model, which may carry a picture."""


class Desk:
    """All that the routes share: models, traces, and a lock for each model."""

    def __init__(self, subjects: Sequence[Subject], runs: Path | None = None, shelf: Shelf | None = None) -> None:
        self.subjects: dict[str, Subject] = {}
        for subject in subjects:
            subject.id = _free_name(subject.name, self.subjects)
            self.subjects[subject.id] = subject
        self.runs = runs
        self.shelf = shelf or Shelf()
        self.jobs = Jobs()
        self.locks = {name: threading.RLock() for name in self.subjects}

    def subject(self, name: str) -> Subject:
        if name not in self.subjects:
            raise UnknownError(f"There is no model {name!r} here; there is {', '.join(self.subjects) or 'none'}.")
        return self.subjects[name]

    def add(self, trace: Trace) -> str:
        """Keep a trace; one from a file is joined with its model, if that is here."""
        if trace.subject is None:
            own = trace.header.model
            same = (one for one in self.subjects.values() if one.name == own.name and one.task == own.task)
            found = next((one for one in same if one.summary().attention == own.attention), None)
            trace.subject = found
            if found is not None:
                trace.header = trace.header.model_copy(update={"model": found.summary()})
        return self.shelf.put(trace)

    def lock(self, trace: Trace) -> Any:
        return self.locks[trace.live().id]


def create_app(desk: Desk, page: Page | None = None) -> FastAPI:
    """The app over some models."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    limits = {"/api/traces": 2 * LARGEST, "/traces": LARGEST_PICTURE, "/worth": 16 << 20}
    app.add_middleware(Guard, limits=limits)
    _sentences(app)
    _models(app, desk)
    _traces(app, desk)
    _background(app, desk)
    _files(app, page or Page())
    return app


def _models(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/models")
    def models() -> Response:
        return JSONResponse([one.summary().plain() for one in desk.subjects.values()])

    @app.get("/api/models/{name}/parts")
    def parts(name: str) -> Response:
        subject = desk.subject(name)
        return _said(parts_of(subject.model, subject.name))

    @app.post("/api/models/{name}/traces")
    def run(name: str, request: RunRequest) -> Response:
        subject = desk.subject(name)

        def work(hear: Any, stop: Any) -> str:
            with desk.locks[name]:
                return desk.add(subject.trace(request, hear, stop))

        return StreamingResponse(_lines(events_of(work)), media_type="application/x-ndjson")


def _traces(app: FastAPI, desk: Desk) -> None:
    @app.post("/api/traces")
    async def opened(request: Request) -> Response:
        content = await request.body()
        return JSONResponse({"trace": desk.add(unpack(content))})

    @app.get("/api/traces/{name}")
    def header(name: str) -> Response:
        return _said(desk.shelf.get(name).header)

    @app.get("/api/traces/{name}/file")
    def file(name: str) -> Response:
        trace = desk.shelf.get(name)
        shown = {"content-disposition": 'attachment; filename="trace.safetensors"'}
        return Response(trace.packed(), headers=shown, media_type="application/octet-stream")

    @app.get("/api/traces/{name}/page.html")
    def whole_page(name: str) -> Response:
        trace = desk.shelf.get(name)
        with nullcontext() if trace.subject is None else desk.lock(trace):
            page = trace.html()
        shown = {"content-disposition": 'attachment; filename="look.html"'}
        return Response(page, headers=shown, media_type="text/html; charset=utf-8")

    @app.get("/api/traces/{name}/attention/{side}/{layer}/{head}")
    def attention(
        name: str, side: str, layer: str, head: str, pool: int | None = None, row: int | None = None
    ) -> Response:
        return _matrix(desk.shelf.get(name), side, layer, head, pool, row)

    @app.post("/api/traces/{name}/nodes/{node}")
    def node(name: str, node: int) -> Response:
        trace = desk.shelf.get(name)
        with desk.lock(trace):
            return _said(trace.node(node))

    @app.post("/api/traces/{name}/cell")
    def cell(name: str, request: CellRequest) -> Response:
        trace = desk.shelf.get(name)
        with desk.lock(trace):
            return _said(trace.cell(request.side, request.layer, request.head, request.query))


def _background(app: FastAPI, desk: Desk) -> None:
    @app.post("/api/models/{name}/worth")
    def worth(name: str, request: WorthRequest) -> Response:
        subject = desk.subject(name)

        def steps() -> Iterator[tuple[int, Worth]]:
            return head_worths(subject, request, subject.folder, lambda: desk.locks[name])

        return _said(desk.jobs.start(name, steps))

    @app.get("/api/jobs/{name}")
    def job(name: str) -> Response:
        return _said(desk.jobs.get(name))

    @app.delete("/api/jobs/{name}")
    def stopped(name: str) -> Response:
        return _said(desk.jobs.stop(name))

    @app.get("/api/positions")
    def asked_positions(length: int = 64, width: int = 64) -> Response:
        return _said(positions(length, width))

    @app.get("/api/runs")
    def runs() -> Response:
        return JSONResponse([one.plain() for one in (runs_in(desk.runs) if desk.runs is not None else [])])

    @app.get("/api/runs/{name}")
    def lines(name: str, after: int = 0) -> Response:
        if desk.runs is None:
            raise UnknownError("No folder of runs is open here; give one with --runs.")
        # Numbers that ran away are null, and stay so.
        return Response(run_lines(desk.runs, name, after).model_dump_json(), media_type="application/json")


def _files(app: FastAPI, page: Page) -> None:
    @app.get("/")
    def first(request: Request) -> Response:
        return page.answer("index.html", request)

    @app.get("/{name}")
    def other(name: str, request: Request) -> Response:
        return page.answer(name, request)


def _sentences(app: FastAPI) -> None:
    """Every error as a sentence."""

    @app.exception_handler(UserError)
    async def wrong(request: Request, error: UserError) -> Response:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
        return JSONResponse({"detail": str(error)}, status)

    @app.exception_handler(RequestValidationError)
    async def unreadable(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        found = f"{where}: {first['msg']}" if where else str(first["msg"])
        return JSONResponse({"detail": f"The request cannot be read: {found.rstrip('.')}."}, 422)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        sentence = {404: "There is nothing at this address.", 405: "This address does not take that kind of request."}
        return JSONResponse({"detail": sentence.get(error.status_code, str(error.detail))}, error.status_code)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        sentence = f"Something went wrong that should not have ({type(error).__name__}: {error})."
        return JSONResponse({"detail": sentence}, 500)


def _matrix(trace: Trace, side: str, layer: str, head: str, pool: int | None, row: int | None) -> Response:
    """Weights as float16, row by row, pooled where there are many of them."""
    weights = trace.array(f"attention/{side}")
    rows, columns = weights.shape[-2:]
    size = 1
    if row is not None:
        if not 0 <= row < rows:
            raise UserError(f"There is no row {row}; {rows} rows count from 0.")
        weights = weights[..., row : row + 1, :]
    else:
        if pool is not None and not 1 <= pool <= 1 << 20:
            raise UserError(f"pool is how many tokens stand behind one, from 1 on; found {pool}.")
        size = max(-(-max(rows, columns) // POOLED_FROM), pool or 1)
    weights = _chosen(weights, layer, "layer", 0)
    dimension = 1 if layer == "all" else 0
    if head == "mean":
        weights = weights.float().mean(dim=dimension).to(weights.dtype)
    else:
        weights = _chosen(weights, head, "head", dimension)
    made = np.ascontiguousarray(pooled(weights, size).numpy(), dtype="<f2")
    facts = {
        "x-rows": str(made.shape[-2]),
        "x-columns": str(made.shape[-1]),
        "x-pooled": str(size),
        "cache-control": "private, max-age=3600",
    }
    return Response(made.tobytes(), headers=facts, media_type="application/octet-stream")


def _chosen(weights: torch.Tensor, which: str, what: str, dimension: int) -> torch.Tensor:
    """One of a dimension, or all of it."""
    if which == "all":
        return weights
    size = weights.shape[dimension]
    if not which.isdecimal() or int(which) >= size:
        raise UserError(f"There is no {what} {which!r}; {size} of them count from 0, or all are meant by 'all'.")
    return weights.select(dimension, int(which))


def _said(shape: Shape) -> Response:
    return Response(shape.model_dump_json(exclude_none=True), media_type="application/json")


async def _lines(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for line in events:
        yield line


def _free_name(name: str, taken: dict[str, Any]) -> str:
    """A name that is not taken, made of signs that an address can hold."""
    plain = "".join(sign if sign.isalnum() or sign in "-_." else "-" for sign in name) or "model"
    number, found = 1, plain
    while found in taken:
        number += 1
        found = f"{plain}-{number}"
    return found
