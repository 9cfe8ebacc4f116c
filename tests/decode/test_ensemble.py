"""Models that write together: the mean of their probabilities, worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard import UserError
from regard.decode import Beams, Ensemble, Hypothesis, NoPenalty, PaperPenalty, beam_search, greedy_search, search
from regard.model import EncoderDecoder, EncoderDecoderConfig
from tests.decode.test_search import END, Table, small_stack, start


def translator(seed: int, vocabulary: int = 9, layers: int = 2) -> EncoderDecoder:
    torch.manual_seed(seed)
    decoder = small_stack().model_copy(update={"layers": layers})
    config = EncoderDecoderConfig(vocabulary=vocabulary, width=8, encoder=small_stack(), decoder=decoder)
    return config.build().double().eval()


def mean(members: list[Table]) -> Table:
    """A table of the logarithm of mean probabilities."""
    joined = Table(1, 2, 0)
    joined.scores = torch.stack([one.scores.softmax(dim=-1) for one in members]).mean(dim=0).log()
    return joined


def own_words(tables: list[Table]) -> list[tuple[Tensor, Tensor]]:
    return [one.start() for one in tables]


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beams=st.integers(1, 4))
def test_an_ensemble_of_one_is_its_model(seed: int, beams: int) -> None:
    table, limits = Table(3, 5, seed), [6, 2, 4]
    alone = beam_search(table, table.start(), start(3), end=END, limit=limits, beams=beams)
    found = beam_search(Ensemble([table]), [table.start()], start(3), end=END, limit=limits, beams=beams)
    assert found == alone


def test_one_step_gives_the_mean_of_two_probabilities() -> None:
    tables = [Table(1, 3, 0), Table(1, 3, 1)]
    for table, p in zip(tables, ([0.5, 0.25, 0.25], [0.125, 0.125, 0.75]), strict=True):
        table.scores[0, 0, 1] = torch.tensor(p, dtype=torch.float64).log() + 3  # scores need not be normalised
    logits, _ = Ensemble(tables).step(start(1)[:, None], own_words(tables))
    assert logits[0, 0].exp().tolist() == pytest.approx([0.3125, 0.1875, 0.5])


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), members=st.integers(2, 4), beams=st.integers(1, 4))
def test_beams_on_several_find_what_beams_on_their_mean_find(seed: int, members: int, beams: int) -> None:
    tables = [Table(3, 5, seed + number) for number in range(members)]
    joined, limits = mean(tables), [6, 2, 4]
    wanted = beam_search(joined, joined.start(), start(3), end=END, limit=limits, beams=beams)
    found = beam_search(Ensemble(tables), own_words(tables), start(3), end=END, limit=limits, beams=beams)
    for ours, theirs in zip(found, wanted, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs])


def test_greedy_search_on_several_is_greedy_search_on_their_mean() -> None:
    tables = [Table(6, 5, seed) for seed in (0, 1)]
    joined = mean(tables)
    wanted = greedy_search(joined, joined.start(), start(6), end=END, limit=7)
    found = greedy_search(Ensemble(tables), own_words(tables), start(6), end=END, limit=7)
    assert [one.tokens for one in found] == [one.tokens for one in wanted]


def assert_scored_by_hand(
    models: list[EncoderDecoder], source: Tensor, one: Hypothesis
) -> None:  # source: # (1, tokens)
    target = torch.tensor([[1, *one.tokens, *([END] if one.ended else [])]])
    total = 0.0
    with torch.no_grad():
        each = torch.stack([model(source, target[:, :-1]).softmax(dim=-1) for model in models])
    for at, token in enumerate(target[0, 1:].tolist()):
        p = sum(float(member[0, at, token]) for member in each) / len(models)
        assert one.steps[at] == pytest.approx(math.log(p), abs=1e-9)
        total += math.log(p)
    assert one.log_probability == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("limits", [[7, 7, 7], [7, 1, 2]], ids=["all stay", "rows leave"])
def test_beams_on_two_translators_are_scored_as_by_hand(limits: list[int]) -> None:
    models = [translator(0), translator(1, layers=1)]
    source, lengths = torch.randint(1, 9, (3, 6)), torch.tensor([2, 6, 4])
    states = [model.start(source, 7, lengths) for model in models]
    found = search(Ensemble(models), states, start(3), Beams(limits, END, 3, penalty=PaperPenalty(0.6)))
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == 3
        for one in hypotheses:
            assert_scored_by_hand(models, source[row : row + 1, : lengths[row]], one)


def test_beams_wide_enough_on_two_translators_find_the_best_there_is() -> None:
    models = [translator(3, vocabulary=4), translator(4, vocabulary=4)]
    source, limit = torch.tensor([[1, 2, 3]]), 3
    states = [model.start(source, limit) for model in models]
    (found,) = beam_search(Ensemble(models), states, start(1), end=END, limit=limit, beams=64, penalty=NoPenalty())
    table = Table(1, 4, 0)
    best = max(
        sum(by_hand(models, source, (*tokens, END) if len(tokens) < limit else tokens))
        for _, tokens in table.everything(0, limit, NoPenalty())
    )
    assert found[0].log_probability == pytest.approx(best, abs=1e-9)


def by_hand(models: list[EncoderDecoder], source: Tensor, tokens: tuple[int, ...]) -> list[float]:
    target = torch.tensor([[1, *tokens]])
    with torch.no_grad():
        p = torch.stack([model(source, target[:, :-1]).softmax(dim=-1) for model in models]).mean(dim=0)
    return p.log().gather(2, target[:, 1:, None]).flatten().tolist()


@pytest.mark.parametrize("first", [0, 1])
def test_members_with_and_without_regroup_work_together(first: int) -> None:
    """A table only knows `reorder`, a translator shares its sources among beams."""
    model, table = translator(0, vocabulary=5), Table(2, 5, 0)
    source = torch.randint(1, 5, (2, 4))
    pair = [(model, model.start(source, 6)), (table, table.start())]
    pair = pair if first == 0 else pair[::-1]
    found = beam_search(Ensemble([one for one, _ in pair]), [own for _, own in pair], start(2), end=END, limit=6)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            target = torch.tensor([[1, *one.tokens, *([END] if one.ended else [])]])
            with torch.no_grad():
                model_p = model(source[row : row + 1], target[:, :-1]).softmax(dim=-1)[0]
            for at, token in enumerate(target[0, 1:].tolist()):
                before, last = (0, 1) if at == 0 else target[0, at - 1 : at + 1].tolist()
                p = (float(model_p[at, token]) + float(table.scores[row, before, last].softmax(dim=-1)[token])) / 2
                assert one.steps[at] == pytest.approx(math.log(p), abs=1e-9)


def test_unlike_vocabularies_are_refused_with_their_sizes() -> None:
    tables = [Table(1, 5, 0), Table(1, 3, 0)]
    with pytest.raises(UserError, match=r"share a vocabulary; found sizes \[3, 5\]"):
        greedy_search(Ensemble(tables), own_words(tables), start(1), end=END, limit=3)


def test_an_ensemble_of_none_is_refused() -> None:
    with pytest.raises(UserError, match="at least one model"):
        Ensemble([])
