"""Sampled tokens follow the distribution of a reference implementation; the random numbers are uniform."""

import math
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from regard import UserError
from regard.decode import Hypothesis, Sampler, SamplingParams, greedy_search, search
from regard.decode.sampling import uniform
from tests.decode.toy_models import EOS, TableModel, TensorState, start_tokens, with_eos

SAMPLES = 20_000
PARAMS: dict[str, dict[str, Any]] = {
    "unchanged": {},
    "low temperature": {"temperature": 0.5},
    "high temperature": {"temperature": 2.5},
    "top-k": {"top_k": 3},
    "top-k above vocab size": {"top_k": 50},
    "top-p": {"top_p": 0.7},
    "small top-p": {"top_p": 0.05},
    "min-p": {"min_p": 0.2},
    "top-k and top-p": {"top_k": 5, "top_p": 0.8},
    "top-p and min-p": {"top_p": 0.95, "min_p": 0.1},
    "all": {"temperature": 1.7, "top_k": 6, "top_p": 0.9, "min_p": 0.15},
}


class FixedModel:
    """A stateless model with the same logits at every step."""

    def __init__(self, logits: list[float]) -> None:
        self.logits = torch.tensor(logits, dtype=torch.float64)

    def step(self, tokens: Tensor, state: TensorState) -> tuple[Tensor, TensorState]:
        return self.logits.expand(len(tokens), 1, -1), state


def sample(model: TableModel, rows: list[int], max_length: int, seeds: list[int], **params) -> list[Hypothesis]:
    """Sampled outputs for some rows of the table; a row may occur more than once."""
    strategy = Sampler([max_length] * len(rows), EOS, SamplingParams(**params), seeds=seeds)
    state = TensorState(torch.tensor(rows), torch.zeros(len(rows), dtype=torch.long))
    return [one for (one,) in search(model, state, start_tokens(len(rows)), strategy)]


def probabilities(logits: Tensor, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> list[float]:
    """The probability of each token: one filter after another, as the papers define them."""
    weights = [math.exp(logit / temperature) for logit in logits.tolist()]
    ranked = sorted(range(len(weights)), key=lambda token: -weights[token])
    if top_k:
        ranked = ranked[:top_k]
    total = sum(weights[token] for token in ranked)
    nucleus: list[int] = []
    while sum(weights[token] for token in nucleus) / total < top_p and len(nucleus) < len(ranked):
        nucleus.append(ranked[len(nucleus)])
    remaining = [token for token in nucleus if weights[token] >= min_p * weights[ranked[0]]]
    total = sum(weights[token] for token in remaining)
    return [weights[token] / total if token in remaining else 0.0 for token in range(len(weights))]


def assert_counts_fit(counts: list[int], expected: list[float]) -> None:
    """Pearson's χ², with a bound that random counts exceed once in 30,000 cases (Wilson & Hilferty 1931, z = 4)."""
    total = sum(counts)
    assert not any(count for count, p in zip(counts, expected, strict=True) if p == 0.0)
    terms = [(count - total * p) ** 2 / (total * p) for count, p in zip(counts, expected, strict=True) if p > 0.0]
    freedom = len(terms) - 1
    if freedom > 0:
        ninth = 2 / (9 * freedom)
        assert sum(terms) < freedom * (1 - ninth + 4 * math.sqrt(ninth)) ** 3


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS.keys())
def test_tokens_follow_the_distribution(params: dict) -> None:
    model = TableModel(1, 9, 4)
    counts = Counter(with_eos(one)[0] for one in sample(model, [0] * SAMPLES, 1, list(range(SAMPLES)), **params))
    assert_counts_fit([counts[token] for token in range(9)], probabilities(model.logits[0, 0, 1], **params))


def test_pairs_of_tokens_follow_the_joint_distribution() -> None:
    model, params = TableModel(1, 4, 1), {"temperature": 1.3, "top_p": 0.97}
    counts = Counter(with_eos(one) for one in sample(model, [0] * SAMPLES, 2, list(range(SAMPLES)), **params))
    expected = {}
    for first, p in enumerate(probabilities(model.logits[0, 0, 1], **params)):
        second_p = probabilities(model.logits[0, 1, first], **params)
        expected |= {(EOS,): p} if first == EOS else {(first, second): p * q for second, q in enumerate(second_p)}
    assert set(counts) <= set(expected)
    assert_counts_fit([counts[each] for each in expected], list(expected.values()))


def test_same_seeds_give_the_same_outputs() -> None:
    model, rows, seeds = TableModel(3, 6, 0), [0, 1, 2], [5, 6, 7]
    assert sample(model, rows, 12, seeds) == sample(model, rows, 12, seeds)


def test_different_seeds_give_different_outputs() -> None:
    model = TableModel(1, 6, 0)
    model.logits[..., EOS] = -30  # no output ends by itself
    model.logits *= 0.1  # and no output is likely enough to be sampled twice
    assert len({one.tokens for one in sample(model, [0] * 50, 20, list(range(50)))}) == 50


@given(
    seed=st.integers(0, 10_000),
    max_lengths=st.lists(st.integers(1, 8), min_size=4, max_size=4),
    top_k=st.integers(0, 3),
)
def test_sample_does_not_depend_on_the_batch(seed: int, max_lengths: list[int], top_k: int) -> None:
    model, seeds = TableModel(4, 5, seed), [seed, seed + 1, 3, 2**63 + seed]
    strategy = Sampler(max_lengths, EOS, SamplingParams(top_k=top_k), seeds=seeds)
    batched = search(model, model.start(), start_tokens(4), strategy)
    for row in range(4):
        assert sample(model, [row], max_lengths[row], [seeds[row]], top_k=top_k) == batched[row]


@given(seed=st.integers(0, 10_000), top_k=st.integers(0, 3), min_p=st.sampled_from([0.0, 0.5]))
def test_temperature_0_equals_greedy_search(seed: int, top_k: int, min_p: float) -> None:
    model = TableModel(3, 5, seed)
    found = sample(model, [0, 1, 2], 7, [seed] * 3, temperature=0.0, top_k=top_k, min_p=min_p)
    assert found == greedy_search(model, model.start(), start_tokens(3), eos=EOS, max_length=7)


@given(seed=st.integers(0, 10_000))
def test_logprobs_of_samples_match_the_model(seed: int) -> None:
    model = TableModel(2, 5, seed)
    params = {"temperature": 3.0, "top_k": 4, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.5}
    for row, one in enumerate(sample(model, [0, 1], 7, [seed, 1], **params)):
        assert one.logprob == pytest.approx(model.logprob(row, one.tokens, one.ended))
        assert sum(one.token_logprobs) == pytest.approx(one.logprob)


def argmax_with_penalty(logits: list[float], max_length: int, penalty: float) -> tuple[int, ...]:
    params = SamplingParams(temperature=0.0, repetition_penalty=penalty)
    strategy = Sampler([max_length], EOS, params, seeds=[0])
    ((found,),) = search(FixedModel(logits), TensorState(), start_tokens(1), strategy)
    return with_eos(found)


def test_repetition_penalty_divides_positive_logits() -> None:
    """2 becomes 1 and 1.5 leads; then 1.5 becomes 0.75 and 1 leads from then on."""
    assert argmax_with_penalty([-9.0, 2.0, 1.5, 0.5], 5, 2.0) == (1, 2, 1, 1, 1)


def test_repetition_penalty_multiplies_negative_logits() -> None:
    """-1 becomes -2 and -1.5 leads; then -1.5 becomes -3 and -2 leads; -2.5 never does."""
    assert argmax_with_penalty([-9.0, -1.0, -1.5, -2.5], 5, 2.0) == (1, 2, 1, 1, 1)


def test_repetition_penalty_does_not_apply_to_eos_before_it_is_generated() -> None:
    assert argmax_with_penalty([1.5, 2.0, 1.2], 5, 2.0) == (1, EOS)


def test_repetition_penalty_of_1_changes_nothing() -> None:
    model = TableModel(2, 6, 3)
    assert sample(model, [0, 1], 9, [4, 5], repetition_penalty=1.0) == sample(model, [0, 1], 9, [4, 5])


def test_repeated_tokens_follow_the_penalized_distribution() -> None:
    logits = [0.3, 1.2, -0.7]
    strategy = Sampler([2] * SAMPLES, EOS, SamplingParams(repetition_penalty=1.8), seeds=range(SAMPLES))
    outputs = search(FixedModel(logits), TensorState(), start_tokens(SAMPLES), strategy)
    for first, penalized in [(1, [0.3, 1.2 / 1.8, -0.7]), (2, [0.3, 1.2, -0.7 * 1.8])]:
        counts = Counter(with_eos(one)[1] for (one,) in outputs if with_eos(one)[0] == first)
        assert_counts_fit([counts[token] for token in range(3)], probabilities(torch.tensor(penalized)))


def test_wrong_number_of_seeds_is_refused() -> None:
    with pytest.raises(UserError, match="2 seeds for 3 rows"):
        Sampler([4, 4, 4], EOS, seeds=[1, 2])


def kolmogorov_smirnov(numbers: Tensor) -> float:
    """√n · D; uniform numbers exceed 2 once in 1,500 cases."""
    count = len(numbers)
    ideal = torch.arange(count + 1, dtype=torch.float64) / count
    ranked = numbers.sort().values
    return math.sqrt(count) * float(torch.maximum(ideal[1:] - ranked, ranked - ideal[:-1]).max())


@pytest.mark.parametrize("step", [0, 1, 2, 77])
def test_numbers_are_uniform_over_seeds(step: int) -> None:
    seeds = torch.arange(100_000)
    assert kolmogorov_smirnov(uniform(seeds, torch.full_like(seeds, step))) < 2


@pytest.mark.parametrize("seed", [0, 1, -1, 123_456_789])
def test_numbers_are_uniform_over_steps(seed: int) -> None:
    steps = torch.arange(100_000)
    assert kolmogorov_smirnov(uniform(torch.full_like(steps, seed), steps)) < 2


def correlation(one: Tensor, other: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one, other)))[0, 1]) * math.sqrt(len(one))


@pytest.mark.parametrize("lag", range(-3, 4))
@pytest.mark.parametrize("seed", [0, 1, 1000])
def test_neighboring_seeds_are_uncorrelated(seed: int, lag: int) -> None:
    steps = torch.arange(10, 50_010)
    one, other = uniform(torch.full_like(steps, seed), steps), uniform(torch.full_like(steps, seed + 1), steps + lag)
    assert abs(correlation(one, other)) < 4


def test_neighboring_steps_are_uncorrelated() -> None:
    seeds = torch.arange(50_000)
    for step in range(5):
        one, other = (uniform(seeds, torch.full_like(seeds, number)) for number in (step, step + 1))
        assert abs(correlation(one, other)) < 4


def splitmix(x: int) -> int:
    """The mixing function of SplitMix64 in unsigned integers (Steele, Lea & Flood 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@given(seed=st.integers(-(2**63), 2**63 - 1), step=st.integers(0, 10_000))
def test_numbers_equal_splitmix64(seed: int, step: int) -> None:
    mixed = splitmix((splitmix(seed % 2**64) + (step + 1) * 0x9E3779B97F4A7C15) % 2**64)
    assert float(uniform(torch.tensor([seed]), torch.tensor([step]))) == (mixed >> 11) / 2**53
