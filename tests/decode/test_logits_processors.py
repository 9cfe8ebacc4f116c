"""Outputs satisfy their logits processors; the best allowed output is found, and logprobs stay the model's own."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import (
    BeamSearch,
    DiverseBeamSearch,
    Diversity,
    ForbiddenProcessor,
    Greedy,
    Hypothesis,
    LengthPenalty,
    LogitsProcessor,
    MinLengthProcessor,
    NoRepeatNgramProcessor,
    PrefixProcessor,
    Sampler,
    SamplingParams,
    SearchStrategy,
    search,
)
from tests.decode.toy_models import EOS, TableModel, contains, start_tokens

Make = Callable[[Sequence[int], Sequence[LogitsProcessor]], SearchStrategy]
STRATEGIES: dict[str, Make] = {
    "greedy": lambda lengths, processors: Greedy(lengths, EOS, processors=processors),
    "sampling": lambda lengths, processors: Sampler(
        lengths, EOS, SamplingParams(temperature=2.0), seeds=[7] * len(lengths), processors=processors
    ),
    "beam": lambda lengths, processors: BeamSearch(lengths, EOS, 3, processors=processors),
    "diverse": lambda lengths, processors: DiverseBeamSearch(lengths, EOS, 4, Diversity(2, 0.5), processors=processors),
}
every_strategy = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())
PREFIXES = [(3, 1), (), (2,), (4, 4, 4), (1, 2, 3)]
FORBIDDEN = [(2,), (1, 3), (3, 3, 1)]
MIN_LENGTHS = [3, 0, 1, 5, 4]


def decode(model: TableModel, strategy: SearchStrategy) -> list[list[Hypothesis]]:
    return search(model, model.start(), start_tokens(len(model.logits)), strategy)


def assert_wide_beam_finds_the_best(
    allowed: Callable[[int, tuple[int, ...]], bool],
    model: TableModel,
    processors: Sequence[LogitsProcessor],
    penalty: LengthPenalty,
) -> None:
    """A beam that holds every output equals exhaustive search over the allowed outputs."""
    max_length, vocab_size, rows = 4, model.logits.shape[-1], len(model.logits)
    strategy = BeamSearch(
        [max_length] * rows, EOS, vocab_size**max_length, processors=processors, length_penalty=penalty
    )
    for row, hypotheses in enumerate(decode(model, strategy)):
        every = model.all_outputs(row, max_length, penalty)
        expected = [(score, tokens) for score, tokens in every if allowed(row, tokens)]
        assert [one.score for one in hypotheses] == pytest.approx([score for score, _ in expected])
        assert hypotheses[0].tokens == expected[0][1]


@every_strategy
def test_outputs_begin_with_the_prefix(make: Make) -> None:
    found = decode(TableModel(5, 5, 2), make([6] * 5, [PrefixProcessor(PREFIXES)]))
    for prefix, hypotheses in zip(PREFIXES, found, strict=True):
        assert all(one.tokens[: len(prefix)] == prefix for one in hypotheses)


@every_strategy
@pytest.mark.parametrize(
    "processor",
    [
        lambda: PrefixProcessor(PREFIXES),
        lambda: ForbiddenProcessor(FORBIDDEN),
        lambda: MinLengthProcessor(MIN_LENGTHS, EOS),
    ],
    ids=["prefix", "forbidden", "min length"],
)
def test_logprobs_match_the_model(make: Make, processor: Callable[[], LogitsProcessor]) -> None:
    model = TableModel(5, 5, 2)
    for row, hypotheses in enumerate(decode(model, make([6] * 5, [processor()]))):
        assert hypotheses
        for one in hypotheses:
            assert one.logprob == pytest.approx(model.logprob(row, one.tokens, one.ended))


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), prefix=st.lists(st.integers(1, 4), max_size=4))
def test_greedy_search_continues_a_prefix(seed: int, prefix: list[int]) -> None:
    model = TableModel(1, 5, seed)
    ((found,),) = decode(model, Greedy([6], EOS, processors=[PrefixProcessor([prefix])]))
    before, last, expected = 0, 1, []
    for position in range(6):
        token = prefix[position] if position < len(prefix) else int(model.logits[0, before, last].argmax())
        if token == EOS:
            break
        expected.append(token)
        before, last = last, token
    assert found.tokens == tuple(expected)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), prefixes=st.lists(st.lists(st.integers(1, 2), max_size=3), min_size=2, max_size=2))
def test_wide_beam_finds_the_best_with_a_prefix(seed: int, prefixes: list[list[int]]) -> None:
    def allowed(row: int, tokens: tuple[int, ...]) -> bool:
        return tokens[: len(prefixes[row])] == tuple(prefixes[row])

    processors = [PrefixProcessor(prefixes)]
    assert_wide_beam_finds_the_best(allowed, TableModel(2, 3, seed), processors, LengthPenalty(alpha=0.6))


def test_prefix_longer_than_the_output_is_cut() -> None:
    strategy = BeamSearch([2], EOS, 3, processors=[PrefixProcessor([(1, 2, 3)])])
    ((found, *others),) = decode(TableModel(1, 5, 0), strategy)
    assert (found.tokens, found.ended, others) == ((1, 2), False, [])


@every_strategy
def test_forbidden_sequences_never_occur(make: Make) -> None:
    model = TableModel(20, 5, 5)
    model.logits[..., 2] += 3  # otherwise 2 would often be generated
    for hypotheses in decode(model, make([7] * 20, [ForbiddenProcessor(FORBIDDEN)])):
        assert hypotheses
        assert not any(contains(one.tokens, sequence) for one in hypotheses for sequence in FORBIDDEN)


@every_strategy
def test_tokens_of_forbidden_sequences_may_occur_alone(make: Make) -> None:
    model = TableModel(1, 4, 5)
    model.logits[...] = 0.0
    model.logits[..., 3] = 90.0
    model.logits[..., EOS] = -90.0
    ((found, *_),) = decode(model, make([5], [ForbiddenProcessor([(3, 3)])]))
    assert [token == 3 for token in found.tokens] == [True, False, True, False, True]


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    sequences=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=1, max_size=3),
    penalty=st.sampled_from([LengthPenalty(kind="none"), LengthPenalty(alpha=2.0)]),
)
def test_wide_beam_finds_the_best_without_forbidden_sequences(
    seed: int, sequences: list[list[int]], penalty: LengthPenalty
) -> None:
    def allowed(row: int, tokens: tuple[int, ...]) -> bool:
        return not any(contains(tokens, tuple(sequence)) for sequence in sequences)

    assert_wide_beam_finds_the_best(allowed, TableModel(1, 4, seed), [ForbiddenProcessor(sequences)], penalty)


def test_forbidden_word_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="forbidden word has no tokens"):
        ForbiddenProcessor([(1,), ()])


@every_strategy
def test_no_output_ends_before_its_min_length(make: Make) -> None:
    model = TableModel(5, 5, 2)
    model.logits[..., EOS] += 4  # otherwise outputs would end early
    found = decode(model, make([7] * 5, [MinLengthProcessor(MIN_LENGTHS, EOS)]))
    for min_length, hypotheses in zip(MIN_LENGTHS, found, strict=True):
        assert hypotheses
        assert all(len(one.tokens) >= min_length for one in hypotheses)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), min_lengths=st.lists(st.integers(0, 4), min_size=2, max_size=2))
def test_wide_beam_finds_the_best_of_min_length(seed: int, min_lengths: list[int]) -> None:
    assert_wide_beam_finds_the_best(
        lambda row, tokens: len(tokens) >= min_lengths[row],
        TableModel(2, 3, seed),
        [MinLengthProcessor(min_lengths, EOS)],
        LengthPenalty(kind="none"),
    )


@every_strategy
@pytest.mark.parametrize("seed", range(5))
def test_rows_keep_their_processors_when_others_finish(make: Make, seed: int) -> None:
    model, max_lengths = TableModel(5, 5, seed), [1, 3, 1, 9, 6]
    model.logits[..., EOS] -= 2

    def processors(rows: Sequence[int]) -> list[LogitsProcessor]:
        min_lengths = [MIN_LENGTHS[row] for row in rows]
        return [PrefixProcessor([PREFIXES[row] for row in rows]), MinLengthProcessor(min_lengths, EOS)]

    batched = decode(model, make(max_lengths, processors(range(5))))
    for row in range(5):
        (alone,) = decode(model.only(row), make([max_lengths[row]], processors([row])))
        assert [one.tokens for one in batched[row]] == [one.tokens for one in alone]


def test_several_processors_apply_together() -> None:
    def allowed(row: int, tokens: tuple[int, ...]) -> bool:
        return tokens[:1] == (2,) and len(tokens) >= 3 and not contains(tokens, (2, 2)) and 1 not in tokens

    for seed in range(5):
        processors = [PrefixProcessor([(2,)]), ForbiddenProcessor([(2, 2), (1,)]), MinLengthProcessor([3], EOS)]
        assert_wide_beam_finds_the_best(allowed, TableModel(1, 4, seed), processors, LengthPenalty(alpha=0.6))


@every_strategy
@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_occurs_twice(make: Make, size: int) -> None:
    model = TableModel(20, 9, 5)
    model.logits[..., 2] += 3  # otherwise few n-grams would be repeated
    for hypotheses in decode(model, make([9] * 20, [NoRepeatNgramProcessor(size)])):
        assert hypotheses
        for one in hypotheses:
            ngrams = [one.tokens[start : start + size] for start in range(len(one.tokens) - size + 1)]
            assert len(set(ngrams)) == len(ngrams)


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 3))
def test_wide_beam_finds_the_best_without_repeated_ngrams(seed: int, size: int) -> None:
    def allowed(row: int, tokens: tuple[int, ...]) -> bool:
        ngrams = [tokens[start : start + size] for start in range(len(tokens) - size + 1)]
        return len(set(ngrams)) == len(ngrams)

    processors = [NoRepeatNgramProcessor(size)]
    assert_wide_beam_finds_the_best(allowed, TableModel(1, 4, seed), processors, LengthPenalty(alpha=0.6))


@every_strategy
def test_prefix_may_repeat_ngrams(make: Make) -> None:
    processors = [PrefixProcessor([(3, 3, 3, 3)]), NoRepeatNgramProcessor(1)]
    ((found, *_),) = decode(TableModel(1, 5, 2), make([6], processors))
    assert found.tokens[:4] == (3, 3, 3, 3)
    assert 3 not in found.tokens[4:]
