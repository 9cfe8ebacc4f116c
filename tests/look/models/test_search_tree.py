"""The ranked hypotheses of a trace are those of the search, with its scores."""

import pytest

from regard.decode import DecodeConfig, LengthPenalty, search_batch
from regard.look.schema import DecodingOverrides, RunRequest
from tests.look.support import SEARCH, TEXT, autoregressive_model, task_models

PENALTIES = {
    "gnmt": (LengthPenalty(), lambda length: ((5 + length) / 6) ** 0.6),
    "power": (LengthPenalty(kind="power", alpha=1.0), lambda length: length),
    "none": (LengthPenalty(kind="none"), lambda length: 1),
}


def beam(text: str = TEXT, beam_size: int = 3) -> RunRequest:
    return RunRequest(text=text, decoding=DecodingOverrides(method="beam", beam_size=beam_size, max_new_tokens=7))


@pytest.mark.parametrize("coverage", [0.0, 0.5])
@pytest.mark.parametrize("kind", PENALTIES)
def test_scores_are_those_of_the_search(kind: str, coverage: float) -> None:
    penalty, divisor = PENALTIES[kind]
    config = SEARCH.updated({"length_penalty": penalty.plain(), "coverage_penalty": coverage})
    traced_model = autoregressive_model(decode=config)
    header = traced_model.trace(beam()).header
    source, settings = traced_model.encode_request(beam()), traced_model.default_decode()
    (expected,) = search_batch(traced_model.model, [traced_model.search_request(source, settings, 7)], traced_model.eos)
    assert header.hypotheses is not None
    kept = [each for each in header.hypotheses if each.kept]
    assert [each.score for each in kept] == pytest.approx([each.score for each in expected], abs=1e-9)
    assert [each.log_probability for each in kept] == pytest.approx([each.logprob for each in expected], abs=1e-9)
    assert [each.text for each in kept] == [traced_model.output_text(source, each.tokens) for each in expected]
    for each in header.hypotheses:
        assert each.length_penalty == pytest.approx(divisor(each.length))
        assert (each.coverage is not None) == (each.kept and coverage > 0)
        assert each.score == pytest.approx(each.log_probability / each.length_penalty + (each.coverage or 0.0))


@pytest.mark.parametrize("task", ["translation", "translation by a language model", "language-modeling", "parsing"])
def test_every_finished_node_is_listed_and_the_output_is_first(task: str) -> None:
    traced_model = task_models()[task]
    header = traced_model.trace(beam()).header
    assert header.hypotheses
    assert header.hypotheses[0].text == header.output
    assert header.hypotheses[0].node == max(node.id for node in header.nodes if node.in_output)
    ended = [each.node for each in header.hypotheses if each.ended]
    assert sorted(ended) == [node.id for node in header.nodes if node.state == "finished"]
    for each in header.hypotheses:
        node = header.nodes[each.node]
        assert (node.step, node.total_log_probability) == (each.length, pytest.approx(each.log_probability, abs=1e-5))


@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_search_without_beams_ranks_nothing(method: str) -> None:
    """An EOS that was likely but not chosen is pruned: it did not end the output."""
    traced_model = autoregressive_model(decode=SEARCH.updated({"max_length_offset": 40}))
    for seed in range(8):
        decoding = DecodingOverrides(method=method, max_new_tokens=40, seed=seed, temperature=1.5)  # type: ignore[arg-type]
        header = traced_model.trace(RunRequest(text=TEXT, decoding=decoding)).header
        assert header.hypotheses is not None
        (only,) = header.hypotheses
        assert (only.text, only.score, only.length_penalty) == (header.output, header.log_probability, 1)
        assert header.length_penalty is None
        assert all(node.in_output for node in header.nodes if node.state == "finished")


def test_large_beam_lists_a_bounded_number() -> None:
    traced_model = autoregressive_model(decode=DecodeConfig(max_length_offset=30))
    header = traced_model.trace(RunRequest(text=TEXT, decoding=DecodingOverrides(method="beam", beam_size=32))).header
    assert header.hypotheses is not None
    assert 32 <= len(header.hypotheses) <= 100
