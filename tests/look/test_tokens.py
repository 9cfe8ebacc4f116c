"""Tokens as people see them: how they read, which word they belong to, and what becomes of edited ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.trees import TreeSymbols
from regard.look.tokens import TextSpeller, TreeSpeller
from tests.look.support import TEXT, tokenizer

KINDS = ("bpe", "unigram", "character", "byte", "word")


def speller(kind: str = "bpe") -> TextSpeller:
    return TextSpeller(tokenizer(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_a_word_have_its_number(kind: str) -> None:
    one = speller(kind)
    tokens = one.tokens(one.tokenizer.encode(TEXT))
    words: dict[int, str] = {}
    for token in tokens:
        if token.word >= 0:
            words[token.word] = words.get(token.word, "") + token.text
    assert list(words.values()) == ["the", "old", "cat", "ate", "a", "mouse", ",", "didn't", "it", "?"]
    assert list(words) == list(range(10))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_signs_of_a_tokenizer_are_not_read(kind: str) -> None:
    one = speller(kind)
    assert not any("Ġ" in token.text or "▁" in token.text for token in one.tokens(one.tokenizer.encode(TEXT)))


def test_special_tokens_are_no_words() -> None:
    one = speller()
    first, *_, last = one.tokens([1, *one.tokenizer.encode("a cat"), 2])
    assert [(token.piece, token.text, token.word, token.special) for token in (first, last)] == [
        ("⟨start⟩", "⟨start⟩", -1, True),
        ("⟨end⟩", "⟨end⟩", -1, True),
    ]


def test_words_go_on_behind_a_special_token() -> None:
    one = speller()
    cat = one.tokenizer.encode("cat")
    tokens = one.tokens([*cat, 2, 1, *one.tokenizer.encode(" dog")])
    assert tokens[0].word == 0
    assert tokens[-1].word == 1


def test_blanks_can_be_seen() -> None:
    one = speller("character")
    assert [token.text for token in one.tokens(one.tokenizer.encode("a\n b"))] == ["a", "⏎", "␣", "b"]


def test_half_a_character_is_shown_as_the_tokenizer_writes_it() -> None:
    one = speller("byte")
    tokens = one.tokens(one.tokenizer.encode("aé b"))
    assert tokens[0].text == "a"
    assert all(token.text for token in tokens)
    assert len({token.word for token in tokens[:3]}) == 1


@given(st.text(max_size=30))
def test_there_is_a_token_for_every_id_whatever_the_text(text: str) -> None:
    one = speller()
    ids = one.tokenizer.encode(text)
    tokens = one.tokens(ids)
    assert [token.id for token in tokens] == ids
    assert all(token.text for token in tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_that_are_given_back_are_the_same_ids(kind: str) -> None:
    one = speller(kind)
    ids = one.tokenizer.encode(TEXT)
    assert one.edited([token.piece for token in one.tokens(ids)], ids) == ids


def test_a_word_that_is_typed_begins_where_the_old_one_did() -> None:
    one = speller()
    ids = one.tokenizer.encode("the cat sat")
    pieces = [token.piece for token in one.tokens(ids)]
    place = next(at for at, token in enumerate(one.tokens(ids)) if token.word == 1)
    edited = one.edited([*pieces[:place], "dog", *pieces[place + 1 :]], ids)
    assert one.text(edited).startswith("the dog")


def test_a_piece_inside_a_word_stays_inside() -> None:
    one = speller()
    ids = one.tokenizer.encode("mouses")
    pieces = [token.piece for token in one.tokens(ids)]
    assert len(pieces) > 1
    assert one.text(one.edited([*pieces[:-1], "xyz"], ids)) == one.text(ids[:-1]) + "xyz"


def test_what_is_typed_may_become_several_tokens() -> None:
    one = speller()
    ids = one.tokenizer.encode("the cat")
    edited = one.edited([one.piece(ids[0]), "unheardof"], ids)
    assert one.text(edited) == "the unheardof"
    assert len(edited) > 2


def test_tokens_that_were_taken_away_leave_the_others_as_they_are() -> None:
    one = speller()
    ids = one.tokenizer.encode(TEXT)
    pieces = [token.piece for token in one.tokens(ids)]
    assert one.edited(pieces[2:], ids) == ids[2:]


def test_symbols_of_trees_stand_for_themselves() -> None:
    symbols = TreeSymbols(("<pad>", "<start>", "<end>", "(S", "(NP", ")", "DT", "NN"))
    tokens = TreeSpeller(symbols).tokens([1, 3, 6, 5, 2])
    assert [(token.text, token.word, token.special) for token in tokens] == [
        ("<start>", -1, True),
        ("(S", 0, False),
        ("DT", 1, False),
        (")", 2, False),
        ("<end>", -1, True),
    ]


def test_a_symbol_that_is_not_there_is_refused() -> None:
    symbols = TreeSymbols(("<pad>", "<start>", "<end>", "(S", ")", "NN"))
    with pytest.raises(ValueError, match="no symbol with the id 9"):
        TreeSpeller(symbols).tokens([9])
