"""What is seen of a search is what happened: the attention of its steps, its tree, and the tokens it took."""

import itertools
import math

import pytest
import torch

from regard.look.wire import RunRequest, SomeDecodingSettings
from regard.look.writer import Watched, WriterSubject
from tests.look.support import LAYOUTS, TEXT, every_task, laid_out_writer, parser, writer
from tests.model.small_models import SAMPLES, language_model

EXACT = {"rtol": 0.0, "atol": 1e-12}
METHODS = ("beam", "greedy", "sample")


def asked(method: str = "beam", **more) -> RunRequest:
    settings = SomeDecodingSettings(method=method, beams=3 if method == "beam" else None, longest=7, seed=3)
    return RunRequest(text=TEXT, decoding=settings, **more)


def seen(subject: WriterSubject, request: RunRequest | None = None, dtype: torch.dtype | None = None) -> Watched:
    request = asked() if request is None else request
    return subject.watched(subject.source(request), request, dtype=dtype)


def assembled(found: Watched, side: str) -> torch.Tensor:
    """The rows of the winning nodes, as the steps of the search computed them.  # (layers, heads, nodes, keys)"""
    won = [node for node in found.watching.winner(found.target[-len(found.best.steps) :]) if node.attention >= 0]
    rows = found.watching.stacked(side)  # type: ignore[arg-type]
    return torch.stack([rows[node.attention] for node in won], dim=2)


def check_assembled(found: Watched, tolerance: dict[str, float]) -> None:
    first = len(found.target) - len(found.best.steps)
    for side in found.watching.rows:
        steps = assembled(found, side)
        whole = found.forced.weights.stacked(side)[:, :, first : first + steps.shape[2], : steps.shape[3]]
        assert steps.shape[2] >= len(found.best.steps) - 1
        torch.testing.assert_close(steps[..., : whole.shape[3]], whole, **tolerance)


@pytest.mark.parametrize("kind", ["translation", "language"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_of_the_steps_is_that_of_one_pass_over_the_answer(kind: str, layout: str) -> None:
    check_assembled(seen(laid_out_writer(layout, kind)), EXACT)


@pytest.mark.parametrize("kind", ["translation", "language"])
def test_in_float32_it_is_the_same_to_a_hundred_thousandth(kind: str) -> None:
    check_assembled(seen(laid_out_writer("multi-head", kind, torch.float32)), {"rtol": 0.0, "atol": 1e-5})


@pytest.mark.parametrize("method", METHODS)
def test_it_is_the_same_for_every_way_to_search(method: str) -> None:
    check_assembled(seen(writer(), asked(method)), EXACT)


@pytest.mark.parametrize("name", [name for name in SAMPLES["encoder-decoder"] if name != "two patterns"])
def test_it_is_the_same_in_every_translator(name: str) -> None:
    """But for the one whose angles change as a text grows: there upper layers keep what was (docs/architecture.md)."""
    check_assembled(seen(writer(SAMPLES["encoder-decoder"][name])), EXACT)  # type: ignore[arg-type]


def test_it_is_the_same_in_a_language_model_that_translates() -> None:
    check_assembled(seen(writer(language_model(), translates=True)), EXACT)


def test_it_is_the_same_where_a_rule_says_what_may_come() -> None:
    subject = parser()
    assert isinstance(subject, WriterSubject)
    request = RunRequest(text="the cat slept")
    check_assembled(subject.watched(subject.source(request), request), EXACT)


def test_sub_words_are_among_the_tokens_that_were_compared() -> None:
    subject = writer()
    tokens = subject.read_by.tokens(subject.source(asked()).ids)
    assert any(one.word == other.word >= 0 for one, other in itertools.pairwise(tokens))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", ["translation", "translation by a language model", "language", "parsing"])
def test_every_node_has_the_log_probability_of_its_text(task: str, method: str) -> None:
    subject = every_task()[task]
    assert isinstance(subject, WriterSubject)
    trace = subject.trace(asked(method))
    for node in trace.header.nodes[:: max(1, len(trace.header.nodes) // 12)]:
        before = trace.node(node.parent)
        chances = {one.token.id: one.probability for one in before.next}
        if node.token.id in chances:
            assert math.exp(node.log_probability) == pytest.approx(chances[node.token.id], rel=1e-4)


@pytest.mark.parametrize("task", ["translation", "translation by a language model", "language", "parsing"])
def test_the_winner_is_a_path_of_nodes_whose_total_is_the_answers(task: str) -> None:
    header = every_task()[task].trace(asked()).header
    won = [node for node in header.nodes if node.won]
    assert [node.token.id for node in won] == [one.token.id for one in header.written]
    assert [node.parent for node in won] == [-1, *(node.id for node in won[:-1])]
    assert won[-1].total == pytest.approx(header.total, abs=1e-5)
    assert all(node.state != "pruned" for node in won)


def test_probabilities_of_written_tokens_are_those_of_the_search() -> None:
    for subject in (writer(), writer(language_model())):
        found = seen(subject)
        first = len(found.target) - len(found.best.steps)
        chances = found.forced.logits[first - 1 : -1].log_softmax(dim=-1)
        own = [float(chances[at, token]) for at, token in enumerate(found.target[first:])]
        assert own == pytest.approx(found.best.steps, abs=1e-10)


def test_kept_nodes_stand_in_rows_of_the_cache_and_others_do_not() -> None:
    nodes = writer().trace(asked()).header.nodes
    for step in {node.step for node in nodes}:
        rows = [node.row for node in nodes if node.step == step and node.state == "kept"]
        assert sorted(rows) == list(range(len(rows)))
    assert {node.row for node in nodes if node.state != "kept"} <= {-1}
    assert all(node.attention == -1 for node in nodes if node.state != "kept")


def test_a_node_was_copied_where_it_took_over_another_row() -> None:
    nodes = writer().trace(asked()).header.nodes
    for node in nodes:
        if node.state == "kept":
            before = 0 if node.parent < 0 else nodes[node.parent].row
            assert node.copied == (before != node.row)


def test_greedy_search_shows_what_it_did_not_take() -> None:
    nodes = writer().trace(asked("greedy")).header.nodes
    first = [node for node in nodes if node.step == 1]
    assert len(first) == 5
    assert [node.won for node in first].count(True) == 1
    assert first[0].won
    assert [node.total for node in first] == sorted((node.total for node in first), reverse=True)


def test_a_drawn_token_is_among_the_candidates_however_unlikely_it_is() -> None:
    settings = SomeDecodingSettings(method="sample", temperature=50.0, top_k=0, longest=6, seed=1)
    header = writer().trace(RunRequest(text=TEXT, decoding=settings)).header
    assert [node.token.id for node in header.nodes if node.won] == [one.token.id for one in header.written]


@pytest.mark.parametrize("task", ["translation", "language", "parsing"])
def test_any_node_kept_or_pruned_is_its_prefix_computed_afresh(task: str) -> None:
    """The whole text up to the node goes through the model at once, with no trace of the search."""
    subject = {"translation": writer(), "language": writer(language_model()), "parsing": parser()}[task]
    assert isinstance(subject, WriterSubject)
    request = RunRequest(text="the cat slept", decoding=SomeDecodingSettings(method="beam", beams=3, longest=9))
    trace = subject.trace(request)
    source = subject.source(request)
    states = {node.state: node.id for node in trace.header.nodes}
    for number in (-1, *states.values()):
        node = trace.node(number)
        tokens = [token.id for token in node.prefix]
        weights: list[torch.Tensor] = []
        rows = [torch.tensor([tokens])]
        if subject.model.config.kind == "encoder-decoder":
            rows.insert(0, torch.tensor([[*source.ids, subject.end]]))
        with torch.no_grad():
            logits = subject.model(*rows, watch=lambda module, made, kept=weights: kept.append(made))[0, -1]
        own = iter(weights[len(weights) - len(node.decoder) - len(node.cross) :])
        for layer, decoder in enumerate(node.decoder):
            torch.testing.assert_close(torch.tensor(decoder).double(), next(own)[0, :, -1], rtol=0, atol=1e-6)
            if node.cross:
                cross = torch.tensor(node.cross[layer]).double()
                torch.testing.assert_close(cross, next(own)[0, :, -1], rtol=0, atol=1e-6)
        best = logits.topk(len(node.next))
        assert [one.token.id for one in node.next] == best.indices.tolist()
        assert [one.logit for one in node.next] == pytest.approx(best.values.tolist())
        chances = logits.softmax(dim=-1)[best.indices]
        assert [one.probability for one in node.next] == pytest.approx(chances.tolist())
        assert node.vector_length == len(node.vector) == subject.model.config.width


def test_a_kept_nodes_own_attention_is_what_its_step_computed() -> None:
    trace = writer(dtype=torch.float32).trace(asked())
    for node in trace.header.nodes:
        if node.attention >= 0:
            found = trace.node(node.id)
            for side, own in (("decoder", found.decoder), ("cross", found.cross)):
                kept = trace.array(f"beam/{side}")[node.attention].float()
                fresh = torch.tensor(own)
                torch.testing.assert_close(kept[..., : fresh.shape[-1]], fresh, rtol=0, atol=1e-3)
                assert not kept[..., fresh.shape[-1] :].any()


def test_a_search_tells_of_itself_while_it_works() -> None:
    heard = []
    subject = writer(dtype=torch.float32)
    trace = subject.trace(asked("greedy"), heard.append)
    assert [event.step for event in heard] == list(range(1, len(trace.header.written) + 1))
    assert [event.token for event in heard] == [one.token.text for one in trace.header.written]
    assert heard[-1].text == trace.output
    assert [event.probability for event in heard] == pytest.approx([one.probability for one in trace.header.written])


def test_a_search_that_is_not_wanted_any_more_stops() -> None:
    from regard.look.watching import StoppedError

    with pytest.raises(StoppedError):
        writer().trace(asked(), stop=lambda: True)


def test_nothing_is_watched_where_no_one_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Translating the plain way makes no weights at all."""

    def never(*args, **kwargs):
        raise AssertionError("weights were made")

    subject = writer(dtype=torch.float32)
    monkeypatch.setattr("regard.attention.heads.attend_and_show", never)
    assert subject.translator.translate(TEXT) is not None  # type: ignore[attr-defined]
