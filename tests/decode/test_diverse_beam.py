"""Diverse beam search: groups choose different tokens, and hypotheses keep the model's own scores."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import BeamSearch, DiverseBeamSearch, Diversity, Hypothesis, LengthPenalty, RecordingObserver, search
from tests.decode.toy_models import EOS, PENALTIES, TableModel, start_tokens


def decode(
    model: TableModel, max_lengths: list[int], beam_size: int, diversity: Diversity, **options
) -> list[list[Hypothesis]]:
    strategy = DiverseBeamSearch(max_lengths, EOS, beam_size, diversity, **options)
    return search(model, model.start(), start_tokens(len(max_lengths)), strategy)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beam_size=st.integers(1, 5), penalty=st.sampled_from(PENALTIES))
def test_one_group_without_penalty_equals_beam_search(seed: int, beam_size: int, penalty: LengthPenalty) -> None:
    model, max_lengths = TableModel(3, 5, seed), [6, 2, 4]
    plain = BeamSearch(max_lengths, EOS, beam_size, length_penalty=penalty, alternatives=2)
    found = decode(model, max_lengths, beam_size, Diversity(1, 0.0), length_penalty=penalty, alternatives=2)
    assert found == search(model, model.start(), start_tokens(3), plain)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), groups=st.integers(2, 3))
def test_groups_without_penalty_all_equal_beam_search(seed: int, groups: int) -> None:
    model = TableModel(2, 5, seed)
    plain = search(model, model.start(), start_tokens(2), BeamSearch([5, 5], EOS, 2))
    assert decode(model, [5, 5], 2 * groups, Diversity(groups, 0.0)) == plain


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), groups=st.sampled_from([2, 4]))
def test_groups_start_with_different_tokens_if_the_penalty_is_large(seed: int, groups: int) -> None:
    model, observer = TableModel(3, 12, seed), RecordingObserver()
    model.logits[..., EOS] = -30  # every group continues
    strategy = DiverseBeamSearch([5] * 3, EOS, 4, Diversity(groups, 1000.0))
    search(model, model.start(), start_tokens(3), strategy, observer)
    for by_group in observer.steps[0].tokens.view(3, groups, -1).tolist():
        tokens = [token for group in by_group for token in set(group)]
        assert len(set(tokens)) == len(tokens)


def reference_groups(
    model: TableModel, max_length: int, beams: int, diversity: Diversity, penalty: LengthPenalty
) -> list[list[tuple[float, tuple[int, ...]]]]:
    """Diverse beam search with Hamming diversity, group by group (Vijayakumar et al. 2016, algorithm 1).

    A group takes the continuations that are best after the penalty is subtracted for each beam of an earlier group
    that chose the same token at this step. Returns the best outputs of each group.
    """
    groups = range(diversity.groups)
    alive = [[(0.0, ())] for _ in groups]
    completed: list[list[tuple[float, tuple[int, ...]]]] = [[] for _ in groups]
    for length in range(1, max_length + 1):
        chosen: Counter[int] = Counter()
        for group in groups:
            candidates = []
            for _, tokens in alive[group]:
                for token in range(model.logits.shape[-1]):
                    logprob = model.logprob(0, (*tokens, token), ended=False)
                    candidates.append((logprob - diversity.penalty * chosen[token], logprob, (*tokens, token)))
            best = sorted(candidates, reverse=True)[: 2 * beams]
            completed[group] += [
                (logprob / penalty.at(length), tokens[:-1]) for _, logprob, tokens in best if tokens[-1] == EOS
            ]
            alive[group] = [(logprob, tokens) for _, logprob, tokens in best if tokens[-1] != EOS][:beams]
            chosen.update(tokens[-1] for _, tokens in alive[group])
    for group in groups:
        completed[group] += [(logprob / penalty.at(max_length), tokens) for logprob, tokens in alive[group]]
    return [sorted(each, reverse=True)[:beams] for each in completed]


@pytest.mark.parametrize("strength", [0.0, 0.5, 2.0, 1000.0])
@pytest.mark.parametrize(("beams", "groups"), [(1, 3), (2, 2)])
def test_groups_equal_the_reference_algorithm(strength: float, beams: int, groups: int) -> None:
    diversity, penalty = Diversity(groups, strength), LengthPenalty(alpha=0.6)
    for seed in range(4):
        model = TableModel(1, 7, seed)
        (found,) = decode(model, [4], beams * groups, diversity, length_penalty=penalty)
        expected = reference_groups(model, 4, beams, diversity, penalty)
        assert {one.tokens: one.score for one in found} == pytest.approx(
            {tokens: score for group in expected for score, tokens in group}
        )


def test_penalty_applies_to_tokens_of_the_same_step_only() -> None:
    """Both groups prefer 1 1. The penalty makes the second start with 2; a 1 after it outweighs the penalty."""
    model, observer = TableModel(1, 4, 0), RecordingObserver()
    model.logits[...] = 0.0
    model.logits[..., 1], model.logits[..., 2], model.logits[..., EOS] = 20.0, 5.0, -40.0
    model.logits[:, :, 2, 1] = 60.0
    strategy = DiverseBeamSearch([2], EOS, 2, Diversity(2, 30.0))
    search(model, model.start(), start_tokens(1), strategy, observer)
    assert [step.tokens.tolist() for step in observer.steps] == [[1, 2], [1, 1]]


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), strength=st.sampled_from([0.3, 1.0, 5.0]), penalty=st.sampled_from(PENALTIES))
def test_logprobs_and_scores_match_the_model(seed: int, strength: float, penalty: LengthPenalty) -> None:
    model = TableModel(2, 6, seed)
    for row, hypotheses in enumerate(decode(model, [5, 5], 6, Diversity(3, strength), length_penalty=penalty)):
        for one in hypotheses:
            assert one.logprob == pytest.approx(model.logprob(row, one.tokens, one.ended))
            assert sum(one.token_logprobs) == pytest.approx(one.logprob)
            assert one.score == pytest.approx(one.logprob / penalty.at(len(one.tokens) + one.ended))


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_outputs_are_distinct_and_sorted(seed: int) -> None:
    for hypotheses in decode(TableModel(2, 6, seed), [5, 5], 6, Diversity(3, 0.2)):
        scores = [one.score for one in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({one.tokens for one in hypotheses}) == len(hypotheses)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_result_does_not_depend_on_the_batch(seed: int) -> None:
    model, max_lengths, diversity = TableModel(3, 6, seed), [6, 1, 3], Diversity(2, 0.7)
    penalty = LengthPenalty(kind="none")
    batched = decode(model, max_lengths, 4, diversity, length_penalty=penalty)
    for row, max_length in enumerate(max_lengths):
        assert decode(model.only(row), [max_length], 4, diversity, length_penalty=penalty) == [batched[row]]


@pytest.mark.parametrize(("beam_size", "groups"), [(4, 3), (4, 0), (4, -2), (2, 4)])
def test_groups_that_do_not_divide_the_beam_size_are_refused(beam_size: int, groups: int) -> None:
    with pytest.raises(UserError, match=f"{groups} groups.* {beam_size} beams"):
        DiverseBeamSearch([5], EOS, beam_size, Diversity(groups, 0.5))


def test_beam_size_0_is_refused() -> None:
    with pytest.raises(UserError, match=r"beam size .* found 0"):
        DiverseBeamSearch([5], EOS, 0, Diversity(1, 0.5))
