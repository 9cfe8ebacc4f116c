"""Folders of sentence-transformers become encoders whose sentence vectors are theirs, and go out again."""

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

from .support import edit_json, shake
from .texts import ENGLISH, TURKISH

STEPS = [
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
LONGEST = 12


def make(directory, encoder=""):
    """A small encoder in such a folder, or in one within it."""
    model = directory / encoder
    model.mkdir(parents=True)
    trained = BertWordPieceTokenizer()
    trained.train_from_iterator((ENGLISH + TURKISH) * 5, vocab_size=200, show_progress=False)
    trained.save_model(str(model))
    size = trained.get_vocab_size()
    shape = {"hidden_size": 24, "intermediate_size": 30, "num_hidden_layers": 2, "num_attention_heads": 4}
    shake(BertModel(BertConfig(vocab_size=size, max_position_embeddings=40, **shape))).save_pretrained(model)
    (directory / "modules.json").write_text(json.dumps([STEPS[0] | {"path": encoder}, *STEPS[1:]]))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": LONGEST, "do_lower_case": False}))
    return directory


@torch.no_grad()
def their_vectors(directory, texts):
    """By the steps the folder lists, with transformers alone."""
    tokenizer, model = AutoTokenizer.from_pretrained(directory), AutoModel.from_pretrained(directory).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
    seen = batch["attention_mask"][..., None]
    vectors = model(**batch).last_hidden_state
    return functional.normalize((vectors * seen).sum(1) / seen.sum(1), dim=-1)


@torch.no_grad()
def our_vectors(loaded, texts):
    rows = [loaded.tokenizer.encode(text).ids for text in texts]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.tensor([row + [loaded.config.tokens.padding] * (int(lengths.max()) - len(row)) for row in rows])
    return loaded.model.sentence_vectors(tokens, lengths)


@pytest.mark.parametrize("encoder", ["", "0_Transformer"])
def test_sentence_vectors_are_those_of_the_folder(encoder, tmp_path):
    directory = make(tmp_path / "theirs", encoder)
    import_huggingface(directory, tmp_path / "ours")
    texts = [*ENGLISH, *TURKISH, "Words", "the " * 30]
    found = our_vectors(regard.load(tmp_path / "ours"), texts)
    torch.testing.assert_close(found, their_vectors(directory / encoder, texts), rtol=0, atol=1e-6)


def test_the_way_back_gives_such_a_folder_again(tmp_path):
    directory = make(tmp_path / "theirs", "0_Transformer")
    import_huggingface(directory, tmp_path / "ours")
    export_huggingface(tmp_path / "ours", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "modules.json").read_text()) == STEPS
    assert json.loads((tmp_path / "back" / "1_Pooling" / "config.json").read_text()) == POOLING
    assert json.loads((tmp_path / "back" / "sentence_bert_config.json").read_text())["max_seq_length"] == LONGEST
    import_huggingface(tmp_path / "back", tmp_path / "again")
    first, second = (our_vectors(regard.load(tmp_path / name), ENGLISH) for name in ("ours", "again"))
    assert torch.equal(first, second)


def test_text_is_made_small_where_the_folder_asks_for_it(tmp_path):
    directory = make(tmp_path / "theirs")
    (directory / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    edit_json(directory / "sentence_bert_config.json", do_lower_case=True)
    import_huggingface(directory, tmp_path / "ours")
    tokenizer = regard.load(tmp_path / "ours").tokenizer
    assert tokenizer.encode("THE CAT").ids == tokenizer.encode("the cat").ids


def test_vectors_that_are_not_scaled_there_are_read_too(tmp_path):
    directory = make(tmp_path / "theirs")
    (directory / "modules.json").write_text(json.dumps(STEPS[:2]))
    edit_json(directory / "1_Pooling" / "config.json", **dict.fromkeys(POOLING, ...), pooling_mode="mean")
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.kind == "encoder"


def steps(*modules):
    return lambda directory: (directory / "modules.json").write_text(json.dumps(modules))


def pooling(**changes):
    return lambda directory: edit_json(directory / "1_Pooling" / "config.json", **changes)


WRONG = {
    "another step": (
        steps(*STEPS[:2], STEPS[2] | {"type": "sentence_transformers.models.Dense"}),
        "by Transformer, Pooling, Dense, but regard takes the mean over all tokens; remove modules.json",
    ),
    "no list": (lambda directory: (directory / "modules.json").write_text("{}"), "should hold a list of steps"),
    "no JSON": (lambda directory: (directory / "modules.json").write_text("["), "modules.json is not JSON"),
    "the first token": (
        pooling(pooling_mode_cls_token=True, pooling_mode_mean_tokens=False),
        "makes sentence vectors by pooling_mode_cls_token",
    ),
    "two ways at once": (pooling(pooling_mode_max_tokens=True), "pooling_mode_mean_tokens, pooling_mode_max_tokens"),
    "no way at all": (pooling(pooling_mode_mean_tokens=False), "by no pooling at all"),
    "no settings": (
        lambda directory: (directory / "1_Pooling" / "config.json").unlink(),
        "is missing, though modules.json names its folder",
    ),
    "a folder elsewhere": (steps(STEPS[0] | {"path": "../other"}, *STEPS[1:]), r"names the folder '\.\./other'"),
    "a length in words": (
        lambda directory: edit_json(directory / "sentence_bert_config.json", max_seq_length="long"),
        "sentence_bert_config.json: max_seq_length is 'long'",
    ),
}


@pytest.mark.parametrize(("spoil", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_is_said_in_one_sentence(spoil, sentence, tmp_path):
    directory = make(tmp_path / "theirs")
    spoil(directory)
    with pytest.raises(UserError, match=sentence) as caught:
        import_huggingface(directory, tmp_path / "ours")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


def test_a_real_model_gave_the_vectors_of_transformers():
    """What docs/interop.md quotes of benchmarks/minilm.py."""
    results = Path(__file__).parents[3] / "benchmarks" / "results" / "minilm.json"
    for case in json.loads(results.read_text(encoding="utf-8"))["cases"]:
        assert case["ids_equal"]
        assert (case["sentences"], case["largest_difference"]) == (12, 0.0)
