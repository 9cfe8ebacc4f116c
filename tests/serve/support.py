"""A server over small models, asked in this process."""

import json
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from regard.look.subject import Subject
from regard.serve.app import Desk, create_app
from regard.serve.page import Page
from regard.serve.shelf import Shelf
from tests.look.support import every_task, request

HOME = "http://127.0.0.1:8765"


def client(
    *subjects: Subject, runs: Path | None = None, shelf: Shelf | None = None, page: Page | None = None
) -> TestClient:
    """Someone who asks a server over these subjects, or over one of every task."""
    desk = Desk(subjects or list(every_task().values()), runs, shelf)
    asker = TestClient(create_app(desk, page), base_url=HOME, raise_server_exceptions=False)
    asker.desk = desk  # type: ignore[attr-defined]
    return asker


def events(asker: TestClient, name: str, **asked: Any) -> list[dict[str, Any]]:
    """What happens when a model is run."""
    answer = asker.post(f"/api/models/{name}/traces", json=asked)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def run(asker: TestClient, name: str, **asked: Any) -> str:
    """The name of the trace that a run leaves."""
    *_, last = events(asker, name, **asked)
    assert last["event"] == "done", last
    return last["trace"]


def run_any(asker: TestClient, task: str) -> str:
    """A run of the small model of some task."""
    subject = every_task()[task]
    return run(asker, subject.id, **request(subject).plain())


def refused(answer: Any, status: int, *words: str) -> None:
    """A status and one sentence, with these words in it."""
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["detail"]
    sentence = answer.json()["detail"]
    assert sentence.endswith(".")
    assert "\n" not in sentence
    for word in words:
        assert word in sentence
