"""Given outputs are scored as a full pass scores them, and as the search that found them did."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.decode import Ensemble, Sampled, beam_search, score_given, search
from regard.model import LanguageModelConfig
from tests.decode.test_ensemble import by_hand, translator
from tests.decode.test_search import END, Table, small_stack, start

OUTPUTS = [(3, 4, 5, 6), (), (8,), (2, 2, 2, 2, 2, 2)]


@pytest.mark.parametrize("end", [END, None])
def test_a_translators_full_pass_says_the_same(end: int | None) -> None:
    model = translator(0)
    source, lengths = torch.randint(1, 9, (4, 6)), torch.tensor([6, 2, 4, 1])
    found = score_given(model, model.start(source, 7, lengths), start(4), OUTPUTS, end=end)
    for row, output in enumerate(OUTPUTS):
        tokens = output if end is None else (*output, end)
        wanted = by_hand([model], source[row : row + 1, : lengths[row]], tokens) if tokens else []
        assert found[row] == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("end", [END, None])
def test_a_language_models_full_pass_says_the_same(end: int | None) -> None:
    torch.manual_seed(0)
    model = LanguageModelConfig(vocabulary=9, width=8, decoder=small_stack()).build().double().eval()
    found = score_given(model, model.start(4, 7), start(4), OUTPUTS, end=end)
    for row, output in enumerate(OUTPUTS):
        tokens = torch.tensor([[1, *output, *([] if end is None else [end])]])
        gains = model(tokens).log_softmax(dim=-1)[:, :-1].gather(2, tokens[:, 1:, None]).flatten().tolist()
        assert found[row] == pytest.approx(gains, abs=1e-9)


def test_a_language_model_goes_on_from_a_prompt() -> None:
    """A state may already hold the first tokens."""
    torch.manual_seed(0)
    model = LanguageModelConfig(vocabulary=9, width=8, decoder=small_stack()).build().double().eval()
    _, state = model.step(torch.tensor([[5, 7]]), model.start(1, 6))
    (found,) = score_given(model, state, torch.tensor([2]), [(3, 4)], end=END)
    tokens = torch.tensor([[5, 7, 2, 3, 4, END]])
    gains = model(tokens).log_softmax(dim=-1)[:, 2:-1].gather(2, tokens[:, 3:, None]).flatten().tolist()
    assert found == pytest.approx(gains, abs=1e-9)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beams=st.integers(2, 4))
def test_what_beams_found_is_scored_as_they_scored_it(seed: int, beams: int) -> None:
    table = Table(3, 5, seed)
    found = beam_search(table, table.start(), start(3), end=END, limit=6, beams=beams)
    for rank in range(beams):
        for ended in (True, False):  # one that was cut has no end to be scored
            rows = [row for row in range(3) if found[row][rank].ended == ended]
            state = (torch.tensor(rows, dtype=torch.long), torch.zeros(len(rows), dtype=torch.long))
            outputs = [found[row][rank].tokens for row in rows]
            scores = score_given(table, state, start(len(rows)), outputs, end=END if ended else None)
            for row, steps in zip(rows, scores, strict=True):
                assert steps == pytest.approx(found[row][rank].steps)


def test_what_was_drawn_from_a_translator_is_scored_as_it_was_drawn() -> None:
    model, source = translator(2), torch.randint(1, 9, (5, 6))
    drawn = search(model, model.start(source, 8), start(5), Sampled([8] * 5, END, seeds=range(5), temperature=2.0))
    for row, (one,) in enumerate(drawn):
        state = model.start(source[row : row + 1], 8)
        (steps,) = score_given(model, state, start(1), [one.tokens], end=END if one.ended else None)
        assert steps == pytest.approx(one.steps, abs=1e-9)


def test_an_ensemble_scores_what_it_is_given() -> None:
    models, source = [translator(0), translator(1)], torch.randint(1, 9, (1, 5))
    states = [model.start(source, 5) for model in models]
    (found,) = score_given(Ensemble(models), states, start(1), [(3, 4, 5)], end=END)
    assert found == pytest.approx(by_hand(models, source, (3, 4, 5, END)), abs=1e-9)


def test_a_row_alone_is_scored_as_in_company() -> None:
    table = Table(3, 5, 0)
    outputs = [(1, 2, 3), (4,), (2, 2)]
    together = score_given(table, table.start(), start(3), outputs, end=END)
    for row, output in enumerate(outputs):
        state = (torch.tensor([row]), torch.zeros(1, dtype=torch.long))
        assert score_given(table, state, start(1), [output], end=END) == [together[row]]
