"""Words that an output must or must not have become the tokens that the model would write them with."""

from functools import cache

import pytest

from regard import UserError
from regard.data.tokenizer import TextTokenizer
from regard.data.tokenizer_training import Kind, TokenizerConfig, train_tokenizer
from regard.decode import Wish
from regard.task.words import make_wish

LEARNT = ["the cat ate the mouse", "The cat, the dog and the cat", "kedi ağaç ğ"] * 3


@cache
def trained(kind: Kind) -> TextTokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, vocabulary=330 if kind == "bpe" else None), LEARNT)


BOTH = pytest.mark.parametrize("kind", ["bpe", "word"])


def test_nothing_asked_for_is_a_wish_for_nothing() -> None:
    assert make_wish(trained("bpe")) == Wish()


@BOTH
def test_a_beginning_is_its_tokens(kind: Kind) -> None:
    tokenizer = trained(kind)
    assert make_wish(tokenizer, prefix="the cat").prefix == tuple(tokenizer.encode("the cat"))


def test_a_required_word_has_the_space_before_it_where_the_tokenizer_keeps_one() -> None:
    tokenizer = trained("bpe")
    assert tokenizer.encode(" cat") != tokenizer.encode("cat"), "the case is not met"
    assert make_wish(tokenizer, required=["cat"]).required == (tuple(tokenizer.encode(" cat")),)


def test_a_required_word_of_a_word_tokenizer_is_that_word() -> None:
    tokenizer = trained("word")
    assert make_wish(tokenizer, required=["cat"]).required == (tuple(tokenizer.encode("cat")),)


@BOTH
def test_spaces_around_a_required_word_mean_nothing(kind: Kind) -> None:
    assert make_wish(trained(kind), required=["  cat "]) == make_wish(trained(kind), required=["cat"])


@BOTH
def test_several_required_words_keep_their_order_and_their_number(kind: Kind) -> None:
    tokenizer = trained(kind)
    once = {word: make_wish(tokenizer, required=[word]).required[0] for word in ("dog", "cat")}
    found = make_wish(tokenizer, required=["dog", "cat", "dog"]).required
    assert found == (once["dog"], once["cat"], once["dog"])


@BOTH
def test_words_required_together_are_found_side_by_side_in_a_text(kind: Kind) -> None:
    tokenizer = trained(kind)
    (ids,) = make_wish(tokenizer, required=["the mouse"]).required
    text = tuple(tokenizer.encode("cat ate the mouse"))
    assert any(text[at : at + len(ids)] == ids for at in range(len(text)))


def test_a_forbidden_word_is_forbidden_at_the_beginning_and_inside_a_text() -> None:
    tokenizer = trained("bpe")
    forms = {tuple(tokenizer.encode("cat")), tuple(tokenizer.encode(" cat"))}
    assert set(make_wish(tokenizer, forbidden=["cat"]).forbidden) == forms


def test_a_forbidden_word_of_a_word_tokenizer_has_one_form() -> None:
    tokenizer = trained("word")
    assert make_wish(tokenizer, forbidden=["cat"]).forbidden == (tuple(tokenizer.encode("cat")),)


@BOTH
def test_forbidding_a_word_twice_is_forbidding_it(kind: Kind) -> None:
    assert make_wish(trained(kind), forbidden=["cat", " cat"]) == make_wish(trained(kind), forbidden=["cat"])


def test_forbidden_words_in_any_order_are_the_same_wish() -> None:
    tokenizer = trained("bpe")
    assert make_wish(tokenizer, forbidden=["cat", "dog"]) == make_wish(tokenizer, forbidden=["dog", "cat"])


def test_a_word_never_met_can_still_be_written_in_bytes() -> None:
    tokenizer = trained("bpe")
    (ids,) = make_wish(tokenizer, required=["Zürich👍"]).required
    assert tokenizer.decode(ids) == " Zürich👍"


def test_a_seed_is_handed_on() -> None:
    assert make_wish(trained("bpe"), seed=7).seed == 7


# What cannot be.


@pytest.mark.parametrize(
    ("asked", "purpose"), [({"prefix": "the zebra"}, "begin with"), ({"required": ["zebra"]}, "contain")]
)
def test_a_word_that_the_vocabulary_lacks_is_named(asked: dict[str, str], purpose: str) -> None:
    with pytest.raises(UserError) as refused:
        make_wish(trained("word"), **asked)  # type: ignore[arg-type]
    sentence = str(refused.value)
    assert "zebra" in sentence
    assert f"no output can {purpose} it" in sentence
    assert "\n" not in sentence


def test_a_forbidden_word_that_the_vocabulary_lacks_is_named() -> None:
    with pytest.raises(UserError, match=r"'zebra' cannot be written by this model"):
        make_wish(trained("word"), forbidden=["zebra"])


@BOTH
@pytest.mark.parametrize("word", ["", " ", "\t\n"])
def test_an_empty_required_word_is_refused(word: str, kind: Kind) -> None:
    with pytest.raises(UserError, match=r"A required word is empty; leave it out\."):
        make_wish(trained(kind), required=["cat", word])


@BOTH
@pytest.mark.parametrize("word", ["", " "])
def test_an_empty_forbidden_word_is_refused(word: str, kind: Kind) -> None:
    with pytest.raises(UserError, match=r"A forbidden word is empty; leave it out\."):
        make_wish(trained(kind), forbidden=[word])


@BOTH
def test_a_beginning_of_spaces_alone_is_refused_as_a_beginning(kind: Kind) -> None:
    with pytest.raises(UserError) as refused:
        make_wish(trained(kind), prefix="  ")
    assert "required" not in str(refused.value)
