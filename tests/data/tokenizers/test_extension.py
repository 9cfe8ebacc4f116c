"""Extended tokenizers: old tokens keep their ids, other text is tokenized as before, and new text in fewer tokens."""

import copy
import random

import pytest

from regard import UserError
from regard.data.text.augment import uppercase
from regard.data.tokenizers.extension import extend_pair, extend_tokenizer, replaced_tokens
from regard.data.tokenizers.training import Kind, TokenizerConfig, train_tokenizer
from tests.data.tokenizers.support import HARD, KINDS, TEXTS, trained

KITTENS = ["the kitten sees İzmir", "kedi ile fare", "Tom ate the mouse", "Kılıç ısındı"] * 3
CAPITALS = [uppercase(text, "tr") for text in KITTENS]


def test_extended_tokenizer_is_the_one_trained_to_that_size_at_once() -> None:
    rng = random.Random(1)
    texts = ["".join(rng.choices("abcde", (1, 2, 3, 4, 5), k=9)) for _ in range(3000)]  # few pairs, of different counts
    smaller, larger = (train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=size), texts) for size in (265, 290))
    assert extend_tokenizer(smaller, texts, 25).json == larger.json


def test_old_tokens_keep_their_ids_and_other_text_is_tokenized_as_before() -> None:
    old = trained("bpe")
    extended = extend_tokenizer(old, ["ŻÓŁĆ ŻÓŁW"] * 5, 12)
    assert old.vocab_size < extended.vocab_size <= old.vocab_size + 12
    for token in old.ids:
        assert extended.tokenizer.id_to_token(token) == old.tokenizer.id_to_token(token)
    assert extended.special_roles == old.special_roles
    for text in (*TEXTS, *HARD, *KITTENS):
        assert extended.encode(text) == old.encode(text)
    assert len(extended.encode("ŻÓŁĆ")) < len(old.encode("ŻÓŁĆ"))
    assert extended.decode(extended.encode("ŻÓŁĆ, Żółw")) == "ŻÓŁĆ, Żółw"


def test_extension_is_deterministic_and_ends_where_nothing_repeats() -> None:
    messages: list[str] = []
    first, second = (extend_tokenizer(trained("bpe"), texts, 500, messages.append) for texts in (CAPITALS,) * 2)
    assert first.json == second.json
    assert first.vocab_size < trained("bpe").vocab_size + 500
    assert f"{first.vocab_size - trained('bpe').vocab_size} new tokens instead of 500" in messages[0]


def test_separate_tokenizers_learn_from_one_side_each() -> None:
    old = trained("bpe")
    source, target = extend_pair(old, copy.copy(old), ["ŻÓŁĆ"] * 9, ["ÞAÐ"] * 9, 10)
    assert len(source.encode("ŻÓŁĆ")) < len(target.encode("ŻÓŁĆ")) == len(old.encode("ŻÓŁĆ"))
    assert len(target.encode("ÞAÐ")) < len(source.encode("ÞAÐ")) == len(old.encode("ÞAÐ"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bpe"])
def test_other_kinds_cannot_be_extended(kind: Kind) -> None:
    with pytest.raises(UserError, match=r"^tokenizer\.new_tokens: "):
        extend_tokenizer(trained(kind), CAPITALS, 10)


def test_capitals_replace_the_tokens_of_the_same_text_in_the_known_case() -> None:
    old = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=330), KITTENS * 9)
    extended = extend_tokenizer(old, CAPITALS * 9, 60)
    rows = replaced_tokens(old, extended, (None, "tr"))
    replaced = {
        extended.decode([number]): [old.decode([token]) for token in row]
        for number, row in enumerate(rows, start=old.vocab_size)
    }
    assert len(rows) == extended.vocab_size - old.vocab_size
    assert replaced["KEDİ"] == ["kedi"]
    assert replaced["TOM"] == ["Tom"]
    assert replaced[" THE"] == [" the"]
    assert replaced[" ISINDI"] == [" ısındı"]
    assert all(token < old.vocab_size for row in rows for token in row)


def test_part_of_a_character_replaces_its_bytes() -> None:
    old = trained("bpe")
    extended = extend_tokenizer(old, ["中丰", "串丹"] * 5, 1)  # the first two of three bytes are the same in all
    (row,) = replaced_tokens(old, extended)
    assert extended.decode([old.vocab_size]).strip("�") == ""
    assert [old.tokenizer.id_to_token(token) for token in row] == list(extended.tokenizer.id_to_token(old.vocab_size))
