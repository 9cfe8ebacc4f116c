"""Outputs keep the rules, and among those that do the best is found, at the model's own log-probability."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import (
    Beams,
    Chooser,
    Diverse,
    Forbidden,
    Hypothesis,
    NoPenalty,
    PaperPenalty,
    Prefix,
    Rule,
    Sampled,
    Shortest,
    Single,
    search,
)
from tests.decode.test_search import END, Table, start

Make = Callable[[Sequence[int], Sequence[Rule]], Chooser]
WAYS: dict[str, Make] = {
    "greedy": lambda limits, rules: Single(limits, END, rules=rules),
    "sampled": lambda limits, rules: Sampled(limits, END, seeds=[7] * len(limits), temperature=2.0, rules=rules),
    "beams": lambda limits, rules: Beams(limits, END, 3, rules=rules),
    "diverse": lambda limits, rules: Diverse(limits, END, 4, 2, 0.5, rules=rules),
}
every_way = pytest.mark.parametrize("make", WAYS.values(), ids=WAYS.keys())
PREFIXES = [(3, 1), (), (2,), (4, 4, 4), (1, 2, 3)]
SEQUENCES = [(2,), (1, 3), (3, 3, 1)]
COUNTS = [3, 0, 1, 5, 4]


def contains(tokens: tuple[int, ...], sequence: tuple[int, ...]) -> bool:
    return any(tokens[at : at + len(sequence)] == sequence for at in range(len(tokens) - len(sequence) + 1))


def found_by(table: Table, chooser: Chooser) -> list[list[Hypothesis]]:
    return search(table, table.start(), start(len(table.scores)), chooser)


def only(table: Table, row: int) -> Table:
    alone = Table(1, table.scores.shape[-1], 0)
    alone.scores = table.scores[row : row + 1]
    return alone


def assert_own(table: Table, row: int, one: Hypothesis) -> None:
    assert one.log_probability == pytest.approx(table.log_probability(row, one.tokens, one.ended))


def assert_beams_find_the_best_that(allowed: Callable[[int, tuple[int, ...]], bool], table: Table, rules, penalty):
    """A beam as wide as there are outputs against trying everything and leaving out what is not allowed."""
    limit, size = 4, table.scores.shape[-1]
    rows = len(table.scores)
    found = found_by(table, Beams([limit] * rows, END, size**limit, rules=rules, penalty=penalty))
    for row in range(rows):
        wanted = [(score, tokens) for score, tokens in table.everything(row, limit, penalty) if allowed(row, tokens)]
        assert [one.score for one in found[row]] == pytest.approx([score for score, _ in wanted])
        assert found[row][0].tokens == wanted[0][1]


@every_way
def test_a_prefix_comes_first(make: Make) -> None:
    table = Table(5, 5, 2)
    for prefix, hypotheses in zip(PREFIXES, found_by(table, make([6] * 5, [Prefix(PREFIXES)])), strict=True):
        assert all(one.tokens[: len(prefix)] == prefix for one in hypotheses)


@every_way
@pytest.mark.parametrize(
    "rule", [lambda: Prefix(PREFIXES), lambda: Forbidden(SEQUENCES), lambda: Shortest(COUNTS, END)]
)
def test_log_probabilities_under_a_rule_stay_the_models_own(make: Make, rule: Callable[[], Rule]) -> None:
    table = Table(5, 5, 2)
    for row, hypotheses in enumerate(found_by(table, make([6] * 5, [rule()]))):
        assert hypotheses
        for one in hypotheses:
            assert_own(table, row, one)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), prefix=st.lists(st.integers(1, 4), max_size=4))
def test_behind_a_prefix_greedy_search_takes_the_likeliest(seed: int, prefix: list[int]) -> None:
    table = Table(1, 5, seed)
    ((found,),) = found_by(table, Single([6], END, rules=[Prefix([prefix])]))
    before, last, wanted = 0, 1, []
    for at in range(6):
        token = prefix[at] if at < len(prefix) else int(table.scores[0, before, last].argmax())
        if token == END:
            break
        wanted.append(token)
        before, last = last, token
    assert found.tokens == tuple(wanted)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), prefixes=st.lists(st.lists(st.integers(1, 2), max_size=3), min_size=2, max_size=2))
def test_beams_wide_enough_find_the_best_behind_a_prefix(seed: int, prefixes: list[list[int]]) -> None:
    def begins(row: int, tokens: tuple[int, ...]) -> bool:
        return tokens[: len(prefixes[row])] == tuple(prefixes[row])

    assert_beams_find_the_best_that(begins, Table(2, 3, seed), [Prefix(prefixes)], PaperPenalty(0.6))


def test_a_prefix_longer_than_the_limit_is_cut_with_it() -> None:
    table = Table(1, 5, 0)
    ((found, *others),) = found_by(table, Beams([2], END, 3, rules=[Prefix([(1, 2, 3)])]))
    assert (found.tokens, found.ended, others) == ((1, 2), False, [])


@every_way
def test_what_is_forbidden_never_comes(make: Make) -> None:
    table = Table(20, 5, 5)
    table.scores[..., 2] += 3  # it would
    for hypotheses in found_by(table, make([7] * 20, [Forbidden(SEQUENCES)])):
        assert hypotheses
        assert not any(contains(one.tokens, sequence) for one in hypotheses for sequence in SEQUENCES)


@every_way
def test_a_part_of_what_is_forbidden_may_come(make: Make) -> None:
    table = Table(1, 4, 5)
    table.scores[...] = 0.0
    table.scores[..., 3] = 90.0
    table.scores[..., END] = -90.0
    ((found, *_),) = found_by(table, make([5], [Forbidden([(3, 3)])]))
    assert [token == 3 for token in found.tokens] == [True, False, True, False, True]


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    sequences=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    penalty=st.sampled_from([NoPenalty(), PaperPenalty(2.0)]),
)
def test_beams_wide_enough_find_the_best_without_what_is_forbidden(
    seed: int, sequences: list[list[int]], penalty
) -> None:
    def clean(row: int, tokens: tuple[int, ...]) -> bool:
        return not any(contains(tokens, tuple(sequence)) for sequence in sequences)

    assert_beams_find_the_best_that(clean, Table(1, 4, seed), [Forbidden(sequences)], penalty)


def test_a_forbidden_word_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="forbidden word has no tokens"):
        Forbidden([(1,), ()])


@every_way
def test_no_output_ends_before_it_is_long_enough(make: Make) -> None:
    table = Table(5, 5, 2)
    table.scores[..., END] += 4  # they would
    for count, hypotheses in zip(COUNTS, found_by(table, make([7] * 5, [Shortest(COUNTS, END)])), strict=True):
        assert hypotheses
        assert all(len(one.tokens) >= count for one in hypotheses)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), counts=st.lists(st.integers(0, 4), min_size=2, max_size=2))
def test_beams_wide_enough_find_the_best_that_is_long_enough(seed: int, counts: list[int]) -> None:
    assert_beams_find_the_best_that(
        lambda row, tokens: len(tokens) >= counts[row], Table(2, 3, seed), [Shortest(counts, END)], NoPenalty()
    )


@every_way
@pytest.mark.parametrize("seed", range(5))
def test_every_row_keeps_its_own_rules_when_others_leave(make: Make, seed: int) -> None:
    table, limits = Table(5, 5, seed), [1, 3, 1, 9, 6]
    table.scores[..., END] -= 2

    def rules(rows: Sequence[int]) -> list[Rule]:
        prefixes, counts = [PREFIXES[row] for row in rows], [COUNTS[row] for row in rows]
        return [Prefix(prefixes), Shortest(counts, END)]

    together = found_by(table, make(limits, rules(range(5))))
    for row in range(5):
        (alone,) = found_by(only(table, row), make([limits[row]], rules([row])))
        assert [one.tokens for one in together[row]] == [one.tokens for one in alone]


def test_rules_hold_together() -> None:
    def fits(row: int, tokens: tuple[int, ...]) -> bool:
        return tokens[:1] == (2,) and len(tokens) >= 3 and not contains(tokens, (2, 2)) and 1 not in tokens

    for seed in range(5):
        rules = [Prefix([(2,)]), Forbidden([(2, 2), (1,)]), Shortest([3], END)]
        assert_beams_find_the_best_that(fits, Table(1, 4, seed), rules, PaperPenalty(0.6))
