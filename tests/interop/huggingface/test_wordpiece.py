"""Imported WordPiece tokenizers give the ids of BERT's tokenizers, for single texts and pairs."""

import json

import pytest
from tokenizers import BertWordPieceTokenizer, Tokenizer
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertTokenizer

import regard
from regard.interop import export_huggingface, import_huggingface
from regard.interop.huggingface.tokenizer import read_tokenizers
from tests.interop.huggingface.support import randomize
from tests.interop.huggingface.texts import ENGLISH, TEXTS, TURKISH

SETTINGS = {
    "default": {},
    "cased": {"do_lower_case": False},
    "cased, accents stripped": {"do_lower_case": False, "strip_accents": True},
    "lowercase, accents kept": {"strip_accents": False},
    "Chinese characters not split": {"tokenize_chinese_chars": False},
}
ALL_TEXTS = [*TEXTS, "[CLS] said [MASK] to [SEP]", "un" * 60, "don't—stop", "中文 和 words", "tab\x00null\ufffd"]


@pytest.fixture
def folder(tmp_path):
    """A folder with only a vocab.txt, as in the first BERT releases."""
    wordpiece = BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    wordpiece.train_from_iterator(
        (ENGLISH + TURKISH + ["日本語のテキスト 中文 和"]) * 5, vocab_size=300, show_progress=False
    )
    directory = tmp_path / "folder"
    directory.mkdir()
    wordpiece.save_model(str(directory))
    return directory


def write_tokenizer_config(directory, hf_config):
    values = {"tokenizer_class": "BertTokenizer", "model_max_length": 512, **hf_config}
    (directory / "tokenizer_config.json").write_text(json.dumps(values))


def check(ours, theirs):
    for text in ALL_TEXTS:
        actual, expected = ours.encode(text), theirs(text)
        assert (actual.ids, actual.type_ids) == (expected["input_ids"], expected["token_type_ids"]), text
        assert ours.decode(actual.ids) == theirs.decode(actual.ids, skip_special_tokens=True)
    for pair in (("The dog.", "A café!"), ("", "words")):
        actual, expected = ours.encode(*pair), theirs(*pair)
        assert (actual.ids, actual.type_ids) == (expected["input_ids"], expected["token_type_ids"])


@pytest.mark.parametrize("hf_config", SETTINGS.values(), ids=SETTINGS.keys())
def test_ids_from_vocab_txt_equal_transformers(hf_config, folder):
    write_tokenizer_config(folder, hf_config)
    ours, other = read_tokenizers(folder, "bert")
    assert other is None
    check(ours, BertTokenizer.from_pretrained(folder))


@pytest.mark.parametrize("hf_config", SETTINGS.values(), ids=SETTINGS.keys())
def test_ids_from_tokenizer_json_equal_transformers(hf_config, folder, tmp_path):
    write_tokenizer_config(folder, hf_config)
    BertTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    ours, _ = read_tokenizers(tmp_path / "saved", "bert")
    check(ours, AutoTokenizer.from_pretrained(tmp_path / "saved"))


def test_tokenizer_config_overrides_tokenizer_json(folder, tmp_path):
    write_tokenizer_config(folder, {})
    BertTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    write_tokenizer_config(tmp_path / "saved", {"do_lower_case": False})
    ours, _ = read_tokenizers(tmp_path / "saved", "bert")
    check(ours, AutoTokenizer.from_pretrained(tmp_path / "saved"))


def test_tokenizer_config_of_a_fast_tokenizer_does_not_override_tokenizer_json(folder, tmp_path):
    write_tokenizer_config(folder, {})
    BertTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (tmp_path / "saved" / "tokenizer_config.json").write_text(json.dumps(values | names))
    ours, _ = read_tokenizers(tmp_path / "saved", "bert")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in ALL_TEXTS:
        assert ours.encode(text).ids == theirs(text)["input_ids"]


def test_saved_padding_and_truncation_are_ignored(folder, tmp_path):
    ours, _ = read_tokenizers(folder, "bert")
    ours.enable_padding(length=40)
    ours.enable_truncation(5)
    ours.save(str(folder / "tokenizer.json"))
    again, _ = read_tokenizers(folder, "bert")
    assert len(again.encode("The cat").ids) < 10
    assert len(again.encode("The cat sat on the mat").ids) > 5


def test_special_tokens_are_read_from_the_folder(folder):
    vocabulary = (folder / "vocab.txt").read_text().replace("[CLS]", "<first>").replace("[SEP]", "<last>")
    (folder / "vocab.txt").write_text(vocabulary)
    write_tokenizer_config(folder, {"cls_token": "<first>", "sep_token": {"content": "<last>"}})
    ours, _ = read_tokenizers(folder, "bert")
    tokens = ours.encode("the cat").tokens
    assert (tokens[0], tokens[-1]) == ("<first>", "<last>")
    assert ours.decode(ours.encode("the cat").ids) == "the cat"


@pytest.fixture
def model_folder(folder):
    """The folder with a model."""
    size = len((folder / "vocab.txt").read_text().split("\n")) - 1
    config = BertConfig(
        vocab_size=size, hidden_size=12, intermediate_size=10, num_hidden_layers=1, num_attention_heads=2
    )
    randomize(BertForMaskedLM(config)).save_pretrained(folder)
    return folder


def test_config_has_the_ids_of_special_tokens(model_folder, tmp_path):
    import_huggingface(model_folder, tmp_path / "ours")
    ours = regard.load(tmp_path / "ours")
    assert isinstance(ours.loaded.tokenizer, Tokenizer)
    named = {"pad": "[PAD]", "mask": "[MASK]", "sep": "[SEP]", "cls": "[CLS]"}
    expected = {key: ours.loaded.tokenizer.token_to_id(text) for key, text in named.items()}
    assert ours.config.special_tokens.plain() == {"bos": None, "eos": None, **expected}


def test_round_trip_gives_the_same_ids(model_folder, tmp_path):
    import_huggingface(model_folder, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    theirs, back = BertTokenizer.from_pretrained(model_folder), AutoTokenizer.from_pretrained(tmp_path / "back")
    for texts in [(text,) for text in ALL_TEXTS] + [("The dog.", "A café!")]:
        expected, actual = theirs(*texts), back(*texts)
        assert [actual[key] for key in theirs.model_input_names] == [expected[key] for key in theirs.model_input_names]
    for role in ("pad_token", "cls_token", "sep_token", "mask_token", "unk_token"):
        assert getattr(back, role) == getattr(theirs, role)
