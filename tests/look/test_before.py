"""Models before the Transformer can be looked at: what they attend to is recorded, and what they lack is left out."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import UserError
from regard.look.analysis.head_importance import measure_head_importance
from regard.look.analysis.model_diagram import draw_model
from regard.look.models.autoregressive import TracedAutoregressiveModel
from regard.look.schema import Embedded, HeadImportanceRequest, ModuleBox
from regard.look.trace import Trace, load_trace
from regard.model import CAUSAL_MODELS, count_parameters
from regard.model.before.base import AlignmentModule
from regard.model.embedding import TokenEmbedding
from tests.look.support import autoregressive_model, request
from tests.look.test_standalone import embedded
from tests.model.before.samples import SAMPLES
from tests.serve.support import events, make_client, run

CONFIGS = {f"{kind}: {name}": config for kind, some in SAMPLES.items() for name, config in some.items()}
CROSS = {"convolutional", "deep-att", "gnmt", "recurrent-attention"}
"""Kinds whose target attends to the source, and to nothing else."""
HIDDEN_NOWHERE = ("ngram", "window-lm: direct")
"""Models whose logits are not the output of a linear layer."""
each_model = pytest.mark.parametrize("name", CONFIGS)


def kind(name: str) -> str:
    return name.split(":")[0]


@cache
def traced_model(name: str, dtype: torch.dtype = torch.float32) -> TracedAutoregressiveModel:
    return autoregressive_model(CONFIGS[name], dtype)


@cache
def traced(name: str) -> Trace:
    model = traced_model(name)
    return model.trace(request(model, "the old cat ate"))


class Weights:
    """An attention hook that keeps all weights, in order."""

    def __init__(self) -> None:
        self.calls: list[Tensor] = []

    def __call__(self, module: torch.nn.Module, weights: Tensor) -> None:
        assert isinstance(module, AlignmentModule)
        self.calls.append(weights)


def forced(name: str) -> tuple[Tensor, list[Tensor]]:
    """The logits over a trace's output and all weights of the pass."""
    trace, model = traced(name), traced_model(name).model
    target = torch.tensor([[token.id for token in trace.header.target]])
    source = torch.tensor([[token.id for token in trace.header.source]])
    hook = Weights()
    with torch.no_grad():
        inputs = (target,) if kind(name) in CAUSAL_MODELS else (source, target)
        return model(*inputs, attention_hook=hook), hook.calls


@each_model
def test_model_is_traced(name: str) -> None:
    trace = traced(name)
    header = trace.header
    logits, _ = forced(name)
    first = len(header.target) - len(header.generated)
    ids = torch.tensor([each.token.id for each in header.generated])
    expected = logits[0, first - 1 : -1].double().softmax(dim=-1)[torch.arange(len(ids)), ids]
    assert [each.probability for each in header.generated] == pytest.approx(expected.tolist(), rel=1e-4)
    assert any(node.in_output for node in header.nodes)


@each_model
def test_attention_is_that_of_a_forward_pass(name: str) -> None:
    trace = traced(name)
    source = len(trace.header.source)
    _, calls = forced(name)
    found = {spec.attention_type: spec for spec in trace.header.model.attention}
    assert set(found) == (
        {"cross"} if kind(name) in CROSS else {"cross", "decoder"} if kind(name) == "context" else set()
    )
    for attention_type, spec in found.items():
        assert spec.weights_only
        weights = torch.stack([call[0] for call in calls])  # (layers, heads, queries, keys)
        if len(found) > 1:
            weights = weights[..., :source] if attention_type == "cross" else weights[..., source:]
        recorded = trace.attention(attention_type)
        assert recorded.shape[:2] == (spec.layers, spec.heads)
        torch.testing.assert_close(recorded, weights, atol=1e-3, rtol=0)
    assert bool(trace.arrays) == bool(found)
    if found:
        total = sum(trace.attention(each).sum(dim=-1) for each in found)
        torch.testing.assert_close(total, torch.ones_like(total), atol=5e-3, rtol=0)


@each_model
def test_search_records_the_same_attention(name: str) -> None:
    trace = traced(name)
    path = [node for node in trace.header.nodes if node.in_output and node.attention_index >= 0]
    first = len(trace.header.target) - len(trace.header.generated)
    for spec in trace.header.model.attention:
        weights, rows = trace.attention(spec.attention_type), trace.array(f"beam/{spec.attention_type}").float()
        assert path
        for node in path:
            row = rows[node.attention_index]
            expected = weights[:, :, first + node.step - 1, : row.shape[-1]]
            torch.testing.assert_close(row[..., : expected.shape[-1]], expected, atol=2e-3, rtol=0)


@each_model
def test_hidden_states_are_what_logits_are_computed_from(name: str) -> None:
    model = traced_model(name).model
    trace = traced(name)
    node = trace.node(-1)
    assert node.hidden_size == len(node.hidden_state)
    if node.hidden_size == 0:
        assert name.startswith(HIDDEN_NOWHERE)
        return
    head = model.embed_tokens if getattr(model, "lm_head", None) is None else model.lm_head
    hidden_state = torch.tensor(node.hidden_state)
    with torch.no_grad():
        bias = getattr(model, "lm_head_bias", None)
        logits = head.logits(hidden_state, bias) if isinstance(head, TokenEmbedding) else head(hidden_state)
    for each in node.next_tokens[:5]:
        assert float(logits[each.token.id]) == pytest.approx(each.logit, rel=1e-3, abs=1e-4)


@each_model
def test_node_has_the_attention_that_exists(name: str) -> None:
    node = traced(name).node(-1)
    types = {spec.attention_type for spec in traced(name).header.model.attention}
    assert {each for each in ("cross", "decoder") if getattr(node, each)} == types
    assert sum(each.probability for each in node.next_tokens) <= 1 + 1e-6


@each_model
def test_saved_trace_loads_unchanged(name: str, tmp_path: Path) -> None:
    trace = traced(name)
    loaded = load_trace(trace.save(tmp_path / "trace.safetensors"))
    assert loaded.header == trace.header
    assert set(loaded.arrays) == set(trace.arrays)


@each_model
def test_page_has_weights_and_no_cells(name: str) -> None:
    content = Embedded.model_validate(embedded(traced(name).html()))
    assert not content.attention_inputs
    assert content.nodes
    assert set(content.arrays) == set(traced(name).arrays)


def boxes(box: ModuleBox) -> Iterator[ModuleBox]:
    yield box
    for child in box.children:
        yield from boxes(child)


@each_model
def test_diagram_has_every_parameter_once(name: str) -> None:
    model = traced_model(name).model
    root = draw_model(model, "a model")
    drawn = list(boxes(root))
    assert root.parameter_count == count_parameters(model)
    shapes = {one: list(parameter.shape) for one, parameter in model.named_parameters()}
    assert {one.name: one.shape for box in drawn for one in box.parameters} == shapes
    assert len({box.path for box in drawn}) == len(drawn)
    assert all(box.description and box.label for box in drawn)
    opened = {(box.attention.attention_type, box.attention.layer) for box in drawn if box.attention is not None}
    layers = model.attention_modules().get("cross", [])
    assert opened == {("cross", layer) for layer in range(len(layers))}


def test_diagram_has_shapes() -> None:
    shapes = {box.path: box.shape for box in boxes(draw_model(traced_model("recurrent-attention: plain").model))}
    assert shapes["encoder"] == "(batch, source tokens, 8) → (batch, source tokens, 12)"
    assert shapes["decoder.bottom.attention"] == "(batch, 1, 12) → 1 head → (batch, 1, 12)"
    assert shapes["decoder.readout"] == "(batch, tokens, 32) → (batch, tokens, 8)"


ATTENTIVE, RECURRENT = "recurrent-attention: plain", "recurrent: summary in every step"
REFUSALS = {ATTENTIVE: "not the multi-head attention of a Transformer", RECURRENT: "has no 'cross' attention"}
HEAD = {"attention_type": "cross", "layer": 0, "head": 0}


@pytest.mark.parametrize("name", REFUSALS)
def test_heads_that_cannot_be_opened_are_refused(name: str) -> None:
    model = traced_model(name)
    with pytest.raises(UserError, match=REFUSALS[name]):
        traced(name).cell("cross", 0, 0, 0)
    for ablation in ("zero", "mean"):
        with pytest.raises(UserError, match=REFUSALS[name] if ablation == "zero" else "attention"):
            model.trace(request(model, ablated_heads=[{**HEAD, "ablation": ablation}]))
    with pytest.raises(UserError, match=r"not the multi-head|no heads to ablate"):
        measure_head_importance(model, HeadImportanceRequest(ablation="zero", metric="loss", lines=["a cat\ta mouse"]))


@pytest.mark.parametrize("name", REFUSALS)
def test_server_refuses_with_a_sentence(name: str) -> None:
    model = traced_model(name)
    with make_client(model) as client:
        body: dict[str, Any] = request(model).to_dict()
        trace = run(client, model.id, **body)
        assert client.get(f"/api/models/{model.id}/diagram").status_code == 200
        assert client.post(f"/api/traces/{trace}/nodes/0").status_code == 200
        assert client.get(f"/api/traces/{trace}/page.html").status_code == 200
        assert client.get(f"/api/traces/{trace}/file").status_code == 200
        weights = client.get(f"/api/traces/{trace}/attention/cross/0/0")
        assert weights.status_code == (200 if name == ATTENTIVE else 400)
        refused = client.post(f"/api/traces/{trace}/cell", json={**HEAD, "query": 0})
        assert (refused.status_code, REFUSALS[name] in refused.json()["detail"]) == (400, True)
        importance = {"ablation": "zero", "metric": "loss"}
        refused = client.post(f"/api/models/{model.id}/head-importance", json=importance)
        assert (refused.status_code, "ablate" in refused.json()["detail"]) == (400, True)
        *_, failed = events(client, model.id, **body, ablated_heads=[{**HEAD, "ablation": "zero"}])
        assert (failed["event"], failed["status"]) == ("failed", 400)
        assert REFUSALS[name] in failed["error"]
