"""The fields of a request, as JSON, as a form or in the address: what clients of other services send."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from regard.errors import UserError
from regard.serve.api.responses import error_responses
from regard.serve.limits import LimitError
from regard.serve.requests import MAX_JSON_VALUES

M = TypeVar("M", bound=BaseModel)
MAX_FIELDS = 1000
_FORMS = ("application/json", "application/x-www-form-urlencoded")


class NoFields(BaseModel):
    """A request without any fields."""


async def read_fields(request: Request, lists: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a request. Those named in `lists` are lists if they are given several times."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("application/x-www-form-urlencoded", "multipart/form-data"):
        form = await request.form(max_files=0, max_fields=MAX_FIELDS)
        return _plain(request.query_params, lists) | _plain(form, lists)
    body = await request.body()
    if not body.strip():
        return _plain(request.query_params, lists)
    if sum(body.count(sign) for sign in b",[{") > MAX_JSON_VALUES:
        raise LimitError("The request has too many values; send a shorter one.")
    try:
        fields = from_json(body)
    except ValueError as error:
        raise UserError(f"The request is not valid JSON: {str(error)[:200]}; send JSON or a form.") from None
    if not isinstance(fields, dict):
        raise UserError("The request is not valid: expected a JSON object with fields.")
    return _plain(request.query_params, lists) | fields


def parse_fields(kind: type[M], fields: dict[str, Any]) -> M:
    """The fields as a message of some kind. A wrong one is an error that names it."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        known = [str(part) for part in first["loc"] if isinstance(part, int) or part in fields]
        where = ".".join(known or [str(part) for part in first["loc"][:1]])
        problem = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
        raise UserError(f"The request is not valid: {f'{where[:100]}: ' if where else ''}{problem}.") from None


def describe(kind: type[BaseModel], answer: Any, error: type[BaseModel]) -> dict[str, Any]:
    """What the description of a route says about a request that it reads itself, its answer and its errors."""
    content = {form: {"schema": kind.model_json_schema()} for form in _FORMS}
    return {
        "openapi_extra": {"requestBody": {"content": content, "required": True}} if kind.model_fields else {},
        "response_model": answer,
        "responses": error_responses(error),
    }


def _plain(values: ImmutableMultiDict[str, Any], lists: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key in values:
        found = [value for value in values.getlist(key) if isinstance(value, str)]
        if found:
            fields[key] = found if key in lists and len(found) > 1 else found[0]
    return fields
