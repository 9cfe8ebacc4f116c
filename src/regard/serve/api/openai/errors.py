"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}}.

A message that begins with the name of a field and a colon gives that field as `param`.
"""

import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from regard.errors import UserError
from regard.serve.api.errors import validation_message
from regard.serve.api.responses import error_responses

_INVALID = "The request is not valid: "
_FIELD = re.compile(r"([a-z_]+)(?:[.\[][\w.\[\]-]*)?(?:: | has | is )")
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 413: "request_too_large", 429: "rate_limit_exceeded"}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


ERROR_RESPONSES = error_responses(ErrorBody)
"""For the description of the API."""


def error_shape(status: int, message: str) -> Mapping[str, Any]:
    field = _FIELD.match(message.removeprefix(_INVALID))
    detail = ErrorDetail(
        message=message,
        type=_TYPES.get(status, "invalid_request_error"),
        param="model" if status == 404 else field and field[1],
        code=_CODES.get(status),
    )
    return ErrorBody(error=detail).model_dump()


class OpenAIRoute(APIRoute):
    """A route that answers 400, not 422, to a request that is not valid: what the clients know as a bad request."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_or_refuse(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise UserError(validation_message(error)) from None
            except HTTPException as error:
                if error.status_code == 400:  # FastAPI's, which is no sentence
                    raise UserError("The body of the request cannot be read; send JSON in UTF-8.") from None
                raise

        return handle_or_refuse
