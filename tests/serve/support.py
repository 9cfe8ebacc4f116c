"""A client of a server with small models, in this process; and a server that listens on a port."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.testclient import TestClient

from regard.look.models.traced_model import TracedModel
from regard.serve.inspector.app import AppState, create_app
from regard.serve.inspector.hosting import PageServer
from regard.serve.inspector.trace_store import TraceStore
from regard.serve.page import StaticPage
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


class ServerUrl(str):
    """The URL of a server, with its state."""

    state: AppState


class serving:  # noqa: N801
    """A server in a background thread; by default on a free port."""

    def __init__(self, state: AppState, port: int = 0) -> None:
        self.state = state
        config = uvicorn.Config(
            create_app(state), host="127.0.0.1", port=port, log_level="error", ws="none", timeout_graceful_shutdown=1
        )
        self.server = PageServer(config, state)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> ServerUrl:
        self.thread.start()
        deadline = time.monotonic() + 20
        while not self.server.started:
            assert time.monotonic() < deadline, "The server did not start."
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        url = ServerUrl(f"http://127.0.0.1:{port}/")
        url.state = self.state
        return url

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)


@contextmanager
def busy_model(state: AppState, model_id: str) -> Iterator[None]:
    """Keep a model's worker busy within the block, as a long run does."""
    started, done = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        done.wait(60)

    state.workers[model_id].submit(wait)
    assert started.wait(10)
    try:
        yield
    finally:
        done.set()


def check_refused(response: Any, status: int, *parts: str) -> None:
    """Check the status, and that the message is one sentence that contains these parts."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["detail"]
    detail = response.json()["detail"]
    assert detail.endswith(".")
    assert "\n" not in detail
    for part in parts:
        assert part in detail
