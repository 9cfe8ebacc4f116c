"""Streamed text equals decoded text, in complete characters, and never includes a stop string."""

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.data.tokenizers.streaming import TextStreamer
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import Kind, TokenizerConfig, train_tokenizer

KINDS: tuple[Kind, ...] = ("bpe", "unigram", "character", "byte", "word")
EXACT: tuple[Kind, ...] = ("bpe", "unigram", "character", "byte")
TRAINING_TEXTS = [
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
    "replacement characters": "a � b ��",
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
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=size), TRAINING_TEXTS)


def streamed(tokenizer: TextTokenizer, ids: list[int], *stops: str) -> tuple[list[str], TextStreamer]:
    """The pieces emitted for tokens added one by one and at the end, and the streamer."""
    streamer = TextStreamer(tokenizer, stops)
    return [*(streamer.add([number]) for number in ids), streamer.finish()], streamer


# Complete text in complete characters


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
def test_concatenated_pieces_equal_the_decoded_text(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    pieces, streamer = streamed(tokenizer, ids)
    assert "".join(pieces) == streamer.text == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", HARD.values(), ids=HARD.keys())
def test_hard_text_is_streamed_exactly(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "character"])
@given(numbers=st.lists(st.integers(0, 10_000), max_size=25))
def test_any_tokens_are_streamed_as_decoded(kind: Kind, numbers: list[int]) -> None:
    tokenizer = trained(kind)
    ids = [number % tokenizer.vocab_size for number in numbers]
    assert "".join(streamed(tokenizer, ids)[0]) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", EXACT)
@given(text=TEXTS.filter(lambda text: "�" not in text))
def test_no_piece_ends_in_an_incomplete_character(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    pieces, _ = streamed(tokenizer, tokenizer.encode(text))
    assert not any("�" in piece for piece in pieces)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, cut=st.integers(0, 100))
def test_tokens_may_be_added_in_groups(kind: Kind, text: str, cut: int) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(text)
    streamer = TextStreamer(tokenizer)
    assert streamer.add(ids[:cut]) + streamer.add(ids[cut:]) + streamer.finish() == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(
    words=st.lists(st.sampled_from(["the", "cat", "mouse,", "Çocuklar", "end", "."]), min_size=1), cut=st.integers(1)
)
def test_continuation_of_a_prompt_has_the_right_spaces(kind: Kind, words: list[str], cut: int) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode(" ".join(words))
    cut = 1 + cut % len(ids)
    before = tokenizer.decode(ids[:cut])
    if before.endswith("�"):
        return  # prompts end with a complete character
    streamer = TextStreamer(tokenizer, prompt=ids[:cut])
    assert before + streamer.add(ids[cut:]) + streamer.finish() == tokenizer.decode(ids)


def test_character_is_emitted_with_its_last_byte() -> None:
    pieces, _ = streamed(trained("byte"), trained("byte").encode("ağ👍"))
    assert pieces == ["a", "", "ğ", "", "", "", "👍", ""]


def test_no_tokens_give_no_text() -> None:
    assert streamed(trained("bpe"), [])[0] == [""]


def test_special_tokens_are_left_out() -> None:
    tokenizer = trained("bpe")
    assert tokenizer.eos is not None
    assert "".join(streamed(tokenizer, [*tokenizer.encode("cat"), tokenizer.eos])[0]) == "cat"


def test_pending_text_is_emitted_at_the_end() -> None:
    tokenizer = trained("byte")
    streamer = TextStreamer(tokenizer)
    assert streamer.add(tokenizer.encode("aç")[:-1]) == "a"
    assert (streamer.finish(), streamer.text) == ("�", "a�")


def test_finish_may_be_called_twice() -> None:
    tokenizer = trained("byte")
    streamer = TextStreamer(tokenizer, ["xyz"])
    streamer.add(tokenizer.encode("ax"))
    assert (streamer.finish(), streamer.finish(), streamer.text) == ("x", "", "ax")


# Stop strings


@pytest.mark.parametrize("kind", EXACT)
@given(text=st.text("abc", max_size=20), stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
@example(text="aba", stops=["b", "aba"])
@example(text="abc", stops=["bc", "abc"])
def test_text_ends_before_the_stop_string_that_is_complete_first(kind: Kind, text: str, stops: list[str]) -> None:
    tokenizer = trained(kind)
    ends = (end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops))
    end = next(ends, None)
    length = 0 if end is None else max(len(stop) for stop in stops if text[:end].endswith(stop))
    pieces, streamer = streamed(tokenizer, tokenizer.encode(text), *stops)
    assert "".join(pieces) == streamer.text == (text if end is None else text[: end - length])
    assert streamer.stopped == (end is not None)


@pytest.mark.parametrize("kind", EXACT)
def test_stop_string_of_many_tokens(kind: Kind) -> None:
    tokenizer = trained(kind)
    pieces, streamer = streamed(tokenizer, tokenizer.encode("The cat ate\nUser: the mouse"), "\nUser:")
    assert ("".join(pieces), streamer.stopped) == ("The cat ate", True)


def test_stop_string_may_begin_within_a_token() -> None:
    tokenizer = trained("bpe")
    ids = tokenizer.encode("the end of the")
    assert any("he" in tokenizer.decode([number]) for number in ids), "no token contains the stop string"
    assert "".join(streamed(tokenizer, ids, "he")[0]) == "t"


def test_stop_string_of_multibyte_characters() -> None:
    tokenizer = trained("byte")
    assert "".join(streamed(tokenizer, tokenizer.encode("bir ağaç var"), "ağaç")[0]) == "bir "


def test_first_of_overlapping_stop_strings_counts() -> None:
    tokenizer = trained("character")
    assert "".join(streamed(tokenizer, tokenizer.encode("xabcd"), "bc", "abcd")[0]) == "xa"
    assert "".join(streamed(tokenizer, tokenizer.encode("xabcd"), "cd", "abc")[0]) == "x"


def test_stop_strings_that_begin_together() -> None:
    tokenizer = trained("character")
    assert "".join(streamed(tokenizer, tokenizer.encode("xabc"), "abc", "ab")[0]) == "x"


def test_false_start_of_a_stop_string_is_emitted() -> None:
    tokenizer = trained("character")
    pieces, streamer = streamed(tokenizer, tokenizer.encode("aabx"), "aac", "abc")
    assert ("".join(pieces), streamer.stopped) == ("aabx", False)
    assert pieces[:2] == ["", ""], "the false start was not held back"


def test_incomplete_stop_string_at_the_end_is_emitted() -> None:
    tokenizer = trained("character")
    pieces, streamer = streamed(tokenizer, tokenizer.encode("the en"), "end")
    assert (pieces[-1], streamer.text, streamer.stopped) == ("en", "the en", False)


def test_nothing_is_emitted_after_a_stop_string() -> None:
    tokenizer = trained("character")
    streamer = TextStreamer(tokenizer, ["."])
    assert streamer.add(tokenizer.encode("a.b")) == "a"
    assert (streamer.add(tokenizer.encode("c")), streamer.finish(), streamer.text) == ("", "", "a")


def test_empty_stop_string_is_ignored() -> None:
    tokenizer = trained("character")
    assert "".join(streamed(tokenizer, tokenizer.encode("abc"), "")[0]) == "abc"


def test_stop_string_completed_by_pending_text() -> None:
    tokenizer = trained("byte")
    streamer = TextStreamer(tokenizer, ["a�"])
    assert streamer.add(tokenizer.encode("xaç")[:-1]) == "x"
    assert (streamer.finish(), streamer.stopped) == ("", True)
