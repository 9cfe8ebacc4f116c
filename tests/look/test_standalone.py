"""The standalone page: its embedded data is the model's, and it loads nothing from other sites."""

import base64
import hashlib
import html
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from regard import UserError, load
from regard.look.schema import Embedded, RunRequest
from regard.look.standalone import notebook_frame, standalone_page
from regard.look.trace import Trace, load_trace
from tests.look.support import TEXT, autoregressive_model, embedded, request, task_models

each_task = pytest.mark.parametrize("task", list(task_models()))


def traced(task: str = "translation") -> Trace:
    traced_model = task_models()[task]
    return traced_model.trace(request(traced_model))


@pytest.mark.one_in(2)
@each_task
def test_embedded_data_matches_the_contract(task: str) -> None:
    content = Embedded.model_validate(embedded(traced(task).html()))
    assert content.trace.id == "embedded"
    assert content.positions is not None
    assert [(one.length, one.width) for one in content.positions] == [(64, 64), (7, 4), (8, 4), (16, 4)]


@pytest.mark.one_in(2)
@each_task
def test_embedded_arrays_are_those_of_the_trace(task: str) -> None:
    trace = traced(task)
    content = embedded(trace.html())
    assert set(content["arrays"]) == set(trace.arrays)
    for name, array in trace.arrays.items():
        decoded = np.frombuffer(base64.b64decode(content["arrays"][name]), dtype="<f2").reshape(array.shape)
        assert np.array_equal(decoded, array.numpy())


def test_embedded_nodes_and_vectors_are_the_models() -> None:
    trace = traced()
    content = Embedded.model_validate(embedded(trace.html()))
    path = [node.id for node in trace.header.nodes if node.in_output]
    assert [node.node for node in content.nodes][: 1 + len(path)] == [-1, *path]
    for node in content.nodes[:3]:
        assert node.hidden_state == pytest.approx(trace.node(node.node).hidden_state, rel=1e-4, abs=1e-6)
    assert len(content.attention_inputs) == sum(one.layers * one.heads for one in trace.header.model.attention)
    for inputs in content.attention_inputs[:: len(content.attention_inputs) // 3]:
        for query in range(len(inputs.queries)):
            cell = trace.cell(inputs.attention_type, inputs.layer, inputs.head, query)
            assert inputs.similarity == cell.similarity
            assert inputs.scale == pytest.approx(cell.scale, rel=1e-5)
            assert inputs.queries[query] == pytest.approx(cell.query, rel=1e-5)
            assert np.allclose(inputs.keys, cell.keys, rtol=1e-5)
            assert np.allclose(inputs.values, cell.values, rtol=1e-5)
            visible = [score is not None for score in cell.masked_scores]
            assert (
                [True] * len(visible) if inputs.allowed is None else list(map(bool, inputs.allowed[query]))
            ) == visible


def test_short_sentence_of_the_shipped_model_takes_less_than_2_mb() -> None:
    page = load("en-tr").trace("The cat ate the mouse.").html()
    assert len(page.encode()) < 2_000_000
    content = embedded(page)
    assert len(content["attention_inputs"]) == 48
    assert len(content["nodes"]) > len(content["trace"]["generated"])


def test_input_cannot_break_out_of_the_script_element() -> None:
    text = "the </script><script>alert(1)</script> <!-- cat"
    page = autoregressive_model(dtype=torch.float32).trace(RunRequest(text=text)).html()
    assert page.count("<script>alert(1)") == 0
    assert embedded(page)["trace"]["request"]["text"] == text


def test_policy_allows_only_the_pages_own_script() -> None:
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


def test_loaded_trace_makes_a_page_without_its_model(tmp_path: Path) -> None:
    back = load_trace(traced().save(tmp_path / "one"))
    content = Embedded.model_validate(embedded(back.html()))
    assert (content.attention_inputs, content.nodes) == ([], [])
    assert content.diagram.description.startswith("This page was written without the model")


def test_page_that_is_too_large_is_refused() -> None:
    with pytest.raises(UserError, match=r"the limit is 5 MiB"):
        standalone_page(_with_large_array(traced(), "attention/encoder"), 5 << 20)


def test_beam_attention_is_dropped_if_it_is_too_large() -> None:
    content = embedded(standalone_page(_with_large_array(traced(), "beam/decoder"), 6 << 20))
    assert set(content["arrays"]) == {"attention/encoder", "attention/decoder", "attention/cross"}
    assert {node["attention_index"] for node in content["trace"]["nodes"]} == {-1}
    assert {one["name"] for one in content["trace"]["arrays"]} == set(content["arrays"])


def _with_large_array(trace: Trace, name: str) -> Trace:
    return Trace(trace.header, {**trace.arrays, name: torch.zeros(1, 1, 2000, 2000)}, trace.traced_model)


def test_notebook_shows_the_page_in_a_frame() -> None:
    trace = autoregressive_model(dtype=torch.float32).trace(RunRequest(text=TEXT))
    shown = trace._repr_html_()
    (inner,) = re.findall(r'^<iframe srcdoc="([^"]*)" sandbox="allow-scripts allow-downloads"', shown)
    assert embedded(html.unescape(inner))["trace"]["output"] == trace.output


def test_notebook_shows_an_error_if_the_page_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.look.standalone.MAX_NOTEBOOK_BYTES", 1000)
    shown = notebook_frame(traced())
    assert shown.startswith("<p>The page would contain")
    assert "iframe" not in shown


def test_missing_page_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("regard.look.standalone.resources.files", lambda name: tmp_path)
    with pytest.raises(UserError, match=r"standalone\.html is missing"):
        traced().html()
    (tmp_path / "look" / "static").mkdir(parents=True)
    (tmp_path / "look" / "static" / "standalone.html").write_text("<html></html>")
    with pytest.raises(UserError, match="has no placeholder"):
        traced().html()
