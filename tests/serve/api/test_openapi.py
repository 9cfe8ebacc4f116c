"""schemathesis finds no server error and no undeclared answer, on every route that the app describes."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from regard.serve.api.access import Access
from regard.serve.api.app import NATIVE_ROUTES, create_service_app
from regard.serve.api.service import Service
from tests.conftest import THOROUGH
from tests.serve.api.small_service import LIMITS, make_client, whole_service

REQUESTS = 300 if THOROUGH else 10
"""Requests to each route, valid ones and as many that break its description."""
NATIVE = ("translate", "generate", "parse", "fill", "tag", "classify", "embed", "score")
ERRORS = {"400", "401", "403", "404", "413", "422", "429", "500", "503"}


@pytest.fixture(scope="module")
def operations() -> list[Any]:
    """The routes of an app with all models, which answers to any host, as schemathesis reads their description."""
    schemathesis = pytest.importorskip("schemathesis", reason="Needs schemathesis: the extra dev.")
    service = Service(whole_service().models, LIMITS, Access(local_only=False))
    schema = schemathesis.openapi.from_asgi("/openapi.json", create_service_app(service, log=lambda _: None))
    return [result.ok() for result in schema.get_all_operations()]


def send(case: Any) -> None:
    """Send a request, and check its answer."""
    status_of(case)


def status_of(case: Any) -> int:
    """The status of a request's answer, which is checked."""
    from schemathesis import checks

    response = case.call_and_validate(
        checks=[
            checks.not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_schema_conformance,
        ]
    )
    return int(response.status_code)


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_answer_is_declared_and_none_is_a_server_error(operations: list[Any], mode: str) -> None:
    from schemathesis import GenerationMode

    tested = [each for each in operations if mode == "positive" or [*each.iter_parameters(), *each.body]]
    assert len(tested) >= len(NATIVE_ROUTES)
    for operation in tested:
        cases = operation.as_strategy(generation_mode=GenerationMode(mode))
        checked = settings(
            max_examples=REQUESTS, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
        )(given(case=cases)(send))
        with suppress(Unsatisfiable):  # every value of its only parameter is valid
            checked()


def test_the_example_of_every_route_is_answered_as_declared(operations: list[Any]) -> None:
    for operation in operations:
        if operation.path.removeprefix("/v1/") not in NATIVE:
            continue
        for body in operation.body:
            if body.media_type != "application/json":
                continue
            schema = make_client().get("/openapi.json").json()
            properties = _resolved(schema, operation.path)["properties"]
            example = {
                name: each["examples"][0] for name, each in properties.items() if each.get("examples", [None])[0]
            }
            case = operation.Case(body=example, media_type="application/json")
            assert status_of(case) == 200, (operation.label, example)


def test_every_route_is_explained_and_declares_its_errors() -> None:
    paths = make_client().get("/openapi.json").json()["paths"]
    assert paths
    for path, methods in paths.items():
        for method, operation in methods.items():
            assert set(operation["responses"]) >= ERRORS, f"{method} {path}"
            assert operation["description"].endswith("."), f"{method} {path}"


def _resolved(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema of a route's JSON body."""
    body: dict[str, Any] = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return schema["components"]["schemas"][body["$ref"].rpartition("/")[2]] if "$ref" in body else body
