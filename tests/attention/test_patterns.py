"""The kinds of pattern: what each lets through, what each refuses, and how they are spelled."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from regard.attention import (
    Both,
    Causal,
    Dilated,
    Documents,
    Either,
    Full,
    Global,
    Lengths,
    Pattern,
    Sliding,
    read_pattern,
)
from regard.attention.patterns import document_starts
from regard.errors import UserError

from .support import Seen, Work, documents, numberings, plain_patterns


def picture(mask: Tensor) -> list[str]:
    return ["".join("#" if allowed else "." for allowed in line) for line in mask.tolist()]


# The four pictures of Longformer's figure 2 (Beltagy et al. 2020), drawn for eight tokens.


def test_full_attention_is_figure_2a() -> None:
    assert picture(Full().mask(8)) == ["########"] * 8


def test_sliding_window_attention_is_figure_2b() -> None:
    assert picture(Sliding(3).mask(8)) == [
        "###.....",
        "####....",
        "#####...",
        ".#####..",
        "..#####.",
        "...#####",
        "....####",
        ".....###",
    ]


def test_dilated_sliding_window_attention_is_figure_2c() -> None:
    assert picture(Dilated(3, 2).mask(8)) == [
        "#.#.#...",
        ".#.#.#..",
        "#.#.#.#.",
        ".#.#.#.#",
        "#.#.#.#.",
        ".#.#.#.#",
        "..#.#.#.",
        "...#.#.#",
    ]


def test_global_and_sliding_window_attention_is_figure_2d() -> None:
    assert picture((Global(1) | Sliding(2)).mask(8)) == [
        "########",
        "###.....",
        "####....",
        "#.###...",
        "#..###..",
        "#...###.",
        "#....###",
        "#.....##",
    ]


@given(st.integers(1, 40), st.integers(1, 40))
def test_under_causal_a_window_shows_so_many_keys_itself_included(window: int, length: int) -> None:
    seen = (Causal() & Sliding(window)).mask(length).sum(dim=1)
    assert seen.tolist() == [min(window, place + 1) for place in range(length)]


@given(st.integers(1, 10), st.integers(1, 5), st.integers(1, 40))
def test_under_causal_a_dilated_window_shows_so_many_keys_itself_included(window: int, step: int, length: int) -> None:
    seen = (Causal() & Dilated(window, step)).mask(length).sum(dim=1)
    assert seen.tolist() == [min(window, place // step + 1) for place in range(length)]


def test_a_window_of_one_shows_the_token_itself_alone() -> None:
    assert torch.equal(Sliding(1).mask(6), torch.eye(6, dtype=torch.bool))


@given(st.integers(1, 12), st.integers(1, 20))
def test_a_dilated_window_of_step_one_is_a_sliding_window(window: int, length: int) -> None:
    assert torch.equal(Dilated(window, 1).mask(length), Sliding(window).mask(length))


@given(st.integers(1, 6), st.integers(0, 9), st.integers(1, 9), st.integers(1, 20))
def test_global_tokens_stand_at_absolute_positions(tokens: int, start: int, queries: int, keys: int) -> None:
    mask = Global(tokens).mask(queries, keys, start=start)
    whole = Global(tokens).mask(max(keys, start + queries))
    assert torch.equal(mask, whole[start : start + queries, :keys])


@pytest.mark.parametrize("value", [0, -1, -512])
@pytest.mark.parametrize(
    ("make", "kind", "name"),
    [
        (Sliding, "sliding", "window"),
        (lambda value: Dilated(value, 2), "dilated", "window"),
        (lambda value: Dilated(2, value), "dilated", "step"),
        (Global, "global", "tokens"),
    ],
)
def test_less_than_one_is_refused_with_kind_name_and_value(make, kind: str, name: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"{kind}: {name} is {value}; .*must be at least 1\.$"):
        make(value)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 9))
def test_of_each_row_only_so_many_keys_are_seen(values: list[int], queries: int) -> None:
    mask = Lengths(torch.tensor(values)).mask(queries, 9, rows=len(values), start=0).view(-1, queries, 9)
    assert [line.sum(dim=-1).tolist() for line in mask] == [[value] * queries for value in values]


@pytest.mark.parametrize("wrong", [torch.tensor([1.0, 2.0]), torch.tensor([[1, 2]]), torch.tensor(2)])
def test_lengths_that_are_not_one_whole_number_a_row_are_refused_with_what_was_found(wrong: Tensor) -> None:
    with pytest.raises(UserError, match="one whole number a row") as caught:
        Lengths(wrong)
    assert f"{tuple(wrong.shape)} of {wrong.dtype}" in str(caught.value)


@pytest.mark.parametrize("given_rows", [1, 3])
def test_lengths_of_another_number_of_rows_are_refused(given_rows: int) -> None:
    with pytest.raises(UserError, match=rf"lengths.*\({given_rows},\).* 2 rows"):
        Lengths(torch.ones(given_rows, dtype=torch.long)).mask(4, rows=2)


def test_document_starts_are_where_the_number_changes() -> None:
    numbers = torch.tensor([[4, 4, 7, 7, 7, -1], [0, 1, 2, 2, -1, -1]])
    assert document_starts(numbers).tolist() == [[0, 0, 2, 2, 2, 5], [0, 1, 2, 2, 4, 4]]


def test_documents_of_no_positions_have_no_starts() -> None:
    assert document_starts(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0)


@given(numberings(2, 12), plain_patterns())
@settings(max_examples=80)
def test_a_packed_document_has_the_mask_it_would_have_alone(numbers: list[list[int]], within: Seen) -> None:
    mask = Documents(torch.tensor(numbers), within.pattern).mask(12, rows=2)
    for row, line in enumerate(numbers):
        for number in set(line) - {-1}:
            first, size = line.index(number), line.count(number)
            inner = mask[row, first : first + size, first : first + size]
            assert torch.equal(inner, within.pattern.mask(size))


@given(numberings(2, 12), plain_patterns())
def test_no_document_sees_another_and_none_sees_padding(numbers: list[list[int]], within: Seen) -> None:
    table = torch.tensor(numbers)
    mask = Documents(table, within.pattern).mask(12, rows=2)
    apart = (table[:, :, None] != table[:, None, :]) | (table < 0)[:, :, None]
    assert not (mask & apart).any()


@given(numberings(2, 9), numberings(2, 7), plain_patterns())
def test_packed_apart_queries_and_keys_meet_where_their_numbers_do(
    numbers: list[list[int]], key_numbers: list[list[int]], within: Seen
) -> None:
    work = Work(documents(numbers, within, key_numbers), 2, 9, 7, 0, [0, 0])
    assert torch.equal(work.seen.pattern.mask(9, 7, rows=2, start=0), work.plain_mask())


def test_a_number_that_comes_again_later_in_a_row_is_another_document() -> None:
    assert picture(Documents(torch.tensor([[4, 4, 7, 4, 4]])).mask(5)) == ["##...", "##...", "..#..", "...##", "...##"]


def test_documents_with_keys_of_their_own_do_not_call_themselves_causal() -> None:
    numbers = torch.zeros(1, 3, dtype=torch.long)
    assert not Documents(numbers, Causal(), key_numbers=numbers.clone()).causal


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3), torch.zeros(3, dtype=torch.long)])
@pytest.mark.parametrize("side", ["numbers", "key_numbers"])
def test_documents_that_are_not_one_whole_number_a_position_are_refused(wrong: Tensor, side: str) -> None:
    right = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(UserError, match="one whole number a position") as caught:
        Documents(**{"numbers": right, side: wrong})
    assert f"{tuple(wrong.shape)} of {wrong.dtype}" in str(caught.value)


@pytest.mark.parametrize(("rows", "queries", "keys", "start"), [(1, 4, 4, 0), (3, 4, 4, 0), (2, 4, 5, 0), (2, 4, 4, 1)])
def test_documents_that_do_not_fit_the_work_are_refused_with_their_shape(
    rows: int, queries: int, keys: int, start: int
) -> None:
    with pytest.raises(UserError, match=r"\(2, 4\)"):
        Documents(torch.zeros(2, 4, dtype=torch.long)).mask(queries, keys, rows=rows, start=start)


def test_documents_are_not_looked_up_before_the_first_position() -> None:
    numbers, key_numbers = torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(UserError, match="start"):
        Documents(numbers, key_numbers=key_numbers).mask(4, 2)  # the default start is −2 here


@given(plain_patterns())
def test_a_pattern_is_read_back_from_its_text(seen: Seen) -> None:
    assert read_pattern(seen.text) == seen.pattern


def test_and_binds_more_tightly_than_or() -> None:
    expected = Either(Global(4), Both(Causal(), Sliding(8)))
    assert read_pattern("global(4) | causal & sliding(8)") == expected


def test_brackets_come_first() -> None:
    expected = Both(Causal(), Either(Global(4), Dilated(16, 2)))
    assert read_pattern(" causal&(global(4)|dilated(16,2)) ") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "causal &",
        "casual",
        "sliding",
        "sliding()",
        "sliding(1, 2)",
        "sliding(2.0)",
        "sliding(True)",
        "sliding('2')",
        "sliding(window=2)",
        "sliding(*2)",
        "dilated(3)",
        "causal()()",
        "causal and full",
        "causal + full",
        "~causal",
        "causal; full",
        "__import__('os')",
        "causal.mask",
        "lengths(3)",
        "both(causal, full)",
        "causal\0",
        "causal\nfull",
        "(" * 500 + "causal" + ")" * 500,
        " & ".join(["causal"] * 20_000),
    ],
    ids=lambda text: repr(text[:24]),
)
def test_what_is_not_a_pattern_is_refused_with_the_text_and_an_example(text: str) -> None:
    with pytest.raises(UserError) as caught:
        read_pattern(text)
    assert str(caught.value).startswith(f"{text!r} is not a pattern; write full, causal, sliding(window)")


@pytest.mark.parametrize("text", ["causal(x)", "full(1 + 1)", "sliding(3, x)", "sliding(3, -1)", "global(2, [1])"])
def test_an_argument_too_many_is_refused_whatever_it_is(text: str) -> None:
    with pytest.raises(UserError, match="is not a pattern"):
        read_pattern(text)


@pytest.mark.parametrize("text", ["causal_", "sliding__(3)", "global_(4)"])
def test_a_name_with_something_added_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a pattern"):
        read_pattern(text)


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sliding({})", "sliding: window is {}"),
        ("causal & dilated(4, {})", "dilated: step is {}"),
        ("sliding(2) | global({})", "global: tokens is {}"),
    ],
)
def test_less_than_one_is_refused_in_text_too_with_kind_name_and_value(text: str, complaint: str, value: int) -> None:
    with pytest.raises(UserError, match=complaint.format(value)):
        read_pattern(text.format(value))


WORDS = ["full", "causal", "sliding", "global", "dilated", "(", ")", "&", "|", ",", "3", "-1", "x", " ", "_", "'", "\n"]


@given(st.lists(st.sampled_from(WORDS), max_size=9).map("".join))
@settings(max_examples=300)
def test_whatever_text_is_read_gives_a_pattern_or_a_sentence(text: str) -> None:
    with contextlib.suppress(UserError):
        assert isinstance(read_pattern(text), Pattern)
