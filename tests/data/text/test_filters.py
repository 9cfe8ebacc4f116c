"""Filters: exactly the intended pairs are dropped, each for one reason, and the counts add up."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.text.filters import Example, Filter, FilterConfig, Reason
from regard.data.text.pairs import Pair

ORDER: list[Reason] = ["empty", "characters", "words", "ratio", "identical", "duplicate"]
EVERYTHING = FilterConfig(
    max_characters=12, max_words=3, max_length_ratio=2.0, drop_identical=True, drop_duplicates=True
)

sides = st.text("ab \t", max_size=14)
some_pairs = st.lists(st.builds(Pair, sides, sides), max_size=20)


def apply_filter(config: FilterConfig, *pairs: tuple[str, str]) -> list[Pair]:
    return list(Filter(config).apply(Pair(*pair) for pair in pairs))


def test_default_drops_empty_sides_only() -> None:
    pairs = [("a", "a"), ("", "b"), ("a", " \t"), ("a", "a"), ("a" * 1000, "b")]
    assert apply_filter(FilterConfig(), *pairs) == [("a", "a"), ("a", "a"), ("a" * 1000, "b")]


def test_empty_sides_can_be_kept() -> None:
    assert apply_filter(FilterConfig(drop_empty=False), ("", "b"), ("", "")) == [("", "b"), ("", "")]


def test_character_limit_is_inclusive() -> None:
    config = FilterConfig(max_characters=3)
    assert apply_filter(config, ("abc", "abc"), ("abcd", "a"), ("a", "abcd")) == [("abc", "abc")]


def test_word_limit_is_inclusive() -> None:
    config = FilterConfig(max_words=2)
    assert apply_filter(config, ("a  b", "a\tb "), ("a b c", "a"), ("a", "a b c")) == [("a  b", "a\tb ")]


def test_length_ratio_is_inclusive_and_symmetric() -> None:
    config = FilterConfig(max_length_ratio=1.5)
    pairs = [("abc", "ab"), ("ab", "abc"), ("abcd", "ab"), ("ab", "abcd")]
    assert apply_filter(config, *pairs) == pairs[:2]


def test_length_ratio_of_empty_sides() -> None:
    config = FilterConfig(drop_empty=False, max_length_ratio=100.0)
    assert apply_filter(config, ("", "b"), ("", "")) == [("", "")]


def test_identical_ignores_surrounding_white_space() -> None:
    config = FilterConfig(drop_identical=True)
    assert apply_filter(config, ("Ankara", " Ankara "), ("Ankara", "ankara")) == [("Ankara", "ankara")]


def test_first_of_duplicates_is_kept() -> None:
    config = FilterConfig(drop_duplicates=True)
    pairs = [("a", "b"), ("a", "c"), ("a", "b"), ("b", "a")]
    assert apply_filter(config, *pairs) == [("a", "b"), ("a", "c"), ("b", "a")]


def test_duplicates_compare_the_sides_separately() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("1:a", "b"), ("1", ":ab")]
    assert apply_filter(FilterConfig(drop_duplicates=True), *pairs) == pairs


def test_dropped_pairs_do_not_count_as_duplicates() -> None:
    filter = Filter(FilterConfig(max_words=1, drop_duplicates=True))
    list(filter.apply([Pair("a b", "c"), Pair("a b", "c")]))
    assert filter.stats.dropped == {"empty": 0, "words": 2, "duplicate": 0}


def test_pair_counts_for_its_first_reason() -> None:
    filter = Filter(EVERYTHING)
    pairs = [
        Pair("one", "bir"),
        Pair("", "a b c d e f g h"),  # empty before too long
        Pair("a b c d e f g", "a"),  # characters before words and ratio
        Pair("a b c d", "a"),  # words before ratio
        Pair("ab", "abcdef"),
        Pair("ab", "ab"),
        Pair("one", "bir"),
        Pair("one", "bir"),
    ]
    assert list(filter.apply(pairs)) == pairs[:1]
    assert filter.stats.dropped == {
        "empty": 1,
        "characters": 1,
        "words": 1,
        "ratio": 1,
        "identical": 1,
        "duplicate": 2,
    }


@given(pairs=some_pairs)
def test_kept_and_dropped_sum_to_the_total(pairs: list[Pair]) -> None:
    filter = Filter(EVERYTHING)
    result = list(filter.apply(pairs))
    stats = filter.stats
    assert (stats.total, stats.kept) == (len(pairs), len(result))
    assert stats.kept + sum(stats.dropped.values()) == stats.total


@given(pairs=some_pairs)
def test_filtering_is_idempotent(pairs: list[Pair]) -> None:
    filter = Filter(EVERYTHING)
    once = list(filter.apply(pairs))
    assert list(filter.apply(once)) == once


def test_examples_are_the_first_of_their_reason() -> None:
    filter = Filter(FilterConfig(drop_identical=True))
    list(filter.apply([Pair("a", "b"), Pair("c", "c"), Pair("d", "d"), Pair("", "e")]))
    assert filter.stats.examples == {
        "identical": Example(2, Pair("c", "c")),
        "empty": Example(4, Pair("", "e")),
    }


def test_stats_list_the_checked_reasons_in_order() -> None:
    assert list(Filter(EVERYTHING).stats.dropped) == ORDER
    assert list(Filter(FilterConfig(drop_empty=False)).stats.dropped) == []


def test_stats_as_text() -> None:
    filter = Filter(FilterConfig(max_words=50))
    list(filter.apply([Pair("a", "b"), Pair("word " * 100_000, "b")]))
    lines = str(filter.stats).splitlines()
    assert lines[:2] == ["1 of 2 pairs kept", "  0 dropped: a side is empty"]
    assert lines[2].startswith("  1 dropped: too many words, first pair 2: 'word word")
    assert len(lines[2]) < 140


def test_second_pass_starts_from_scratch() -> None:
    filter = Filter(FilterConfig(drop_duplicates=True))
    for _ in range(2):
        assert list(filter.apply([Pair("a", "b"), Pair("a", "b")])) == [("a", "b")]
        assert (filter.stats.total, filter.stats.kept) == (2, 1)


def test_pairs_are_filtered_lazily() -> None:
    taken: list[int] = []

    def recorded() -> Iterator[Pair]:
        for number in range(1000):
            taken.append(number)
            yield Pair(str(number), "x" if number % 2 else "")

    filter = Filter(FilterConfig())
    next(filter.apply(recorded()))
    assert taken == [0, 1]
    assert (filter.stats.total, filter.stats.kept) == (2, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_characters", 0), ("max_words", -1), ("max_length_ratio", 0.5), ("drop_empty", "yes")],
)
def test_value_out_of_range_names_the_key(key: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^{key}: found {value!r}; expected"):
        FilterConfig.read({key: value})


def test_misspelled_key_suggests_nearest() -> None:
    with pytest.raises(UserError, match="max_word: unknown key; did you mean 'max_words'"):
        FilterConfig.read({"max_word": 3})


def test_config_round_trips_through_json() -> None:
    assert FilterConfig.read(EVERYTHING.plain()) == EVERYTHING
