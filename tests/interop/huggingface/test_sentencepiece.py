"""Tokenizers converted from sentencepiece models give the ids of sentencepiece."""

import re
import sys

import pytest
from sentencepiece import SentencePieceProcessor

from regard.errors import UserError, how_to_install
from regard.interop.huggingface.sentencepiece import read_sentencepiece
from regard.interop.huggingface.tokenizer import read_tokenizers
from tests.interop.huggingface.texts import ENGLISH, TEXTS, TURKISH, train_sentencepiece

VARIANTS = {
    "BPE with byte fallback, as in Llama": {
        "model_type": "bpe",
        "vocab_size": 420,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
    },
    "BPE": {"model_type": "bpe", "vocab_size": 140},
    "unigram": {"model_type": "unigram"},
    "unigram with byte fallback": {"model_type": "unigram", "vocab_size": 420, "byte_fallback": True},
    "unigram, lowercase, no dummy prefix": {
        "model_type": "unigram",
        "normalization_rule_name": "nmt_nfkc_cf",
        "add_dummy_prefix": False,
    },
    "unigram with user-defined symbols": {"model_type": "unigram", "user_defined_symbols": ["<sep>", "café"]},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """One folder with a trained tokenizer.model per variant."""
    directory = tmp_path_factory.mktemp("pieces")
    for number, options in enumerate(VARIANTS.values()):
        (directory / str(number)).mkdir()
        train_sentencepiece(directory / str(number) / "tokenizer.model", ENGLISH + TURKISH, **options)
    return {kind: directory / str(number) for number, kind in enumerate(VARIANTS)}


@pytest.mark.parametrize("kind", VARIANTS)
def test_ids_equal_sentencepiece_after_bos(kind, folders):
    theirs = SentencePieceProcessor(model_file=str(folders[kind] / "tokenizer.model"))
    ours, _ = read_tokenizers(folders[kind], "llama")
    for text in [*TEXTS, *ENGLISH, *TURKISH, "a<sep>b café"]:
        assert ours.encode(text).ids == [theirs.bos_id(), *theirs.encode(text)], text


@pytest.mark.parametrize("kind", ["BPE with byte fallback, as in Llama", "unigram with byte fallback"])
def test_decoded_text_equals_sentencepiece(kind, folders):
    theirs = SentencePieceProcessor(model_file=str(folders[kind] / "tokenizer.model"))
    ours, _ = read_tokenizers(folders[kind], "llama")
    for text in [*TEXTS, *ENGLISH, *TURKISH]:
        token_ids = theirs.encode(text)
        assert ours.decode(token_ids) == theirs.decode(token_ids)


def test_bos_and_eos_are_read_from_the_tokenizer_config(folders, tmp_path):
    path = folders["unigram"] / "tokenizer.model"
    (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false, "add_eos_token": true}')
    ours, _ = read_tokenizers(tmp_path, "llama")
    theirs = SentencePieceProcessor(model_file=str(path))
    assert ours.encode("the cat").ids == [*theirs.encode("the cat"), theirs.eos_id()]


@pytest.mark.parametrize("model_type", ["word", "char"])
def test_word_and_char_models_are_refused(model_type, tmp_path):
    train_sentencepiece(tmp_path / "tokenizer.model", ENGLISH, model_type=model_type, vocab_size=40)
    with pytest.raises(UserError, match=r"tokenizer\.model is a word or character model"):
        read_tokenizers(tmp_path, "llama")


def test_whitespace_as_suffix_is_refused(tmp_path):
    train_sentencepiece(tmp_path / "tokenizer.model", ENGLISH, treat_whitespace_as_suffix=True)
    with pytest.raises(UserError, match=r"tokenizer\.model does not mark spaces as prefixes"):
        read_tokenizers(tmp_path, "llama")


def test_marian_with_a_bpe_model_is_refused(tmp_path):
    for side in ("source", "target"):
        train_sentencepiece(tmp_path / f"{side}.spm", ENGLISH, model_type="bpe")
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1}')
    with pytest.raises(UserError, match=r"source\.spm is a BPE model"):
        read_tokenizers(tmp_path, "marian")


@pytest.mark.parametrize("package", ["sentencepiece", "google.protobuf.message"])
def test_missing_package_is_refused_with_the_install_command(package, folders, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=re.escape(how_to_install("interop"))):
        read_sentencepiece(folders["unigram"] / "tokenizer.model")
