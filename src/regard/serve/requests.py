"""Reading a request's body, and computing its response without blocking the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from regard.serve.worker import OverloadedError, Worker

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

MAX_JSON_VALUES = 200_000
"""Values in a JSON body, counted by what separates them. Its size alone does not bound the memory that they take."""


async def read_json(request: Request, kind: type[M]) -> M:
    """The message in a request's body. Pydantic parses the JSON, and refuses what is nested too deeply."""
    content = await request.body()
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "This address takes JSON only; send it with the content type application/json.")
    if sum(content.count(sign) for sign in b",[{") > MAX_JSON_VALUES:
        raise HTTPException(413, "The request has too many values; send a shorter one.")
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise as_request_error(error) from None


def as_request_error(error: ValidationError) -> RequestValidationError:
    """What is wrong with a message, as an error of the request's body."""
    errors = error.errors(include_input=False, include_context=False, include_url=False)
    return RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors])


async def compute(request: Request, worker: Worker, function: Callable[[], T]) -> T:
    """The result of a function that a worker runs. A client that leaves gives up its place in the queue."""
    result = asyncio.wrap_future(worker.submit(function))
    departure = asyncio.ensure_future(_departure(request))
    both: set[asyncio.Future[Any]] = {result, departure}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not result.done():
            raise ClientDisconnect
        if result.cancelled():
            raise OverloadedError("The server is shutting down; start it again.")
        return result.result()
    finally:
        result.cancel()
        departure.cancel()


async def _departure(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
