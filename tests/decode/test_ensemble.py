"""Ensembles: search uses the mean of the members' probabilities."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import (
    BeamSearch,
    Ensemble,
    EnsembleState,
    LengthPenalty,
    beam_search,
    greedy_search,
    search,
)
from tests.decode.toy_models import EOS, TableModel, make_translator, reference_logprobs, start_tokens, with_eos


def mean_model(members: list[TableModel]) -> TableModel:
    """A model whose logits are the logarithm of the mean probabilities."""
    model = TableModel(1, 2, 0)
    model.logits = torch.stack([one.logits.softmax(dim=-1) for one in members]).mean(dim=0).log()
    return model


def start_states(members: list[TableModel]) -> EnsembleState:
    return EnsembleState(one.start() for one in members)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beam_size=st.integers(1, 4))
def test_ensemble_of_one_equals_its_model(seed: int, beam_size: int) -> None:
    model, options = TableModel(3, 5, seed), {"eos": EOS, "max_length": [6, 2, 4], "beam_size": beam_size}
    alone = beam_search(model, model.start(), start_tokens(3), **options)
    assert beam_search(Ensemble([model]), start_states([model]), start_tokens(3), **options) == alone


def test_step_returns_the_mean_of_probabilities() -> None:
    members = [TableModel(1, 3, 0), TableModel(1, 3, 1)]
    for model, p in zip(members, ([0.5, 0.25, 0.25], [0.125, 0.125, 0.75]), strict=True):
        model.logits[0, 0, 1] = torch.tensor(p, dtype=torch.float64).log() + 3  # logits need not be normalized
    logits, _ = Ensemble(members).step(start_tokens(1)[:, None], start_states(members))
    assert logits[0, 0].exp().tolist() == pytest.approx([0.3125, 0.1875, 0.5])


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), count=st.integers(2, 4), beam_size=st.integers(1, 4))
def test_beam_search_with_an_ensemble_equals_the_mean_model(seed: int, count: int, beam_size: int) -> None:
    members = [TableModel(3, 5, seed + number) for number in range(count)]
    model, options = mean_model(members), {"eos": EOS, "max_length": [6, 2, 4], "beam_size": beam_size}
    expected = beam_search(model, model.start(), start_tokens(3), **options)
    found = beam_search(Ensemble(members), start_states(members), start_tokens(3), **options)
    for ours, theirs in zip(found, expected, strict=True):
        assert [one.tokens for one in ours] == [one.tokens for one in theirs]
        assert [one.score for one in ours] == pytest.approx([one.score for one in theirs])


def test_greedy_search_with_an_ensemble_equals_the_mean_model() -> None:
    members = [TableModel(6, 5, seed) for seed in (0, 1)]
    model = mean_model(members)
    expected = greedy_search(model, model.start(), start_tokens(6), eos=EOS, max_length=7)
    found = greedy_search(Ensemble(members), start_states(members), start_tokens(6), eos=EOS, max_length=7)
    assert [one.tokens for one in found] == [one.tokens for one in expected]


@pytest.mark.parametrize("max_lengths", [[7, 7, 7], [7, 1, 2]], ids=["all stay", "rows finish"])
def test_logprobs_equal_a_full_forward_pass(max_lengths: list[int]) -> None:
    models = [make_translator(0), make_translator(1, layers=1)]
    source, lengths = torch.randint(1, 9, (3, 6)), torch.tensor([2, 6, 4])
    states = EnsembleState(model.start(source, 7, lengths) for model in models)
    found = search(Ensemble(models), states, start_tokens(3), BeamSearch(max_lengths, EOS, 3))
    for row, hypotheses in enumerate(found):
        assert len(hypotheses) == 3
        for one in hypotheses:
            expected = reference_logprobs(models, source[row : row + 1, : lengths[row]], with_eos(one))
            assert one.token_logprobs == pytest.approx(expected, abs=1e-9)
            assert one.logprob == pytest.approx(sum(expected), abs=1e-9)


def test_wide_beam_finds_the_most_likely_output() -> None:
    models = [make_translator(3, vocab_size=4), make_translator(4, vocab_size=4)]
    source, max_length, penalty = torch.tensor([[1, 2, 3]]), 3, LengthPenalty(kind="none")
    states = EnsembleState(model.start(source, max_length) for model in models)
    (found,) = beam_search(
        Ensemble(models),
        states,
        start_tokens(1),
        eos=EOS,
        max_length=max_length,
        beam_size=64,
        length_penalty=penalty,
    )
    best = max(
        sum(reference_logprobs(models, source, (*tokens, EOS) if len(tokens) < max_length else tokens))
        for _, tokens in TableModel(1, 4, 0).all_outputs(0, max_length, penalty)
    )
    assert found[0].logprob == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize("first", [0, 1])
def test_models_of_different_types_form_an_ensemble(first: int) -> None:
    """A table with a source per beam, and a translator whose beams share their source."""
    model, table = make_translator(0, vocab_size=5), TableModel(2, 5, 0)
    source = torch.randint(1, 5, (2, 4))
    members = [(model, model.start(source, 6)), (table, table.start())]
    members = members if first == 0 else members[::-1]
    ensemble, states = Ensemble([one for one, _ in members]), EnsembleState(state for _, state in members)
    found = beam_search(ensemble, states, start_tokens(2), eos=EOS, max_length=6)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            target = [1, *with_eos(one)]
            with torch.no_grad():
                model_p = model(source[row : row + 1], torch.tensor([target[:-1]])).softmax(dim=-1)[0]
            for position, token in enumerate(target[1:]):
                before, last = (0, 1) if position == 0 else target[position - 1 : position + 1]
                table_p = table.logits[row, before, last].softmax(dim=-1)
                p = (float(model_p[position, token]) + float(table_p[token])) / 2
                assert one.token_logprobs[position] == pytest.approx(math.log(p), abs=1e-9)


def test_different_vocabularies_are_refused() -> None:
    members = [TableModel(1, 5, 0), TableModel(1, 3, 0)]
    with pytest.raises(UserError, match=r"sizes \[3, 5\]"):
        greedy_search(Ensemble(members), start_states(members), start_tokens(1), eos=EOS, max_length=3)


def test_empty_ensemble_is_refused() -> None:
    with pytest.raises(UserError, match="at least one model"):
        Ensemble([])
