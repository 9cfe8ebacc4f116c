"""Routes that explain an output: the choice between two tokens, the logit lens, and what-if runs."""

import threading
import time
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from regard.look.analysis.attribution import contrast
from regard.look.analysis.attribution.logit_lens import look_through_layers
from regard.look.schema import Contrast, ContrastRequest, Job, Lens, LensRequest
from regard.look.trace import Trace
from tests.look.support import TEXT, autoregressive_model, task_models
from tests.serve.support import check_refused, events, make_client, run, run_task


@pytest.fixture(scope="module")
def client() -> TestClient:
    return make_client()


@pytest.fixture(scope="module")
def trace_id(client: TestClient) -> str:
    """A trace of the translator on the server."""
    return run_task(client, "translation")


def trace_of(client: TestClient, trace_id: str) -> Trace:
    return client.state.store.get(trace_id)  # type: ignore[attr-defined]


def finished(client: TestClient, started: Any) -> Job:
    assert started.status_code == 200, started.text
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        current = Job.model_validate(client.get(f"/api/jobs/{started.json()['id']}").json())
        if current.state != "running":
            return current
        time.sleep(0.02)
    raise AssertionError("the job did not finish")


def test_choice_is_explained_in_the_background(client: TestClient, trace_id: str) -> None:
    job = finished(client, client.post(f"/api/traces/{trace_id}/contrast", json={"position": 3, "contrast": 40}))
    trace = trace_of(client, trace_id)
    model: Any = trace.require_model()
    *_, (total, expected) = contrast.explain_choice(model, trace, ContrastRequest(position=3, contrast=40))
    assert (job.state, job.done, job.total, job.error) == ("done", total, total, "")
    assert isinstance(job.result, Contrast)
    assert job.result == expected


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"position": 0, "contrast": 40}, 400, "position: found 0; the tokens that were generated are 1 to"),
        ({"position": 99, "contrast": 40}, 400, "position: found 99"),
        ({"position": -1, "contrast": 40}, 422, "position"),
        ({"position": 1, "contrast": " "}, 400, "contrast: there is no text"),
        ({"position": 1, "contrast": 10**6}, 400, "contrast: there is no token 1000000"),
        ({"position": 1, "contrast": "a" * 201}, 422, "contrast"),
        ({"position": 1}, 422, "contrast"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(
    client: TestClient, trace_id: str, body: dict[str, Any], status: int, message: str
) -> None:
    check_refused(client.post(f"/api/traces/{trace_id}/contrast", json=body), status, message)


def test_the_token_itself_is_no_contrast(client: TestClient, trace_id: str) -> None:
    token = trace_of(client, trace_id).header.target[2].id
    refused = client.post(f"/api/traces/{trace_id}/contrast", json={"position": 2, "contrast": token})
    check_refused(refused, 400, "what the model wrote")


@pytest.mark.parametrize("path", ["contrast", "lens"])
def test_a_model_of_labels_makes_no_choice(client: TestClient, path: str) -> None:
    trace_id = run_task(client, "text-classification")
    body = {"position": 1, "contrast": 40} if path == "contrast" else {}
    check_refused(client.post(f"/api/traces/{trace_id}/{path}", json=body), 400, "predicts labels")
    check_refused(client.post(f"/api/traces/none/{path}", json=body), 404, "There is no such trace")


def test_a_new_explanation_stops_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    client = make_client(autoregressive_model(dtype=torch.float32))
    trace_id = run(client, "small", text=TEXT)
    go_on, first = threading.Event(), threading.Event()
    explain = contrast.explain_choice

    def slowly(*arguments: Any) -> Any:
        for step in explain(*arguments):
            yield step
            first.set()
            go_on.wait(60)

    monkeypatch.setattr("regard.serve.inspector.app.explain_choice", slowly)
    path, body = f"/api/traces/{trace_id}/contrast", {"position": 1, "contrast": 40}
    started = client.post(path, json=body)
    assert first.wait(20)
    measured = {"ablation": "zero", "metric": "loss", "lines": ["the cat\ta mouse"]}
    other = client.post("/api/models/small/head-importance", json=measured)  # another kind of job
    again = client.post(path, json=body)
    go_on.set()
    job = finished(client, started)
    assert (job.state, job.done < job.total) == ("stopped", True)
    assert finished(client, again).state == finished(client, other).state == "done"
    stopped = client.post(path, json=body)
    assert client.delete(f"/api/jobs/{stopped.json()['id']}").status_code == 200
    assert finished(client, stopped).state in ("stopped", "done")


def test_lens_is_that_of_the_trace(client: TestClient, trace_id: str) -> None:
    trace = trace_of(client, trace_id)
    model: Any = trace.require_model()
    for body in ({}, {"first": 3}):
        response = Lens.model_validate(client.post(f"/api/traces/{trace_id}/lens", json=body).json())
        assert response == look_through_layers(model, trace, LensRequest(**body))
    check_refused(client.post(f"/api/traces/{trace_id}/lens", json={"first": 0}), 400, "first: found 0")


def test_what_if_run_begins_with_the_given_tokens(client: TestClient, trace_id: str) -> None:
    written = [token.id for token in trace_of(client, trace_id).header.target[1:3]]
    forced = run(client, "small", text=TEXT, decoding={"max_new_tokens": 7}, prefix_tokens=[*written, 40])
    header = client.get(f"/api/traces/{forced}").json()
    assert [token["id"] for token in header["target"][1:4]] == [*written, 40]
    assert header["request"]["prefix_tokens"] == [*written, 40]
    (reported,) = events(client, "small", text=TEXT, prefix_tokens=[10**6])
    assert (reported["status"], "no token 1000000" in reported["error"]) == (400, True)
    parser = task_models()["parsing"].id
    (reported,) = events(client, parser, text="the cat", forbid=["NP"])
    assert (reported["status"], "always a tree" in reported["error"]) == (400, True)
