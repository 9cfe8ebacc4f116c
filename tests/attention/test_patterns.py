"""Every kind of pattern: its mask, invalid arguments, and its text form."""

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
from tests.attention.support import MaskSpec, PatternSpec, documents, packed_ids, plain_patterns


def draw(mask: Tensor) -> list[str]:
    return ["".join("#" if allowed else "." for allowed in line) for line in mask.tolist()]


# The four parts of figure 2 of Longformer (Beltagy et al. 2020), for eight tokens.


def test_full_attention_is_figure_2a() -> None:
    assert draw(Full().dense_mask(8)) == ["########"] * 8


def test_sliding_window_attention_is_figure_2b() -> None:
    assert draw(Sliding(3).dense_mask(8)) == [
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
    assert draw(Dilated(3, 2).dense_mask(8)) == [
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
    assert draw((Global(1) | Sliding(2)).dense_mask(8)) == [
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
def test_causal_window_has_window_keys(window: int, length: int) -> None:
    count = (Causal() & Sliding(window)).dense_mask(length).sum(dim=1)
    assert count.tolist() == [min(window, position + 1) for position in range(length)]


@given(st.integers(1, 10), st.integers(1, 5), st.integers(1, 40))
def test_causal_dilated_window_has_window_keys(window: int, step: int, length: int) -> None:
    count = (Causal() & Dilated(window, step)).dense_mask(length).sum(dim=1)
    assert count.tolist() == [min(window, position // step + 1) for position in range(length)]


def test_window_of_one_is_the_diagonal() -> None:
    assert torch.equal(Sliding(1).dense_mask(6), torch.eye(6, dtype=torch.bool))


@given(st.integers(1, 12), st.integers(1, 20))
def test_dilated_window_with_step_one_is_a_sliding_window(window: int, length: int) -> None:
    assert torch.equal(Dilated(window, 1).dense_mask(length), Sliding(window).dense_mask(length))


@given(st.integers(1, 6), st.integers(0, 9), st.integers(1, 9), st.integers(1, 20))
def test_global_tokens_are_absolute_positions(tokens: int, start: int, queries: int, keys: int) -> None:
    mask = Global(tokens).dense_mask(queries, keys, start=start)
    full_mask = Global(tokens).dense_mask(max(keys, start + queries))
    assert torch.equal(mask, full_mask[start : start + queries, :keys])


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
def test_sizes_below_one_are_refused(make, kind: str, name: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"{kind}: {name} is {value}; .*must be at least 1\.$"):
        make(value)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(1, 9))
def test_lengths_mask_padding(values: list[int], queries: int) -> None:
    mask = Lengths(torch.tensor(values)).dense_mask(queries, 9, rows=len(values), start=0).view(-1, queries, 9)
    assert [line.sum(dim=-1).tolist() for line in mask] == [[value] * queries for value in values]


@pytest.mark.parametrize("wrong", [torch.tensor([1.0, 2.0]), torch.tensor([[1, 2]]), torch.tensor(2)])
def test_lengths_of_wrong_shape_or_dtype_are_refused(wrong: Tensor) -> None:
    with pytest.raises(UserError, match="one integer per row") as caught:
        Lengths(wrong)
    assert f"{tuple(wrong.shape)} of {wrong.dtype}" in str(caught.value)


@pytest.mark.parametrize("given_rows", [1, 3])
def test_lengths_of_another_number_of_rows_are_refused(given_rows: int) -> None:
    with pytest.raises(UserError, match=rf"lengths.*\({given_rows},\).* 2 rows"):
        Lengths(torch.ones(given_rows, dtype=torch.long)).dense_mask(4, rows=2)


def test_document_starts_are_where_the_id_changes() -> None:
    document_ids = torch.tensor([[4, 4, 7, 7, 7, -1], [0, 1, 2, 2, -1, -1]])
    assert document_starts(document_ids).tolist() == [[0, 0, 2, 2, 2, 5], [0, 1, 2, 2, 4, 4]]


def test_documents_of_no_positions_have_no_starts() -> None:
    assert document_starts(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0)


@given(packed_ids(2, 12), plain_patterns())
@settings(max_examples=80)
def test_packed_document_has_the_mask_of_the_document_alone(document_ids: list[list[int]], within: PatternSpec) -> None:
    mask = Documents(torch.tensor(document_ids), within.pattern).dense_mask(12, rows=2)
    for row, line in enumerate(document_ids):
        for number in set(line) - {-1}:
            first, size = line.index(number), line.count(number)
            inner = mask[row, first : first + size, first : first + size]
            assert torch.equal(inner, within.pattern.dense_mask(size))


@given(packed_ids(2, 12), plain_patterns())
def test_documents_do_not_attend_to_each_other_or_to_padding(
    document_ids: list[list[int]], within: PatternSpec
) -> None:
    table = torch.tensor(document_ids)
    mask = Documents(table, within.pattern).dense_mask(12, rows=2)
    apart = (table[:, :, None] != table[:, None, :]) | (table < 0)[:, :, None]
    assert not (mask & apart).any()


@given(packed_ids(2, 9), packed_ids(2, 7), plain_patterns())
def test_separately_packed_queries_and_keys_match_by_id(
    document_ids: list[list[int]], key_document_ids: list[list[int]], within: PatternSpec
) -> None:
    mask_spec = MaskSpec(documents(document_ids, within, key_document_ids), 2, 9, 7, 0, [0, 0])
    assert torch.equal(mask_spec.spec.pattern.dense_mask(9, 7, rows=2, start=0), mask_spec.reference_mask())


def test_repeated_id_is_another_document() -> None:
    assert draw(Documents(torch.tensor([[4, 4, 7, 4, 4]])).dense_mask(5)) == [
        "##...",
        "##...",
        "..#..",
        "...##",
        "...##",
    ]


def test_documents_with_separate_keys_are_not_causal() -> None:
    document_ids = torch.zeros(1, 3, dtype=torch.long)
    assert not Documents(document_ids, Causal(), key_document_ids=document_ids.clone()).causal


@pytest.mark.parametrize("wrong", [torch.zeros(2, 3), torch.zeros(3, dtype=torch.long)])
@pytest.mark.parametrize("side", ["document_ids", "key_document_ids"])
def test_documents_of_wrong_shape_or_dtype_are_refused(wrong: Tensor, side: str) -> None:
    right = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(UserError, match="one integer per position") as caught:
        Documents(**{"document_ids": right, side: wrong})
    assert f"{tuple(wrong.shape)} of {wrong.dtype}" in str(caught.value)


@pytest.mark.parametrize(("rows", "queries", "keys", "start"), [(1, 4, 4, 0), (3, 4, 4, 0), (2, 4, 5, 0), (2, 4, 4, 1)])
def test_documents_that_do_not_fit_the_mask_are_refused(rows: int, queries: int, keys: int, start: int) -> None:
    with pytest.raises(UserError, match=r"\(2, 4\)"):
        Documents(torch.zeros(2, 4, dtype=torch.long)).dense_mask(queries, keys, rows=rows, start=start)


def test_documents_before_the_first_position_are_refused() -> None:
    document_ids, key_document_ids = torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 2, dtype=torch.long)
    with pytest.raises(UserError, match="position -2"):
        Documents(document_ids, key_document_ids=key_document_ids).dense_mask(4, 2)  # the default start is −2 here


@given(plain_patterns())
def test_pattern_round_trips_through_text(spec: PatternSpec) -> None:
    assert read_pattern(spec.text) == spec.pattern


def test_and_binds_more_tightly_than_or() -> None:
    expected = Either(Global(4), Both(Causal(), Sliding(8)))
    assert read_pattern("global(4) | causal & sliding(8)") == expected


def test_parentheses_bind_first() -> None:
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
def test_invalid_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UserError) as caught:
        read_pattern(text)
    assert str(caught.value).startswith(f"{text!r} is not a pattern; write full, causal, sliding(window)")


@pytest.mark.parametrize("text", ["causal(x)", "full(1 + 1)", "sliding(3, x)", "sliding(3, -1)", "global(2, [1])"])
def test_extra_argument_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="is not a pattern"):
        read_pattern(text)


@pytest.mark.parametrize("text", ["causal_", "sliding__(3)", "global_(4)"])
def test_name_with_a_suffix_is_refused(text: str) -> None:
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
def test_sizes_below_one_are_refused_in_text(text: str, complaint: str, value: int) -> None:
    with pytest.raises(UserError, match=complaint.format(value)):
        read_pattern(text.format(value))


WORDS = ["full", "causal", "sliding", "global", "dilated", "(", ")", "&", "|", ",", "3", "-1", "x", " ", "_", "'", "\n"]


@given(st.lists(st.sampled_from(WORDS), max_size=9).map("".join))
@settings(max_examples=300)
def test_any_text_is_a_pattern_or_a_user_error(text: str) -> None:
    with contextlib.suppress(UserError):
        assert isinstance(read_pattern(text), Pattern)
