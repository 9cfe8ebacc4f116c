"""BERT models of transformers give the same vectors and scores after they are imported, whatever head they have."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

import regard
from regard.errors import UserError
from regard.interop import import_huggingface

from .support import edit_json, ids

SMALL = {
    "vocab_size": 47,
    "hidden_size": 24,
    "intermediate_size": 33,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 20,
}
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
UNLIKE = {
    "no head": (BertModel, {}),
    "no head, three segments, relu, coarse norm": (
        BertModel,
        {"type_vocab_size": 3, "hidden_act": "relu", "layer_norm_eps": 0.1, "num_hidden_layers": 1},
    ),
    "gaps": (BertForMaskedLM, {}),
    "gaps, untied, tanh form of gelu": (
        BertForMaskedLM,
        {"tie_word_embeddings": False, "hidden_act": "gelu_new", "num_attention_heads": 1},
    ),
    "labels of texts": (BertForSequenceClassification, LABELS),
    "one label": (BertForSequenceClassification, {"num_labels": 1, "hidden_size": 30, "num_attention_heads": 5}),
    "labels of tokens": (BertForTokenClassification, LABELS | {"type_vocab_size": 1}),
}


def build(case):
    architecture, changes = case
    return architecture(BertConfig(**SMALL | changes))


def given(theirs, *arguments, **options):
    """What their model gives, whichever of its outputs it is."""
    found = theirs(*arguments, **options)
    return found.last_hidden_state if isinstance(theirs, BertModel) else found.logits


@pytest.mark.parametrize("case", UNLIKE.values(), ids=UNLIKE.keys())
@torch.no_grad()
def test_outputs_are_those_of_transformers(case, bring, same):
    theirs = build(case)
    ours = bring(theirs)
    tokens, lengths = ids(3, 11, 47), torch.tensor([11, 2, 7])
    same(ours.logits(tokens), given(theirs, tokens))
    seen = torch.arange(11) < lengths[:, None]
    expected, found = given(theirs, tokens, attention_mask=seen.long()), ours.logits(tokens, lengths=lengths)
    single = isinstance(theirs, BertForSequenceClassification)
    same(found if single else found[seen], expected if single else expected[seen])


@pytest.mark.parametrize("case", UNLIKE.values(), ids=UNLIKE.keys())
@torch.no_grad()
def test_segments_are_told_apart_as_in_transformers(case, bring, same):
    theirs = build(case)
    ours = bring(theirs)
    tokens, segments = ids(2, 9, 47), ids(2, 9, theirs.config.type_vocab_size, seed=3)
    same(ours.model(tokens, segments=segments).float(), given(theirs, tokens, token_type_ids=segments))


@torch.no_grad()
def test_the_pooler_bends_as_theirs(bring, same):
    theirs = build(UNLIKE["no head"])
    tokens = ids(3, 8, 47)
    same(bring(theirs).model.pooled(tokens), theirs(tokens).pooler_output)


@torch.no_grad()
def test_in_float64_the_difference_is_rounding(bring):
    theirs = build(UNLIKE["gaps"]).double()
    tokens = ids(2, 20, 47)
    torch.testing.assert_close(bring(theirs).model(tokens), theirs(tokens).logits, rtol=1e-10, atol=1e-10)


def test_a_model_saved_without_its_pooler_has_none(bring):
    theirs = BertModel(BertConfig(**SMALL), add_pooling_layer=False)
    assert not bring(theirs).config.pooler


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_new", "gelu_fast", "silu"])
@torch.no_grad()
def test_every_activation_bends_as_theirs(name, bring, same):
    theirs = build((BertForMaskedLM, {"hidden_act": name, "num_hidden_layers": 1}))
    tokens = ids(2, 9, 47)
    same(bring(theirs).logits(tokens), theirs(tokens).logits)


def test_labels_have_their_names(bring):
    assert bring(build(UNLIKE["labels of texts"])).config.labels == ("bad", "fair", "good")


def test_labels_without_names_are_called_as_there(save_theirs, tmp_path):
    directory = save_theirs(build((BertForTokenClassification, {"num_labels": 3})), id2label=..., num_labels=3)
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_dropout_is_kept(bring):
    changes = LABELS | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4}
    config = bring(build((BertForSequenceClassification, changes))).config
    assert (config.encoder.dropout, config.embedding.dropout, config.encoder.attention.dropout) == (0.2, 0.2, 0.3)
    assert config.head.dropout == 0.4


@torch.no_grad()
def test_an_old_file_with_old_names_and_what_it_was_trained_with_is_read(save_theirs, tmp_path, same):
    """The first checkpoints call a norm's tensors gamma and beta, and hold positions, pooler and a second head."""
    theirs = build(UNLIKE["gaps"])
    directory = save_theirs(theirs)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(20)[None]
    old |= {"bert.pooler.dense.weight": torch.ones(24, 24), "bert.pooler.dense.bias": torch.ones(24)}
    old |= {"cls.seq_relationship.weight": torch.ones(2, 24), "cls.seq_relationship.bias": torch.ones(2)}
    old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
    save_file(old, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    tokens = ids(2, 9, 47)
    same(regard.load(tmp_path / "ours").logits(tokens), theirs(tokens).logits)


def test_where_no_architecture_is_named_there_is_no_head(save_theirs, tmp_path):
    directory = save_theirs(build(UNLIKE["no head"]), architectures=None)
    import_huggingface(directory, tmp_path / "ours")
    config = regard.load(tmp_path / "ours").config
    assert (config.kind, config.head.kind, config.pooler) == ("encoder", "none", True)


def tensors(change):
    def spoil(directory):
        held = load_file(directory / "model.safetensors")
        change(held)
        save_file(held, directory / "model.safetensors")

    return spoil


def settings(**changes):
    return lambda directory: edit_json(directory / "config.json", **changes)


WRONG = {
    "relative positions": (
        settings(position_embedding_type="relative_key"),
        r"position_embedding_type is 'relative_key', which regard cannot import .*; only absolute can be",
    ),
    "a decoder": (settings(is_decoder=True), "is_decoder is true, which regard cannot import"),
    "cross-attention": (settings(add_cross_attention=True), "add_cross_attention is true"),
    "another head": (
        settings(architectures=["BertForQuestionAnswering"]),
        "'BertForQuestionAnswering', which regard cannot import; it can import .*BertForTokenClassification",
    ),
    "a bend without a part": (settings(hidden_act="tanh"), "hidden_act is 'tanh', but should be one of relu"),
    "a label without a name": (settings(id2label={"0": "a", "2": "b"}), "id2label is .* a name for each number"),
    "a label that is no text": (settings(id2label={"0": "a", "1": 5, "2": "b"}), "id2label is"),
    "a label twice": (settings(id2label={"0": "a", "1": "a", "2": "b"}), "head.labels.*'a' comes twice"),
    "a label too many": (settings(id2label=dict(enumerate("abcd"))), r"classifier.weight has the shape \(3, 24\)"),
    "no pooler": (
        tensors(lambda held: held.pop("bert.pooler.dense.weight")),
        "lacks the tensor bert.pooler.dense.weight",
    ),
    "no head": (tensors(lambda held: held.pop("classifier.weight")), r"lacks the tensor classifier\.weight"),
    "no layer": (
        tensors(lambda held: held.pop("bert.encoder.layer.2.output.dense.bias")),
        r"lacks the tensor bert\.encoder\.layer\.2\.output\.dense\.bias",
    ),
    "a tensor too many": (
        tensors(lambda held: held.update({"bert.embeddings.more.weight": torch.ones(1)})),
        "holds the tensor bert.embeddings.more.weight, which has no place",
    ),
    "a tensor under two names": (
        tensors(lambda held: held.update({"bert.embeddings.LayerNorm.gamma": torch.ones(24)})),
        "which is also there as",
    ),
    "positions too few": (settings(max_position_embeddings=30), r"calls for \(30, 24\)"),
    "a pickle": (
        lambda directory: (directory / "model.safetensors").rename(directory / "pytorch_model.bin"),
        "only as pytorch_model.bin.*BertForSequenceClassification.from_pretrained",
    ),
    "cut short": (
        lambda directory: (directory / "model.safetensors").write_bytes(b"\x08\x00"),
        "damaged or cut short",
    ),
    "a vocabulary in another code": (
        lambda directory: (directory / "vocab.txt").write_bytes(b"\xff\xfe"),
        r"vocab\.txt cannot be read",
    ),
    "a vocabulary without its special words": (
        lambda directory: (directory / "vocab.txt").write_text("the\ncat\n"),
        r"vocab\.txt has no \[UNK\], which this kind of model needs",
    ),
    "a tokenizer that is none": (
        lambda directory: (directory / "tokenizer.json").write_text("{}"),
        "tokenizer.json is not a tokenizer that can be read",
    ),
}


@pytest.mark.parametrize(("spoil", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_gets_one_sentence_and_nothing_is_written(spoil, sentence, save_theirs, tmp_path):
    directory = save_theirs(build(UNLIKE["labels of texts"]))
    spoil(directory)
    with pytest.raises(UserError, match=sentence) as caught:
        import_huggingface(directory, tmp_path / "ours")
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


def test_the_run_folder_tells_where_it_came_from(save_theirs, tmp_path):
    directory = save_theirs(build(UNLIKE["gaps"]))
    said = import_huggingface(directory, tmp_path / "ours")
    assert said.startswith("imported BERT with ")
    origin = json.loads((tmp_path / "ours" / "run.json").read_text())["origin"]
    assert (origin["architecture"], origin["config"]["vocab_size"]) == ("BertForMaskedLM", 47)
