"""The recorded search is the actual one: the attention of its steps, its tree, and its tokens."""

import itertools
import math

import pytest
import torch

from regard.look.models.autoregressive import RecordedRun, TracedAutoregressiveModel
from regard.look.schema import DecodingOverrides, RunRequest
from tests.look.support import LAYOUTS, TEXT, autoregressive_model, model_with_layout, parser, task_models
from tests.model.small_models import SAMPLES, language_model

EXACT = {"rtol": 0.0, "atol": 1e-12}
METHODS = ("beam", "greedy", "sample")


def make_request(method: str = "beam") -> RunRequest:
    decoding = DecodingOverrides(method=method, beam_size=3 if method == "beam" else None, max_new_tokens=7, seed=3)
    return RunRequest(text=TEXT, decoding=decoding)


def record(
    traced_model: TracedAutoregressiveModel, request: RunRequest | None = None, dtype: torch.dtype | None = None
) -> RecordedRun:
    request = make_request() if request is None else request
    return traced_model.record(traced_model.encode_request(request), request, dtype=dtype)


def output_attention(run: RecordedRun, attention_type: str) -> torch.Tensor:
    """The rows of the output's nodes, as the steps of the search computed them.  # (layers, heads, nodes, keys)"""
    path = run.recorder.path_of(run.target[-len(run.best.token_logprobs) :])
    rows = run.recorder.stacked(attention_type)  # type: ignore[arg-type]
    return torch.stack([rows[node.attention_index] for node in path if node.attention_index >= 0], dim=2)


def check_attention(run: RecordedRun, tolerance: dict[str, float]) -> None:
    """The attention of the steps is that of the teacher-forced pass."""
    first = len(run.target) - len(run.best.token_logprobs)
    for attention_type in run.recorder.rows:
        steps = output_attention(run, attention_type)
        forced = run.forced.attention.stacked(attention_type)[:, :, first : first + steps.shape[2], : steps.shape[3]]
        assert steps.shape[2] >= len(run.best.token_logprobs) - 1
        torch.testing.assert_close(steps[..., : forced.shape[3]], forced, **tolerance)


@pytest.mark.parametrize("kind", ["translation", "language-modeling"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_step_attention_equals_teacher_forced_attention(kind: str, layout: str) -> None:
    check_attention(record(model_with_layout(layout, kind)), EXACT)


@pytest.mark.parametrize("kind", ["translation", "language-modeling"])
def test_step_attention_equals_teacher_forced_attention_in_float32(kind: str) -> None:
    check_attention(record(model_with_layout("multi-head", kind, torch.float32)), {"rtol": 0.0, "atol": 1e-5})


@pytest.mark.parametrize("method", METHODS)
def test_step_attention_equals_teacher_forced_attention_for_every_method(method: str) -> None:
    check_attention(record(autoregressive_model(), make_request(method)), EXACT)


@pytest.mark.parametrize("name", [name for name in SAMPLES["encoder-decoder"] if name != "two patterns"])
def test_step_attention_equals_teacher_forced_attention_in_every_encoder_decoder(name: str) -> None:
    """Except for rotary scaling by length: its upper layers keep keys from shorter contexts (docs/architecture.md)."""
    check_attention(record(autoregressive_model(SAMPLES["encoder-decoder"][name])), EXACT)  # type: ignore[arg-type]


def test_step_attention_equals_teacher_forced_attention_in_a_translating_language_model() -> None:
    check_attention(record(autoregressive_model(language_model(), translates=True)), EXACT)


def test_step_attention_equals_teacher_forced_attention_under_constraints() -> None:
    traced_model = parser()
    assert isinstance(traced_model, TracedAutoregressiveModel)
    request = RunRequest(text="the cat slept")
    check_attention(traced_model.record(traced_model.encode_request(request), request), EXACT)


def test_sample_text_has_subwords() -> None:
    traced_model = autoregressive_model()
    tokens = traced_model.source_detokenizer.tokens(traced_model.encode_request(make_request()).ids)
    assert any(one.word == other.word >= 0 for one, other in itertools.pairwise(tokens))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", ["translation", "translation by a language model", "language-modeling", "parsing"])
def test_log_probability_of_a_node_is_that_of_its_parents_next_tokens(task: str, method: str) -> None:
    traced_model = task_models()[task]
    assert isinstance(traced_model, TracedAutoregressiveModel)
    trace = traced_model.trace(make_request(method))
    for node in trace.header.nodes[:: max(1, len(trace.header.nodes) // 12)]:
        parent = trace.node(node.parent)
        probabilities = {each.token.id: each.probability for each in parent.next_tokens}
        if node.token.id in probabilities:
            assert math.exp(node.log_probability) == pytest.approx(probabilities[node.token.id], rel=1e-4)


@pytest.mark.parametrize("task", ["translation", "translation by a language model", "language-modeling", "parsing"])
def test_output_is_a_path_with_the_outputs_log_probability(task: str) -> None:
    header = task_models()[task].trace(make_request()).header
    path = [node for node in header.nodes if node.in_output]
    assert [node.token.id for node in path] == [each.token.id for each in header.generated]
    assert [node.parent for node in path] == [-1, *(node.id for node in path[:-1])]
    assert path[-1].total_log_probability == pytest.approx(header.log_probability, abs=1e-5)
    assert all(node.state != "pruned" for node in path)


def test_teacher_forced_probabilities_are_those_of_the_search() -> None:
    for traced_model in (autoregressive_model(), autoregressive_model(language_model())):
        run = record(traced_model)
        first = len(run.target) - len(run.best.token_logprobs)
        logprobs = run.forced.logits[first - 1 : -1].log_softmax(dim=-1)
        forced = [float(logprobs[step, token]) for step, token in enumerate(run.target[first:])]
        assert forced == pytest.approx(run.best.token_logprobs, abs=1e-10)


def test_active_nodes_have_cache_rows_and_others_do_not() -> None:
    nodes = autoregressive_model().trace(make_request()).header.nodes
    for step in {node.step for node in nodes}:
        rows = [node.cache_row for node in nodes if node.step == step and node.state == "active"]
        assert sorted(rows) == list(range(len(rows)))
    assert {node.cache_row for node in nodes if node.state != "active"} <= {-1}
    assert all(node.attention_index == -1 for node in nodes if node.state != "active")


def test_cache_row_is_copied_if_the_parent_has_another_row() -> None:
    nodes = autoregressive_model().trace(make_request()).header.nodes
    for node in nodes:
        if node.state == "active":
            parent_row = 0 if node.parent < 0 else nodes[node.parent].cache_row
            assert node.cache_copied == (parent_row != node.cache_row)


def test_greedy_search_records_pruned_candidates() -> None:
    nodes = autoregressive_model().trace(make_request("greedy")).header.nodes
    first = [node for node in nodes if node.step == 1]
    assert len(first) == 5
    assert [node.in_output for node in first].count(True) == 1
    assert first[0].in_output
    totals = [node.total_log_probability for node in first]
    assert totals == sorted(totals, reverse=True)


def test_sampled_token_is_a_candidate_however_unlikely() -> None:
    decoding = DecodingOverrides(method="sample", temperature=50.0, top_k=0, max_new_tokens=6, seed=1)
    header = autoregressive_model().trace(RunRequest(text=TEXT, decoding=decoding)).header
    assert [node.token.id for node in header.nodes if node.in_output] == [each.token.id for each in header.generated]


@pytest.mark.parametrize("task", ["translation", "language-modeling", "parsing"])
def test_node_equals_a_forward_pass_over_its_prefix(task: str) -> None:
    """For active, finished and pruned nodes, and the root."""
    traced_model = {
        "translation": autoregressive_model(),
        "language-modeling": autoregressive_model(language_model()),
        "parsing": parser(),
    }[task]
    assert isinstance(traced_model, TracedAutoregressiveModel)
    request = RunRequest(text="the cat slept", decoding=DecodingOverrides(method="beam", beam_size=3, max_new_tokens=9))
    trace = traced_model.trace(request)
    source = traced_model.encode_request(request)
    states = {node.state: node.id for node in trace.header.nodes}
    for node_id in (-1, *states.values()):
        node = trace.node(node_id)
        weights: list[torch.Tensor] = []
        inputs = [torch.tensor([[token.id for token in node.prefix]])]
        if traced_model.model.config.kind == "encoder-decoder":
            inputs.insert(0, torch.tensor([[*source.ids, traced_model.eos]]))
        with torch.no_grad():
            logits = traced_model.model(*inputs, attention_hook=lambda _, each, weights=weights: weights.append(each))[
                0, -1
            ]
        expected = iter(weights[len(weights) - len(node.decoder) - len(node.cross) :])
        for layer, decoder in enumerate(node.decoder):
            torch.testing.assert_close(torch.tensor(decoder).double(), next(expected)[0, :, -1], rtol=0, atol=1e-6)
            if node.cross:
                cross = torch.tensor(node.cross[layer]).double()
                torch.testing.assert_close(cross, next(expected)[0, :, -1], rtol=0, atol=1e-6)
        best = logits.topk(len(node.next_tokens))
        assert [each.token.id for each in node.next_tokens] == best.indices.tolist()
        assert [each.logit for each in node.next_tokens] == pytest.approx(best.values.tolist())
        probabilities = logits.softmax(dim=-1)[best.indices]
        assert [each.probability for each in node.next_tokens] == pytest.approx(probabilities.tolist())
        assert node.hidden_size == len(node.hidden_state) == traced_model.model.config.width


def test_recorded_attention_of_active_nodes_equals_recomputed() -> None:
    trace = autoregressive_model(dtype=torch.float32).trace(make_request())
    for node in trace.header.nodes:
        if node.attention_index >= 0:
            recomputed = trace.node(node.id)
            for attention_type, rows in (("decoder", recomputed.decoder), ("cross", recomputed.cross)):
                stored = trace.array(f"beam/{attention_type}")[node.attention_index].float()
                expected = torch.tensor(rows)
                torch.testing.assert_close(stored[..., : expected.shape[-1]], expected, rtol=0, atol=1e-3)
                assert not stored[..., expected.shape[-1] :].any()


def test_tokens_are_reported_during_the_search() -> None:
    events = []
    traced_model = autoregressive_model(dtype=torch.float32)
    trace = traced_model.trace(make_request("greedy"), events.append)
    assert [event.step for event in events] == list(range(1, len(trace.header.generated) + 1))
    assert [event.token for event in events] == [each.token.text for each in trace.header.generated]
    assert events[-1].text == trace.output
    assert [event.probability for event in events] == pytest.approx(
        [each.probability for each in trace.header.generated]
    )


def test_search_stops_on_request() -> None:
    from regard.look.analysis.search_recorder import StoppedError

    with pytest.raises(StoppedError):
        autoregressive_model().trace(make_request(), should_stop=lambda: True)


def test_translating_computes_no_attention_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is traced."""

    def never(*args, **kwargs):
        raise AssertionError("attention weights were computed")

    traced_model = autoregressive_model(dtype=torch.float32)
    monkeypatch.setattr("regard.attention.multi_head.attend_with_weights", never)
    assert traced_model.pipeline.translate(TEXT) is not None  # type: ignore[attr-defined]
