"""The errors that every route can answer with, for the description of the API at /openapi.json.

All routes declare those of our own API. A protocol with an error shape of its own declares that:

    @router.post("/v2/translate", responses=error_responses(MyError))
"""

from typing import Any

from pydantic import BaseModel, Field

DESCRIPTIONS: dict[int, str] = {
    400: "The request cannot be answered as it is: the message says what to change.",
    401: "The API key is missing or wrong.",
    403: "The request comes from a host or a page that may not use this server.",
    404: "There is no such model, or nothing at this address.",
    405: "The address does not take this method.",
    408: "The body of the request did not arrive in time.",
    413: "The request exceeds a limit of this server.",
    415: "The body has another content type than this address takes.",
    422: "The body is not valid: the message names the field.",
    429: "Too many requests are waiting; try again after the seconds in Retry-After.",
    500: "The server failed to answer; its log has more under the id in the message.",
    503: "The server is shutting down, or out of time or memory; try again after the seconds in Retry-After.",
}
"""What can go wrong, by status."""


class ErrorResponse(BaseModel):
    """An error in one sentence."""

    detail: str = Field(examples=["text is empty; give at least one."])


def error_responses(schema: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """The declarations of all errors in a shape."""
    return {status: {"model": schema, "description": description} for status, description in DESCRIPTIONS.items()}


ERRORS = error_responses(ErrorResponse)
"""Those of our own API."""
