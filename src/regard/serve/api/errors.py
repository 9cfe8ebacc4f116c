"""Errors as responses: a sentence with a status, in the shape that the clients of each protocol expect.

A protocol registers its shape for the paths that it serves. What is no user's error only tells the id of the request,
under which the log has more.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import torch
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from regard.cost import is_out_of_memory
from regard.errors import UserError
from regard.serve.limits import LimitError
from regard.serve.models.cancellation import CanceledError
from regard.serve.models.registry import UnknownModelError
from regard.serve.worker import RETRY_SECONDS, OverloadedError

MAX_MESSAGE = 500
"""Characters of a message, which may quote something from the request."""
ErrorShape = Callable[[int, str], Mapping[str, Any]]
"""The JSON of an error, from its status and message."""
_HTTP_MESSAGES = {
    404: "There is nothing at this address.",
    405: "This address does not take that kind of request.",
}
_UNREADABLE = "There was an error parsing the body"
"""What FastAPI says of a body that is nested too deeply, for example."""


class RefusedError(UserError):
    """A request that is refused with a certain status: without a key, or while the server shuts down."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def detail_shape(status: int, message: str) -> Mapping[str, Any]:
    """The shape of our own API."""
    return {"detail": message}


class ErrorShapes:
    """The shapes of the protocols, by the paths that they serve."""

    def __init__(self) -> None:
        self._shapes: list[tuple[str, ErrorShape]] = []

    def register(self, prefix: str, shape: ErrorShape) -> None:
        """Errors at paths that begin so have this shape. What is registered last is asked first."""
        self._shapes.insert(0, (prefix, shape))

    def response(self, path: str, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
        shape = next((shape for prefix, shape in self._shapes if path.startswith(prefix)), detail_shape)
        retry = {"retry-after": str(RETRY_SECONDS)} if status in (429, 503) else {}
        return JSONResponse(dict(shape(status, message)), status, {**retry, **(headers or {})})


def status_and_message(error: Exception, request_id: str) -> tuple[int, str]:
    """The status and the sentence of an error."""
    if isinstance(error, asyncio.CancelledError | CanceledError | ClientDisconnect):
        return 499, "The client has left."
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or is_out_of_memory(error):
        return 503, "There is not enough memory for this right now; try again, or send shorter texts or a smaller beam."
    if not isinstance(error, UserError):
        return (
            500,
            f"The server failed to answer this request; its operator finds the cause in the log under {request_id}.",
        )
    message = str(error)
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE // 2]} … {message[-MAX_MESSAGE // 2 :]}"
    return _status(error), message


def handle_errors(app: FastAPI, shapes: ErrorShapes) -> None:
    """Answer every error in the shape of its path."""

    async def any_error(request: Request, error: Exception) -> Response:
        request.state.error = error  # for the log
        status, message = status_and_message(error, request.state.id)
        return shapes.response(request.url.path, status, message)

    for kind in (
        UserError,
        MemoryError,
        torch.OutOfMemoryError,
        CanceledError,
        ClientDisconnect,
        RuntimeError,
        Exception,
    ):
        app.add_exception_handler(kind, any_error)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> Response:
        return shapes.response(request.url.path, 422, validation_message(error))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        if error.detail == _UNREADABLE:
            return shapes.response(request.url.path, 400, "The body cannot be read; send valid JSON in UTF-8.")
        message = _HTTP_MESSAGES.get(error.status_code, f"{str(error.detail).rstrip('.')}.")
        return shapes.response(request.url.path, error.status_code, message, error.headers)


def validation_message(error: RequestValidationError) -> str:
    """The first problem of a request as a sentence that names the field."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "The body is not valid JSON; send an object in JSON."
    if first["type"] in ("model_attributes_type", "model_type") and tuple(first["loc"]) == ("body",):
        return "The body is not a JSON object; send one with the content type application/json."
    field = ".".join(str(part) for part in first["loc"] if part != "body")
    problem = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
    message = (
        f"The request is not valid: {field[:100]}: {problem}." if field else f"The request is not valid: {problem}."
    )
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 2] + " …"


def _status(error: UserError) -> int:
    if isinstance(error, RefusedError):
        return error.status
    if isinstance(error, OverloadedError):
        return 429
    if isinstance(error, UnknownModelError):
        return 404
    return 413 if isinstance(error, LimitError) else 400
