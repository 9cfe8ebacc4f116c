"""Every route of the contract answers with what the library gives, and every mistake with a sentence."""

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

from regard.look.parts import parts_of
from regard.look.positions import positions
from regard.look.trace import Trace, pooled
from regard.look.wire import Cell, Job, ModelSummary, NodeAttention, Part, Positions, RunLines, RunSummary
from regard.look.wire import Trace as Header
from regard.serve.shelf import Shelf
from tests.look.support import TEXT, every_task, request, writer
from tests.serve.support import client, events, refused, run, run_any

CONTRACT = Path(__file__).parents[2] / "web" / "src" / "contract.d.ts"
PAIRS = ["the old cat\ta mouse", "red sun\tdog"]
every = pytest.mark.parametrize("task", list(every_task()))


@pytest.fixture(scope="module")
def asker() -> TestClient:
    return client()


@pytest.fixture(scope="module")
def name(asker: TestClient) -> str:
    """A trace of the translator, kept by the server."""
    return run_any(asker, "translation")


def trace_of(asker: TestClient, name: str) -> Trace:
    return asker.desk.shelf.get(name)  # type: ignore[attr-defined]


def test_every_route_that_the_contract_names_is_there(asker: TestClient) -> None:
    text = CONTRACT.read_text(encoding="utf-8")
    named = set(re.findall(r"`(GET|POST|DELETE) (api/[^`?]*)", text))
    app: Any = asker.app
    there = {(method, route.path[1:]) for route in app.routes for method in getattr(route, "methods", ())}
    plain = {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in there}
    assert named
    assert {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in named} <= plain


def test_models_are_those_that_were_opened(asker: TestClient) -> None:
    found = [ModelSummary.model_validate(one) for one in asker.get("/api/models").json()]
    assert found == [one.summary() for one in every_task().values()]
    assert [one.id for one in found][:4] == ["small", "small-2", "small-3", "parser"]


@every
def test_parts_are_those_of_the_model(asker: TestClient, task: str) -> None:
    subject = every_task()[task]
    answer = Part.model_validate(asker.get(f"/api/models/{subject.id}/parts").json())
    assert answer == parts_of(subject.model, subject.name)


@every
def test_a_run_ends_with_a_trace_of_every_task(asker: TestClient, task: str) -> None:
    subject = every_task()[task]
    header = Header.model_validate(asker.get(f"/api/traces/{run_any(asker, task)}").json())
    own = subject.trace(request(subject)).header
    assert header.model_copy(update={"id": "", "seconds": 0.0}) == own.model_copy(update={"seconds": 0.0})


def test_tokens_come_as_lines_while_it_writes(asker: TestClient) -> None:
    told = events(asker, "small", text=TEXT, decoding={"method": "greedy", "longest": 6})
    assert [one["event"] for one in told] == ["token"] * (len(told) - 1) + ["done"]
    header = asker.get(f"/api/traces/{told[-1]['trace']}").json()
    assert [one["token"] for one in told[:-1]] == [one["token"]["text"] for one in header["written"]]
    assert told[-2]["text"] == header["output"]


def test_what_fails_while_it_runs_is_told_in_the_last_line(asker: TestClient) -> None:
    (told,) = events(asker, "small", text=" ")
    assert told == {"event": "failed", "reason": "There is nothing to translate; give a sentence."}


def test_heads_that_are_off_are_off_for_that_run_only(asker: TestClient) -> None:
    off = [{"side": "cross", "layer": layer, "head": head, "how": "zero"} for layer in (0, 1) for head in range(4)]
    plain = run(asker, "small", text=TEXT)
    changed = run(asker, "small", text=TEXT, off=off)
    again = run(asker, "small", text=TEXT)
    totals = [asker.get(f"/api/traces/{one}").json()["total"] for one in (plain, changed, again)]
    assert totals[0] == totals[2] != totals[1]
    assert asker.get(f"/api/traces/{changed}").json()["request"]["off"] == off


def weights(answer: Any) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    rows, columns = int(answer.headers["x-rows"]), int(answer.headers["x-columns"])
    return np.frombuffer(answer.content, dtype="<f2").reshape(-1, rows, columns)


@pytest.mark.parametrize("side", ["encoder", "decoder", "cross"])
def test_one_head_is_a_matrix(asker: TestClient, name: str, side: str) -> None:
    answer = asker.get(f"/api/traces/{name}/attention/{side}/1/2")
    own = trace_of(asker, name).array(f"attention/{side}")[1, 2]
    assert answer.headers["x-pooled"] == "1"
    assert np.array_equal(weights(answer)[0], own.numpy())


def test_all_heads_and_all_layers_can_be_asked_for(asker: TestClient, name: str) -> None:
    own = trace_of(asker, name).array("attention/encoder").numpy()
    assert np.array_equal(weights(asker.get(f"/api/traces/{name}/attention/encoder/1/all")), own[1])
    everything = weights(asker.get(f"/api/traces/{name}/attention/encoder/all/all"))
    assert np.array_equal(everything.reshape(own.shape), own)
    second = weights(asker.get(f"/api/traces/{name}/attention/encoder/all/2"))
    assert np.array_equal(second, own[:, 2])


def test_the_mean_of_a_layers_heads_can_be_asked_for(asker: TestClient, name: str) -> None:
    own = trace_of(asker, name).array("attention/cross")[0].float().mean(dim=0)
    found = weights(asker.get(f"/api/traces/{name}/attention/cross/0/mean"))[0]
    assert found == pytest.approx(own.numpy(), abs=1e-3)


@pytest.mark.parametrize("pool", [2, 5])
def test_pooling_can_be_asked_for(asker: TestClient, name: str, pool: int) -> None:
    answer = asker.get(f"/api/traces/{name}/attention/encoder/0/all", params={"pool": pool})
    own = pooled(trace_of(asker, name).array("attention/encoder")[0], pool)
    assert answer.headers["x-pooled"] == str(pool)
    assert np.array_equal(weights(answer), own.numpy())


def test_one_row_is_never_pooled(asker: TestClient, name: str) -> None:
    own = trace_of(asker, name).array("attention/cross")[1]
    answer = asker.get(f"/api/traces/{name}/attention/cross/1/3", params={"row": 4})
    assert (answer.headers["x-rows"], answer.headers["x-pooled"]) == ("1", "1")
    assert np.array_equal(weights(answer)[0, 0], own[3, 4].numpy())
    mean = weights(asker.get(f"/api/traces/{name}/attention/cross/1/mean", params={"row": 4}))[0, 0]
    assert mean == pytest.approx(own[:, 4].float().mean(dim=0).numpy(), abs=1e-3)


def test_more_than_1024_tokens_are_pooled() -> None:
    asker = client(writer(dtype=torch.float32))
    name = asker.desk.shelf.put(_wide(1500, 40))  # type: ignore[attr-defined]
    answer = asker.get(f"/api/traces/{name}/attention/cross/0/0")
    assert [answer.headers[f"x-{one}"] for one in ("rows", "columns", "pooled")] == ["750", "20", "2"]
    own = asker.desk.shelf.get(name).array("attention/cross")[0, 0]  # type: ignore[attr-defined]
    assert np.array_equal(weights(answer)[0], pooled(own, 2).numpy())
    row = asker.get(f"/api/traces/{name}/attention/cross/0/0", params={"row": 1499})
    assert np.array_equal(weights(row)[0, 0], own[1499].numpy())


def _wide(queries: int, keys: int) -> Trace:
    """A trace with more tokens than anyone wants to compute here."""
    trace = writer(dtype=torch.float32).trace(request(every_task()["translation"]))
    return Trace(trace.header, {"attention/cross": torch.rand(1, 1, queries, keys).half()}, trace.subject)


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
        ("cross/0/0?pool=0", "pool is how many tokens"),
    ],
)
def test_weights_that_are_not_there_are_refused(asker: TestClient, name: str, path: str, word: str) -> None:
    refused(asker.get(f"/api/traces/{name}/attention/{path}"), 400, word)


def test_any_node_can_be_asked_for(asker: TestClient, name: str) -> None:
    trace = trace_of(asker, name)
    for number in (-1, 0, len(trace.header.nodes) - 1):
        answer = NodeAttention.model_validate(asker.post(f"/api/traces/{name}/nodes/{number}").json())
        assert answer == trace.node(number)


def test_a_cell_can_be_opened(asker: TestClient, name: str) -> None:
    place = {"side": "decoder", "layer": 1, "head": 2, "query": 3}
    answer = asker.post(f"/api/traces/{name}/cell", json=place)
    assert Cell.model_validate(answer.json()) == trace_of(asker, name).cell("decoder", 1, 2, 3)
    assert None in answer.json()["masked"]


def test_a_saved_trace_goes_out_and_comes_in_again(asker: TestClient, name: str) -> None:
    file = asker.get(f"/api/traces/{name}/file")
    assert "attachment" in file.headers["content-disposition"]
    again = asker.post("/api/traces", content=file.content).json()["trace"]
    assert again != name
    first, second = (trace_of(asker, one) for one in (name, again))
    assert first.header.model_copy(update={"id": ""}) == second.header.model_copy(update={"id": ""})
    assert second.subject is first.subject  # its model is here
    assert asker.post(f"/api/traces/{again}/nodes/0").status_code == 200


def test_a_trace_of_a_model_that_is_not_here_can_be_looked_at_but_not_asked() -> None:
    other = client(every_task()["parsing"])
    packed = writer(dtype=torch.float32).trace(request(every_task()["translation"])).packed()
    name = other.post("/api/traces", content=packed).json()["trace"]
    assert other.get(f"/api/traces/{name}/attention/cross/0/0").status_code == 200
    refused(other.post(f"/api/traces/{name}/nodes/0"), 400, "saved without its model, 'small'")
    place = {"side": "cross", "layer": 0, "head": 0, "query": 0}
    refused(other.post(f"/api/traces/{name}/cell", json=place), 400, "saved without its model")
    assert other.get(f"/api/traces/{name}/page.html").status_code == 200


@pytest.mark.parametrize("content", [b"", b"nothing", b"\x00" * 100])
def test_a_file_that_is_no_trace_is_refused(asker: TestClient, content: bytes) -> None:
    refused(asker.post("/api/traces", content=content), 400, "damaged or cut short, or no trace at all")


def test_the_whole_page_can_be_had_as_a_file(asker: TestClient, name: str) -> None:
    answer = asker.get(f"/api/traces/{name}/page.html")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert 'filename="look.html"' in answer.headers["content-disposition"]
    assert '"id":"embedded"' in answer.text


def test_a_trace_that_was_let_go_says_so() -> None:
    asker = client(shelf=Shelf(most=1))
    first, second = run_any(asker, "labelling"), run_any(asker, "labelling")
    assert asker.get(f"/api/traces/{second}").status_code == 200
    refused(asker.get(f"/api/traces/{first}"), 410, "let go to make room", "run the text again")
    refused(asker.get(f"/api/traces/{first}/attention/encoder/0/0"), 410)


@pytest.mark.parametrize(
    "path", ["", "/file", "/page.html", "/attention/encoder/0/0"], ids=["header", "file", "page", "attention"]
)
def test_a_trace_that_never_was_is_unknown(asker: TestClient, path: str) -> None:
    refused(asker.get(f"/api/traces/none{path}"), 404, "There is no such trace")


def test_so_are_its_nodes_and_cells(asker: TestClient) -> None:
    refused(asker.post("/api/traces/none/nodes/0"), 404)
    refused(asker.post("/api/traces/none/cell", json={"side": "cross", "layer": 0, "head": 0, "query": 0}), 404)


@pytest.mark.parametrize(("method", "path"), [("get", "parts"), ("post", "traces"), ("post", "worth")])
def test_a_model_that_is_not_here_is_unknown(asker: TestClient, method: str, path: str) -> None:
    bodies = {"traces": {"text": "a"}, "worth": {"how": "zero", "measure": "loss"}}
    asked = {"json": bodies[path]} if method == "post" else {}
    refused(getattr(asker, method)(f"/api/models/none/{path}", **asked), 404, "no model 'none' here; there is small")


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({}, "text: Field required"),
        ({"text": 3}, "text"),
        ({"text": "a", "more": 1}, "more"),
        ({"text": "a" * 100_001}, "text"),
        ({"text": "a", "decoding": {"beams": 0}}, "decoding.beams"),
        ({"text": "a", "decoding": {"beams": 1000}}, "decoding.beams"),
        ({"text": "a", "decoding": {"method": "magic"}}, "decoding.method"),
        ({"text": "a", "decoding": {"temperature": -1}}, "decoding.temperature"),
        ({"text": "a", "decoding": {"top_p": 0}}, "decoding.top_p"),
        ({"text": "a", "off": [{"side": "up", "layer": 0, "head": 0, "how": "zero"}]}, "off.0.side"),
        ({"text": "a", "off": [{"side": "cross", "layer": -1, "head": 0, "how": "zero"}]}, "off.0.layer"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused(asker: TestClient, body: dict[str, Any], word: str) -> None:
    refused(asker.post("/api/models/small/traces", json=body), 422, "The request cannot be read", word)


def test_so_is_one_that_is_no_json(asker: TestClient) -> None:
    answer = asker.post("/api/models/small/traces", content=b"{", headers={"content-type": "application/json"})
    refused(answer, 422, "The request cannot be read")


def test_a_head_that_is_not_there_is_told_in_the_last_line(asker: TestClient) -> None:
    off = [{"side": "cross", "layer": 0, "head": 9, "how": "zero"}]
    *_, told = events(asker, "small", text="a", off=off)
    assert told == {"event": "failed", "reason": "There is no head 9 in 'cross'; its 4 heads count from 0."}


def finished(asker: TestClient, job: dict[str, Any]) -> Job:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = Job.model_validate(asker.get(f"/api/jobs/{job['id']}").json())
        if found.state != "running":
            return found
        time.sleep(0.02)
    raise AssertionError("it did not end")


def test_what_heads_are_worth_is_found_in_the_background() -> None:
    from regard.look.wire import WorthRequest
    from regard.look.worth import worth_of_heads

    subject = writer(dtype=torch.float32)
    asker = client(subject)
    begun = asker.post("/api/models/small/worth", json={"how": "zero", "measure": "loss", "lines": PAIRS})
    assert begun.json()["state"] in ("running", "done")
    found = finished(asker, begun.json())
    assert (found.state, found.done, found.of, found.reason) == ("done", 24, 24, "")
    assert found.result == worth_of_heads(subject, WorthRequest(how="zero", measure="loss", lines=PAIRS))


def test_a_job_that_cannot_be_done_says_why() -> None:
    asker = client(writer(dtype=torch.float32))
    begun = asker.post("/api/models/small/worth", json={"how": "zero", "measure": "loss", "lines": ["no pair"]})
    found = finished(asker, begun.json())
    assert (found.state, found.result) == ("failed", None)
    assert "is no pair" in found.reason


def test_a_job_can_be_stopped_and_keeps_what_it_has() -> None:
    asker = client(writer(dtype=torch.float32))
    with asker.desk.locks["small"]:  # type: ignore[attr-defined]  # the model is busy, so the job waits
        begun = asker.post("/api/models/small/worth", json={"how": "zero", "measure": "loss", "lines": PAIRS}).json()
        busy = asker.post("/api/models/small/worth", json={"how": "mean", "measure": "loss", "lines": PAIRS})
        refused(busy, 409, "being judged already")
        assert asker.delete(f"/api/jobs/{begun['id']}").json()["id"] == begun["id"]
    found = finished(asker, begun)
    assert found.state == "stopped"
    assert found.done < 24
    begun = asker.post("/api/models/small/worth", json={"how": "zero", "measure": "loss", "lines": PAIRS}).json()
    assert finished(asker, begun).state == "done"


def test_a_job_that_never_was_is_unknown(asker: TestClient) -> None:
    refused(asker.get("/api/jobs/none"), 404, "There is no such job")
    refused(asker.delete("/api/jobs/none"), 404, "There is no such job")


def test_positions_are_those_of_the_library(asker: TestClient) -> None:
    answer = Positions.model_validate(asker.get("/api/positions", params={"length": 7, "width": 4}).json())
    assert answer == positions(7, 4)
    assert asker.get("/api/positions").json()["length"] == 64


@pytest.mark.parametrize(
    ("query", "status"), [("length=1", 400), ("width=3", 400), ("length=9999", 400), ("length=x", 422)]
)
def test_positions_that_cannot_be_shown_are_refused(asker: TestClient, query: str, status: int) -> None:
    refused(asker.get(f"/api/positions?{query}"), status)


def test_runs_are_listed_and_followed(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "metrics.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": null}\n{"st')
    asker = client(writer(dtype=torch.float32), runs=tmp_path)
    (found,) = asker.get("/api/runs").json()
    assert RunSummary.model_validate(found).step == 2
    answer = asker.get(f"/api/runs/{found['id']}").json()
    assert RunLines.model_validate(answer).next == 2
    assert answer["lines"] == [{"step": 1.0, "loss": 2.5}, {"step": 2.0, "loss": None}]
    assert asker.get(f"/api/runs/{found['id']}?after=2").json() == {"next": 2, "lines": []}
    refused(asker.get("/api/runs/none"), 404, "no such run")
    refused(asker.get(f"/api/runs/{found['id']}?after=x"), 422)


def test_without_a_folder_there_are_no_runs(asker: TestClient) -> None:
    assert asker.get("/api/runs").json() == []
    refused(asker.get("/api/runs/one"), 404, "--runs")


@pytest.mark.parametrize(("method", "path", "status"), [("get", "/api/none", 404), ("delete", "/api/models", 405)])
def test_an_address_that_is_none_says_so(asker: TestClient, method: str, path: str, status: int) -> None:
    refused(getattr(asker, method)(path), status)


def test_nothing_is_told_of_the_servers_own_documentation(asker: TestClient) -> None:
    """Its pages would load scripts from elsewhere."""
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert asker.get(path).status_code == 404


def test_what_should_not_happen_is_a_sentence_too(monkeypatch: pytest.MonkeyPatch, asker: TestClient) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("a wire came loose")

    monkeypatch.setattr("regard.serve.app.parts_of", broken)
    refused(asker.get("/api/models/small/parts"), 500, "a wire came loose")


def test_a_run_that_nobody_waits_for_stops() -> None:
    """Who goes away closes the stream; the next step of the search is the last."""
    import asyncio

    from regard.serve.streaming import events_of

    stopped: list[bool] = []

    def work(hear: Any, stop: Any) -> str:
        from regard.look.wire import TokenEvent

        hear(TokenEvent(text="", token="", probability=1.0, step=1))
        end = time.monotonic() + 10
        while not stop() and time.monotonic() < end:
            time.sleep(0.01)
        stopped.append(stop())
        return "none"

    async def listen() -> None:
        stream = events_of(work)
        first = await anext(stream)
        assert json.loads(first)["event"] == "token"
        await stream.aclose()  # type: ignore[attr-defined]

    # In a thread of its own: a browser that other tests drive leaves a loop running in this one.
    listening = threading.Thread(target=lambda: asyncio.run(listen()))
    listening.start()
    listening.join()
    end = time.monotonic() + 10
    while not stopped and time.monotonic() < end:
        time.sleep(0.01)
    assert stopped == [True]
