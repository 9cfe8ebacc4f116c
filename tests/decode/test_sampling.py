"""Drawn tokens against a plain account of what should be drawn, and the numbers they are drawn by."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard import UserError
from regard.decode import Hypothesis, Sampled, greedy_search, search
from regard.decode.single import uniform
from tests.decode.test_search import END, Table, start

MANY = 20_000
FILTERS = {
    "as it is": {},
    "cooler": {"temperature": 0.5},
    "hotter": {"temperature": 2.5},
    "top 3": {"top_k": 3},
    "more than there are": {"top_k": 50},
    "nucleus": {"top_p": 0.7},
    "a narrow nucleus": {"top_p": 0.05},
    "not too unlikely": {"min_p": 0.2},
    "top 5 and nucleus": {"top_k": 5, "top_p": 0.8},
    "nucleus and not too unlikely": {"top_p": 0.95, "min_p": 0.1},
    "all of them": {"temperature": 1.7, "top_k": 6, "top_p": 0.9, "min_p": 0.15},
}


class Fixed:
    """A stepper that gives every token the same score at every step. It has no state."""

    def __init__(self, scores: list[float]) -> None:
        self.scores = torch.tensor(scores, dtype=torch.float64)

    def step(self, tokens: Tensor, state: None) -> tuple[Tensor, None]:
        return self.scores.expand(len(tokens), 1, -1), None

    def reorder(self, state: None, rows: Tensor) -> None:
        return None


def drawn(table: Table, rows: list[int], limit: int, seeds: list[int], **options) -> list[Hypothesis]:
    """Outputs for some rows of a table; a row may come more than once."""
    chooser = Sampled([limit] * len(rows), END, seeds=seeds, **options)
    state = (torch.tensor(rows), torch.zeros(len(rows), dtype=torch.long))
    return [one for (one,) in search(table, state, start(len(rows)), chooser)]


def written(found: Hypothesis) -> tuple[int, ...]:
    return (*found.tokens, *([END] if found.ended else []))


def shares(scores: list[float], temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> list[float]:
    """How often each token should come, worked out one after another, as the papers say it."""
    weights = [math.exp(score / temperature) for score in scores]
    ranked = sorted(range(len(scores)), key=lambda token: -weights[token])
    if top_k:
        ranked = ranked[:top_k]
    whole = sum(weights[token] for token in ranked)
    nucleus: list[int] = []
    while sum(weights[token] for token in nucleus) / whole < top_p and len(nucleus) < len(ranked):
        nucleus.append(ranked[len(nucleus)])
    kept = [token for token in nucleus if weights[token] >= min_p * weights[ranked[0]]]
    whole = sum(weights[token] for token in kept)
    return [weights[token] / whole if token in kept else 0.0 for token in range(len(scores))]


def assert_counts_fit(counts: list[int], expected: list[float]) -> None:
    """Pearson's χ², at a bound that chance alone passes in one case of 30,000 (Wilson & Hilferty 1931, z = 4)."""
    total = sum(counts)
    assert not any(count for count, share in zip(counts, expected, strict=True) if share == 0.0)
    parts = [(count - total * p) ** 2 / (total * p) for count, p in zip(counts, expected, strict=True) if p > 0.0]
    freedom = len(parts) - 1
    if freedom > 0:
        ninth = 2 / (9 * freedom)
        assert sum(parts) < freedom * (1 - ninth + 4 * math.sqrt(ninth)) ** 3


@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS.keys())
def test_tokens_come_as_often_as_their_share_says(options: dict) -> None:
    table = Table(1, 9, 4)
    found = drawn(table, [0] * MANY, 1, list(range(MANY)), **options)
    counts = Counter(written(one)[0] for one in found)
    assert_counts_fit([counts[token] for token in range(9)], shares(table.scores[0, 0, 1].tolist(), **options))


def test_two_tokens_come_together_as_often_as_the_product_of_their_shares_says() -> None:
    table, options = Table(1, 4, 1), {"temperature": 1.3, "top_p": 0.97}
    counts = Counter(written(one) for one in drawn(table, [0] * MANY, 2, list(range(MANY)), **options))
    expected = {}
    for first, p in enumerate(shares(table.scores[0, 0, 1].tolist(), **options)):
        behind = shares(table.scores[0, 1, first].tolist(), **options)
        expected |= {(END,): p} if first == END else {(first, second): p * q for second, q in enumerate(behind)}
    assert set(counts) <= set(expected)
    assert_counts_fit([counts[each] for each in expected], list(expected.values()))


def test_the_same_seeds_give_the_same_outputs() -> None:
    table, rows, seeds = Table(3, 6, 0), [0, 1, 2], [5, 6, 7]
    assert drawn(table, rows, 12, seeds) == drawn(table, rows, 12, seeds)


def test_other_seeds_give_other_outputs() -> None:
    table = Table(1, 6, 0)
    table.scores[..., END] = -30  # nothing ends by itself
    table.scores *= 0.1  # and nothing is so likely that two would come to the same by chance
    assert len({one.tokens for one in drawn(table, [0] * 50, 20, list(range(50)))}) == 50


@given(seed=st.integers(0, 10_000), limits=st.lists(st.integers(1, 8), min_size=4, max_size=4), top_k=st.integers(0, 3))
def test_a_row_alone_draws_what_it_draws_in_company(seed: int, limits: list[int], top_k: int) -> None:
    table, seeds = Table(4, 5, seed), [seed, seed + 1, 3, 2**63 + seed]
    together = search(table, table.start(), start(4), Sampled(limits, END, seeds=seeds, top_k=top_k))
    for row in range(4):
        assert drawn(table, [row], limits[row], [seeds[row]], top_k=top_k) == together[row]


@given(seed=st.integers(0, 10_000), top_k=st.integers(0, 3), min_p=st.sampled_from([0.0, 0.5]))
def test_a_temperature_of_0_is_greedy_search(seed: int, top_k: int, min_p: float) -> None:
    table = Table(3, 5, seed)
    found = drawn(table, [0, 1, 2], 7, [seed] * 3, temperature=0.0, top_k=top_k, min_p=min_p)
    assert found == greedy_search(table, table.start(), start(3), end=END, limit=7)


@given(seed=st.integers(0, 10_000))
def test_the_log_probabilities_of_what_was_drawn_are_the_models_own(seed: int) -> None:
    table = Table(2, 5, seed)
    options = {"temperature": 3.0, "top_k": 4, "top_p": 0.9, "min_p": 0.01, "repetition": 1.5}
    for row, one in enumerate(drawn(table, [0, 1], 7, [seed, 1], **options)):
        assert one.log_probability == pytest.approx(table.log_probability(row, one.tokens, one.ended))
        assert sum(one.steps) == pytest.approx(one.log_probability)


def repeated(scores: list[float], limit: int, repetition: float) -> tuple[int, ...]:
    chooser = Sampled([limit], END, seeds=[0], temperature=0.0, repetition=repetition)
    ((found,),) = search(Fixed(scores), None, start(1), chooser)
    return written(found)


def test_repetition_divides_the_positive_scores_of_what_was_written() -> None:
    """2 becomes 1 and 1.5 leads; then 1.5 becomes 0.75 and 1 leads, once for all."""
    assert repeated([-9.0, 2.0, 1.5, 0.5], 5, 2.0) == (1, 2, 1, 1, 1)


def test_repetition_multiplies_the_negative_scores_of_what_was_written() -> None:
    """-1 becomes -2 and -1.5 leads; then -1.5 becomes -3 and -2 leads; -2.5 never does."""
    assert repeated([-9.0, -1.0, -1.5, -2.5], 5, 2.0) == (1, 2, 1, 1, 1)


def test_repetition_leaves_the_end_alone_until_it_is_written() -> None:
    assert repeated([1.5, 2.0, 1.2], 5, 2.0) == (1, END)


def test_a_repetition_of_1_changes_nothing() -> None:
    table = Table(2, 6, 3)
    assert drawn(table, [0, 1], 9, [4, 5], repetition=1.0) == drawn(table, [0, 1], 9, [4, 5])


def test_repetition_makes_a_written_token_as_rare_as_its_lowered_score_says() -> None:
    """Its share behind itself, not the first time it comes."""
    scores = [0.3, 1.2, -0.7]
    chooser = Sampled([2] * MANY, END, seeds=range(MANY), repetition=1.8)
    found = [written(one) for (one,) in search(Fixed(scores), None, start(MANY), chooser)]
    for first, lowered in [(1, [0.3, 1.2 / 1.8, -0.7]), (2, [0.3, 1.2, -0.7 * 1.8])]:
        counts = Counter(one[1] for one in found if one[0] == first)
        assert_counts_fit([counts[token] for token in range(3)], shares(lowered))


def test_seeds_that_do_not_fit_the_rows_are_refused() -> None:
    with pytest.raises(UserError, match="2 seeds for 3 rows"):
        Sampled([4, 4, 4], END, seeds=[1, 2])


def furthest_from_uniform(numbers: Tensor) -> float:
    """Kolmogorov and Smirnov's √n · D; chance alone passes 2 in one case of 1,500."""
    count = len(numbers)
    ideal = torch.arange(count + 1, dtype=torch.float64) / count
    ranked = numbers.sort().values
    return math.sqrt(count) * float(torch.maximum(ideal[1:] - ranked, ranked - ideal[:-1]).max())


@pytest.mark.parametrize("step", [0, 1, 2, 77])
def test_numbers_are_uniform_over_seeds(step: int) -> None:
    seeds = torch.arange(100_000)
    assert furthest_from_uniform(uniform(seeds, torch.full_like(seeds, step))) < 2


@pytest.mark.parametrize("seed", [0, 1, -1, 123_456_789])
def test_numbers_are_uniform_over_steps(seed: int) -> None:
    steps = torch.arange(100_000)
    assert furthest_from_uniform(uniform(torch.full_like(steps, seed), steps)) < 2


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one, other)))[0, 1]) * math.sqrt(len(one))


@pytest.mark.parametrize("lag", range(-3, 4))
@pytest.mark.parametrize("seed", [0, 1, 1000])
def test_steps_of_one_seed_tell_nothing_of_those_of_the_next(seed: int, lag: int) -> None:
    steps = torch.arange(10, 50_010)
    here, there = uniform(torch.full_like(steps, seed), steps), uniform(torch.full_like(steps, seed + 1), steps + lag)
    assert abs(correlation(here, there)) < 4


def test_a_step_tells_nothing_of_the_next_over_seeds() -> None:
    seeds = torch.arange(50_000)
    for step in range(5):
        here, there = (uniform(seeds, torch.full_like(seeds, at)) for at in (step, step + 1))
        assert abs(correlation(here, there)) < 4


def splitmix(x: int) -> int:
    """The mixing of SplitMix64 in whole numbers without a sign (Steele, Lea & Flood 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@given(seed=st.integers(-(2**63), 2**63 - 1), step=st.integers(0, 10_000))
def test_a_number_is_the_one_that_plain_arithmetic_gives(seed: int, step: int) -> None:
    mixed = splitmix((splitmix(seed % 2**64) + (step + 1) * 0x9E3779B97F4A7C15) % 2**64)
    assert float(uniform(torch.tensor([seed]), torch.tensor([step]))) == (mixed >> 11) / 2**53
