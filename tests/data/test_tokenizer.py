"""Tokenizers: text comes back as it was, the same texts give the same tokenizer, and typed text is only text."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from regard import UserError
from regard.data.tokenizer import SPECIAL_NAMES, Lost, TextTokenizer
from regard.data.tokenizer_training import (
    EncoderTokenizerConfig,
    Kind,
    TokenizerConfig,
    train_pair,
    train_tokenizer,
)

EXACT: list[Kind] = ["bpe", "unigram", "character", "byte"]
KINDS: list[Kind] = [*EXACT, "word"]
SIZES = {"bpe": 340, "unigram": 320, "character": 290}

TEXTS = [
    "The cat ate the mouse.",
    "Kedi fareyi yedi.",
    "İstanbul'da ılık bir akşam: ığdır, İĞDIR, şöyle böyle.",
    "the the the cat cat mouse, and the mouse's cat",
    "He said: <start> and </s> and [PAD] and <0x41> are words. <start> <start> </s> </s> [PAD] [PAD] <0x41> <0x41>",
    "⟨start⟩ ⟨end⟩ ⟨padding⟩ ⟨unknown⟩ ⟨start⟩ ⟨end⟩ ⟨padding⟩ ⟨unknown⟩",
]

VARIED = [f"{number**3} kedi {number % 7} fareyi {number**2} yedi" for number in range(500)]

HARD = [
    "",
    " ",
    "  two  spaces   three ",
    "\n\nline\r\nbreaks\n",
    "\ttab\x00nul\x07bell\x1b[0m\x7f\x85",
    "Iıİi ığdır IĞDIR i̇",
    "e\u0301 n\u0303 \u0301 \u0301a a\u0308\u0323",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇹🇷",
    "क्षत्रिय ภาษาไทย עִבְרִית 한국어 漢字かな",
    "▁Ġ Ċ ▁▁ĠĠ",
    "\ufeff\u200b\u200d\u2028\u00a0\u3000\ufffd\uffff\U0010ffff",
    "don't İstanbul'da rock’n’roll ''quoted'' '",
    "<0x41><0xFF> <unk> <s> </s> <pad> [UNK] [PAD] <|endoftext|> <start> <end> <padding> <unknown>",
    *SPECIAL_NAMES.values(),
    "".join(SPECIAL_NAMES.values()),
]

TYPED = [*SPECIAL_NAMES.values(), "<start>", "<end>", "<padding>", "</s>", "[PAD]", "<0x41>", "a ⟨end⟩⟨start⟩ b"]

any_text = some.text(max_size=60)
near_text = some.text(alphabet=" \n\t'’-_.<>[]/⟨⟩aeiıİIşğtchd01x▁Ġ\u0301\u0327\u200d😀", max_size=60)
wild_text = some.text(
    alphabet=some.characters(categories=["Cc", "Cf", "Mn", "Me", "Zs", "Zl", "So", "Lo"]), max_size=40
)


def config(kind: Kind) -> TokenizerConfig:
    return TokenizerConfig(kind=kind, vocabulary=SIZES.get(kind))


@cache
def trained(kind: Kind) -> TextTokenizer:
    return train_tokenizer(config(kind), TEXTS)


def imported() -> Tokenizer:
    """A tokenizer as Hugging Face folders hold them: <s> and </s> around every text, at most four tokens."""
    ids = {token: number for number, token in enumerate(["<s>", "</s>", "<pad>", *pre_tokenizers.ByteLevel.alphabet()])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    return tokenizer


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=200, deadline=None)
@given(text=any_text | near_text | wild_text)
def test_any_text_comes_back_exactly(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("kind", EXACT)
def test_hard_text_comes_back_exactly(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", EXACT)
def test_every_character_of_unicode_comes_back(kind: Kind) -> None:
    everything = "".join(chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000)
    texts = [everything[first : first + 4096] for first in range(0, len(everything), 4096)]
    tokenizer = trained(kind)
    assert tokenizer.decode_batch(tokenizer.encode_batch(texts)) == texts


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=25, deadline=None)
@given(texts=some.lists(any_text | near_text, min_size=1, max_size=4).filter(any), text=any_text)
def test_text_comes_back_whatever_was_learnt_from(kind: Kind, texts: list[str], text: str) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind), texts)
    for one in (*texts, text):
        assert tokenizer.decode(tokenizer.encode(one)) == one


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=50, deadline=None)
@given(text=any_text | near_text)
def test_an_exact_tokenizer_loses_nothing(kind: Kind, text: str) -> None:
    assert trained(kind).lost(text) == Lost()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_lie_within_the_vocabulary(kind: Kind) -> None:
    tokenizer = trained(kind)
    assert {number for ids in tokenizer.encode_batch(HARD) for number in ids} <= set(range(tokenizer.vocabulary))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_its_texts_one_by_one(kind: Kind) -> None:
    tokenizer = trained(kind)
    rows = tokenizer.encode_batch(HARD)
    assert rows == [tokenizer.encode(text) for text in HARD]
    assert tokenizer.decode_batch(rows) == [tokenizer.decode(row) for row in rows]


def test_one_character_is_one_token_if_it_was_met_and_its_bytes_if_not() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="character"), ["ığ"])
    assert [len(tokenizer.encode(text)) for text in ("ı", "ğ", "ş", "😀")] == [1, 1, 2, 4]


def test_a_byte_has_the_id_of_its_number_behind_the_special_tokens() -> None:
    tokenizer = trained("byte")
    assert tokenizer.vocabulary == 259
    assert tokenizer.encode("aı\x00") == [3 + byte for byte in "aı\x00".encode()]


def test_frequent_words_become_one_token_with_their_space() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocabulary=300), ["the cat ate the mouse"] * 5)
    assert len(tokenizer.encode(" the")) == 1


def test_an_ending_after_an_apostrophe_stays_whole() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="bpe", vocabulary=300), ["İzmir'de Ankara'da"] * 9)
    assert [tokenizer.decode([number]) for number in tokenizer.encode("Ankara'da")][-1] == "'da"


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_texts_give_the_same_tokenizer(kind: Kind) -> None:
    tokenizers = [train_tokenizer(config(kind), iter(TEXTS * 20)) for _ in range(3)]
    assert len({tokenizer.json for tokenizer in tokenizers}) == 1


TRAIN = """
import hashlib, sys
from regard.data.tokenizer_training import TokenizerConfig, train_tokenizer
texts = [f"{n * n} kedi {n % 7} fareyi {n ** 3} yedi {'xyz'[n % 3] * (n % 5)}" for n in range(1500)]
for kind, size in (("bpe", 400), ("unigram", 400), ("character", 270), ("word", 300)):
    print(train_tokenizer(TokenizerConfig(kind=kind, vocabulary=size), texts).fingerprint)
"""


def test_another_process_with_more_threads_gives_the_same_tokenizers() -> None:
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


def test_other_texts_give_another_fingerprint() -> None:
    assert trained("bpe").fingerprint != train_tokenizer(config("bpe"), TEXTS[:2]).fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_come_first(kind: Kind) -> None:
    tokenizer = trained(kind)
    assert (tokenizer.padding, tokenizer.start, tokenizer.end) == (0, 1, 2)
    assert tokenizer.unknown == (3 if kind == "word" else None)


@pytest.mark.parametrize("way", ["as trained", "loaded", "sent to a worker"])
@pytest.mark.parametrize("kind", EXACT)
def test_special_tokens_typed_are_plain_text(kind: Kind, way: str, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    if way == "loaded":
        tokenizer = TextTokenizer.load(tokenizer.save(tmp_path / "tokenizer.json"))
    elif way == "sent to a worker":
        tokenizer = ForkingPickler.loads(ForkingPickler.dumps(tokenizer))
    for text in TYPED:
        ids = tokenizer.encode(text)
        assert not {tokenizer.padding, tokenizer.start, tokenizer.end} & set(ids)
        assert tokenizer.decode(ids) == text


@settings(max_examples=50, deadline=None)
@given(text=some.lists(some.sampled_from([*TYPED, " ", "a"]), max_size=8).map("".join))
def test_special_tokens_typed_never_give_special_ids_among_words(text: str) -> None:
    tokenizer = trained("word")
    assert not {tokenizer.padding, tokenizer.start, tokenizer.end} & set(tokenizer.encode(text))


def test_special_tokens_typed_come_back_as_words() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), ["⟨ start ⟩ < end >"])
    assert tokenizer.decode(tokenizer.encode("⟨start⟩ <end>")) == "⟨ start ⟩ < end >"


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_leave_no_trace_in_text(kind: Kind) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode("the cat")
    framed = [tokenizer.start, *ids, tokenizer.end, tokenizer.padding, tokenizer.padding]
    assert tokenizer.decode([number for number in framed if number is not None]) == "the cat"


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_tokenizer_comes_back_the_same(kind: Kind, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    again = TextTokenizer.load(tokenizer.save(tmp_path / "tokenizer.json"))
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode_batch(HARD) == tokenizer.encode_batch(HARD)
    assert (again.padding, again.start, again.end, again.unknown) == (
        tokenizer.padding, tokenizer.start, tokenizer.end, tokenizer.unknown
    )  # fmt: skip


def test_a_saved_tokenizer_is_plain_json_for_the_library_itself(tmp_path: Path) -> None:
    path = trained("bpe").save(tmp_path / "tokenizer.json")
    json.loads(path.read_text(encoding="utf-8"))
    assert Tokenizer.from_file(str(path)).encode("the cat").ids == trained("bpe").encode("the cat")


def test_saving_over_an_old_tokenizer_leaves_nothing_beside_it(tmp_path: Path) -> None:
    trained("byte").save(tmp_path / "tokenizer.json")
    trained("bpe").save(tmp_path / "tokenizer.json")
    assert TextTokenizer.load(tmp_path / "tokenizer.json").fingerprint == trained("bpe").fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trained("byte").save(tmp_path / "tokenizer.json")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        trained("bpe").save(path)
    assert TextTokenizer.load(path).fingerprint == trained("byte").fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_folder_that_is_not_there_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be written"):
        trained("byte").save(tmp_path / "nowhere" / "tokenizer.json")


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[1]", b"\xff\xfe"])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.json.*restore it from a copy"):
        TextTokenizer.load(path)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = trained("bpe").save(tmp_path / "tokenizer.json")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer"):
        TextTokenizer.load(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json: there is no such file"):
        TextTokenizer.load(tmp_path / "tokenizer.json")


def test_a_word_tokenizer_says_which_words_it_lost() -> None:
    lost = trained("word").lost("the zebra ate the okapi")
    assert lost == Lost(unknown=("zebra", "okapi"))
    assert str(lost) == "words not in the vocabulary: 2 (zebra, okapi)"


def test_a_word_tokenizer_says_that_spaces_changed() -> None:
    lost = trained("word").lost("the  cat.")
    assert lost == Lost(altered=True)
    assert "spaces" in str(lost)


def test_a_word_tokenizer_says_when_nothing_is_lost() -> None:
    lost = trained("word").lost("the cat ate the mouse .")
    assert not lost
    assert str(lost) == "nothing was lost"


def test_unknown_words_can_be_seen_in_decoded_text() -> None:
    tokenizer = trained("word")
    assert tokenizer.decode(tokenizer.encode("the zebra ate")) == "the ⟨unknown⟩ ate"


@settings(max_examples=100, deadline=None)
@given(text=any_text | near_text)
def test_a_word_tokenizer_loses_something_exactly_if_text_comes_back_changed(text: str) -> None:
    tokenizer = trained("word")
    assert bool(tokenizer.lost(text)) == (tokenizer.decode(tokenizer.encode(text)) != text)


def test_rare_words_are_left_out() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", minimum_count=2), ["a b a c c a"])
    assert tokenizer.lost("a b c").unknown == ("b",)


def test_the_most_frequent_words_are_kept() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word", vocabulary=6), ["a b a c c a"])
    assert tokenizer.lost("a b c").unknown == ("b",)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_the_smallest_vocabulary_still_holds_any_text(kind: Kind) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocabulary=259), TEXTS)
    assert tokenizer.vocabulary == 259
    assert tokenizer.decode_batch(tokenizer.encode_batch(HARD)) == HARD


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("size", [260, 275, 320])
def test_a_vocabulary_has_the_size_asked_for_where_texts_allow(kind: Kind, size: int) -> None:
    assert train_tokenizer(TokenizerConfig(kind=kind, vocabulary=size), VARIED).vocabulary == size


@pytest.mark.parametrize(("kind", "smallest"), [("bpe", 259), ("unigram", 259), ("character", 259), ("word", 5)])
def test_a_vocabulary_too_small_names_the_smallest(kind: Kind, smallest: int) -> None:
    with pytest.raises(UserError, match=rf"vocabulary: found {smallest - 1}, but .* need {smallest}"):
        TokenizerConfig(kind=kind, vocabulary=smallest - 1)


def test_bytes_have_no_vocabulary_to_choose() -> None:
    with pytest.raises(UserError, match="always has 259 tokens"):
        TokenizerConfig(kind="byte", vocabulary=300)


def test_a_unigram_tokenizer_has_no_minimum_count() -> None:
    with pytest.raises(UserError, match="minimum_count: a unigram tokenizer does not count"):
        TokenizerConfig(kind="unigram", minimum_count=2)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "word"])
@pytest.mark.parametrize("texts", [[], [""], ["", ""]])
def test_no_text_at_all_is_an_error(kind: Kind, texts: list[str]) -> None:
    with pytest.raises(UserError, match="no texts to learn a tokenizer from"):
        train_tokenizer(TokenizerConfig(kind=kind), texts)


def test_a_single_string_is_not_taken_for_a_list_of_letters() -> None:
    with pytest.raises(UserError, match="put it into a list"):
        train_tokenizer(TokenizerConfig(), "the cat")


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word"])
def test_a_vocabulary_not_reached_is_reported(kind: Kind) -> None:
    heard: list[str] = []
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind, vocabulary=5000), TEXTS, heard.append)
    assert len(heard) == 1
    assert f"a vocabulary of {tokenizer.vocabulary} tokens where up to 5000" in heard[0]


def test_a_vocabulary_reached_is_not_reported() -> None:
    heard: list[str] = []
    train_tokenizer(TokenizerConfig(kind="bpe", vocabulary=270), TEXTS, heard.append)
    assert heard == []


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_is_refused(kind: Kind) -> None:
    with pytest.raises(UserError, match="Character 3 of the text is half a surrogate pair"):
        trained(kind).encode("ab\ud83d")


def test_half_a_surrogate_pair_in_a_batch_is_refused() -> None:
    with pytest.raises(UserError, match="half a surrogate pair"):
        trained("bpe").encode_batch(["a", "\udc00b"])


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character", "word"])
def test_half_a_surrogate_pair_in_training_names_the_text(kind: Kind) -> None:
    with pytest.raises(UserError, match="text 2: Character 1 of the text is half a surrogate pair"):
        train_tokenizer(TokenizerConfig(kind=kind), ["fine", "\ud83d"])


@pytest.mark.parametrize("number", [-1, 259, 10**9])
def test_an_id_outside_the_vocabulary_is_refused(number: int) -> None:
    with pytest.raises(UserError, match=rf"The id {number} is no token .* from 0 to 258"):
        trained("byte").decode([5, number])


def test_a_byte_that_is_no_text_spoils_nothing_but_itself() -> None:
    assert trained("byte").decode([3 + byte for byte in b"a\xffb"]) == "a�b"


def test_a_shared_vocabulary_is_one_tokenizer_learnt_from_both_sides() -> None:
    source, target = train_pair(TokenizerConfig(kind="word"), ["the cat"], ["kedi"], shared=True)
    assert source is target
    assert not source.lost("the cat kedi")


def test_separate_vocabularies_are_learnt_from_one_side_each() -> None:
    source, target = train_pair(TokenizerConfig(kind="word"), ["the cat"], ["kedi"], shared=False)
    assert source.lost("cat kedi").unknown == ("kedi",)
    assert target.lost("cat kedi").unknown == ("cat",)


@pytest.mark.parametrize("shared", [True, False])
def test_a_side_without_texts_is_named(shared: bool) -> None:
    with pytest.raises(UserError, match="no target texts"):
        train_pair(TokenizerConfig(), ["the cat"], [], shared=shared)


def test_texts_are_read_once_and_as_a_stream() -> None:
    given_out: list[int] = []

    def stream() -> Iterator[str]:
        for number in range(1000):
            given_out.append(number)
            yield f"text {number}"

    train_tokenizer(TokenizerConfig(kind="bpe", vocabulary=300), stream())
    assert all(after == before + 1 for before, after in pairwise(given_out))
    assert len(given_out) == 1000


def test_an_imported_tokenizer_adds_nothing_and_cuts_nothing() -> None:
    tokenizer = TextTokenizer(imported(), padding=2, start=0, end=1)
    assert tokenizer.decode(tokenizer.encode("a long text")) == "a long text"
    assert len(tokenizer.encode("a long text")) == 11


def test_an_imported_tokenizer_takes_typed_special_tokens_as_text() -> None:
    tokenizer = TextTokenizer(imported(), padding=2, start=0, end=1)
    ids = tokenizer.encode("</s><pad><s>")
    assert not {0, 1, 2} & set(ids)
    assert tokenizer.decode([0, *ids, 1, 2]) == "</s><pad><s>"


def test_an_imported_unigram_tokenizer_takes_typed_special_tokens_as_text() -> None:
    letters = [(letter, -3.0) for letter in "</s>ab"]
    original = Tokenizer(models.Unigram([("</s>", 0.0), ("<unk>", 0.0), *letters], unk_id=1))
    original.decoder = decoders.Fuse()
    original.add_special_tokens(["</s>"])
    tokenizer = TextTokenizer(original, end=0, unknown=1)
    ids = tokenizer.encode("a</s>b")
    assert 0 not in ids
    assert tokenizer.decode(ids) == "a</s>b"


def test_the_imported_tokenizer_itself_stays_as_it_was() -> None:
    original = imported()
    before = original.to_str()
    TextTokenizer(original, padding=2)
    assert original.to_str() == before
    assert original.encode("a").ids[:1] == [0]


def test_an_imported_tokenizer_has_only_the_special_ids_given() -> None:
    tokenizer = TextTokenizer(imported(), end=1)
    assert (tokenizer.padding, tokenizer.start, tokenizer.end, tokenizer.unknown) == (None, None, 1, None)


def test_a_special_id_that_the_tokenizer_lacks_is_refused() -> None:
    with pytest.raises(UserError, match="The end token should have the id 999"):
        TextTokenizer(imported(), end=999)


# Tokenizers for models that read whole texts.


@cache
def for_encoder(kind: Kind) -> TextTokenizer:
    size = SIZES.get(kind)
    return train_tokenizer(EncoderTokenizerConfig(kind=kind, vocabulary=None if size is None else size + 3), TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_an_encoders_tokenizer_has_a_mask_and_two_tokens_around_texts(kind: Kind) -> None:
    found = for_encoder(kind)
    assert (found.padding, found.start, found.end) == (0, 1, 2)
    assert (found.mask, found.separator, found.classify) == (3, 4, 5)
    assert found.special == frozenset(range(7 if kind == "word" else 6))


@pytest.mark.parametrize("kind", KINDS)
def test_any_other_tokenizer_has_none_of_them(kind: Kind) -> None:
    found = trained(kind)
    assert (found.mask, found.separator, found.classify) == (None, None, None)
    assert not any(SPECIAL_NAMES[role] in found.json for role in ("mask", "separator", "classify"))


@pytest.mark.parametrize("kind", KINDS)
def test_its_other_tokens_are_those_of_any_other_three_ids_further_on(kind: Kind) -> None:
    ours, others = for_encoder(kind), trained(kind)
    assert ours.vocabulary == others.vocabulary + 3
    assert ours.encode_batch(TEXTS) == [[number + 3 for number in row] for row in others.encode_batch(TEXTS)]


@pytest.mark.parametrize("text", [*TYPED, "[MASK]", "[CLS] a [SEP]", "<mask>"])
@pytest.mark.parametrize("kind", EXACT)
def test_what_looks_like_a_mask_stays_text(kind: Kind, text: str) -> None:
    found = for_encoder(kind)
    assert not found.special & set(found.encode(text))
    assert found.decode(found.encode(text)) == text


def test_a_mask_leaves_no_trace_in_text_and_goes_along_to_another_process() -> None:
    found = ForkingPickler.loads(ForkingPickler.dumps(for_encoder("bpe")))
    assert (found.mask, found.separator, found.classify) == (3, 4, 5)
    assert found.decode([5, *found.encode("the cat"), 3, 4]) == "the cat"


def test_a_vocabulary_too_small_for_all_its_special_tokens_is_refused() -> None:
    with pytest.raises(UserError, match="need 262"):
        EncoderTokenizerConfig(kind="bpe", vocabulary=261)


@pytest.mark.parametrize("kind", EXACT)
def test_the_places_of_tokens_are_those_of_their_text(kind: Kind) -> None:
    text = "The cat ate the 🐁, didn't it?"
    tokenizer = trained(kind)
    ids, places = tokenizer.encode_placed(text)
    assert ids == tokenizer.encode(text)
    whole = [(first, last) for number, (first, last) in zip(ids, places, strict=True)
             if tokenizer.decode([number]) == text[first:last]]  # fmt: skip
    assert {place for first, last in whole for place in range(first, last)} >= set(range(len(text))) - {16}
