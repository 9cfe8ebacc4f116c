"""One file that holds the page and a trace: what is in it is what the model gave, and nothing comes from elsewhere."""

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard import UserError
from regard.look.standalone import in_notebook, standalone
from regard.look.trace import Trace, load_trace
from regard.look.wire import Embedded, RunRequest
from tests.look.support import TEXT, every_task, request, writer

every = pytest.mark.parametrize("task", list(every_task()))


def traced(task: str = "translation") -> Trace:
    subject = every_task()[task]
    return subject.trace(request(subject))


def embedded(page: str) -> dict[str, Any]:
    (content,) = re.findall(r'<script type="application/json" id="embedded">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(content)


@every
def test_the_page_carries_what_the_contract_says(task: str) -> None:
    content = Embedded.model_validate(embedded(traced(task).html()))
    assert content.trace.id == "embedded"
    assert content.positions is not None
    assert [(one.length, one.width) for one in content.positions] == [(64, 64), (7, 4), (8, 4), (16, 4)]


@every
def test_arrays_are_those_of_the_trace(task: str) -> None:
    trace = traced(task)
    content = embedded(trace.html())
    assert set(content["arrays"]) == set(trace.arrays)
    for name, array in trace.arrays.items():
        found = np.frombuffer(base64.b64decode(content["arrays"][name]), dtype="<f2").reshape(array.shape)
        assert np.array_equal(found, array.numpy())


def test_nodes_and_cells_are_those_that_the_model_gives() -> None:
    trace = traced()
    content = Embedded.model_validate(embedded(trace.html()))
    won = [node.id for node in trace.header.nodes if node.won]
    assert [node.node for node in content.nodes][: 1 + len(won)] == [-1, *won]
    for node in content.nodes[:3]:
        assert node.vector == pytest.approx(trace.node(node.node).vector, rel=1e-4, abs=1e-6)
    heads = {(cell.request.side, cell.request.layer, cell.request.head) for cell in content.cells}
    assert len(heads) == sum(one.layers * one.heads for one in trace.header.model.attention)
    cell = content.cells[0]
    again = trace.cell(cell.request.side, cell.request.layer, cell.request.head, cell.request.query)
    assert cell.weights == pytest.approx(again.weights, rel=1e-4, abs=1e-6)
    assert cell.request.query == len(trace.header.target) // 2


def test_nothing_that_a_person_types_ends_the_element() -> None:
    text = "the </script><script>alert(1)</script> <!-- cat"
    page = writer(dtype=torch.float32).trace(RunRequest(text=text)).html()
    assert page.count("<script>alert(1)") == 0
    assert embedded(page)["trace"]["request"]["text"] == text


def test_only_what_the_policy_knows_by_its_hash_can_run() -> None:
    page = traced().html()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy"\s+content="([^"]+)"', page)
    policy = html.unescape(policy)
    assert "default-src 'none'" in policy
    assert not re.search(r"https?:|unsafe|\*", policy)
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", page, flags=re.DOTALL)
    assert scripts
    for script in scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert not re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?!data:)', page)


def test_a_loaded_trace_makes_a_page_without_its_model(tmp_path: Path) -> None:
    back = load_trace(traced().save(tmp_path / "one"))
    content = Embedded.model_validate(embedded(back.html()))
    assert (content.cells, content.nodes) == ([], [])
    assert content.parts.about.startswith("The model was not at hand")


def test_an_export_that_is_too_large_is_refused_with_a_sentence() -> None:
    with pytest.raises(UserError, match=r"at most 5 MiB are written; give a shorter text, or save the trace"):
        standalone(_heavy(traced(), "attention/encoder"), 5 << 20)


def test_what_single_beams_saw_is_left_out_where_it_is_too_much() -> None:
    content = embedded(standalone(_heavy(traced(), "beam/decoder"), 6 << 20))
    assert set(content["arrays"]) == {"attention/encoder", "attention/decoder", "attention/cross"}
    assert {node["attention"] for node in content["trace"]["nodes"]} == {-1}
    assert {one["name"] for one in content["trace"]["arrays"]} == set(content["arrays"])


def _heavy(trace: Trace, name: str) -> Trace:
    """A trace with a large array; its header is not asked about it."""
    return Trace(trace.header, {**trace.arrays, name: torch.zeros(1, 1, 2000, 2000)}, trace.subject)


def test_in_a_notebook_it_is_a_frame_of_its_own() -> None:
    trace = writer(dtype=torch.float32).trace(RunRequest(text=TEXT))
    shown = trace._repr_html_()
    (inner,) = re.findall(r'^<iframe srcdoc="([^"]*)" sandbox="allow-scripts allow-downloads"', shown)
    assert embedded(html.unescape(inner))["trace"]["output"] == trace.output


def test_a_notebook_gets_a_sentence_where_the_page_would_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.look.standalone.LARGEST_SHOWN", 1000)
    shown = in_notebook(traced())
    assert shown.startswith("<p>The page would have")
    assert "iframe" not in shown


def test_a_page_that_was_not_built_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("regard.look.standalone.resources.files", lambda name: tmp_path)
    with pytest.raises(UserError, match="The page was not built"):
        traced().html()
    (tmp_path / "look" / "static").mkdir(parents=True)
    (tmp_path / "look" / "static" / "standalone.html").write_text("<html></html>")
    with pytest.raises(UserError, match="has no place for a trace"):
        traced().html()
