"""Beam search equals exhaustive search if the beam is wide enough, and scores are those of the tokens."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import BeamSearch, LengthPenalty, beam_search, greedy_search, search
from regard.model import EncoderDecoderConfig
from tests.decode.toy_models import EOS, PENALTIES, TableModel, small_stack, start_tokens


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    vocab_size=st.integers(2, 4),
    max_length=st.integers(1, 4),
    penalty=st.sampled_from(PENALTIES),
)
def test_wide_beam_equals_exhaustive_search(
    seed: int, vocab_size: int, max_length: int, penalty: LengthPenalty
) -> None:
    model = TableModel(2, vocab_size, seed)
    found = beam_search(
        model,
        model.start(),
        start_tokens(2),
        eos=EOS,
        max_length=max_length,
        beam_size=vocab_size**max_length,
        length_penalty=penalty,
    )
    for row in range(2):
        expected = model.all_outputs(row, max_length, penalty)
        assert [one.score for one in found[row]] == pytest.approx([score for score, _ in expected])
        assert found[row][0].tokens == expected[0][1]


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), vocab_size=st.integers(2, 5), max_length=st.integers(1, 6))
def test_one_beam_is_at_least_as_likely_as_greedy_search(seed: int, vocab_size: int, max_length: int) -> None:
    model = TableModel(3, vocab_size, seed)
    greedy = greedy_search(model, model.start(), start_tokens(3), eos=EOS, max_length=max_length)
    beam = beam_search(
        model,
        model.start(),
        start_tokens(3),
        eos=EOS,
        max_length=max_length,
        beam_size=1,
        length_penalty=LengthPenalty(kind="none"),
    )
    for one, (other,) in zip(greedy, beam, strict=True):
        assert other.logprob >= one.logprob - 1e-9


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), beam_size=st.integers(1, 5), penalty=st.sampled_from(PENALTIES))
def test_scores_are_those_of_the_tokens(seed: int, beam_size: int, penalty: LengthPenalty) -> None:
    model = TableModel(2, 4, seed)
    found = beam_search(
        model, model.start(), start_tokens(2), eos=EOS, max_length=5, beam_size=beam_size, length_penalty=penalty
    )
    for row, hypotheses in enumerate(found):
        assert len({one.tokens for one in hypotheses}) == len(hypotheses) == beam_size
        for one in hypotheses:
            assert one.logprob == pytest.approx(model.logprob(row, one.tokens, one.ended))
            assert one.score == pytest.approx(one.logprob / penalty.at(len(one.tokens) + one.ended))
        assert [one.score for one in hypotheses] == sorted((one.score for one in hypotheses), reverse=True)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), beam_size=st.integers(1, 4))
def test_result_does_not_depend_on_the_batch(seed: int, beam_size: int) -> None:
    model = TableModel(3, 4, seed)
    found = beam_search(model, model.start(), start_tokens(3), eos=EOS, max_length=6, beam_size=beam_size)
    for row in range(3):
        alone = model.only(row)
        (expected,) = beam_search(alone, alone.start(), start_tokens(1), eos=EOS, max_length=6, beam_size=beam_size)
        assert found[row] == expected


def test_early_stopping_misses_no_better_output() -> None:
    """A strong length penalty favors long outputs, so the first EOS must not end the search."""
    penalty = LengthPenalty(alpha=3.0)
    for seed in range(50):
        model = TableModel(1, 3, seed)
        (found,) = beam_search(
            model, model.start(), start_tokens(1), eos=EOS, max_length=5, beam_size=81, length_penalty=penalty
        )
        assert found[0].score == pytest.approx(model.all_outputs(0, 5, penalty)[0][0])


@pytest.mark.parametrize("penalty", PENALTIES)
def test_asking_for_fewer_outputs_gives_the_best_of_all_and_ends_earlier(penalty: LengthPenalty) -> None:
    steps = {1: 0, 2: 0, 4: 0}
    for seed in range(25):
        found = {}
        for nbest in steps:
            model = TableModel(3, 4, seed)
            strategy = BeamSearch([9, 4, 9], EOS, 4, length_penalty=penalty)
            strategy.nbest = nbest
            found[nbest] = search(model, model.start(), start_tokens(3), strategy)
            steps[nbest] += strategy.steps_taken
        for nbest in (1, 2):
            assert found[nbest] == [row[:nbest] for row in found[4]]
    assert steps[1] < steps[2] < steps[4]


def test_cached_beam_search_scores_equal_a_full_forward_pass() -> None:
    torch.manual_seed(0)
    config = EncoderDecoderConfig(vocab_size=9, width=8, encoder=small_stack(), decoder=small_stack())
    model = config.build().double().eval()
    source, lengths = torch.randint(1, 9, (3, 6)), torch.tensor([6, 2, 4])
    state = model.start(source, 7, lengths)
    found = beam_search(model, state, start_tokens(3), eos=EOS, max_length=7, beam_size=3)
    for row, hypotheses in enumerate(found):
        for one in hypotheses:
            target = torch.tensor([[1, *one.tokens, *([EOS] if one.ended else [])]])
            logits = model(source[row : row + 1, : lengths[row]], target[:, :-1])
            logprobs = logits.log_softmax(dim=-1).gather(2, target[:, 1:, None])
            assert one.logprob == pytest.approx(float(logprobs.sum().detach()), abs=1e-9)


@pytest.mark.parametrize("penalty", PENALTIES)
def test_length_penalty_never_decreases(penalty: LengthPenalty) -> None:
    divisors = [penalty.at(length) for length in range(1, 50)]
    assert divisors == sorted(divisors)


def test_gnmt_penalty_follows_its_formula() -> None:
    assert LengthPenalty(alpha=0.6).at(7) == pytest.approx(math.pow(12 / 6, 0.6))


@pytest.mark.parametrize(
    ("values", "message"),
    [({"beam_size": 0}, "beam size .* found 0"), ({"max_length": 0}, "maximum length is 0")],
)
def test_impossible_searches_are_refused(values: dict, message: str) -> None:
    model = TableModel(1, 3, 0)
    with pytest.raises(UserError, match=message):
        beam_search(model, model.start(), start_tokens(1), **{"eos": EOS, "max_length": 3, "beam_size": 2} | values)
