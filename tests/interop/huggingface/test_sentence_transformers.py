"""sentence-transformers folders: imported encoders give the same sentence vectors, and can be exported again."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import BertWordPieceTokenizer
from torch.nn import functional
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

import regard
from regard.errors import UserError
from regard.interop import export_huggingface, import_huggingface
from tests.interop.huggingface.support import edit_json, randomize
from tests.interop.huggingface.texts import ENGLISH, TURKISH

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
POOLING = {
    "word_embedding_dimension": 24,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
    "pooling_mode_max_tokens": False,
}
MAX_LENGTH = 12


def make_folder(directory, encoder=""):
    """A sentence-transformers folder with a small encoder, which may be in a subfolder."""
    model = directory / encoder
    model.mkdir(parents=True)
    wordpiece = BertWordPieceTokenizer()
    wordpiece.train_from_iterator((ENGLISH + TURKISH) * 5, vocab_size=200, show_progress=False)
    wordpiece.save_model(str(model))
    size = wordpiece.get_vocab_size()
    sizes = {"hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 2, "num_attention_heads": 4}
    randomize(BertModel(BertConfig(vocab_size=size, max_position_embeddings=40, **sizes))).save_pretrained(model)
    (directory / "modules.json").write_text(json.dumps([MODULES[0] | {"path": encoder}, *MODULES[1:]]))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MAX_LENGTH, "do_lower_case": False}))
    return directory


@torch.no_grad()
def their_vectors(directory, texts):
    """Sentence vectors computed with transformers by the modules of the folder."""
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    mask = batch["attention_mask"][..., None]
    vectors = model(**batch).last_hidden_state
    return functional.normalize((vectors * mask).sum(1) / mask.sum(1), dim=-1)


@torch.no_grad()
def our_vectors(loaded, texts):
    rows = [loaded.loaded.tokenizer.encode(text).ids for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.tensor([row + [loaded.config.special_tokens.pad] * (int(lengths.max()) - len(row)) for row in rows])
    return loaded.model.sentence_vectors(tokens, lengths)


@pytest.mark.parametrize("encoder", ["", "0_Transformer"])
def test_sentence_vectors_equal_transformers(encoder, tmp_path):
    directory = make_folder(tmp_path / "theirs", encoder)
    import_huggingface(directory, tmp_path / "ours")
    texts = [*ENGLISH, *TURKISH, "Words", "the " * 30]
    actual = our_vectors(regard.load(tmp_path / "ours"), texts)
    torch.testing.assert_close(actual, their_vectors(directory / encoder, texts), rtol=0, atol=1e-6)


def test_export_writes_an_equivalent_folder(tmp_path):
    directory = make_folder(tmp_path / "theirs", "0_Transformer")
    import_huggingface(directory, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "modules.json").read_text()) == MODULES
    assert json.loads((tmp_path / "back" / "1_Pooling" / "config.json").read_text()) == POOLING
    assert json.loads((tmp_path / "back" / "sentence_bert_config.json").read_text())["max_seq_length"] == MAX_LENGTH
    import_huggingface(tmp_path / "back", tmp_path / "again")
    first, second = (our_vectors(regard.load(tmp_path / name), ENGLISH) for name in ("ours", "again"))
    assert torch.equal(first, second)


def test_lowercasing_is_read_from_the_folder(tmp_path):
    directory = make_folder(tmp_path / "theirs")
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    edit_json(directory / "sentence_bert_config.json", do_lower_case=True)
    import_huggingface(directory, tmp_path / "ours")
    tokenizer = regard.load(tmp_path / "ours").loaded.tokenizer
    assert tokenizer.encode("THE CAT").ids == tokenizer.encode("the cat").ids


def test_folder_without_normalization_can_be_imported(tmp_path):
    directory = make_folder(tmp_path / "theirs")
    (directory / "modules.json").write_text(json.dumps(MODULES[:2]))
    edit_json(directory / "1_Pooling" / "config.json", **dict.fromkeys(POOLING, ...), pooling_mode="mean")
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.kind == "encoder"


def modules(*entries):
    return lambda directory: (directory / "modules.json").write_text(json.dumps(entries))


def pooling(**changes):
    return lambda directory: edit_json(directory / "1_Pooling" / "config.json", **changes)


INVALID = {
    "another module": (
        modules(*MODULES[:2], MODULES[2] | {"type": "sentence_transformers.models.Dense"}),
        "by Transformer, Pooling, Dense, but regard takes the mean over all tokens; remove modules.json",
    ),
    "not a list": (lambda directory: (directory / "modules.json").write_text("{}"), "should hold a list of steps"),
    "not JSON": (lambda directory: (directory / "modules.json").write_text("["), "modules.json is not JSON"),
    "CLS pooling": (
        pooling(pooling_mode_cls_token=True, pooling_mode_mean_tokens=False),
        "makes sentence vectors by pooling_mode_cls_token",
    ),
    "two poolings": (pooling(pooling_mode_max_tokens=True), "pooling_mode_mean_tokens, pooling_mode_max_tokens"),
    "no pooling": (pooling(pooling_mode_mean_tokens=False), "by no pooling at all"),
    "no pooling config": (
        lambda directory: (directory / "1_Pooling" / "config.json").unlink(),
        "is missing, though modules.json names its folder",
    ),
    "a folder outside": (modules(MODULES[0] | {"path": "../other"}, *MODULES[1:]), r"names the folder '\.\./other'"),
    "a length of text": (
        lambda directory: edit_json(directory / "sentence_bert_config.json", max_seq_length="long"),
        "sentence_bert_config.json: max_seq_length is 'long'",
    ),
}


@pytest.mark.parametrize(("corrupt", "message"), INVALID.values(), ids=INVALID.keys())
def test_unsupported_folder_is_refused_and_nothing_is_written(corrupt, message, tmp_path):
    directory = make_folder(tmp_path / "theirs")
    corrupt(directory)
    with pytest.raises(UserError, match=message) as caught:
        import_huggingface(directory, tmp_path / "ours")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


def test_benchmark_results_of_a_real_model_equal_transformers():
    """The results of benchmarks/quality/minilm.py that docs/guides/interop.md quotes."""
    results = Path(__file__).parents[3] / "benchmarks" / "results" / "minilm.json"
    for case in json.loads(results.read_text(encoding="utf-8"))["cases"]:
        assert case["ids_equal"]
        assert (case["sentences"], case["largest_difference"]) == (12, 0.0)
