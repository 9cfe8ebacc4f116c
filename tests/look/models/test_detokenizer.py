"""Displayed tokens: their spelling, the word they belong to, and the ids of edited tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.trees.linearization import TreeVocabulary
from regard.look.models.detokenizer import TextDetokenizer, TreeDetokenizer
from tests.look.support import TEXT, tokenizer

KINDS = ("bpe", "unigram", "character", "byte", "word")


def make(kind: str = "bpe") -> TextDetokenizer:
    return TextDetokenizer(tokenizer(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_word_have_its_index(kind: str) -> None:
    detokenizer = make(kind)
    tokens = detokenizer.tokens(detokenizer.tokenizer.encode(TEXT))
    words: dict[int, str] = {}
    for token in tokens:
        if token.word >= 0:
            words[token.word] = words.get(token.word, "") + token.text
    assert list(words.values()) == ["the", "old", "cat", "ate", "a", "mouse", ",", "didn't", "it", "?"]
    assert list(words) == list(range(10))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_tokenizer_markers_are_not_displayed(kind: str) -> None:
    detokenizer = make(kind)
    assert not any(
        "Ġ" in token.text or "▁" in token.text for token in detokenizer.tokens(detokenizer.tokenizer.encode(TEXT))
    )


def test_special_tokens_belong_to_no_word() -> None:
    detokenizer = make()
    first, *_, last = detokenizer.tokens([1, *detokenizer.tokenizer.encode("a cat"), 2])
    assert [(token.piece, token.text, token.word, token.special) for token in (first, last)] == [
        ("⟨bos⟩", "⟨bos⟩", -1, True),
        ("⟨eos⟩", "⟨eos⟩", -1, True),
    ]


def test_word_indices_continue_after_special_tokens() -> None:
    detokenizer = make()
    cat = detokenizer.tokenizer.encode("cat")
    tokens = detokenizer.tokens([*cat, 2, 1, *detokenizer.tokenizer.encode(" dog")])
    assert tokens[0].word == 0
    assert tokens[-1].word == 1


def test_whitespace_is_made_visible() -> None:
    detokenizer = make("character")
    assert [token.text for token in detokenizer.tokens(detokenizer.tokenizer.encode("a\n b"))] == ["a", "⏎", "␣", "b"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aé b", ["a", "‹C3›", "é", "b"]),
        ("ğ", ["‹C4›", "ğ"]),
        ("قط", ["‹D9›", "ق", "‹D8›", "ط"]),
        ("😀", ["‹F0›", "‹9F›", "‹98›", "😀"]),
        ("q\u0303", ["q", "‹CC›", "\u0303"]),
    ],
)
def test_bytes_are_displayed_as_characters_where_these_are_complete(text: str, expected: list[str]) -> None:
    """Latin, Turkish, Arabic, an emoji, and a combining mark. The piece of the byte D8 would be Ø."""
    detokenizer = make("byte")
    tokens = detokenizer.tokens(detokenizer.tokenizer.encode(text))
    assert [token.text for token in tokens if token.text != "␣"] == expected
    assert len({token.word for token in tokens[: len(expected) - ("b" in expected)]}) == 1


def test_bytes_that_are_no_character_are_displayed_as_bytes() -> None:
    detokenizer = make("byte")
    first, second, letter = (detokenizer.tokenizer.encode(text) for text in ("é", "ط", "a"))
    shown = [token.text for token in detokenizer.tokens([first[1], *letter, second[0], first[0], first[1]])]
    assert shown == ["‹A9›", "a", "‹D8›", "‹C3›", "é"]


@given(st.text(max_size=30))
def test_every_id_has_a_token(text: str) -> None:
    detokenizer = make()
    ids = detokenizer.tokenizer.encode(text)
    tokens = detokenizer.tokens(ids)
    assert [token.id for token in tokens] == ids
    assert all(token.text for token in tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_unedited_pieces_keep_their_ids(kind: str) -> None:
    detokenizer = make(kind)
    ids = detokenizer.tokenizer.encode(TEXT)
    assert detokenizer.encode_pieces([token.piece for token in detokenizer.tokens(ids)], ids) == ids


def test_edited_word_starts_a_word_like_the_original() -> None:
    detokenizer = make()
    ids = detokenizer.tokenizer.encode("the cat sat")
    pieces = [token.piece for token in detokenizer.tokens(ids)]
    index = next(index for index, token in enumerate(detokenizer.tokens(ids)) if token.word == 1)
    edited = detokenizer.encode_pieces([*pieces[:index], "dog", *pieces[index + 1 :]], ids)
    assert detokenizer.text(edited).startswith("the dog")


def test_edited_piece_inside_a_word_stays_inside() -> None:
    detokenizer = make()
    ids = detokenizer.tokenizer.encode("mouses")
    pieces = [token.piece for token in detokenizer.tokens(ids)]
    assert len(pieces) > 1
    assert detokenizer.text(detokenizer.encode_pieces([*pieces[:-1], "xyz"], ids)) == detokenizer.text(ids[:-1]) + "xyz"


def test_edited_text_may_become_several_tokens() -> None:
    detokenizer = make()
    ids = detokenizer.tokenizer.encode("the cat")
    edited = detokenizer.encode_pieces([detokenizer.piece(ids[0]), "unheardof"], ids)
    assert detokenizer.text(edited) == "the unheardof"
    assert len(edited) > 2


def test_removed_tokens_leave_the_others_unchanged() -> None:
    detokenizer = make()
    ids = detokenizer.tokenizer.encode(TEXT)
    pieces = [token.piece for token in detokenizer.tokens(ids)]
    assert detokenizer.encode_pieces(pieces[2:], ids) == ids[2:]


@pytest.mark.parametrize("kind", KINDS)
def test_edited_tokens_keep_their_ids_when_a_trace_is_repeated(kind: str) -> None:
    """The letters of a text, one by one: the text by itself is tokenized into fewer tokens, or others."""
    detokenizer = make(kind)
    ids = [token for letter in "thecat" for token in detokenizer.tokenizer.encode(letter)[-1:]]
    pieces = [detokenizer.piece(token) for token in ids]
    assert detokenizer.edited_ids(pieces, detokenizer.tokenizer.encode(detokenizer.text(ids))) == ids


def test_tree_symbols_are_displayed_as_they_are() -> None:
    symbols = TreeVocabulary(("<pad>", "<bos>", "<eos>", "(S", "(NP", ")", "DT", "NN"))
    tokens = TreeDetokenizer(symbols).tokens([1, 3, 6, 5, 2])
    assert [(token.text, token.word, token.special) for token in tokens] == [
        ("<bos>", -1, True),
        ("(S", 0, False),
        ("DT", 1, False),
        (")", 2, False),
        ("<eos>", -1, True),
    ]


def test_unknown_symbol_id_is_refused() -> None:
    symbols = TreeVocabulary(("<pad>", "<bos>", "<eos>", "(S", ")", "NN"))
    with pytest.raises(ValueError, match="no symbol with the id 9"):
        TreeDetokenizer(symbols).tokens([9])
