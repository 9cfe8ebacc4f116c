"""Constraints on the output: a prefix, required and forbidden words become the ids that the model would generate."""

from functools import cache

import pytest

from regard import UserError
from regard.data.tokenizers.tokenizer import TextTokenizer
from regard.data.tokenizers.training import Kind, TokenizerConfig, train_tokenizer
from regard.decode import Constraints, RequiredWord
from regard.task.constraints import make_constraints

CORPUS = ["the cat ate the mouse", "The cat, the dog and the cat", "kedi ağaç ğ"] * 3


@cache
def trained(kind: Kind) -> TextTokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=330 if kind == "bpe" else None), CORPUS)


BOTH_KINDS = pytest.mark.parametrize("kind", ["bpe", "word"])


def test_no_arguments_give_no_constraints() -> None:
    assert make_constraints(trained("bpe")) == Constraints()


@BOTH_KINDS
def test_prefix_is_encoded(kind: Kind) -> None:
    tokenizer = trained(kind)
    assert make_constraints(tokenizer, prefix="the cat").prefix == tuple(tokenizer.encode("the cat"))


def test_required_word_has_a_leading_space_or_begins_the_text() -> None:
    tokenizer = trained("bpe")
    assert tokenizer.encode(" cat") != tokenizer.encode("cat"), "the test needs two different encodings"
    initial = tuple(tuple(tokenizer.encode(form)) for form in ("cat", "Cat"))
    expected = RequiredWord((tuple(tokenizer.encode(" cat")),), initial)
    assert make_constraints(tokenizer, required=["cat"]).required == (expected,)
    assert make_constraints(tokenizer, required=["cat"], continues=True).required == expected.anywhere


@pytest.mark.parametrize("word", [", ", "猫", "ねこ"])
def test_punctuation_and_scripts_without_spaces_need_none(word: str) -> None:
    tokenizer = trained("bpe")
    assert make_constraints(tokenizer, required=[word]).required == (tuple(tokenizer.encode(word.strip())),)


def test_capital_of_i_may_be_turkish() -> None:
    tokenizer = trained("bpe")
    (word,) = make_constraints(tokenizer, required=["ile"]).required
    assert isinstance(word, RequiredWord)
    assert [tokenizer.decode(ids) for ids in word.initial] == ["ile", "Ile", "İle"]


def test_required_word_of_a_word_tokenizer() -> None:
    tokenizer = trained("word")
    assert make_constraints(tokenizer, required=["cat"]).required == (tuple(tokenizer.encode("cat")),)


@BOTH_KINDS
def test_spaces_around_a_required_word_are_ignored(kind: Kind) -> None:
    assert make_constraints(trained(kind), required=["  cat "]) == make_constraints(trained(kind), required=["cat"])


@BOTH_KINDS
def test_required_words_keep_their_order(kind: Kind) -> None:
    tokenizer = trained(kind)
    once = {word: make_constraints(tokenizer, required=[word]).required[0] for word in ("dog", "cat")}
    required = make_constraints(tokenizer, required=["dog", "cat", "dog"]).required
    assert required == (once["dog"], once["cat"], once["dog"])


@BOTH_KINDS
def test_required_phrase_occurs_in_an_encoded_text(kind: Kind) -> None:
    tokenizer = trained(kind)
    (word,) = make_constraints(tokenizer, required=["the mouse"]).required
    (ids,) = RequiredWord.of(word).anywhere
    text = tuple(tokenizer.encode("cat ate the mouse"))
    assert any(text[start : start + len(ids)] == ids for start in range(len(text)))


@BOTH_KINDS
def test_forbidden_word_is_found_in_every_segmentation_and_inside_longer_words(kind: Kind) -> None:
    tokenizer = trained(kind)
    text = make_constraints(tokenizer, forbidden=["cat"]).forbidden_text
    assert text is not None
    if kind == "bpe":
        letters = [token for letter in "a scatter" for token in tokenizer.encode(letter)]
        assert tokenizer.decode(letters) == "a scatter"
        assert text.first_in(letters) == tuple(letters[3:6])
        assert text.first_in(tokenizer.encode("Cat")) is not None
    for sentence in CORPUS:
        assert (text.first_in(tokenizer.encode(sentence)) is not None) == ("cat" in sentence)


@BOTH_KINDS
def test_duplicate_forbidden_words_are_merged(kind: Kind) -> None:
    assert make_constraints(trained(kind), forbidden=["cat", " cat"]) == make_constraints(
        trained(kind), forbidden=["cat"]
    )


def test_order_of_forbidden_words_does_not_matter() -> None:
    tokenizer = trained("bpe")
    assert make_constraints(tokenizer, forbidden=["cat", "dog"]) == make_constraints(
        tokenizer, forbidden=["dog", "cat"]
    )


def test_unseen_word_is_encoded_as_bytes() -> None:
    tokenizer = trained("bpe")
    (word,) = make_constraints(tokenizer, required=["Zürich👍"]).required
    assert [tokenizer.decode(ids) for ids in RequiredWord.of(word).sequences] == [" Zürich👍", "Zürich👍"]


def test_seed_is_passed_on() -> None:
    assert make_constraints(trained("bpe"), seed=7).seed == 7


# Errors


@pytest.mark.parametrize(
    ("settings", "purpose"), [({"prefix": "the zebra"}, "begin with"), ({"required": ["zebra"]}, "contain")]
)
def test_out_of_vocabulary_word_is_named(settings: dict[str, str], purpose: str) -> None:
    with pytest.raises(UserError) as refused:
        make_constraints(trained("word"), **settings)  # type: ignore[arg-type]
    message = str(refused.value)
    assert "zebra" in message
    assert f"no output can {purpose} it" in message
    assert "\n" not in message


def test_out_of_vocabulary_forbidden_word_is_named() -> None:
    with pytest.raises(UserError, match="'zebra'"):
        make_constraints(trained("word"), forbidden=["zebra"])


@BOTH_KINDS
@pytest.mark.parametrize("word", ["", " ", "\t\n"])
def test_empty_required_word_is_refused(word: str, kind: Kind) -> None:
    with pytest.raises(UserError, match="required word is empty"):
        make_constraints(trained(kind), required=["cat", word])


@BOTH_KINDS
@pytest.mark.parametrize("word", ["", " "])
def test_empty_forbidden_word_is_refused(word: str, kind: Kind) -> None:
    with pytest.raises(UserError, match="forbidden word is empty"):
        make_constraints(trained(kind), forbidden=[word])


@BOTH_KINDS
def test_blank_prefix_is_refused(kind: Kind) -> None:
    with pytest.raises(UserError) as refused:
        make_constraints(trained(kind), prefix="  ")
    assert "required" not in str(refused.value)
