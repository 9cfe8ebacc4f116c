"""BERT's tokenizers give the ids of those they came from, for single texts and pairs."""

import json

import pytest
from tokenizers import BertWordPieceTokenizer, Tokenizer
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertTokenizer

import regard
from regard.interop import export_huggingface, import_huggingface
from regard.interop.huggingface.tokenizer import read_tokenizers

from .support import shake
from .texts import ENGLISH, TEXTS, TURKISH

SETTINGS = {
    "nothing said": {},
    "cased": {"do_lower_case": False},
    "cased, accents off": {"do_lower_case": False, "strip_accents": True},
    "lower case, accents on": {"strip_accents": False},
    "Chinese words whole": {"tokenize_chinese_chars": False},
}
MORE = [*TEXTS, "[CLS] said [MASK] to [SEP]", "un" * 60, "don't—stop", "中文 和 words", "tab\x00null\ufffd"]


@pytest.fixture
def folder(tmp_path):
    """A folder with a vocab.txt, as BERT's were first given out."""
    trained = BertWordPieceTokenizer(lowercase=False, strip_accents=False)
    trained.train_from_iterator(
        (ENGLISH + TURKISH + ["日本語のテキスト 中文 和"]) * 5, vocab_size=300, show_progress=False
    )
    directory = tmp_path / "folder"
    directory.mkdir()
    trained.save_model(str(directory))
    return directory


def settle(directory, settings):
    facts = {"tokenizer_class": "BertTokenizer", "model_max_length": 512, **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(facts))


def check(ours, theirs):
    for text in MORE:
        found, expected = ours.encode(text), theirs(text)
        assert (found.ids, found.type_ids) == (expected["input_ids"], expected["token_type_ids"]), text
        assert ours.decode(found.ids) == theirs.decode(found.ids, skip_special_tokens=True)
    for pair in (("The dog.", "A café!"), ("", "words")):
        found, expected = ours.encode(*pair), theirs(*pair)
        assert (found.ids, found.type_ids) == (expected["input_ids"], expected["token_type_ids"])


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_vocabulary_alone_gives_the_ids_of_their_tokenizer(settings, folder):
    settle(folder, settings)
    ours, other = read_tokenizers(folder, "bert")
    assert other is None
    check(ours, BertTokenizer.from_pretrained(folder))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_whole_tokenizer_gives_the_ids_of_theirs(settings, folder, tmp_path):
    settle(folder, settings)
    BertTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").is_file()
    ours, _ = read_tokenizers(tmp_path / "saved", "bert")
    check(ours, AutoTokenizer.from_pretrained(tmp_path / "saved"))


def test_where_the_two_files_disagree_the_settings_decide(folder, tmp_path):
    settle(folder, {})
    BertTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    settle(tmp_path / "saved", {"do_lower_case": False})
    ours, _ = read_tokenizers(tmp_path / "saved", "bert")
    check(ours, AutoTokenizer.from_pretrained(tmp_path / "saved"))


def test_a_class_that_takes_the_whole_tokenizer_as_it_is_is_not_overruled(folder, tmp_path):
    settle(folder, {})
    BertTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    (tmp_path / "saved" / "tokenizer_config.json").write_text(json.dumps(facts | names))
    ours, _ = read_tokenizers(tmp_path / "saved", "bert")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in MORE:
        assert ours.encode(text).ids == theirs(text)["input_ids"]


def test_a_length_that_a_file_was_saved_with_is_not_kept(folder, tmp_path):
    ours, _ = read_tokenizers(folder, "bert")
    ours.enable_padding(length=40)
    ours.enable_truncation(5)
    ours.save(str(folder / "tokenizer.json"))
    again, _ = read_tokenizers(folder, "bert")
    assert len(again.encode("The cat").ids) < 10
    assert len(again.encode("The cat sat on the mat").ids) > 5


def test_special_words_of_the_folder_s_own_are_used(folder):
    words = (folder / "vocab.txt").read_text().replace("[CLS]", "<first>").replace("[SEP]", "<last>")
    (folder / "vocab.txt").write_text(words)
    settle(folder, {"cls_token": "<first>", "sep_token": {"content": "<last>"}})
    ours, _ = read_tokenizers(folder, "bert")
    tokens = ours.encode("the cat").tokens
    assert (tokens[0], tokens[-1]) == ("<first>", "<last>")
    assert ours.decode(ours.encode("the cat").ids) == "the cat"


@pytest.fixture
def model_folder(folder):
    """The same with a model."""
    size = len((folder / "vocab.txt").read_text().split("\n")) - 1
    config = BertConfig(
        vocab_size=size, hidden_size=12, intermediate_size=10, num_hidden_layers=1, num_attention_heads=2
    )
    shake(BertForMaskedLM(config)).save_pretrained(folder)
    return folder


def test_the_model_knows_the_ids_of_special_words(model_folder, tmp_path):
    import_huggingface(model_folder, tmp_path / "ours")
    ours = regard.load(tmp_path / "ours")
    assert isinstance(ours.tokenizer, Tokenizer)
    named = {"padding": "[PAD]", "mask": "[MASK]", "separator": "[SEP]", "classify": "[CLS]"}
    expected = {key: ours.tokenizer.token_to_id(text) for key, text in named.items()}
    assert ours.config.tokens.plain() == {"start": None, "end": None, **expected}


def test_the_way_back_gives_the_same_ids(model_folder, tmp_path):
    import_huggingface(model_folder, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    theirs, back = BertTokenizer.from_pretrained(model_folder), AutoTokenizer.from_pretrained(tmp_path / "back")
    for texts in [(text,) for text in MORE] + [("The dog.", "A café!")]:
        expected, found = theirs(*texts), back(*texts)
        assert [found[key] for key in theirs.model_input_names] == [expected[key] for key in theirs.model_input_names]
    for role in ("pad_token", "cls_token", "sep_token", "mask_token", "unk_token"):
        assert getattr(back, role) == getattr(theirs, role)
