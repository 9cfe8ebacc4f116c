"""Sentencepiece models as tokenizers: the ids of sentencepiece itself."""

import sys

import pytest
from sentencepiece import SentencePieceProcessor

from regard.errors import UserError
from regard.interop.huggingface.pieces import read_pieces
from regard.interop.huggingface.tokenizer import read_tokenizers

from .texts import ENGLISH, TEXTS, TURKISH, train_pieces

KINDS = {
    "Llama's: BPE, bytes for the unknown": {
        "model_type": "bpe",
        "vocab_size": 420,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "BPE": {"model_type": "bpe", "vocab_size": 140},
    "unigram": {"model_type": "unigram"},
    "unigram, bytes for the unknown": {"model_type": "unigram", "vocab_size": 420, "byte_fallback": True},
    "unigram, lower case, no mark at the start": {
        "model_type": "unigram",
        "normalization_rule_name": "nmt_nfkc_cf",
        "add_dummy_prefix": False,
    },
    "unigram with symbols of its own": {"model_type": "unigram", "user_defined_symbols": ["<sep>", "café"]},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder with a tokenizer.model for each kind, trained once."""
    place = tmp_path_factory.mktemp("pieces")
    for number, options in enumerate(KINDS.values()):
        (place / str(number)).mkdir()
        train_pieces(place / str(number) / "tokenizer.model", ENGLISH + TURKISH, **options)
    return {kind: place / str(number) for number, kind in enumerate(KINDS)}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_sentencepiece_behind_a_start(kind, folders):
    theirs = SentencePieceProcessor(model_file=str(folders[kind] / "tokenizer.model"))
    ours, _ = read_tokenizers(folders[kind], "llama")
    for text in [*TEXTS, *ENGLISH, *TURKISH, "a<sep>b café"]:
        assert ours.encode(text).ids == [theirs.bos_id(), *theirs.encode(text)], text


@pytest.mark.parametrize("kind", ["Llama's: BPE, bytes for the unknown", "unigram, bytes for the unknown"])
def test_ids_become_the_text_of_sentencepiece_again(kind, folders):
    theirs = SentencePieceProcessor(model_file=str(folders[kind] / "tokenizer.model"))
    ours, _ = read_tokenizers(folders[kind], "llama")
    for text in [*TEXTS, *ENGLISH, *TURKISH]:
        numbers = theirs.encode(text)
        assert ours.decode(numbers) == theirs.decode(numbers)


def test_start_and_end_are_as_the_folder_says(folders, tmp_path):
    path = folders["unigram"] / "tokenizer.model"
    (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false, "add_eos_token": true}')
    ours, _ = read_tokenizers(tmp_path, "llama")
    theirs = SentencePieceProcessor(model_file=str(path))
    assert ours.encode("the cat").ids == [*theirs.encode("the cat"), theirs.eos_id()]


@pytest.mark.parametrize("model_type", ["word", "char"])
def test_other_ways_to_cut_text_are_refused(model_type, tmp_path):
    train_pieces(tmp_path / "tokenizer.model", ENGLISH, model_type=model_type, vocab_size=40)
    with pytest.raises(UserError, match=r"tokenizer\.model cuts text into whole words or characters"):
        read_tokenizers(tmp_path, "llama")


def test_spaces_marked_behind_words_are_refused(tmp_path):
    train_pieces(tmp_path / "tokenizer.model", ENGLISH, treat_whitespace_as_suffix=True)
    with pytest.raises(UserError, match=r"tokenizer\.model does not mark spaces before words"):
        read_tokenizers(tmp_path, "llama")


def test_marian_takes_unigram_models_only(tmp_path):
    for side in ("source", "target"):
        train_pieces(tmp_path / f"{side}.spm", ENGLISH, model_type="bpe")
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1}')
    with pytest.raises(UserError, match=r"source\.spm is a BPE model"):
        read_tokenizers(tmp_path, "marian")


@pytest.mark.parametrize("package", ["sentencepiece", "google.protobuf.message"])
def test_a_missing_package_is_named_with_the_way_to_install_it(package, folders, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=r"pip install 'regard\[interop\]'"):
        read_pieces(folders["unigram"] / "tokenizer.model")
