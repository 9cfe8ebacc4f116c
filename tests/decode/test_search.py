"""The search loop: maximum lengths per row, finished rows are dropped; forced outputs get their search's scores."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import (
    Ensemble,
    EnsembleState,
    Sampler,
    SamplingParams,
    beam_search,
    greedy_search,
    score_forced,
    search,
)
from regard.model import LanguageModel, LanguageModelConfig
from tests.decode.toy_models import (
    EOS,
    CountingModel,
    TableModel,
    TensorState,
    make_translator,
    reference_logprobs,
    small_stack,
    start_tokens,
)

OUTPUTS = [(3, 4, 5, 6), (), (8,), (2, 2, 2, 2, 2, 2)]


def test_start_tokens_of_a_wrong_shape_are_refused() -> None:
    model = TableModel(1, 3, 0)
    with pytest.raises(UserError, match=r"shape \(1, 1\)"):
        greedy_search(model, model.start(), torch.ones(1, 1, dtype=torch.long), eos=EOS, max_length=3)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_every_row_has_its_own_max_length(beam_size: int) -> None:
    model = TableModel(4, 5, seed=3)
    model.logits[..., EOS] = -30  # no output ends by itself
    max_lengths = [2, 5, 1, 4]
    found = beam_search(model, model.start(), start_tokens(4), eos=EOS, max_length=max_lengths, beam_size=beam_size)
    assert [len(row[0].tokens) for row in found] == max_lengths
    greedy = greedy_search(model, model.start(), start_tokens(4), eos=EOS, max_length=max_lengths)
    assert [len(one.tokens) for one in greedy] == max_lengths


@pytest.mark.parametrize("beam_size", [2, 4])
def test_rows_with_different_max_lengths_equal_rows_alone(beam_size: int) -> None:
    max_lengths = [6, 2, 4]
    model = TableModel(3, 5, seed=11)
    batched = beam_search(model, model.start(), start_tokens(3), eos=EOS, max_length=max_lengths, beam_size=beam_size)
    for row, max_length in enumerate(max_lengths):
        alone = model.only(row)
        (found,) = beam_search(
            alone, alone.start(), start_tokens(1), eos=EOS, max_length=max_length, beam_size=beam_size
        )
        assert [one.tokens for one in found] == [one.tokens for one in batched[row]]


def test_wrong_number_of_max_lengths_is_refused() -> None:
    model = TableModel(2, 4, seed=0)
    with pytest.raises(UserError, match="3 maximum lengths for 2 rows"):
        beam_search(model, model.start(), start_tokens(2), eos=EOS, max_length=[1, 2, 3])


@pytest.mark.parametrize("beam_size", [1, 3])
def test_beam_search_drops_finished_rows(beam_size: int) -> None:
    model = CountingModel(8, 5, seed=3)
    model.logits[..., EOS] = -30  # no output ends by itself
    max_lengths = [1, 2, 2, 2, 2, 3, 3, 6]
    beam_search(model, model.start(), start_tokens(8), eos=EOS, max_length=max_lengths, beam_size=beam_size)
    assert model.row_counts == [count * beam_size for count in (8, 8, 3, 1, 1, 1)]


def test_greedy_search_drops_finished_rows() -> None:
    model = CountingModel(8, 5, seed=3)
    model.logits[..., EOS] = -30
    greedy_search(model, model.start(), start_tokens(8), eos=EOS, max_length=[1, 2, 2, 2, 2, 3, 3, 6])
    assert model.row_counts == [8, 8, 3, 1, 1, 1]


# Forced scoring


@pytest.fixture
def language_model() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModelConfig(vocab_size=9, width=8, decoder=small_stack()).build().double().eval()


@pytest.mark.parametrize("eos", [EOS, None])
def test_forced_translator_scores_equal_a_full_forward_pass(eos: int | None) -> None:
    model = make_translator(0)
    source, lengths = torch.randint(1, 9, (4, 6)), torch.tensor([6, 2, 4, 1])
    found = score_forced(model, model.start(source, 7, lengths), start_tokens(4), OUTPUTS, eos=eos)
    for row, output in enumerate(OUTPUTS):
        tokens = output if eos is None else (*output, eos)
        expected = reference_logprobs([model], source[row : row + 1, : lengths[row]], tokens) if tokens else []
        assert found[row] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("eos", [EOS, None])
def test_forced_language_model_scores_equal_a_full_forward_pass(eos: int | None, language_model: LanguageModel) -> None:
    found = score_forced(language_model, language_model.start(4, 7), start_tokens(4), OUTPUTS, eos=eos)
    for row, output in enumerate(OUTPUTS):
        tokens = torch.tensor([[1, *output, *([] if eos is None else [eos])]])
        logprobs = language_model(tokens).log_softmax(dim=-1)[:, :-1].gather(2, tokens[:, 1:, None])
        assert found[row] == pytest.approx(logprobs.flatten().tolist(), abs=1e-9)


def test_forced_scoring_continues_a_prompt(language_model: LanguageModel) -> None:
    """The state may already hold the first tokens."""
    _, state = language_model.step(torch.tensor([[5, 7]]), language_model.start(1, 6))
    (found,) = score_forced(language_model, state, torch.tensor([2]), [(3, 4)], eos=EOS)
    tokens = torch.tensor([[5, 7, 2, 3, 4, EOS]])
    logprobs = language_model(tokens).log_softmax(dim=-1)[:, 2:-1].gather(2, tokens[:, 3:, None])
    assert found == pytest.approx(logprobs.flatten().tolist(), abs=1e-9)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beam_size=st.integers(2, 4))
def test_forced_beam_search_outputs_get_the_same_scores(seed: int, beam_size: int) -> None:
    model = TableModel(3, 5, seed)
    found = beam_search(model, model.start(), start_tokens(3), eos=EOS, max_length=6, beam_size=beam_size)
    for rank in range(beam_size):
        for ended in (True, False):  # a truncated output has no EOS to score
            rows = [row for row in range(3) if found[row][rank].ended == ended]
            state = TensorState(torch.tensor(rows, dtype=torch.long), torch.zeros(len(rows), dtype=torch.long))
            outputs = [found[row][rank].tokens for row in rows]
            scores = score_forced(model, state, start_tokens(len(rows)), outputs, eos=EOS if ended else None)
            for row, logprobs in zip(rows, scores, strict=True):
                assert logprobs == pytest.approx(found[row][rank].token_logprobs)


def test_forced_samples_get_the_same_scores() -> None:
    model, source = make_translator(2), torch.randint(1, 9, (5, 6))
    strategy = Sampler([8] * 5, EOS, SamplingParams(temperature=2.0), seeds=range(5))
    for row, (one,) in enumerate(search(model, model.start(source, 8), start_tokens(5), strategy)):
        state = model.start(source[row : row + 1], 8)
        (logprobs,) = score_forced(model, state, start_tokens(1), [one.tokens], eos=EOS if one.ended else None)
        assert logprobs == pytest.approx(one.token_logprobs, abs=1e-9)


def test_forced_ensemble_scores_equal_a_full_forward_pass() -> None:
    models, source = [make_translator(0), make_translator(1)], torch.randint(1, 9, (1, 5))
    states = EnsembleState(model.start(source, 5) for model in models)
    (found,) = score_forced(Ensemble(models), states, start_tokens(1), [(3, 4, 5)], eos=EOS)
    assert found == pytest.approx(reference_logprobs(models, source, (3, 4, 5, EOS)), abs=1e-9)


def test_forced_scores_do_not_depend_on_the_batch() -> None:
    model = TableModel(3, 5, 0)
    outputs = [(1, 2, 3), (4,), (2, 2)]
    batched = score_forced(model, model.start(), start_tokens(3), outputs, eos=EOS)
    for row, output in enumerate(outputs):
        alone = model.only(row)
        assert score_forced(alone, alone.start(), start_tokens(1), [output], eos=EOS) == [batched[row]]
