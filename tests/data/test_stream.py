"""A text given out token by token is the text, whole characters at a time, and nothing of a stop string gets out."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.stream import TextStream
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import Kind, TokenizerConfig, train_tokenizer

KINDS: tuple[Kind, ...] = ("bpe", "unigram", "character", "byte", "word")
EXACT: tuple[Kind, ...] = ("bpe", "unigram", "character", "byte")
LEARNT = [
    "The cat ate the mouse, and the mouse ate the cheese.",
    "Çocuklar bahçede oynuyorlar; ığdır ağacı, İstanbul'da şemsiye.",
    "the end of the end\nUser: hello\nUser: stop",
]
HARD = {
    "emoji": "so 👩‍👩‍👧‍👦 and 🇹🇷 and 👍🏽!",
    "combining marks": "e\u0301 n\u0303 i\u0307 a\u0323\u0302 z\u0335",
    "Turkish letters": "İıĞğŞşÇçÖöÜü ığdır",
    "other scripts": "日本語 العربية हिन्दी ไทย",
    "spaces": "  two  spaces\n\n\ttab ",
    "the sign for what is no text": "a � b ��",
}
TEXTS = st.text(
    st.one_of(
        st.sampled_from("abehtİığşçö .,'\n"),
        st.sampled_from("👍🏽\u200d👩🇹🇷\u0301\u0323�"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=25,
)


@cache
def trained(kind: Kind) -> TextTokenizer:
    size = 300 if kind in ("bpe", "unigram") else None
    return train_tokenizer(TokenizerConfig(kind=kind, vocabulary=size), LEARNT)


def streamed(tokenizer: TextTokenizer, ids: list[int], *stops: str) -> tuple[list[str], TextStream]:
    """The pieces that come when tokens come one by one, and at the end; and what gave them."""
    stream = TextStream(tokenizer, stops)
    return [*(stream.add([number]) for number in ids), stream.finish()], stream


# The whole text, and only whole characters.


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_pieces_put_together_are_the_whole_decoded_at_once(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    pieces, stream = streamed(tokenizer, ids)
    assert "".join(pieces) == stream.text == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HARD.values(), ids=HARD.keys())
def test_hard_text_comes_whole(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "character"])
@given(numbers=st.lists(st.integers(0, 10_000), max_size=25))
def test_whatever_a_model_writes_comes_as_if_decoded_at_once(kind: Kind, numbers: list[int]) -> None:
    tokenizer = trained(kind)
    ids = [number % tokenizer.vocabulary for number in numbers]
    assert "".join(streamed(tokenizer, ids)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", EXACT)
@given(text=TEXTS.filter(lambda text: "�" not in text))
def test_no_piece_ends_in_half_a_character(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    pieces, _ = streamed(tokenizer, tokenizer.encode(text))
    assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, at=st.integers(0, 100))
def test_tokens_may_come_in_groups_of_any_size(kind: Kind, text: str, at: int) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    stream = TextStream(tokenizer)
    assert stream.add(ids[:at]) + stream.add(ids[at:]) + stream.finish() == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(words=st.lists(st.sampled_from(["the", "cat", "mouse,", "Çocuklar", "end", "."]), min_size=1), at=st.integers(1))
def test_what_follows_a_text_is_spelled_as_in_one_text(kind: Kind, words: list[str], at: int) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(" ".join(words))
    at = 1 + at % len(ids)
    before = tokenizer.decode(ids[:at])
    if before.endswith("�"):
        return  # a text ends with a whole character
    stream = TextStream(tokenizer, before=ids[:at])
    assert before + stream.add(ids[at:]) + stream.finish() == tokenizer.decode(ids)


def test_a_piece_comes_as_soon_as_its_last_byte_is_there() -> None:
    pieces, _ = streamed(trained("byte"), trained("byte").encode("ağ👍"))
    assert pieces == ["a", "", "ğ", "", "", "", "👍", ""]


def test_no_tokens_make_no_text() -> None:
    assert streamed(trained("bpe"), [])[0] == [""]


def test_special_tokens_leave_no_trace() -> None:
    tokenizer = trained("bpe")
    assert tokenizer.end is not None
    assert "".join(streamed(tokenizer, [*tokenizer.encode("cat"), tokenizer.end])[0]) == "cat"


def test_what_was_held_back_comes_at_the_end() -> None:
    tokenizer = trained("byte")
    stream = TextStream(tokenizer)
    assert stream.add(tokenizer.encode("aç")[:-1]) == "a"
    assert (stream.finish(), stream.text) == ("�", "a�")


def test_the_end_may_be_asked_for_twice() -> None:
    tokenizer = trained("byte")
    stream = TextStream(tokenizer, ["xyz"])
    stream.add(tokenizer.encode("ax"))
    assert (stream.finish(), stream.finish(), stream.text) == ("x", "", "ax")


# Stops.


@pytest.mark.parametrize("kind", EXACT)
@given(text=st.text("abc", max_size=20), stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_the_first_stop_and_nothing_of_it_leaks(kind: Kind, text: str, stops: list[str]) -> None:
    tokenizer = trained(kind)
    places = [text.find(stop) for stop in stops if stop in text]
    pieces, stream = streamed(tokenizer, tokenizer.encode(text), *stops)
    assert "".join(pieces) == stream.text == text[: min(places, default=len(text))]
    assert stream.stopped == bool(places)


@pytest.mark.parametrize("kind", EXACT)
def test_a_stop_may_lie_in_many_tokens(kind: Kind) -> None:
    tokenizer = trained(kind)
    pieces, stream = streamed(tokenizer, tokenizer.encode("The cat ate\nUser: the mouse"), "\nUser:")
    assert ("".join(pieces), stream.stopped) == ("The cat ate", True)


def test_a_stop_may_begin_within_a_token() -> None:
    tokenizer = trained("bpe")
    ids = tokenizer.encode("the end of the")
    assert any("he" in tokenizer.decode([number]) for number in ids), "the case is not met"
    assert "".join(streamed(tokenizer, ids, "he")[0]) == "t"


def test_a_stop_of_letters_with_many_bytes_is_found() -> None:
    tokenizer = trained("byte")
    assert "".join(streamed(tokenizer, tokenizer.encode("bir ağaç var"), "ağaç")[0]) == "bir "


def test_of_overlapping_stops_the_one_that_begins_first_counts() -> None:
    tokenizer = trained("character")
    assert "".join(streamed(tokenizer, tokenizer.encode("xabcd"), "bc", "abcd")[0]) == "xa"
    assert "".join(streamed(tokenizer, tokenizer.encode("xabcd"), "cd", "abc")[0]) == "x"


def test_of_two_stops_that_begin_together_either_ends_the_text_there() -> None:
    tokenizer = trained("character")
    assert "".join(streamed(tokenizer, tokenizer.encode("xabc"), "abc", "ab")[0]) == "x"


def test_what_only_looked_like_a_stop_is_given_out() -> None:
    tokenizer = trained("character")
    pieces, stream = streamed(tokenizer, tokenizer.encode("aabx"), "aac", "abc")
    assert ("".join(pieces), stream.stopped) == ("aabx", False)
    assert pieces[:2] == ["", ""], "it was not held back"


def test_the_beginning_of_a_stop_at_the_end_is_text() -> None:
    tokenizer = trained("character")
    pieces, stream = streamed(tokenizer, tokenizer.encode("the en"), "end")
    assert (pieces[-1], stream.text, stream.stopped) == ("en", "the en", False)


def test_after_a_stop_nothing_comes() -> None:
    tokenizer = trained("character")
    stream = TextStream(tokenizer, ["."])
    assert stream.add(tokenizer.encode("a.b")) == "a"
    assert (stream.add(tokenizer.encode("c")), stream.finish(), stream.text) == ("", "", "a")


def test_an_empty_stop_stops_nothing() -> None:
    tokenizer = trained("character")
    assert "".join(streamed(tokenizer, tokenizer.encode("abc"), "")[0]) == "abc"


def test_a_stop_completed_by_what_was_held_back_is_found_at_the_end() -> None:
    tokenizer = trained("byte")
    stream = TextStream(tokenizer, ["a�"])
    assert stream.add(tokenizer.encode("xaç")[:-1]) == "x"
    assert (stream.finish(), stream.stopped) == ("", True)
