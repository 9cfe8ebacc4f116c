"""Filters: exactly the pairs meant are dropped, each for one reason, and the report adds up."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.filter import Example, Filter, FilterConfig, Reason
from regard.data.pairs import Pair

ORDER: list[Reason] = ["empty", "characters", "words", "ratio", "identical", "duplicate"]
EVERYTHING = FilterConfig(
    longest_characters=12, longest_words=3, largest_ratio=2.0, drop_identical=True, drop_duplicates=True
)

sides = st.text("ab \t", max_size=14)
some_pairs = st.lists(st.builds(Pair, sides, sides), max_size=20)


def kept(config: FilterConfig, *pairs: tuple[str, str]) -> list[Pair]:
    return list(Filter(config).apply(Pair(*pair) for pair in pairs))


def test_as_it_stands_only_pairs_with_an_empty_side_are_dropped() -> None:
    pairs = [("a", "a"), ("", "b"), ("a", " \t"), ("a", "a"), ("a" * 1000, "b")]
    assert kept(FilterConfig(), *pairs) == [("a", "a"), ("a", "a"), ("a" * 1000, "b")]


def test_empty_sides_stay_if_wished() -> None:
    assert kept(FilterConfig(drop_empty=False), ("", "b"), ("", "")) == [("", "b"), ("", "")]


def test_the_limit_of_characters_is_still_allowed_on_both_sides() -> None:
    config = FilterConfig(longest_characters=3)
    assert kept(config, ("abc", "abc"), ("abcd", "a"), ("a", "abcd")) == [("abc", "abc")]


def test_the_limit_of_words_is_still_allowed_on_both_sides() -> None:
    config = FilterConfig(longest_words=2)
    assert kept(config, ("a  b", "a\tb "), ("a b c", "a"), ("a", "a b c")) == [("a  b", "a\tb ")]


def test_the_limit_of_the_ratio_is_still_allowed_whichever_side_is_longer() -> None:
    config = FilterConfig(largest_ratio=1.5)
    pairs = [("abc", "ab"), ("ab", "abc"), ("abcd", "ab"), ("ab", "abcd")]
    assert kept(config, *pairs) == pairs[:2]


def test_one_empty_side_breaks_any_ratio_and_two_break_none() -> None:
    config = FilterConfig(drop_empty=False, largest_ratio=100.0)
    assert kept(config, ("", "b"), ("", "")) == [("", "")]


def test_identical_sides_are_told_by_text_not_by_white_space_around_it() -> None:
    config = FilterConfig(drop_identical=True)
    assert kept(config, ("Ankara", " Ankara "), ("Ankara", "ankara")) == [("Ankara", "ankara")]


def test_the_first_of_several_duplicates_is_kept() -> None:
    config = FilterConfig(drop_duplicates=True)
    pairs = [("a", "b"), ("a", "c"), ("a", "b"), ("b", "a")]
    assert kept(config, *pairs) == [("a", "b"), ("a", "c"), ("b", "a")]


def test_a_letter_on_the_other_side_makes_no_duplicate() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("1:a", "b"), ("1", ":ab")]
    assert kept(FilterConfig(drop_duplicates=True), *pairs) == pairs


def test_a_dropped_pair_is_not_remembered_as_seen() -> None:
    filter = Filter(FilterConfig(longest_words=1, drop_duplicates=True))
    list(filter.apply([Pair("a b", "c"), Pair("a b", "c")]))
    assert filter.report.dropped == {"empty": 0, "words": 2, "duplicate": 0}


def test_counts_are_exact_and_the_first_reason_in_order_counts() -> None:
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
    assert filter.report.dropped == {
        "empty": 1,
        "characters": 1,
        "words": 1,
        "ratio": 1,
        "identical": 1,
        "duplicate": 2,
    }


@given(pairs=some_pairs)
def test_kept_and_dropped_add_up_to_the_total(pairs: list[Pair]) -> None:
    filter = Filter(EVERYTHING)
    result = list(filter.apply(pairs))
    report = filter.report
    assert (report.total, report.kept) == (len(pairs), len(result))
    assert report.kept + sum(report.dropped.values()) == report.total


@given(pairs=some_pairs)
def test_what_was_kept_is_kept_again(pairs: list[Pair]) -> None:
    filter = Filter(EVERYTHING)
    once = list(filter.apply(pairs))
    assert list(filter.apply(once)) == once


def test_each_reason_has_its_first_example_with_its_number() -> None:
    filter = Filter(FilterConfig(drop_identical=True))
    list(filter.apply([Pair("a", "b"), Pair("c", "c"), Pair("d", "d"), Pair("", "e")]))
    assert filter.report.examples == {
        "identical": Example(2, Pair("c", "c")),
        "empty": Example(4, Pair("", "e")),
    }


def test_the_report_has_the_reasons_looked_for_in_their_order() -> None:
    assert list(Filter(EVERYTHING).report.dropped) == ORDER
    assert list(Filter(FilterConfig(drop_empty=False)).report.dropped) == []


def test_the_report_reads_well() -> None:
    filter = Filter(FilterConfig(longest_words=50))
    list(filter.apply([Pair("a", "b"), Pair("word " * 100_000, "b")]))
    lines = str(filter.report).splitlines()
    assert lines[:2] == ["1 of 2 pairs kept", "  0 dropped: a side is empty"]
    assert lines[2].startswith("  1 dropped: too many words, first pair 2: 'word word")
    assert len(lines[2]) < 140


def test_a_second_pass_starts_with_an_empty_report_and_remembers_nothing() -> None:
    filter = Filter(FilterConfig(drop_duplicates=True))
    for _ in range(2):
        assert list(filter.apply([Pair("a", "b"), Pair("a", "b")])) == [("a", "b")]
        assert (filter.report.total, filter.report.kept) == (2, 1)


def test_pairs_are_taken_only_as_they_are_asked_for() -> None:
    taken: list[int] = []

    def watched() -> Iterator[Pair]:
        for number in range(1000):
            taken.append(number)
            yield Pair(str(number), "x" if number % 2 else "")

    filter = Filter(FilterConfig())
    next(filter.apply(watched()))
    assert taken == [0, 1]
    assert (filter.report.total, filter.report.kept) == (2, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("longest_characters", 0), ("longest_words", -1), ("largest_ratio", 0.5), ("drop_empty", "yes")],
)
def test_a_value_out_of_range_is_named_with_its_key(key: str, value: object) -> None:
    with pytest.raises(UserError, match=rf"^{key}: found {value!r}; expected"):
        FilterConfig.read({key: value})


def test_a_misspelt_key_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match="longest_word: unknown key; did you mean 'longest_words'"):
        FilterConfig.read({"longest_word": 3})


def test_the_config_survives_plain_data() -> None:
    assert FilterConfig.read(EVERYTHING.plain()) == EVERYTHING
