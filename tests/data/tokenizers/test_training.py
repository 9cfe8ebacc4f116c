"""Training tokenizers: deterministic, with the configured vocabulary, and lossless whatever the vocabulary's size."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest

from regard import UserError
from regard.data.tokenizers.tokenizer import SPECIAL_NAMES
from regard.data.tokenizers.training import EncoderTokenizerConfig, Kind, TokenizerConfig, train_pair, train_tokenizer
from tests.data.tokenizers.support import HARD, KINDS, TEXTS, config, for_encoder, trained

VARIED = [f"{number**3} kedi {number % 7} fareyi {number**2} yedi" for number in range(500)]


def test_unseen_character_becomes_bytes() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="character"), ["ığ"])
    assert [len(tokenizer.encode(text)) for text in ("ı", "ğ", "ş", "😀")] == [1, 1, 2, 4]


def test_byte_ids_follow_the_special_tokens() -> None:
    tokenizer = trained("byte")
    assert tokenizer.vocab_size == 259
    assert tokenizer.encode("aı\x00") == [3 + byte for byte in "aı\x00".encode()]


def test_frequent_words_become_one_token() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), ["the cat ate the mouse"] * 5)
    assert len(tokenizer.encode(" the")) == 1


def test_apostrophe_and_suffix_form_one_word() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), ["İzmir'de Ankara'da"] * 9)
    assert [tokenizer.decode([number]) for number in tokenizer.encode("Ankara'da")][-1] == "'da"


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic(kind: Kind) -> None:
    tokenizers = [train_tokenizer(config(kind), iter(TEXTS * 20)) for _ in range(3)]
    assert len({tokenizer.json for tokenizer in tokenizers}) == 1


TRAIN = """
import hashlib, sys
from regard.data.tokenizers.training import TokenizerConfig, train_tokenizer
texts = [f"{n * n} kedi {n % 7} fareyi {n ** 3} yedi {'xyz'[n % 3] * (n % 5)}" for n in range(1500)]
for kind, size in (("bpe", 400), ("unigram", 400), ("character", 270), ("word", 300), ("whitespace", 300)):
    print(train_tokenizer(TokenizerConfig(kind=kind, vocab_size=size), texts).fingerprint)
"""


def test_training_does_not_depend_on_threads() -> None:
    outputs = set()
    for threads, seed in (("1", "1"), ("4", "2")):
        environment = os.environ | {
            "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": "true"
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_fingerprint_depends_on_the_texts() -> None:
    assert trained("bpe").fingerprint != train_tokenizer(config("bpe"), TEXTS[:2]).fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_come_first(kind: Kind) -> None:
    tokenizer = trained(kind)
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos) == (0, 1, 2)
    assert tokenizer.unk == (3 if kind in ("word", "whitespace") else None)


def test_rare_words_are_left_out() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", min_frequency=2), ["a b a c c a"])
    assert tokenizer.round_trip_loss("a b c").unknown == ("b",)


def test_vocabulary_keeps_the_most_frequent_words() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", vocab_size=6), ["a b a c c a"])
    assert tokenizer.round_trip_loss("a b c").unknown == ("b",)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_smallest_vocabulary_is_lossless(kind: Kind) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=259), TEXTS)
    assert tokenizer.vocab_size == 259
    assert tokenizer.decode_batch(tokenizer.encode_batch(HARD)) == HARD


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("size", [260, 275, 320])
def test_vocabulary_has_the_configured_size(kind: Kind, size: int) -> None:
    assert train_tokenizer(TokenizerConfig(kind=kind, vocab_size=size), VARIED).vocab_size == size


@pytest.mark.parametrize(("kind", "smallest"), [("bpe", 259), ("unigram", 259), ("character", 259), ("word", 5)])
def test_too_small_vocabulary_names_the_minimum(kind: Kind, smallest: int) -> None:
    with pytest.raises(UserError, match=rf"vocab_size: found {smallest - 1}, but .* need {smallest}"):
        TokenizerConfig(kind=kind, vocab_size=smallest - 1)


def test_byte_tokenizer_has_a_fixed_size() -> None:
    with pytest.raises(UserError, match="always has 259 tokens"):
        TokenizerConfig(kind="byte", vocab_size=300)


def test_unigram_tokenizer_has_no_min_frequency() -> None:
    with pytest.raises(UserError, match="min_frequency: a unigram tokenizer has no minimum frequency"):
        TokenizerConfig(kind="unigram", min_frequency=2)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "word"])
@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_text_is_an_error(kind: Kind, texts: list[str]) -> None:
    with pytest.raises(UserError, match="no texts to train a tokenizer on"):
        train_tokenizer(TokenizerConfig(kind=kind), texts)


def test_single_string_is_refused() -> None:
    with pytest.raises(UserError, match="put it into a list"):
        train_tokenizer(TokenizerConfig(), "the cat")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word"])
def test_smaller_vocabulary_is_logged(kind: Kind) -> None:
    messages: list[str] = []
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocab_size=5000), TEXTS, messages.append)
    assert len(messages) == 1
    assert f"has {tokenizer.vocab_size} tokens instead of 5000" in messages[0]


def test_full_vocabulary_is_not_logged() -> None:
    messages: list[str] = []
    train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=270), TEXTS, messages.append)
    assert messages == []


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "word"])
def test_lone_surrogate_in_training_names_the_text(kind: Kind) -> None:
    with pytest.raises(UserError, match="text 2: Character 1 of the text is half a surrogate pair"):
        train_tokenizer(TokenizerConfig(kind=kind), ["fine", "\ud83d"])


def test_shared_tokenizer_is_trained_on_both_sides() -> None:
    source, target = train_pair(TokenizerConfig(kind="word"), ["the cat"], ["kedi"], shared=True)
    assert source is target
    assert not source.round_trip_loss("the cat kedi")


def test_separate_tokenizers_are_trained_on_one_side_each() -> None:
    source, target = train_pair(TokenizerConfig(kind="word"), ["the cat"], ["kedi"], shared=False)
    assert source.round_trip_loss("cat kedi").unknown == ("kedi",)
    assert target.round_trip_loss("cat kedi").unknown == ("cat",)


@pytest.mark.parametrize("shared", [True, False])
def test_side_without_texts_is_named(shared: bool) -> None:
    with pytest.raises(UserError, match="no target texts"):
        train_pair(TokenizerConfig(), ["the cat"], [], shared=shared)


def test_texts_are_read_once_as_a_stream() -> None:
    read: list[int] = []

    def stream() -> Iterator[str]:
        for number in range(1000):
            read.append(number)
            yield f"text {number}"

    train_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), stream())
    assert all(after == before + 1 for before, after in pairwise(read))
    assert len(read) == 1000


@pytest.mark.parametrize("kind", KINDS)
def test_encoder_tokenizer_has_mask_sep_and_cls(kind: Kind) -> None:
    found = for_encoder(kind)
    assert (found.pad, found.bos, found.eos) == (0, 1, 2)
    assert (found.mask, found.sep, found.cls) == (3, 4, 5)
    assert found.special_ids == frozenset(range(7 if kind in ("word", "whitespace") else 6))


@pytest.mark.parametrize("kind", KINDS)
def test_other_tokenizers_have_no_mask_sep_and_cls(kind: Kind) -> None:
    found = trained(kind)
    assert (found.mask, found.sep, found.cls) == (None, None, None)
    assert not any(SPECIAL_NAMES[role] in found.json for role in ("mask", "sep", "cls"))


@pytest.mark.parametrize("kind", KINDS)
def test_encoder_tokenizer_equals_plain_one_shifted_by_three(kind: Kind) -> None:
    ours, others = for_encoder(kind), trained(kind)
    assert ours.vocab_size == others.vocab_size + 3
    assert ours.encode_batch(TEXTS) == [[number + 3 for number in row] for row in others.encode_batch(TEXTS)]


def test_vocabulary_too_small_for_special_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="need 262"):
        EncoderTokenizerConfig(kind="bpe", vocab_size=261)
