"""The page's server under bad requests, damaged files, and clients that are slow, many or gone."""

import json
import logging
import os
import shutil
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.testclient import TestClient

from regard.errors import UserError
from regard.look.analysis.search_recorder import StoppedError
from regard.look.models.auto import load_traced_model
from regard.look.models.traced_model import TracedModel
from regard.look.runs import list_runs, read_run_metrics
from regard.look.schema import Job, RunRequest
from regard.look.standalone import standalone_page
from regard.look.trace import Trace, load_trace, max_pool, trace_from_bytes
from regard.serve.inspector.app import AppState
from regard.serve.inspector.guard import LocalOnlyMiddleware
from regard.serve.worker import MAX_WAITING
from tests.look.support import TEXT, autoregressive_model, request, save_run, task_models
from tests.serve.support import busy_model, check_refused, events, make_client, run, run_task, serving

CELL = {"attention_type": "cross", "layer": 0, "head": 0, "query": 0}
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def client() -> TestClient:
    return make_client()


@pytest.fixture(scope="module")
def trace_id(client: TestClient) -> str:
    return run_task(client, "translation")


# Numbers and names in requests


def test_pool_is_capped_at_the_matrix(client: TestClient, trace_id: str) -> None:
    """Without the cap, this pads a matrix of 8 × 10 weights to a trillion."""
    response = client.get(f"/api/traces/{trace_id}/attention/cross/0/0", params={"pool": 1 << 20})
    weights = client.state.store.get(trace_id).array("attention/cross")[0, 0]  # type: ignore[attr-defined]
    assert response.status_code == 200, response.text
    assert response.headers["x-pooled"] == str(max(weights.shape))
    assert struct.unpack("<e", response.content) == (float(weights.max()),)


def test_pooling_a_long_row_does_not_pad_it_to_a_square() -> None:
    weights = torch.rand(1, 1, 2_000_000).half()  # as a square: 8 TB
    assert max_pool(weights, 2_000_000).tolist() == [[[float(weights.max())]]]


@pytest.mark.parametrize("number", ["-1", "99", "NaN", "1.5", "9" * 30, "9" * 5000, "x" * 5000, "²"])
@pytest.mark.parametrize("path", ["cross/{}/0", "cross/0/{}", "cross/0/0?row={}"])
def test_layer_head_or_row_out_of_range_is_refused(client: TestClient, trace_id: str, path: str, number: str) -> None:
    response = client.get(f"/api/traces/{trace_id}/attention/{path.format(number)}")
    assert 400 <= response.status_code < 500, response.text
    assert len(response.json()["detail"]) < 300


@pytest.mark.parametrize("number", ["-2", "9999", "NaN", "9" * 5000])
def test_node_out_of_range_is_refused(client: TestClient, trace_id: str, number: str) -> None:
    assert client.post(f"/api/traces/{trace_id}/nodes/{number}").status_code in (400, 422)


@pytest.mark.parametrize("field", ["layer", "head", "query"])
@pytest.mark.parametrize("number", ["-1", "99", "NaN", "1e400", "9" * 400, "9" * 5000, "null", '"x"'])
def test_cell_out_of_range_is_refused(client: TestClient, trace_id: str, field: str, number: str) -> None:
    body = json.dumps({name: value for name, value in CELL.items() if name != field})
    response = client.post(f"/api/traces/{trace_id}/cell", content=f'{body[:-1]}, "{field}": {number}}}', headers=JSON)
    assert response.status_code in (400, 422), response.text
    assert len(response.json()["detail"]) < 600


@pytest.mark.parametrize("path", ["/{}.js", "/api/models/{}/diagram", "/api/traces/{}", "/api/jobs/{}", "/api/runs/{}"])
def test_very_long_name_is_not_found(client: TestClient, path: str) -> None:
    response = client.get(path.format("a" * 20_000))
    assert response.status_code == 404
    assert len(response.text) < 1000


# Bodies, content types and methods


@pytest.mark.parametrize(
    "body", ["[" * 100_000, '{"text":' * 50_000, '{"text": "\\ud800"}', b'{"text": "\xff"}', "", "[]"]
)
def test_body_that_is_not_a_message_is_refused(client: TestClient, body: str | bytes) -> None:
    check_refused(client.post("/api/models/small/traces", content=body, headers=JSON), 422, "The request is not valid")


def test_body_with_millions_of_values_is_refused_before_they_are_parsed(client: TestClient) -> None:
    body = '{"text": "a", "source_tokens": [' + "[]," * 5_000_000 + "[]]}"
    check_refused(client.post("/api/models/small/traces", content=body, headers=JSON), 413, "too many values")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_other_content_type_is_refused(client: TestClient, kind: str) -> None:
    response = client.post("/api/models/small/traces", content=b'{"text": "a"}', headers={"content-type": kind})
    check_refused(response, 415, "application/json")


def test_other_method_is_refused_and_told_which_is_allowed(client: TestClient) -> None:
    for method in ("PUT", "PATCH", "OPTIONS", "DELETE"):
        response = client.request(method, "/api/models")
        check_refused(response, 405)
        assert response.headers["allow"] == "GET"
    assert client.head("/").status_code == 200


def test_bodies_of_all_requests_together_are_limited(client: TestClient) -> None:
    middleware: Any = client.app.build_middleware_stack()  # type: ignore[attr-defined]
    while not isinstance(middleware, LocalOnlyMiddleware):
        middleware = middleware.app
    middleware.bodies.used = middleware.bodies.limit - 100  # as during a large upload
    other = TestClient(middleware, base_url=str(client.base_url))
    response = other.post("/api/traces", content=b"x" * 200)
    check_refused(response, 503, "busy with other large requests")
    assert response.headers["retry-after"].isdecimal()
    assert other.get("/api/models").status_code == 200
    assert middleware.bodies.used == middleware.bodies.limit - 100  # a request returns what it took


# Runs of the model that fail


def with_nan_weights(traced_model: TracedModel) -> TracedModel:
    with torch.no_grad():
        for parameter in traced_model.model.parameters():
            parameter.fill_(torch.nan)
    return traced_model


def test_run_of_a_diverged_model_fails_with_a_status(tmp_path: Path) -> None:
    """Its trace could be neither saved nor shown: JSON has no NaN."""
    client = make_client(with_nan_weights(autoregressive_model(dtype=torch.float32)))
    last = events(client, "small", text=TEXT, decoding={"max_new_tokens": 3})[-1]
    assert (last["event"], last["status"]) == ("failed", 400)
    assert "not finite" in last["error"]
    body = {"ablation": "zero", "metric": "loss", "lines": ["the old cat\ta mouse"]}
    job = client.post("/api/models/small/head-importance", json=body).json()
    assert "weights are damaged" in wait_for_job(client, job["id"]).error
    job = client.post("/api/models/small/head-roles", json={"lines": ["the old cat\ta mouse"]}).json()
    assert "weights are damaged" in wait_for_job(client, job["id"]).error


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (MemoryError(), 413, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), 413, "not enough memory"),
        (RuntimeError("a wire\ncame loose"), 500, "a wire came loose"),
    ],
)
def test_unexpected_failure_of_a_run_has_a_status(error: Exception, status: int, words: str) -> None:
    traced_model = autoregressive_model(dtype=torch.float32)

    def fail(*_: object) -> Trace:
        raise error

    traced_model.trace = fail  # type: ignore[method-assign,assignment]
    (last,) = events(make_client(traced_model), "small", text=TEXT)
    assert (last["event"], last["status"]) == ("failed", status)
    assert words in last["error"]
    assert "\n" not in last["error"]


def test_folder_of_a_model_may_be_removed_while_it_is_served(tmp_path: Path) -> None:
    folder = save_run(tmp_path / "gone", autoregressive_model(dtype=torch.float32))
    client = make_client(load_traced_model(folder))
    shutil.rmtree(folder)
    trace_id = run(client, "gone", text=TEXT, decoding={"max_new_tokens": 3})
    assert client.post(f"/api/traces/{trace_id}/cell", json=CELL).status_code == 200
    job = client.post("/api/models/gone/head-importance", json={"ablation": "zero", "metric": "loss"}).json()
    assert "not on this machine" in wait_for_job(client, job["id"]).error


def wait_for_job(client: TestClient, job_id: str) -> Job:
    deadline = time.monotonic() + 20
    while (job := Job.model_validate(client.get(f"/api/jobs/{job_id}").json())).state == "running":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return job


# Damaged traces and runs


def with_header(trace: Trace, **values: object) -> bytes:
    """The file of a trace with other values in its header."""
    content = trace.to_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    file_header = json.loads(content[8 : 8 + length])
    file_header["__metadata__"]["regard"] = json.dumps(json.loads(file_header["__metadata__"]["regard"]) | values)
    encoded = json.dumps(file_header).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + content[8 + length :]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"output": "a\ud800"}, "not valid Unicode"),
        ({"target": [{"piece": "\udfff"}]}, "not valid Unicode"),
        ({"log_probability": float("nan")}, "not finite"),
        ({"seconds": float("inf")}, "not finite"),
    ],
)
def test_trace_that_could_not_be_saved_again_is_refused(
    client: TestClient, tmp_path: Path, values: dict[str, object], words: str
) -> None:
    path = tmp_path / "one.trace"
    path.write_bytes(with_header(autoregressive_model(dtype=torch.float32).trace(RunRequest(text=TEXT)), **values))
    with pytest.raises(UserError, match=rf"one\.trace is damaged: .*{words}"):
        load_trace(path)
    check_refused(client.post("/api/traces", content=path.read_bytes()), 400, words)


def test_trace_with_invalid_unicode_is_not_saved(tmp_path: Path) -> None:
    trace = autoregressive_model(dtype=torch.float32).trace(RunRequest(text=TEXT))
    trace.header = trace.header.model_copy(update={"output": "\ud800"})
    with pytest.raises(UserError, match=r"cannot be saved: .* not valid Unicode"):
        trace.save(tmp_path / "one.trace")
    assert os.listdir(tmp_path) == []


def test_text_with_invalid_unicode_is_refused() -> None:
    with pytest.raises(UserError, match=r"^text: "):
        autoregressive_model(dtype=torch.float32).pipeline.trace("a\ud800")


@pytest.mark.parametrize("change", [{"id": 7}, {"parent": -5}])
def test_search_tree_that_skips_nodes_is_refused(change: dict[str, int]) -> None:
    trace = autoregressive_model(dtype=torch.float32).trace(RunRequest(text=TEXT))
    first, *others = (node.model_dump() for node in trace.header.nodes)
    with pytest.raises(UserError, match="search tree are out of order"):
        trace_from_bytes(with_header(trace, nodes=[first | change, *others]))


def damage(folder: Path, name: str, content: bytes | None) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    if content is None:
        os.mkfifo(path)  # reading it would never end
    else:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("recipe.toml", b"name = \xff"),
        ("recipe.toml", b"a = " + b"[" * 20_000),
        ("recipe.toml", None),
        ("run.json", b"{"),
        ("run.json", b"[" * 100_000),
        ("run.json", None),
        ("metrics.jsonl", b"\x00\xff\n" * 10),
        ("metrics.jsonl", b'{"step": ' + b"9" * 400 + b"}\n"),
    ],
)
def test_run_with_a_damaged_file_is_listed_with_its_problem(tmp_path: Path, name: str, content: bytes | None) -> None:
    for run_name in ("bad", "good"):
        (tmp_path / run_name).mkdir()
        (tmp_path / run_name / "recipe.toml").write_text('name = "small"\n')
        (tmp_path / run_name / "run.json").write_text("{}")
        (tmp_path / run_name / "metrics.jsonl").write_text('{"step": 3, "loss": 1.0}\n')
    damage(tmp_path / "bad", name, content)
    client = make_client(task_models()["text-classification"], runs=tmp_path)
    runs = {Path(each["folder"]).name: each for each in client.get("/api/runs").json()}
    assert (runs["good"]["step"], runs["good"]["problem"]) == (3, "")
    assert runs["bad"]["problem"].startswith(f"{name} is ")
    assert client.get(f"/api/runs/{runs['bad']['id']}").status_code == 200


def test_run_that_cannot_be_sent_as_json_does_not_hide_the_others(tmp_path: Path) -> None:
    bad = os.fsencode(tmp_path) + b"/\xff"  # not valid Unicode
    os.mkdir(bad)
    line = b'{"step": 2, "\\ud800": 1, "big": 1' + b"0" * 400 + b', "loss": 2.0}\n'
    Path(os.fsdecode(bad), "metrics.jsonl").write_bytes(line)
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "metrics.jsonl").symlink_to("metrics.jsonl")
    client = make_client(task_models()["text-classification"], runs=tmp_path)
    (listed,) = client.get("/api/runs").json()
    assert (listed["folder"], listed["step"]) == (f"{tmp_path}/\ufffd", 2)
    assert client.get(f"/api/runs/{listed['id']}").json()["records"] == [{"step": 2, "big": None, "loss": 2.0}]


def test_last_step_is_found_before_a_long_damaged_end(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\n' + "x" * 100_000 + "\n")
    (listed,) = list_runs(tmp_path)
    assert (listed.step, listed.problem) == (5, "")


def test_metrics_that_are_too_large_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.look.runs.MAX_METRICS_BYTES", 10)
    (tmp_path / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n')
    (listed,) = list_runs(tmp_path)
    assert "metrics.jsonl is too large" in listed.problem
    with pytest.raises(UserError, match="too large"):
        read_run_metrics(tmp_path, listed.id)


# Many, slow and departing clients of a server with connections


@pytest.fixture(scope="module")
def server() -> Iterator["Server"]:
    traced_model = autoregressive_model(dtype=torch.float32)
    state = AppState([traced_model])
    trace_id = state.add_trace(traced_model.trace(request(traced_model)))
    with serving(state) as url:
        yield Server(state, int(url.rstrip("/").rsplit(":", 1)[1]), trace_id)


class Server:
    """A server on a port, with one model and one trace."""

    def __init__(self, state: AppState, port: int, trace_id: str) -> None:
        self.state, self.port = state, port
        self.traced_model = state.traced_models["small"]
        self.cheap_paths = ("/", "/page.js", "/api/models", "/api/runs", f"/api/traces/{trace_id}")
        self.cheap_paths += (f"/api/traces/{trace_id}/attention/cross/0/all",)
        self.cell_path = f"/api/traces/{trace_id}/cell"

    def send(self, method: str, path: str, body: object = None) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, None if body is None else json.dumps(body), JSON)
        return connection

    def get(self, path: str) -> HTTPResponse:
        with closing(self.send("GET", path)) as connection:
            response = connection.getresponse()
            response.read()
            return response

    def open_socket(self, content: bytes) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        connection.sendall(content)
        return connection

    def check_cheap_paths(self) -> None:
        for path in self.cheap_paths:
            started = time.monotonic()
            assert self.get(path).status == 200
            assert time.monotonic() - started < 2, path


def test_busy_model_blocks_neither_the_page_nor_its_cheap_requests(server: Server) -> None:
    with ExitStack() as stack:
        with busy_model(server.state, "small"):
            cells = [
                stack.enter_context(closing(server.send("POST", server.cell_path, CELL))) for _ in range(MAX_WAITING)
            ]
            wait_until(lambda: server.state.workers["small"].waiting == MAX_WAITING)
            for _ in range(45 - MAX_WAITING):
                with closing(server.send("POST", server.cell_path, CELL)) as connection:
                    response = connection.getresponse()
                    assert response.status == 503
                    assert response.headers["retry-after"].isdecimal()
                    assert b"already waiting for this model" in response.read()
            server.check_cheap_paths()
            with closing(server.send("POST", "/api/models/small/traces", {"text": TEXT})) as connection:
                assert connection.getresponse().status == 503  # not a stream that never starts
        assert [connection.getresponse().status for connection in cells] == [200] * MAX_WAITING


def test_clients_that_leave_give_up_their_places(server: Server) -> None:
    with busy_model(server.state, "small"):
        for path, body in ((server.cell_path, CELL), ("/api/models/small/traces", {"text": TEXT})):
            connections = [server.send("POST", path, body) for _ in range(MAX_WAITING)]
            wait_until(lambda: server.state.workers["small"].waiting == MAX_WAITING)
            for connection in connections:
                connection.close()
            wait_until(lambda: server.state.workers["small"].waiting == 0)


def test_run_stops_when_its_client_leaves(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    started, stopped = threading.Event(), threading.Event()

    def endless(message: object, on_token: object, should_stop: Any) -> Trace:
        started.set()
        wait_until(should_stop)
        stopped.set()
        raise StoppedError

    monkeypatch.setattr(server.traced_model, "trace", endless)
    connection = server.send("POST", "/api/models/small/traces", {"text": TEXT})
    assert started.wait(5)
    connection.close()
    assert stopped.wait(5)


def test_shutdown_stops_what_runs_and_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    traced_model = autoregressive_model(dtype=torch.float32)
    trace = traced_model.trace(request(traced_model))
    started = threading.Event()

    def endless(message: object, on_token: object, should_stop: Any) -> Trace:
        started.set()
        wait_until(should_stop)
        raise StoppedError

    traced_model.trace = endless  # type: ignore[method-assign,assignment]
    state = AppState([traced_model])
    log = logging.getLogger("uvicorn.error")
    log.addHandler(caplog.handler)
    with serving(state) as url:
        server = Server(state, int(url.rstrip("/").rsplit(":", 1)[1]), state.add_trace(trace))
        running = server.send("POST", "/api/models/small/traces", {"text": TEXT})
        assert started.wait(5)
        waiting = server.send("POST", server.cell_path, CELL)
        wait_until(lambda: state.workers["small"].waiting == 1)
    log.removeHandler(caplog.handler)
    with closing(running), closing(waiting):
        assert b"The run was stopped." in running.getresponse().read()
        response = waiting.getresponse()
        assert response.status == 503
        assert b"shutting down" in response.read()
    assert "Traceback" not in caplog.text


def test_slow_clients_do_not_block_others(server: Server) -> None:
    head = b"POST /api/models/small/traces HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    slow = [
        server.open_socket(head + b"Content-Type: application/json\r\nContent-Length: 999\r\n\r\n{") for _ in range(50)
    ]
    slow += [server.open_socket(b"GET / HTTP/1.1\r\nHost: 127") for _ in range(50)]
    for connection in slow[:50]:
        connection.sendall(b" ")
    server.check_cheap_paths()
    with closing(server.send("POST", server.cell_path, CELL)) as connection:
        assert connection.getresponse().status == 200
    for each in slow:
        each.close()


def test_request_that_is_never_completed_is_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.serve.body_limits.BODY_SECONDS", 0.2)
    head = b"POST /api/models/small/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with closing(server.open_socket(head + b"Content-Length: 999\r\n\r\n{")) as connection:
        assert b" 408 " in connection.recv(4096).split(b"\r\n")[0]


def test_client_that_leaves_during_an_upload_is_no_error(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("uvicorn.error")
    log.addHandler(caplog.handler)
    server.open_socket(b"POST /api/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n\r\nabc").close()
    time.sleep(0.2)
    server.check_cheap_paths()
    log.removeHandler(caplog.handler)
    assert caplog.text == ""


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Computations that stop on request


def test_search_for_mean_ablation_stops_on_request() -> None:
    traced_model = autoregressive_model(dtype=torch.float32)
    steps: list[int] = []
    traced_model.model.decoder.register_forward_hook(lambda *_: steps.append(1))  # type: ignore[union-attr]
    head = {"attention_type": "cross", "layer": 0, "head": 0, "ablation": "mean"}
    with pytest.raises(StoppedError):
        traced_model.trace(request(traced_model, ablated_heads=[head]), should_stop=lambda: True)
    assert len(steps) == 1


def test_standalone_page_stops_on_request() -> None:
    traced_model = autoregressive_model(dtype=torch.float32)
    with pytest.raises(StoppedError):
        standalone_page(traced_model.trace(request(traced_model)), should_stop=lambda: True)
