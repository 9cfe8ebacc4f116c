"""Error responses: every error becomes a one-sentence message with a status of 400 or above."""

import torch
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from regard.errors import UserError
from regard.look.analysis.search_recorder import StoppedError
from regard.look.runs import RunNotFoundError
from regard.serve.inspector.jobs import BusyError
from regard.serve.inspector.trace_store import EvictedError, NotFoundError
from regard.serve.worker import RETRY_SECONDS, OverloadedError

MAX_MESSAGE = 500
"""Characters of a message; it may quote a name from the request, which can be of any length."""
_STATUS: dict[type[Exception], int] = {
    NotFoundError: 404,
    RunNotFoundError: 404,
    EvictedError: 410,
    BusyError: 409,
    OverloadedError: 503,
    StoppedError: 503,
    UserError: 400,
}
_HTTP_MESSAGES = {404: "There is nothing at this address.", 405: "This address does not take that kind of request."}


def error_status(error: Exception) -> int:
    """The status of the response to an error."""
    if _is_out_of_memory(error):
        return 413
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 500)


def error_message(error: Exception) -> str:
    """An error as one sentence."""
    if _is_out_of_memory(error):
        return "There is not enough memory for this; use a shorter text or a smaller beam."
    if isinstance(error, StoppedError):
        return "The run was stopped."
    message = str(error)
    if not isinstance(error, UserError):
        message = f"Internal error ({type(error).__name__}: {' '.join(message.split())})."
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE // 2]} … {message[-MAX_MESSAGE // 2 :]}"
    return message


def error_response(request: Request, error: Exception) -> Response:
    """The response to an error."""
    status = error_status(error)
    headers = {"retry-after": str(RETRY_SECONDS)} if status == 503 else None
    return JSONResponse({"detail": error_message(error)}, status, headers)


def handle_errors(app: FastAPI) -> None:
    """Respond to every error with an `ErrorResponse`."""

    @app.exception_handler(UserError)
    @app.exception_handler(StoppedError)
    @app.exception_handler(MemoryError)
    @app.exception_handler(torch.OutOfMemoryError)
    @app.exception_handler(Exception)
    async def any_error(request: Request, error: Exception) -> Response:
        return error_response(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        found = f"{field}: {first['msg']}" if field else str(first["msg"])
        message = error_message(UserError(f"The request is not valid: {found.rstrip('.')}."))
        return JSONResponse({"detail": message}, 422)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        detail = _HTTP_MESSAGES.get(error.status_code, str(error.detail))
        return JSONResponse({"detail": detail}, error.status_code, error.headers)

    @app.exception_handler(ClientDisconnect)
    async def client_left(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # nobody receives it


def _is_out_of_memory(error: Exception) -> bool:
    is_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return is_cpu or isinstance(error, MemoryError | torch.OutOfMemoryError)
