"""Required words are there, and no output that has them is missed by beams that are wide enough."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard import UserError
from regard.decode import Beams, Forbidden, LengthPenalty, NoPenalty, PaperPenalty, Prefix, Required, search
from tests.decode.test_rules import contains
from tests.decode.test_search import END, PENALTIES, Table, start

Words = tuple[tuple[int, ...], ...]
LIMIT = 6
APART: list[Words] = [((1,),), ((2, 3),), ((1,), (2, 3)), ((3, 2, 1),), ((1,), (2,), (3,))]
SAME_BEGINNING: list[Words] = [((1, 2), (1, 3)), ((1, 3), (1, 2)), ((1, 2, 3), (1, 3)), ((1, 3), (1, 2), (1, 1))]
OVER_ITSELF: list[Words] = [((1, 1, 2),), ((1, 2, 1, 3),)]
OVER_EACH_OTHER: list[Words] = [((1, 2), (2, 3)), ((1, 2, 3), (2,)), ((2,), (1, 2, 3)), ((1,), (1, 2))]


def find(table: Table, words: list[Words], beams: int, *, limits: list[int] | None = None, **options):
    limits = [LIMIT] * len(words) if limits is None else limits
    return search(table, table.start(), start(len(words)), Required(limits, END, beams, words, **options))


def best_with(table: Table, words: Words, penalty: LengthPenalty, limit: int) -> tuple[float, tuple[int, ...]]:
    """The best of all outputs that have the words and come to their end."""
    everything = table.everything(0, limit, penalty)
    return next(
        (score, tokens)
        for score, tokens in everything
        if len(tokens) < limit and all(contains(tokens, word) for word in words)
    )


def assert_finds_the_best(words: Words, penalty: LengthPenalty, limit: int = LIMIT) -> None:
    for seed in range(4):
        table = Table(1, 4, seed)
        (found,) = find(table, [words], 3 ** (limit - 1), limits=[limit], penalty=penalty)
        score, tokens = best_with(table, words, penalty, limit)
        assert (found[0].score, found[0].tokens) == (pytest.approx(score), tokens)


@pytest.mark.parametrize("words", APART + SAME_BEGINNING + OVER_ITSELF + OVER_EACH_OTHER, ids=str)
@pytest.mark.parametrize("beams", [1, 2, 5, 16])
def test_every_output_contains_every_word(words: Words, beams: int) -> None:
    for seed in range(3):
        for hypotheses in find(Table(2, 5, seed), [words, words], beams, limits=[8, 11]):
            assert hypotheses
            assert all(contains(one.tokens, word) for one in hypotheses for word in words)


@settings(max_examples=20)
@given(
    seed=st.integers(0, 10_000),
    words=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), min_size=1, max_size=3),
    beams=st.integers(1, 6),
)
def test_whatever_the_words_an_output_is_found_that_contains_them(
    seed: int, words: list[list[int]], beams: int
) -> None:
    ((best, *_),) = find(Table(1, 6, seed), [tuple(map(tuple, words))], beams, limits=[12])
    assert all(contains(best.tokens, tuple(word)) for word in words)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("words", APART, ids=str)
def test_beams_wide_enough_find_the_best_with_its_words(words: Words, penalty: LengthPenalty) -> None:
    assert_finds_the_best(words, penalty, limit=5)


@pytest.mark.parametrize("words", SAME_BEGINNING, ids=str)
def test_beams_wide_enough_find_the_best_whichever_word_with_the_same_beginning_comes_first(words: Words) -> None:
    assert_finds_the_best(words, NoPenalty())


@pytest.mark.parametrize("words", OVER_ITSELF, ids=str)
def test_beams_wide_enough_find_the_best_with_a_word_that_can_begin_within_itself(words: Words) -> None:
    assert_finds_the_best(words, NoPenalty())


@pytest.mark.parametrize(("prefix", "word"), [((1, 1, 1), (1, 1, 2)), ((1, 2, 1, 2, 1), (1, 2, 1, 3))])
def test_a_word_begun_anew_within_itself_is_brought_to_its_end(prefix: tuple[int, ...], word: tuple[int, ...]) -> None:
    """1 1 1 2 contains 1 1 2, whichever 1 it began with."""
    (found,) = find(Table(1, 4, 0), [(word,)], 4, limits=[len(prefix) + 2], rules=[Prefix([prefix])])
    assert [one.tokens for one in found] == [(*prefix, word[-1])]


@pytest.mark.parametrize("words", OVER_EACH_OTHER, ids=str)
def test_beams_wide_enough_miss_no_short_output_in_which_words_share_tokens(words: Words) -> None:
    """1 2 3 contains 1 2 and 2 3. There is room for both apart, so that only their sharing is tried here."""
    for seed in range(4):
        table = Table(1, 4, seed)
        (found,) = find(table, [words], 3**5, limits=[LIMIT + 3], penalty=NoPenalty())
        score, _ = best_with(table, words, NoPenalty(), LIMIT)
        assert found[0].score >= score - 1e-9


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), words=st.sampled_from(APART), penalty=st.sampled_from(PENALTIES))
def test_log_probabilities_and_scores_are_the_models_own(seed: int, words: Words, penalty: LengthPenalty) -> None:
    table = Table(2, 5, seed)
    for row, hypotheses in enumerate(find(table, [words, ()], 4, penalty=penalty)):
        for one in hypotheses:
            assert one.log_probability == pytest.approx(table.log_probability(row, one.tokens, one.ended))
            assert sum(one.steps) == pytest.approx(one.log_probability)
            assert one.score == pytest.approx(one.log_probability / penalty.at(len(one.tokens) + one.ended))


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), words=st.sampled_from(APART))
def test_an_output_with_words_comes_to_its_end(seed: int, words: Words) -> None:
    table = Table(1, 5, seed)
    table.scores[..., END] -= 3
    (found,) = find(table, [words], 4)
    assert all(one.ended for one in found)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beams=st.integers(1, 5))
def test_a_slot_without_words_is_plain_beam_search(seed: int, beams: int) -> None:
    table, limits = Table(3, 6, seed), [6, 3, 5]
    plain = search(table, table.start(), start(3), Beams(limits, END, beams, penalty=PaperPenalty(0.6)))
    found = find(table, [(), ((1,),), ()], beams, limits=limits, penalty=PaperPenalty(0.6))
    assert [[one.tokens for one in found[row]] for row in (0, 2)] == [
        [one.tokens for one in plain[row]] for row in (0, 2)
    ]


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beams=st.integers(1, 6))
def test_every_row_gets_its_own_words_when_others_leave(seed: int, beams: int) -> None:
    table, limits = Table(4, 5, seed), [2, 9, 3, 6]
    words: list[Words] = [((1,),), ((2, 3), (4,)), (), ((3,), (1, 1))]
    together = find(table, words, beams, limits=limits)
    for row in range(4):
        alone = Table(4, 5, seed)
        alone.scores = alone.scores[row : row + 1]
        assert find(alone, [words[row]], beams, limits=[limits[row]]) == [together[row]]


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), beams=st.integers(1, 6))
def test_words_come_behind_a_prefix_and_without_what_is_forbidden(seed: int, beams: int) -> None:
    rules = [Prefix([(3, 1)]), Forbidden([(4,), (2, 2)])]
    (found,) = find(Table(1, 6, seed), [((1, 2), (5,))], beams, limits=[10], rules=rules)
    assert found
    for one in found:
        assert one.tokens[:2] == (3, 1)
        assert contains(one.tokens, (1, 2))
        assert contains(one.tokens, (5,))
        assert not contains(one.tokens, (4,))
        assert not contains(one.tokens, (2, 2))


def test_words_that_fill_all_but_the_end_are_found() -> None:
    (found,) = find(Table(1, 5, 0), [((1, 2), (3,))], 4, limits=[4])
    assert {one.tokens for one in found} == {(1, 2, 3), (3, 1, 2)}


def test_more_words_than_the_limit_has_room_for_are_refused() -> None:
    with pytest.raises(UserError, match="required words have 3 tokens and the output at most 3, its end included"):
        Required([9, 3], END, 4, [((1, 2), (3,)), ((1, 2), (3,))])


def test_a_word_without_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="required word has no tokens"):
        Required([9], END, 4, [((1,), ())])


def test_words_that_do_not_fit_the_rows_are_refused() -> None:
    with pytest.raises(UserError, match="required words for 1 rows, and 2 rows"):
        Required([9, 9], END, 4, [((1,),)])
