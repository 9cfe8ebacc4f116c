"""A client of a server with small models, in this process."""

import json
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from regard.look.models.traced_model import TracedModel
from regard.serve.app import AppState, create_app
from regard.serve.page import StaticPage
from regard.serve.trace_store import TraceStore
from tests.look.support import request, task_models

HOME = "http://127.0.0.1:8765"


def make_client(
    *traced_models: TracedModel,
    runs: Path | None = None,
    store: TraceStore | None = None,
    page: StaticPage | None = None,
) -> TestClient:
    """A client of a server with these models, or with one for every task."""
    state = AppState(traced_models or list(task_models().values()), runs, store)
    client = TestClient(create_app(state, page), base_url=HOME, raise_server_exceptions=False)
    client.state = state  # type: ignore[attr-defined]
    return client


def events(client: TestClient, model_id: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a run."""
    response = client.post(f"/api/models/{model_id}/traces", json=body)
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def run(client: TestClient, model_id: str, **body: Any) -> str:
    """Run a model; the trace's id."""
    *_, last = events(client, model_id, **body)
    assert last["event"] == "done", last
    return last["trace"]


def run_task(client: TestClient, task: str) -> str:
    """Run the small model of a task; the trace's id."""
    traced_model = task_models()[task]
    return run(client, traced_model.id, **request(traced_model).to_dict())


def check_refused(response: Any, status: int, *parts: str) -> None:
    """Check the status, and that the message is one sentence that contains these parts."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["detail"]
    detail = response.json()["detail"]
    assert detail.endswith(".")
    assert "\n" not in detail
    for part in parts:
        assert part in detail
