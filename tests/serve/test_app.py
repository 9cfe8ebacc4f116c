"""Every route of the contract responds with the library's results, and every error with a message."""

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from regard.look.analysis.model_diagram import draw_model
from regard.look.positions.schemes import positions
from regard.look.schema import Cell, Job, ModelSummary, ModuleBox, NodeAttention, Positions, RunMetrics, RunSummary
from regard.look.schema import Trace as Header
from regard.look.trace import Trace, max_pool
from regard.serve.inspector.jobs import MAX_JOBS
from regard.serve.inspector.trace_store import TraceStore
from tests.look.support import TEXT, autoregressive_model, request, task_models
from tests.serve.support import busy_model, check_refused, events, make_client, run, run_task

CONTRACT = Path(__file__).parents[2] / "web" / "src" / "contract.d.ts"
PAIRS = ["the old cat\ta mouse", "red sun\tdog"]
each_task = pytest.mark.parametrize("task", list(task_models()))


@pytest.fixture(scope="module")
def client() -> TestClient:
    return make_client()


@pytest.fixture(scope="module")
def trace_id(client: TestClient) -> str:
    """A trace of the translator on the server."""
    return run_task(client, "translation")


def trace_of(client: TestClient, trace_id: str) -> Trace:
    return client.state.store.get(trace_id)  # type: ignore[attr-defined]


def test_every_route_of_the_contract_exists(client: TestClient) -> None:
    text = CONTRACT.read_text(encoding="utf-8")
    named = set(re.findall(r"`(GET|POST|DELETE) (api/[^`?]*)", text))
    app: Any = client.app
    routes = {(method, route.path[1:]) for route in app.routes for method in getattr(route, "methods", ())}
    existing = {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in routes}
    assert named
    assert {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in named} <= existing


def test_models_are_listed(client: TestClient) -> None:
    summaries = [ModelSummary.model_validate(item) for item in client.get("/api/models").json()]
    assert summaries == [traced_model.summary() for traced_model in task_models().values()]
    assert [summary.id for summary in summaries][:4] == ["small", "small-2", "small-3", "parser"]


@each_task
def test_diagram_is_that_of_the_model(client: TestClient, task: str) -> None:
    traced_model = task_models()[task]
    response = ModuleBox.model_validate(client.get(f"/api/models/{traced_model.id}/diagram").json())
    assert response == draw_model(traced_model.model, traced_model.name)


@each_task
def test_run_records_a_trace_for_every_task(client: TestClient, task: str) -> None:
    traced_model = task_models()[task]
    header = Header.model_validate(client.get(f"/api/traces/{run_task(client, task)}").json())
    expected = traced_model.trace(request(traced_model)).header
    assert header.model_copy(update={"id": "", "seconds": 0.0}) == expected.model_copy(update={"seconds": 0.0})


def test_tokens_are_streamed_during_a_run(client: TestClient) -> None:
    reported = events(client, "small", text=TEXT, decoding={"method": "greedy", "max_new_tokens": 6})
    assert [one["event"] for one in reported] == ["token"] * (len(reported) - 1) + ["done"]
    header = client.get(f"/api/traces/{reported[-1]['trace']}").json()
    assert [one["token"] for one in reported[:-1]] == [one["token"]["text"] for one in header["generated"]]
    assert reported[-2]["text"] == header["output"]


def test_failed_run_ends_with_an_error_event(client: TestClient) -> None:
    (reported,) = events(client, "small", text=" ")
    assert reported == {"event": "failed", "error": "There is nothing to translate; enter a sentence.", "status": 400}


def test_ablation_applies_to_its_own_run_only(client: TestClient) -> None:
    ablated_heads = [
        {"attention_type": "cross", "layer": layer, "head": head, "ablation": "zero"}
        for layer in (0, 1)
        for head in range(4)
    ]
    before = run(client, "small", text=TEXT)
    ablated = run(client, "small", text=TEXT, ablated_heads=ablated_heads)
    after = run(client, "small", text=TEXT)
    totals = [client.get(f"/api/traces/{each}").json()["log_probability"] for each in (before, ablated, after)]
    assert totals[0] == totals[2] != totals[1]
    assert client.get(f"/api/traces/{ablated}").json()["request"]["ablated_heads"] == ablated_heads


def weights(response: Any) -> np.ndarray:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    rows, columns = int(response.headers["x-rows"]), int(response.headers["x-columns"])
    return np.frombuffer(response.content, dtype="<f2").reshape(-1, rows, columns)


@pytest.mark.parametrize("attention_type", ["encoder", "decoder", "cross"])
def test_attention_of_one_head(client: TestClient, trace_id: str, attention_type: str) -> None:
    response = client.get(f"/api/traces/{trace_id}/attention/{attention_type}/1/2")
    own = trace_of(client, trace_id).array(f"attention/{attention_type}")[1, 2]
    assert response.headers["x-pooled"] == "1"
    assert np.array_equal(weights(response)[0], own.numpy())


def test_attention_of_all_heads_and_layers(client: TestClient, trace_id: str) -> None:
    own = trace_of(client, trace_id).array("attention/encoder").numpy()
    assert np.array_equal(weights(client.get(f"/api/traces/{trace_id}/attention/encoder/1/all")), own[1])
    everything = weights(client.get(f"/api/traces/{trace_id}/attention/encoder/all/all"))
    assert np.array_equal(everything.reshape(own.shape), own)
    second = weights(client.get(f"/api/traces/{trace_id}/attention/encoder/all/2"))
    assert np.array_equal(second, own[:, 2])


def test_attention_averaged_over_heads(client: TestClient, trace_id: str) -> None:
    own = trace_of(client, trace_id).array("attention/cross")[0].float().mean(dim=0)
    mean = weights(client.get(f"/api/traces/{trace_id}/attention/cross/0/mean"))[0]
    assert mean == pytest.approx(own.numpy(), abs=1e-3)


@pytest.mark.parametrize("pool", [2, 5])
def test_attention_is_max_pooled_on_request(client: TestClient, trace_id: str, pool: int) -> None:
    response = client.get(f"/api/traces/{trace_id}/attention/encoder/0/all", params={"pool": pool})
    own = max_pool(trace_of(client, trace_id).array("attention/encoder")[0], pool)
    assert response.headers["x-pooled"] == str(pool)
    assert np.array_equal(weights(response), own.numpy())


def test_single_row_is_not_pooled(client: TestClient, trace_id: str) -> None:
    own = trace_of(client, trace_id).array("attention/cross")[1]
    response = client.get(f"/api/traces/{trace_id}/attention/cross/1/3", params={"row": 4})
    assert (response.headers["x-rows"], response.headers["x-pooled"]) == ("1", "1")
    assert np.array_equal(weights(response)[0, 0], own[3, 4].numpy())
    mean = weights(client.get(f"/api/traces/{trace_id}/attention/cross/1/mean", params={"row": 4}))[0, 0]
    assert mean == pytest.approx(own[:, 4].float().mean(dim=0).numpy(), abs=1e-3)
    rows = weights(client.get(f"/api/traces/{trace_id}/attention/cross/1/3", params={"mean_from": 2}))[0, 0]
    assert rows == pytest.approx(own[3, 2:].float().mean(dim=0).numpy(), abs=1e-3)
    rollout = trace_of(client, trace_id).rollout("decoder", 1)[4]
    row = weights(client.get(f"/api/traces/{trace_id}/attention/decoder/1/rollout", params={"row": 4}))[0, 0]
    assert row == pytest.approx(rollout.numpy(), abs=1e-3)


def test_more_than_1024_tokens_are_pooled() -> None:
    client = make_client(autoregressive_model(dtype=torch.float32))
    trace_id = client.state.store.add(_trace_of_size(1500, 40))  # type: ignore[attr-defined]
    response = client.get(f"/api/traces/{trace_id}/attention/cross/0/0")
    assert [response.headers[f"x-{one}"] for one in ("rows", "columns", "pooled")] == ["750", "20", "2"]
    own = client.state.store.get(trace_id).array("attention/cross")[0, 0]  # type: ignore[attr-defined]
    assert np.array_equal(weights(response)[0], max_pool(own, 2).numpy())
    row = client.get(f"/api/traces/{trace_id}/attention/cross/0/0", params={"row": 1499})
    assert np.array_equal(weights(row)[0, 0], own[1499].numpy())


def _trace_of_size(queries: int, keys: int) -> Trace:
    """A trace with a large attention matrix."""
    trace = autoregressive_model(dtype=torch.float32).trace(request(task_models()["translation"]))
    return Trace(trace.header, {"attention/cross": torch.rand(1, 1, queries, keys).half()}, trace.traced_model)


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("nowhere/0/0", "no array 'attention/nowhere'"),
        ("cross/2/0", "no layer '2'"),
        ("cross/x/0", "no layer 'x'"),
        ("cross/-1/0", "no layer '-1'"),
        ("cross/0/4", "no head '4'"),
        ("cross/0/0?row=99", "no row 99"),
        ("cross/0/0?row=-1", "no row -1"),
        ("cross/0/0?mean_from=99", "no row to start from 99"),
        ("cross/0/rollout", "cannot be multiplied"),
        ("encoder/all/rollout", "no layer 'all'"),
        ("cross/0/0?pool=0", "pool: expected"),
    ],
)
def test_missing_attention_is_refused(client: TestClient, trace_id: str, path: str, word: str) -> None:
    check_refused(client.get(f"/api/traces/{trace_id}/attention/{path}"), 400, word)


def test_node_is_that_of_the_trace(client: TestClient, trace_id: str) -> None:
    trace = trace_of(client, trace_id)
    for node_id in (-1, 0, len(trace.header.nodes) - 1):
        response = NodeAttention.model_validate(client.post(f"/api/traces/{trace_id}/nodes/{node_id}").json())
        assert response == trace.node(node_id)


def test_cell_is_that_of_the_trace(client: TestClient, trace_id: str) -> None:
    cell = {"attention_type": "decoder", "layer": 1, "head": 2, "query": 3}
    response = client.post(f"/api/traces/{trace_id}/cell", json=cell)
    assert Cell.model_validate(response.json()) == trace_of(client, trace_id).cell("decoder", 1, 2, 3)
    assert None in response.json()["masked_scores"]


def test_trace_is_downloaded_and_uploaded(client: TestClient, trace_id: str) -> None:
    file = client.get(f"/api/traces/{trace_id}/file")
    assert "attachment" in file.headers["content-disposition"]
    again = client.post("/api/traces", content=file.content).json()["trace"]
    assert again != trace_id
    first, second = (trace_of(client, each) for each in (trace_id, again))
    assert first.header.model_copy(update={"id": ""}) == second.header.model_copy(update={"id": ""})
    assert second.traced_model is first.traced_model  # matched by name, task and attention
    assert client.post(f"/api/traces/{again}/nodes/0").status_code == 200


def test_uploaded_trace_without_its_model_can_be_viewed_only() -> None:
    other = make_client(task_models()["parsing"])
    content = autoregressive_model(dtype=torch.float32).trace(request(task_models()["translation"])).to_bytes()
    trace_id = other.post("/api/traces", content=content).json()["trace"]
    assert other.get(f"/api/traces/{trace_id}/attention/cross/0/0").status_code == 200
    check_refused(other.post(f"/api/traces/{trace_id}/nodes/0"), 400, "loaded without its model, 'small'")
    cell = {"attention_type": "cross", "layer": 0, "head": 0, "query": 0}
    check_refused(other.post(f"/api/traces/{trace_id}/cell", json=cell), 400, "loaded without its model")
    assert other.get(f"/api/traces/{trace_id}/page.html").status_code == 200


@pytest.mark.parametrize("content", [b"", b"nothing", b"\x00" * 100])
def test_uploaded_file_that_is_not_a_trace_is_refused(client: TestClient, content: bytes) -> None:
    check_refused(client.post("/api/traces", content=content), 400, "damaged or truncated, or not a trace")


def test_standalone_page_is_downloaded(client: TestClient, trace_id: str) -> None:
    response = client.get(f"/api/traces/{trace_id}/page.html")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert 'filename="look.html"' in response.headers["content-disposition"]
    assert 'id="embedded">{"json": "' in response.text


def test_texts_are_split_into_sentences(client: TestClient) -> None:
    found = client.post("/api/models/small/sentences", json={"text": "A cat. A dog."})
    assert found.json() == {"sentences": ["A cat.", "A dog."]}
    check_refused(client.post("/api/models/none/sentences", json={"text": "A cat."}), 404, "There is no model")


def test_evicted_trace_is_gone() -> None:
    client = make_client(store=TraceStore(max_traces=1))
    first, second = run_task(client, "text-classification"), run_task(client, "text-classification")
    assert client.get(f"/api/traces/{second}").status_code == 200
    check_refused(client.get(f"/api/traces/{first}"), 410, "evicted to make room", "run the text again")
    check_refused(client.get(f"/api/traces/{first}/attention/encoder/0/0"), 410)


@pytest.mark.parametrize(
    "path", ["", "/file", "/page.html", "/attention/encoder/0/0"], ids=["header", "file", "page", "attention"]
)
def test_unknown_trace_is_not_found(client: TestClient, path: str) -> None:
    check_refused(client.get(f"/api/traces/none{path}"), 404, "There is no such trace")


def test_nodes_and_cells_of_an_unknown_trace_are_not_found(client: TestClient) -> None:
    check_refused(client.post("/api/traces/none/nodes/0"), 404)
    check_refused(
        client.post("/api/traces/none/cell", json={"attention_type": "cross", "layer": 0, "head": 0, "query": 0}), 404
    )


@pytest.mark.parametrize(
    ("method", "path"), [("get", "diagram"), ("post", "traces"), ("post", "head-importance"), ("post", "head-roles")]
)
def test_unknown_model_is_not_found(client: TestClient, method: str, path: str) -> None:
    bodies = {"traces": {"text": "a"}, "head-importance": {"ablation": "zero", "metric": "loss"}, "head-roles": {}}
    body = {"json": bodies[path]} if method == "post" else {}
    check_refused(
        getattr(client, method)(f"/api/models/none/{path}", **body), 404, "no model 'none' on this server; it has small"
    )


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "text: Field required"),
        ({"text": 3}, "text"),
        ({"text": "a", "more": 1}, "more"),
        ({"text": "a" * 100_001}, "text"),
        ({"text": "a", "decoding": {"beam_size": 0}}, "decoding.beam_size"),
        ({"text": "a", "decoding": {"beam_size": 1000}}, "decoding.beam_size"),
        ({"text": "a", "decoding": {"method": "magic"}}, "decoding.method"),
        ({"text": "a", "decoding": {"temperature": -1}}, "decoding.temperature"),
        ({"text": "a", "decoding": {"top_p": 0}}, "decoding.top_p"),
        (
            {"text": "a", "ablated_heads": [{"attention_type": "up", "layer": 0, "head": 0, "ablation": "zero"}]},
            "ablated_heads.0.attention_type",
        ),
        (
            {"text": "a", "ablated_heads": [{"attention_type": "cross", "layer": -1, "head": 0, "ablation": "zero"}]},
            "ablated_heads.0.layer",
        ),
    ],
)
def test_invalid_request_is_refused(client: TestClient, body: dict[str, Any], word: str) -> None:
    check_refused(client.post("/api/models/small/traces", json=body), 422, "The request is not valid", word)


def test_invalid_json_is_refused(client: TestClient) -> None:
    response = client.post("/api/models/small/traces", content=b"{", headers={"content-type": "application/json"})
    check_refused(response, 422, "The request is not valid")


def test_missing_head_ends_the_run_with_an_error_event(client: TestClient) -> None:
    ablated_heads = [{"attention_type": "cross", "layer": 0, "head": 9, "ablation": "zero"}]
    *_, reported = events(client, "small", text="a", ablated_heads=ablated_heads)
    error = "'cross' has no head 9: its 4 heads are counted from 0."
    assert reported == {"event": "failed", "error": error, "status": 400}


def wait_for_job(client: TestClient, job: dict[str, Any]) -> Job:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        current = Job.model_validate(client.get(f"/api/jobs/{job['id']}").json())
        if current.state != "running":
            return current
        time.sleep(0.02)
    raise AssertionError("the job did not finish")


def test_head_importance_is_measured_in_the_background() -> None:
    from regard.look.analysis.head_importance import measure_head_importance
    from regard.look.schema import HeadImportanceRequest

    traced_model = autoregressive_model(dtype=torch.float32)
    client = make_client(traced_model)
    started = client.post(
        "/api/models/small/head-importance", json={"ablation": "zero", "metric": "loss", "lines": PAIRS}
    )
    assert started.json()["state"] in ("running", "done")
    job = wait_for_job(client, started.json())
    assert (job.state, job.done, job.total, job.error) == ("done", 24, 24, "")
    assert job.result == measure_head_importance(
        traced_model, HeadImportanceRequest(ablation="zero", metric="loss", lines=PAIRS)
    )


def test_head_roles_are_measured_once() -> None:
    from regard.look.analysis.head_roles.roles import measure_head_roles
    from regard.look.schema import HeadRolesRequest

    traced_model = autoregressive_model(dtype=torch.float32)
    client = make_client(traced_model, task_models()["image-classification"])
    path, body = "/api/models/small/head-roles", {"lines": PAIRS}
    with busy_model(client.state, "small"):  # type: ignore[attr-defined]  # so the job waits
        started = client.post(path, json=body).json()
        assert client.post(path, json=body).json()["id"] == started["id"]
        assert client.delete(f"/api/jobs/{started['id']}").status_code == 200
        again = client.post(path, json=body).json()  # a stopped job is no answer
    assert wait_for_job(client, started).state == "stopped"
    job = wait_for_job(client, again)
    assert (job.state, job.done, job.total, job.error) == ("done", len(PAIRS) + 1, len(PAIRS) + 1, "")
    assert job.result == measure_head_roles(traced_model, HeadRolesRequest(lines=PAIRS))
    for _ in range(MAX_JOBS + 2):  # other jobs do not displace it
        failing = {"ablation": "zero", "metric": "loss", "lines": ["no pair"]}
        wait_for_job(client, client.post("/api/models/small/head-importance", json=failing).json())
    assert client.post(path, json=body).json()["id"] == job.id
    assert client.post(path, json={"lines": PAIRS[:1]}).json()["id"] != job.id
    check_refused(client.post("/api/models/image-classification/head-roles", json={}), 400, "this model reads images")


def test_failed_job_has_an_error() -> None:
    client = make_client(autoregressive_model(dtype=torch.float32))
    started = client.post(
        "/api/models/small/head-importance", json={"ablation": "zero", "metric": "loss", "lines": ["no pair"]}
    )
    job = wait_for_job(client, started.json())
    assert (job.state, job.result) == ("failed", None)
    assert "is not a pair" in job.error


def test_stopped_job_keeps_its_results() -> None:
    client = make_client(autoregressive_model(dtype=torch.float32))
    with busy_model(client.state, "small"):  # type: ignore[attr-defined]  # so the job waits
        started = client.post(
            "/api/models/small/head-importance", json={"ablation": "zero", "metric": "loss", "lines": PAIRS}
        ).json()
        busy = client.post(
            "/api/models/small/head-importance", json={"ablation": "mean", "metric": "loss", "lines": PAIRS}
        )
        check_refused(busy, 409, "already being measured")
        assert client.delete(f"/api/jobs/{started['id']}").json()["id"] == started["id"]
    job = wait_for_job(client, started)
    assert job.state == "stopped"
    assert job.done < 24
    started = client.post(
        "/api/models/small/head-importance", json={"ablation": "zero", "metric": "loss", "lines": PAIRS}
    ).json()
    assert wait_for_job(client, started).state == "done"


def test_unknown_job_is_not_found(client: TestClient) -> None:
    check_refused(client.get("/api/jobs/none"), 404, "There is no such job")
    check_refused(client.delete("/api/jobs/none"), 404, "There is no such job")


def test_positions_are_those_of_the_library(client: TestClient) -> None:
    response = Positions.model_validate(client.get("/api/positions", params={"length": 7, "width": 4}).json())
    assert response == positions(7, 4)
    assert client.get("/api/positions").json()["length"] == 64


@pytest.mark.parametrize(
    ("query", "status"), [("length=1", 400), ("width=3", 400), ("length=9999", 400), ("length=x", 422)]
)
def test_invalid_position_sizes_are_refused(client: TestClient, query: str, status: int) -> None:
    check_refused(client.get(f"/api/positions?{query}"), status)


def test_runs_are_listed_and_their_metrics_read(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null}\n{"st')
    client = make_client(autoregressive_model(dtype=torch.float32), runs=tmp_path)
    (summary,) = client.get("/api/runs").json()
    assert RunSummary.model_validate(summary).step == 2
    response = client.get(f"/api/runs/{summary['id']}").json()
    assert RunMetrics.model_validate(response).next_line == 2
    assert response["records"] == [{"step": 1.0, "loss": 2.5}, {"step": 2.0, "loss": None}]
    assert client.get(f"/api/runs/{summary['id']}?after=2").json() == {"next_line": 2, "records": []}
    check_refused(client.get("/api/runs/none"), 404, "no such run")
    check_refused(client.get(f"/api/runs/{summary['id']}?after=x"), 422)


def test_server_without_a_runs_folder_has_no_runs(client: TestClient) -> None:
    assert client.get("/api/runs").json() == []
    check_refused(client.get("/api/runs/one"), 404, "--runs")


@pytest.mark.parametrize(("method", "path", "status"), [("get", "/api/none", 404), ("delete", "/api/models", 405)])
def test_unknown_route_is_refused(client: TestClient, method: str, path: str, status: int) -> None:
    check_refused(getattr(client, method)(path), status)


def test_api_documentation_is_off(client: TestClient) -> None:
    """FastAPI's pages would load scripts from other sites."""
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert client.get(path).status_code == 404


def test_internal_error_is_a_message(monkeypatch: pytest.MonkeyPatch, client: TestClient) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("a wire came loose")

    monkeypatch.setattr("regard.serve.inspector.app.draw_model", broken)
    check_refused(client.get("/api/models/small/diagram"), 500, "a wire came loose")


def test_run_stops_when_the_client_disconnects() -> None:
    """A client that leaves after the first token; a server in this process knows no connections."""
    import asyncio

    from regard.serve.inspector.streaming import EventStream
    from regard.serve.worker import Worker

    stopped: list[bool] = []

    def record(on_token: Any, should_stop: Any) -> str:
        from regard.look.schema import TokenEvent

        on_token(TokenEvent(text="", token="", probability=1.0, step=1))
        end = time.monotonic() + 10
        while not should_stop() and time.monotonic() < end:
            time.sleep(0.01)
        stopped.append(should_stop())
        return "none"

    async def listen() -> None:
        left, sent = asyncio.Event(), []

        async def receive() -> dict[str, Any]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body":
                left.set()

        await EventStream(Worker("this model"), record)({"type": "http"}, receive, send)
        assert json.loads(sent[1]["body"])["event"] == "token"

    # In its own thread: playwright, used by other tests, leaves an event loop running in this one.
    listening = threading.Thread(target=lambda: asyncio.run(listen()))
    listening.start()
    listening.join()
    end = time.monotonic() + 10
    while not stopped and time.monotonic() < end:
        time.sleep(0.01)
    assert stopped == [True]
