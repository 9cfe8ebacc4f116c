"""Groups of beams keep apart, and what they find is scored as the model scores it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import Beams, Diverse, Hypothesis, LengthPenalty, NoPenalty, PaperPenalty, Recording, search
from tests.decode.test_search import END, PENALTIES, Table, start


def diverse(table: Table, limits: list[int], beams: int, groups: int, strength: float, **options):
    chooser = Diverse(limits, END, beams, groups, strength, **options)
    return search(table, table.start(), start(len(limits)), chooser)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beams=st.integers(1, 5), penalty=st.sampled_from(PENALTIES))
def test_one_group_without_strength_is_beam_search(seed: int, beams: int, penalty: LengthPenalty) -> None:
    table, limits = Table(3, 5, seed), [6, 2, 4]
    plain = search(table, table.start(), start(3), Beams(limits, END, beams, penalty=penalty, alternatives=2))
    assert diverse(table, limits, beams, 1, 0.0, penalty=penalty, alternatives=2) == plain


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), groups=st.integers(2, 3))
def test_groups_without_strength_all_find_what_a_beam_search_of_their_size_finds(seed: int, groups: int) -> None:
    table = Table(2, 5, seed)
    plain = search(table, table.start(), start(2), Beams([5, 5], END, 2))
    assert diverse(table, [5, 5], 2 * groups, groups, 0.0) == plain


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), groups=st.sampled_from([2, 4]))
def test_groups_begin_unlike_when_the_strength_is_large(seed: int, groups: int) -> None:
    table, seen = Table(3, 12, seed), Recording()
    table.scores[..., END] = -30  # every group goes on
    search(table, table.start(), start(3), Diverse([5] * 3, END, 4, groups, 1000.0), seen)
    for tokens in seen.steps[0].tokens.view(3, groups, -1).tolist():
        begun = [token for group in tokens for token in set(group)]
        assert len(set(begun)) == len(begun)


def plainly(table: Table, row: int, limit: int, each: int, groups: int, strength: float, penalty: LengthPenalty):
    """Diverse beam search with Hamming distance, group after group (Vijayakumar et al. 2016, algorithm 1): a group
    takes the continuations that are best once `strength` is off for each earlier group's beam that took their token
    at this step. Gives the best of each group.
    """
    alive = [[(0.0, ())] for _ in range(groups)]
    found: list[list[tuple[float, tuple[int, ...]]]] = [[] for _ in range(groups)]
    for length in range(1, limit + 1):
        taken: Counter[int] = Counter()
        for group in range(groups):
            reached = []
            for _, tokens in alive[group]:
                for token in range(table.scores.shape[-1]):
                    total = table.log_probability(row, (*tokens, token), ended=False)
                    reached.append((total - strength * taken[token], total, (*tokens, token)))
            best = sorted(reached, reverse=True)[: 2 * each]
            found[group] += [
                (total / penalty.at(length), tokens[:-1]) for _, total, tokens in best if tokens[-1] == END
            ]
            alive[group] = [(total, tokens) for _, total, tokens in best if tokens[-1] != END][:each]
            taken.update(tokens[-1] for _, tokens in alive[group])
    for group in range(groups):
        found[group] += [(total / penalty.at(limit), tokens) for total, tokens in alive[group]]
    return [sorted(each_found, reverse=True)[:each] for each_found in found]


@pytest.mark.parametrize("strength", [0.0, 0.5, 2.0, 1000.0])
@pytest.mark.parametrize(("each", "groups"), [(1, 3), (2, 2)])
def test_every_group_finds_what_plain_diverse_beam_search_finds(strength: float, each: int, groups: int) -> None:
    for seed in range(4):
        table, penalty = Table(1, 7, seed), PaperPenalty(0.6)
        (found,) = diverse(table, [4], each * groups, groups, strength, penalty=penalty)
        wanted = plainly(table, 0, 4, each, groups, strength, penalty)
        assert {one.tokens: one.score for one in found} == pytest.approx(
            {tokens: score for group in wanted for score, tokens in group}
        )


def test_the_tokens_a_group_avoids_are_those_of_this_step_only() -> None:
    """Both groups would write 1 1. The second begins with a 2; a 1 behind it is worth more than it is lowered."""
    table, seen = Table(1, 4, 0), Recording()
    table.scores[...] = 0.0
    table.scores[..., 1], table.scores[..., 2], table.scores[..., END] = 20.0, 5.0, -40.0
    table.scores[:, :, 2, 1] = 60.0
    search(table, table.start(), start(1), Diverse([2], END, 2, 2, 30.0), seen)
    assert [step.tokens.tolist() for step in seen.steps] == [[1, 2], [1, 1]]


def assert_own(table: Table, row: int, one: Hypothesis, penalty: LengthPenalty) -> None:
    assert one.log_probability == pytest.approx(table.log_probability(row, one.tokens, one.ended))
    assert sum(one.steps) == pytest.approx(one.log_probability)
    assert one.score == pytest.approx(one.log_probability / penalty.at(len(one.tokens) + one.ended))


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), strength=st.sampled_from([0.3, 1.0, 5.0]), penalty=st.sampled_from(PENALTIES))
def test_log_probabilities_and_scores_are_the_models_own(seed: int, strength: float, penalty) -> None:
    table = Table(2, 6, seed)
    for row, hypotheses in enumerate(diverse(table, [5, 5], 6, 3, strength, penalty=penalty)):
        for one in hypotheses:
            assert_own(table, row, one, penalty)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_no_output_comes_twice_and_the_best_comes_first(seed: int) -> None:
    table = Table(2, 6, seed)
    for hypotheses in diverse(table, [5, 5], 6, 3, 0.2):
        scores = [one.score for one in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({one.tokens for one in hypotheses}) == len(hypotheses)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_a_row_with_its_own_limit_gets_what_it_gets_alone(seed: int) -> None:
    table, limits = Table(3, 6, seed), [6, 1, 3]
    together = diverse(table, limits, 4, 2, 0.7, penalty=NoPenalty())
    for row, limit in enumerate(limits):
        alone = Table(3, 6, seed)
        alone.scores = alone.scores[row : row + 1]
        assert diverse(alone, [limit], 4, 2, 0.7, penalty=NoPenalty()) == [together[row]]


@pytest.mark.parametrize(("beams", "groups"), [(4, 3), (4, 0), (4, -2), (2, 4)])
def test_groups_that_do_not_divide_the_beams_are_refused(beams: int, groups: int) -> None:
    with pytest.raises(UserError, match=f"{beams} beams cannot be put into {groups} equal groups"):
        Diverse([5], END, beams, groups, 0.5)


def test_no_beams_at_all_are_refused() -> None:
    with pytest.raises(UserError, match="at least one beam; found 0"):
        Diverse([5], END, 0, 1, 0.5)
