"""Constrained beam search: outputs contain their required words, and a wide beam finds the best of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import (
    BeamSearch,
    ConstrainedBeamSearch,
    ForbiddenProcessor,
    Hypothesis,
    LengthPenalty,
    PrefixProcessor,
    RequiredWord,
    search,
)
from regard.decode.constrained_beam import ConstraintProgress
from tests.decode.toy_models import EOS, PENALTIES, TableModel, contains, start_tokens

Words = tuple[tuple[int, ...], ...]
MAX_LENGTH = 6
NO_PENALTY = LengthPenalty(kind="none")
DISJOINT: list[Words] = [((1,),), ((2, 3),), ((1,), (2, 3)), ((3, 2, 1),), ((1,), (2,), (3,))]
SAME_FIRST_TOKEN: list[Words] = [((1, 2), (1, 3)), ((1, 3), (1, 2)), ((1, 2, 3), (1, 3)), ((1, 3), (1, 2), (1, 1))]
SELF_OVERLAPPING: list[Words] = [((1, 1, 2),), ((1, 2, 1, 3),)]
OVERLAPPING: list[Words] = [((1, 2), (2, 3)), ((1, 2, 3), (2,)), ((2,), (1, 2, 3)), ((1,), (1, 2))]


def decode(
    model: TableModel, required: list[Words], beam_size: int, *, max_lengths: list[int] | None = None, **options
) -> list[list[Hypothesis]]:
    max_lengths = [MAX_LENGTH] * len(required) if max_lengths is None else max_lengths
    strategy = ConstrainedBeamSearch(max_lengths, EOS, beam_size, required, **options)
    return search(model, model.start(), start_tokens(len(required)), strategy)


def best_with(model: TableModel, words: Words, penalty: LengthPenalty, max_length: int) -> tuple[float, Words]:
    """The best of all outputs that contain the words and end with EOS."""
    return next(
        (score, tokens)
        for score, tokens in model.all_outputs(0, max_length, penalty)
        if len(tokens) < max_length and all(contains(tokens, word) for word in words)
    )


def assert_wide_beam_finds_the_best(words: Words, penalty: LengthPenalty, max_length: int = MAX_LENGTH) -> None:
    for seed in range(4):
        model = TableModel(1, 4, seed)
        beam_size = 3 ** (max_length - 1)
        (found,) = decode(model, [words], beam_size, max_lengths=[max_length], length_penalty=penalty)
        score, tokens = best_with(model, words, penalty, max_length)
        assert (found[0].score, found[0].tokens) == (pytest.approx(score), tokens)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("words", DISJOINT + SAME_FIRST_TOKEN + SELF_OVERLAPPING + OVERLAPPING, ids=str)
@pytest.mark.parametrize("beam_size", [1, 2, 5, 16])
def test_every_output_contains_every_required_word(words: Words, beam_size: int) -> None:
    for seed in range(3):
        for hypotheses in decode(TableModel(2, 5, seed), [words, words], beam_size, max_lengths=[8, 11]):
            assert hypotheses
            assert all(contains(one.tokens, word) for one in hypotheses for word in words)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    words=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=3),
    beam_size=st.integers(1, 6),
)
def test_best_output_contains_any_required_words(seed: int, words: list[list[int]], beam_size: int) -> None:
    ((best, *_),) = decode(TableModel(1, 6, seed), [tuple(map(tuple, words))], beam_size, max_lengths=[12])
    assert all(contains(best.tokens, tuple(word)) for word in words)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("words", DISJOINT, ids=str)
def test_wide_beam_finds_the_best(words: Words, penalty: LengthPenalty) -> None:
    assert_wide_beam_finds_the_best(words, penalty, max_length=5)


@pytest.mark.parametrize("words", SAME_FIRST_TOKEN + SELF_OVERLAPPING, ids=str)
def test_wide_beam_finds_the_best_with_ambiguous_words(words: Words) -> None:
    assert_wide_beam_finds_the_best(words, NO_PENALTY)


@pytest.mark.parametrize(("prefix", "word"), [((1, 1, 1), (1, 1, 2)), ((1, 2, 1, 2, 1), (1, 2, 1, 3))])
def test_self_overlapping_word_is_completed(prefix: tuple[int, ...], word: tuple[int, ...]) -> None:
    """1 1 1 2 contains 1 1 2, whichever 1 it started with."""
    processors = [PrefixProcessor([prefix])]
    (found,) = decode(TableModel(1, 4, 0), [(word,)], 4, max_lengths=[len(prefix) + 2], processors=processors)
    assert [one.tokens for one in found] == [(*prefix, word[-1])]


@pytest.mark.parametrize("words", OVERLAPPING, ids=str)
def test_wide_beam_finds_outputs_in_which_words_overlap(words: Words) -> None:
    """1 2 3 contains 1 2 and 2 3. The maximum length leaves room for both without overlap too."""
    for seed in range(4):
        model = TableModel(1, 4, seed)
        (found,) = decode(model, [words], 3**5, max_lengths=[MAX_LENGTH + 3], length_penalty=NO_PENALTY)
        score, _ = best_with(model, words, NO_PENALTY, MAX_LENGTH)
        assert found[0].score >= score - 1e-9


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), words=st.sampled_from(DISJOINT), penalty=st.sampled_from(PENALTIES))
def test_logprobs_and_scores_match_the_model(seed: int, words: Words, penalty: LengthPenalty) -> None:
    model = TableModel(2, 5, seed)
    for row, hypotheses in enumerate(decode(model, [words, ()], 4, length_penalty=penalty)):
        for one in hypotheses:
            assert one.logprob == pytest.approx(model.logprob(row, one.tokens, one.ended))
            assert sum(one.token_logprobs) == pytest.approx(one.logprob)
            assert one.score == pytest.approx(one.logprob / penalty.at(len(one.tokens) + one.ended))


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), words=st.sampled_from(DISJOINT))
def test_constrained_outputs_end_with_eos(seed: int, words: Words) -> None:
    model = TableModel(1, 5, seed)
    model.logits[..., EOS] -= 3
    (found,) = decode(model, [words], 4)
    assert all(one.ended for one in found)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beam_size=st.integers(1, 5))
def test_slots_without_words_equal_plain_beam_search(seed: int, beam_size: int) -> None:
    model, max_lengths = TableModel(3, 6, seed), [6, 3, 5]
    plain = search(model, model.start(), start_tokens(3), BeamSearch(max_lengths, EOS, beam_size))
    found = decode(model, [(), ((1,),), ()], beam_size, max_lengths=max_lengths)
    for row in (0, 2):
        assert [one.tokens for one in found[row]] == [one.tokens for one in plain[row]]


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beam_size=st.integers(1, 6))
def test_rows_keep_their_required_words_when_others_finish(seed: int, beam_size: int) -> None:
    model, max_lengths = TableModel(4, 5, seed), [2, 9, 3, 6]
    words: list[Words] = [((1,),), ((2, 3), (4,)), (), ((3,), (1, 1))]
    batched = decode(model, words, beam_size, max_lengths=max_lengths)
    for row in range(4):
        alone = decode(model.only(row), [words[row]], beam_size, max_lengths=[max_lengths[row]])
        assert alone == [batched[row]]


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beam_size=st.integers(1, 6))
def test_required_words_combine_with_a_prefix_and_forbidden_words(seed: int, beam_size: int) -> None:
    processors = [PrefixProcessor([(3, 1)]), ForbiddenProcessor([(4,), (2, 2)])]
    model = TableModel(1, 6, seed)
    (found,) = decode(model, [((1, 2), (5,))], beam_size, max_lengths=[10], processors=processors)
    assert found
    for one in found:
        assert one.tokens[:2] == (3, 1)
        assert contains(one.tokens, (1, 2))
        assert contains(one.tokens, (5,))
        assert not contains(one.tokens, (4,))
        assert not contains(one.tokens, (2, 2))


def test_required_words_may_fill_the_output() -> None:
    (found,) = decode(TableModel(1, 5, 0), [((1, 2), (3,))], 4, max_lengths=[4])
    assert {one.tokens for one in found} == {(1, 2, 3), (3, 1, 2)}


@pytest.mark.parametrize(
    ("max_lengths", "required", "message"),
    [
        ([9, 3], [((1, 2), (3,)), ((1, 2), (3,))], "required words have 3 tokens.* at most 3"),
        ([9], [((1,), ())], "required word has no tokens"),
        ([9, 9], [((1,),)], "required words for 1 rows.* 2 rows"),
    ],
    ids=["too long", "empty", "wrong number of rows"],
)
def test_unsatisfiable_words_are_refused(max_lengths: list[int], required: list[Words], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ConstrainedBeamSearch(max_lengths, EOS, 4, required)


WORD = RequiredWord(anywhere=((4, 2),), initial=((3,), (2, 2)))


@pytest.mark.parametrize("seed", range(6))
def test_word_is_written_in_one_of_its_ways(seed: int) -> None:
    model = TableModel(3, 6, seed)
    strategy = ConstrainedBeamSearch([7] * 3, EOS, 4, [(WORD, (5,))] * 3)
    for hypotheses in search(model, model.start(), start_tokens(3), strategy):
        assert hypotheses
        for one in hypotheses:
            begins = one.tokens[:1] == (3,) or one.tokens[:2] == (2, 2)
            assert begins or contains(one.tokens[1:], (4, 2))
            assert 5 in one.tokens
    best = {one.tokens[:1] == (3,) for seed in range(6) for one in best_of(TableModel(3, 6, seed))}
    assert best == {True, False}, "both ways occur"


def best_of(model: TableModel) -> list[Hypothesis]:
    strategy = ConstrainedBeamSearch([7] * 3, EOS, 4, [(WORD,)] * 3)
    return [best for best, *_ in search(model, model.start(), start_tokens(3), strategy)]


def test_initial_form_counts_at_the_start_only_and_the_other_one_elsewhere() -> None:
    progress = ConstraintProgress.start([WORD])
    assert (progress.tokens_left, progress.next_tokens()) == (1, {3, 2})
    assert progress.after(3).tokens_left == 0
    later = progress.after(4)  # the first token of the form inside a text, which does not count here
    assert (later.tokens_left, later.next_tokens()) == (2, {4})
    assert later.after(3).tokens_left == 2
    assert later.after(4).after(2).tokens_left == 0
    assert progress.after(2).next_tokens() == {2, 4}
