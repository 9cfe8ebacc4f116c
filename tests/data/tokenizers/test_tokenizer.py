"""Tokenizers: text round-trips, files are saved and loaded, and names of special tokens in a text are plain text."""

import json
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from regard import UserError
from regard.data.tokenizers.tokenizer import SPECIAL_NAMES, RoundTripLoss, TextTokenizer
from regard.data.tokenizers.training import Kind, TokenizerConfig, train_tokenizer
from tests.data.tokenizers.support import EXACT, HARD, KINDS, for_encoder, trained

NAMES_IN_TEXT = [*SPECIAL_NAMES.values(), "<bos>", "<eos>", "<pad>", "</s>", "[PAD]", "<0x41>", "a ⟨eos⟩⟨bos⟩ b"]

any_text = st.text(max_size=60)
near_text = st.text(alphabet=" \n\t'’-_.<>[]/⟨⟩aeiıİIşğtchd01x▁Ġ\u0301\u0327\u200d😀", max_size=60)
wild_text = st.text(alphabet=st.characters(categories=["Cc", "Cf", "Mn", "Me", "Zs", "Zl", "So", "Lo"]), max_size=40)


def imported() -> Tokenizer:
    """A tokenizer as in Hugging Face folders: it adds <s> and </s>, truncates to four tokens and pads to nine."""
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
def test_text_round_trips(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", HARD)
@pytest.mark.parametrize("kind", EXACT)
def test_hard_text_round_trips(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", EXACT)
def test_every_unicode_character_round_trips(kind: Kind) -> None:
    everything = "".join(chr(number) for number in range(0x110000) if not 0xD800 <= number < 0xE000)
    texts = [everything[first : first + 4096] for first in range(0, len(everything), 4096)]
    tokenizer = trained(kind)
    assert tokenizer.decode_batch(tokenizer.encode_batch(texts)) == texts


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=25, deadline=None)
@given(texts=st.lists(any_text | near_text, min_size=1, max_size=4).filter(any), text=any_text)
def test_text_round_trips_whatever_the_training_text(kind: Kind, texts: list[str], text: str) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind=kind), texts)
    for one in (*texts, text):
        assert tokenizer.decode(tokenizer.encode(one)) == one


@pytest.mark.parametrize("kind", EXACT)
@settings(max_examples=50, deadline=None)
@given(text=any_text | near_text)
def test_lossless_tokenizer_has_no_round_trip_loss(kind: Kind, text: str) -> None:
    assert trained(kind).round_trip_loss(text) == RoundTripLoss()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_in_the_vocabulary(kind: Kind) -> None:
    tokenizer = trained(kind)
    assert {number for ids in tokenizer.encode_batch(HARD) for number in ids} <= set(range(tokenizer.vocab_size))


@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_single_texts(kind: Kind) -> None:
    tokenizer = trained(kind)
    rows = tokenizer.encode_batch(HARD)
    assert rows == [tokenizer.encode(text) for text in HARD]
    assert tokenizer.decode_batch(rows) == [tokenizer.decode(row) for row in rows]


@pytest.mark.parametrize("origin", ["as trained", "loaded", "sent to a worker"])
@pytest.mark.parametrize("kind", EXACT)
def test_special_token_names_are_plain_text(kind: Kind, origin: str, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    if origin == "loaded":
        tokenizer = TextTokenizer.load(tokenizer.save(tmp_path / "tokenizer.json"))
    elif origin == "sent to a worker":
        tokenizer = ForkingPickler.loads(ForkingPickler.dumps(tokenizer))
    for text in NAMES_IN_TEXT:
        ids = tokenizer.encode(text)
        assert not {tokenizer.pad, tokenizer.bos, tokenizer.eos} & set(ids)
        assert tokenizer.decode(ids) == text


def test_whitespace_tokenizer_takes_what_is_between_spaces() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="whitespace"), ["the cat &apos;s well-known toy ."])
    assert len(ids := tokenizer.encode("the  cat &apos;s toy")) == 4
    assert tokenizer.decode(ids) == "the cat &apos;s toy"


@pytest.mark.parametrize("kind", ["word", "whitespace"])
@settings(max_examples=50, deadline=None)
@given(text=st.lists(st.sampled_from([*NAMES_IN_TEXT, " ", "a"]), max_size=8).map("".join))
def test_special_token_names_never_give_special_ids(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    assert not {tokenizer.pad, tokenizer.bos, tokenizer.eos} & set(tokenizer.encode(text))


def test_special_token_names_are_split_into_known_words() -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind="word"), ["⟨ bos ⟩ < end >"])
    assert tokenizer.decode(tokenizer.encode("⟨bos⟩ <end>")) == "⟨ bos ⟩ < end >"


@pytest.mark.parametrize("kind", KINDS)
def test_special_ids_are_left_out_of_text(kind: Kind) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode("the cat")
    framed = [tokenizer.bos, *ids, tokenizer.eos, tokenizer.pad, tokenizer.pad]
    assert tokenizer.decode([number for number in framed if number is not None]) == "the cat"


@pytest.mark.parametrize("kind", KINDS)
def test_saved_tokenizer_is_loaded_unchanged(kind: Kind, tmp_path: Path) -> None:
    tokenizer = trained(kind)
    again = TextTokenizer.load(tokenizer.save(tmp_path / "tokenizer.json"))
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode_batch(HARD) == tokenizer.encode_batch(HARD)
    assert (again.pad, again.bos, again.eos, again.unk) == (
        tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk
    )  # fmt: skip


def test_saved_tokenizer_is_read_by_the_library(tmp_path: Path) -> None:
    path = trained("bpe").save(tmp_path / "tokenizer.json")
    json.loads(path.read_text(encoding="utf-8"))
    assert Tokenizer.from_file(str(path)).encode("the cat").ids == trained("bpe").encode("the cat")


def test_saving_leaves_no_temporary_files(tmp_path: Path) -> None:
    trained("byte").save(tmp_path / "tokenizer.json")
    trained("bpe").save(tmp_path / "tokenizer.json")
    assert TextTokenizer.load(tmp_path / "tokenizer.json").fingerprint == trained("bpe").fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_failed_write_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trained("byte").save(tmp_path / "tokenizer.json")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        trained("bpe").save(path)
    assert TextTokenizer.load(path).fingerprint == trained("byte").fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]


def test_saving_to_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="could not be written"):
        trained("byte").save(tmp_path / "nowhere" / "tokenizer.json")


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[1]", b"\xff\xfe"])
def test_invalid_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.json.*restore it from a copy"):
        TextTokenizer.load(path)


def test_truncated_file_is_named(tmp_path: Path) -> None:
    path = trained("bpe").save(tmp_path / "tokenizer.json")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"tokenizer\.json is not a valid tokenizer"):
        TextTokenizer.load(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json: there is no such file"):
        TextTokenizer.load(tmp_path / "tokenizer.json")


def test_round_trip_loss_names_unknown_words() -> None:
    loss = trained("word").round_trip_loss("the zebra ate the okapi")
    assert loss == RoundTripLoss(unknown=("zebra", "okapi"))
    assert str(loss) == "words not in the vocabulary: 2 (zebra, okapi)"


def test_round_trip_loss_reports_changed_spaces() -> None:
    loss = trained("word").round_trip_loss("the  cat.")
    assert loss == RoundTripLoss(altered=True)
    assert "spaces" in str(loss)


def test_round_trip_loss_is_false_if_nothing_is_lost() -> None:
    loss = trained("word").round_trip_loss("the cat ate the mouse .")
    assert not loss
    assert str(loss) == "nothing is lost"


def test_unknown_token_is_visible_in_text() -> None:
    tokenizer = trained("word")
    assert tokenizer.decode(tokenizer.encode("the zebra ate")) == "the ⟨unk⟩ ate"


@settings(max_examples=100, deadline=None)
@given(text=any_text | near_text)
def test_round_trip_loss_is_true_iff_the_text_changes(text: str) -> None:
    tokenizer = trained("word")
    assert bool(tokenizer.round_trip_loss(text)) == (tokenizer.decode(tokenizer.encode(text)) != text)


@pytest.mark.parametrize("kind", KINDS)
def test_lone_surrogate_is_refused(kind: Kind) -> None:
    with pytest.raises(UserError, match="Character 3 of the text is half a surrogate pair"):
        trained(kind).encode("ab\ud83d")


def test_lone_surrogate_in_a_batch_is_refused() -> None:
    with pytest.raises(UserError, match="half a surrogate pair"):
        trained("bpe").encode_batch(["a", "\udc00b"])


@pytest.mark.parametrize("number", [-1, 259, 10**9])
def test_id_outside_the_vocabulary_is_refused(number: int) -> None:
    with pytest.raises(UserError, match=rf"The id {number} is not in this tokenizer's vocabulary, .* from 0 to 258"):
        trained("byte").decode([5, number])


def test_invalid_byte_affects_only_itself() -> None:
    assert trained("byte").decode([3 + byte for byte in b"a\xffb"]) == "a�b"


def test_imported_tokenizer_adds_and_truncates_nothing() -> None:
    tokenizer = TextTokenizer(imported(), pad=2, bos=0, eos=1)
    assert tokenizer.decode(tokenizer.encode("a long text")) == "a long text"
    assert len(tokenizer.encode("a long text")) == 11


def test_imported_tokenizer_treats_special_token_names_as_text() -> None:
    tokenizer = TextTokenizer(imported(), pad=2, bos=0, eos=1)
    ids = tokenizer.encode("</s><pad><s>")
    assert not {0, 1, 2} & set(ids)
    assert tokenizer.decode([0, *ids, 1, 2]) == "</s><pad><s>"


def test_imported_unigram_tokenizer_treats_special_token_names_as_text() -> None:
    letters = [(letter, -3.0) for letter in "</s>ab"]
    original = Tokenizer(models.Unigram([("</s>", 0.0), ("<unk>", 0.0), *letters], unk_id=1))
    original.decoder = decoders.Fuse()
    original.add_special_tokens(["</s>"])
    tokenizer = TextTokenizer(original, eos=0, unk=1)
    ids = tokenizer.encode("a</s>b")
    assert 0 not in ids
    assert tokenizer.decode(ids) == "a</s>b"


def test_imported_tokenizer_is_not_modified() -> None:
    original = imported()
    before = original.to_str()
    TextTokenizer(original, pad=2)
    assert original.to_str() == before
    assert original.encode("a").ids[:1] == [0]


def test_imported_tokenizer_has_only_the_given_special_ids() -> None:
    tokenizer = TextTokenizer(imported(), eos=1)
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk) == (None, None, 1, None)


def test_missing_special_id_is_refused() -> None:
    with pytest.raises(UserError, match="no id 999, which was given for the eos token"):
        TextTokenizer(imported(), eos=999)


@pytest.mark.parametrize("text", [*NAMES_IN_TEXT, "[MASK]", "[CLS] a [SEP]", "<mask>"])
@pytest.mark.parametrize("kind", EXACT)
def test_names_of_encoder_special_tokens_are_plain_text(kind: Kind, text: str) -> None:
    found = for_encoder(kind)
    assert not found.special_ids & set(found.encode(text))
    assert found.decode(found.encode(text)) == text


def test_encoder_special_tokens_survive_pickling_and_are_left_out_of_text() -> None:
    found = ForkingPickler.loads(ForkingPickler.dumps(for_encoder("bpe")))
    assert (found.mask, found.sep, found.cls) == (3, 4, 5)
    assert found.decode([5, *found.encode("the cat"), 3, 4]) == "the cat"


@pytest.mark.parametrize("kind", EXACT)
def test_offsets_are_those_of_the_tokens_text(kind: Kind) -> None:
    text = "The cat ate the 🐁, didn't it?"
    tokenizer = trained(kind)
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    exact = [
        (start, end)
        for number, (start, end) in zip(ids, offsets, strict=True)
        if tokenizer.decode([number]) == text[start:end]
    ]
    assert {index for start, end in exact for index in range(start, end)} >= set(range(len(text))) - {16}
