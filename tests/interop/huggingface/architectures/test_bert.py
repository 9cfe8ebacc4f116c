"""Imported BERT models, with every head, have the outputs of transformers."""

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
from tests.interop.huggingface.support import edit_json, ids

SMALL = {
    "vocab_size": 47,
    "hidden_size": 24,
    "intermediate_size": 33,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 20,
}
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
VARIANTS = {
    "no head": (BertModel, {}),
    "no head, three token types, relu, large eps": (
        BertModel,
        {"type_vocab_size": 3, "hidden_act": "relu", "layer_norm_eps": 0.1, "num_hidden_layers": 1},
    ),
    "masked LM": (BertForMaskedLM, {}),
    "masked LM, untied, gelu_new": (
        BertForMaskedLM,
        {"tie_word_embeddings": False, "hidden_act": "gelu_new", "num_attention_heads": 1},
    ),
    "sequence classification": (BertForSequenceClassification, LABELS),
    "sequence classification, one label": (
        BertForSequenceClassification,
        {"num_labels": 1, "hidden_size": 30, "num_attention_heads": 5},
    ),
    "token classification": (BertForTokenClassification, LABELS | {"type_vocab_size": 1}),
}


def build(case):
    architecture, changes = case
    return architecture(BertConfig(**SMALL | changes))


def hf_output(theirs, *arguments, **options):
    """The logits of their model, or its hidden states if it has no head."""
    output = theirs(*arguments, **options)
    return output.last_hidden_state if isinstance(theirs, BertModel) else output.logits


@pytest.mark.parametrize("case", VARIANTS.values(), ids=VARIANTS.keys())
@torch.no_grad()
def test_outputs_equal_transformers(case, from_hf, equal_tensors):
    theirs = build(case)
    ours = from_hf(theirs)
    tokens, lengths = ids(3, 11, 47), torch.tensor([11, 2, 7])
    equal_tensors(ours.logits(tokens), hf_output(theirs, tokens))
    mask = torch.arange(11) < lengths[:, None]
    expected, actual = hf_output(theirs, tokens, attention_mask=mask.long()), ours.logits(tokens, lengths=lengths)
    single = isinstance(theirs, BertForSequenceClassification)
    equal_tensors(actual if single else actual[mask], expected if single else expected[mask])


@pytest.mark.parametrize("case", VARIANTS.values(), ids=VARIANTS.keys())
@torch.no_grad()
def test_token_types_equal_transformers(case, from_hf, equal_tensors):
    theirs = build(case)
    ours = from_hf(theirs)
    tokens, token_types = ids(2, 9, 47), ids(2, 9, theirs.config.type_vocab_size, seed=3)
    equal_tensors(
        ours.model(tokens, token_types=token_types).float(), hf_output(theirs, tokens, token_type_ids=token_types)
    )


@torch.no_grad()
def test_pooler_equals_transformers(from_hf, equal_tensors):
    theirs = build(VARIANTS["no head"])
    tokens = ids(3, 8, 47)
    equal_tensors(from_hf(theirs).model.pooled(tokens), theirs(tokens).pooler_output)


@torch.no_grad()
def test_logits_in_float64_equal_transformers(from_hf):
    theirs = build(VARIANTS["masked LM"]).double()
    tokens = ids(2, 20, 47)
    torch.testing.assert_close(from_hf(theirs).model(tokens), theirs(tokens).logits, rtol=1e-10, atol=1e-10)


def test_model_without_a_pooler(from_hf):
    theirs = BertModel(BertConfig(**SMALL), add_pooling_layer=False)
    assert not from_hf(theirs).config.pooler


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_new", "gelu_fast", "silu"])
@torch.no_grad()
def test_every_activation_equals_transformers(name, from_hf, equal_tensors):
    theirs = build((BertForMaskedLM, {"hidden_act": name, "num_hidden_layers": 1}))
    tokens = ids(2, 9, 47)
    equal_tensors(from_hf(theirs).logits(tokens), theirs(tokens).logits)


def test_labels_are_imported(from_hf):
    assert from_hf(build(VARIANTS["sequence classification"])).config.labels == ("bad", "fair", "good")


def test_unnamed_labels_are_named_as_in_transformers(save_hf, tmp_path):
    directory = save_hf(build((BertForTokenClassification, {"num_labels": 3})), id2label=..., num_labels=3)
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


def test_dropout_is_imported(from_hf):
    changes = LABELS | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "classifier_dropout": 0.4}
    config = from_hf(build((BertForSequenceClassification, changes))).config
    assert (config.encoder.dropout, config.embedding.dropout, config.encoder.attention.dropout) == (0.2, 0.2, 0.3)
    assert config.head.dropout == 0.4


@torch.no_grad()
def test_old_files_with_old_names_and_extra_heads_can_be_imported(save_hf, tmp_path, equal_tensors):
    """The first checkpoints name norm weights gamma and beta, and contain position ids, the pooler and another head."""
    theirs = build(VARIANTS["masked LM"])
    directory = save_hf(theirs)
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
    equal_tensors(regard.load(tmp_path / "ours").logits(tokens), theirs(tokens).logits)


def test_config_without_an_architecture_has_no_head(save_hf, tmp_path):
    directory = save_hf(build(VARIANTS["no head"]), architectures=None)
    import_huggingface(directory, tmp_path / "ours")
    config = regard.load(tmp_path / "ours").config
    assert (config.kind, config.head.kind, config.pooler) == ("encoder", "none", True)


def edit_tensors(edit):
    def corrupt(directory):
        state = load_file(directory / "model.safetensors")
        edit(state)
        save_file(state, directory / "model.safetensors")

    return corrupt


def edit_config(**changes):
    return lambda directory: edit_json(directory / "config.json", **changes)


INVALID = {
    "relative positions": (
        edit_config(position_embedding_type="relative_key"),
        r"position_embedding_type is 'relative_key', which regard cannot import .*; only absolute is supported",
    ),
    "a decoder": (edit_config(is_decoder=True), "is_decoder is true, which regard cannot import"),
    "cross-attention": (edit_config(add_cross_attention=True), "add_cross_attention is true"),
    "another head": (
        edit_config(architectures=["BertForQuestionAnswering"]),
        "'BertForQuestionAnswering', which regard cannot import; it can import .*BertForTokenClassification",
    ),
    "unsupported activation": (edit_config(hidden_act="tanh"), "hidden_act is 'tanh', but should be one of relu"),
    "a label without a name": (edit_config(id2label={"0": "a", "2": "b"}), "id2label is .* a name for each number"),
    "a label that is not text": (edit_config(id2label={"0": "a", "1": 5, "2": "b"}), "id2label is"),
    "a label twice": (edit_config(id2label={"0": "a", "1": "a", "2": "b"}), "head.labels.*'a' comes twice"),
    "a label too many": (edit_config(id2label=dict(enumerate("abcd"))), r"classifier.weight has the shape \(3, 24\)"),
    "no pooler": (
        edit_tensors(lambda state: state.pop("bert.pooler.dense.weight")),
        "lacks the tensor bert.pooler.dense.weight",
    ),
    "no head": (edit_tensors(lambda state: state.pop("classifier.weight")), r"lacks the tensor classifier\.weight"),
    "no layer": (
        edit_tensors(lambda state: state.pop("bert.encoder.layer.2.output.dense.bias")),
        r"lacks the tensor bert\.encoder\.layer\.2\.output\.dense\.bias",
    ),
    "a tensor too many": (
        edit_tensors(lambda state: state.update({"bert.embeddings.more.weight": torch.ones(1)})),
        "holds the tensor bert.embeddings.more.weight, which has no counterpart",
    ),
    "a tensor under two names": (
        edit_tensors(lambda state: state.update({"bert.embeddings.LayerNorm.gamma": torch.ones(24)})),
        "which is also there as",
    ),
    "positions too few": (edit_config(max_position_embeddings=30), r"calls for \(30, 24\)"),
    "a pickle": (
        lambda directory: (directory / "model.safetensors").rename(directory / "pytorch_model.bin"),
        "only as pytorch_model.bin.*BertForSequenceClassification.from_pretrained",
    ),
    "cut short": (
        lambda directory: (directory / "model.safetensors").write_bytes(b"\x08\x00"),
        "damaged or cut short",
    ),
    "a vocabulary in another encoding": (
        lambda directory: (directory / "vocab.txt").write_bytes(b"\xff\xfe"),
        r"vocab\.txt cannot be read",
    ),
    "a vocabulary without special tokens": (
        lambda directory: (directory / "vocab.txt").write_text("the\ncat\n"),
        r"vocab\.txt has no \[UNK\], which this architecture needs",
    ),
    "invalid tokenizer.json": (
        lambda directory: (directory / "tokenizer.json").write_text("{}"),
        "tokenizer.json is not a valid tokenizer",
    ),
}


@pytest.mark.parametrize(("corrupt", "message"), INVALID.values(), ids=INVALID.keys())
def test_invalid_folder_is_refused_and_nothing_is_written(corrupt, message, save_hf, tmp_path):
    directory = save_hf(build(VARIANTS["sequence classification"]))
    corrupt(directory)
    with pytest.raises(UserError, match=message) as caught:
        import_huggingface(directory, tmp_path / "ours")
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()


def test_run_folder_records_its_origin(save_hf, tmp_path):
    directory = save_hf(build(VARIANTS["masked LM"]))
    description = import_huggingface(directory, tmp_path / "ours")
    assert description.startswith("imported BERT with ")
    origin = json.loads((tmp_path / "ours" / "run.json").read_text())["origin"]
    assert (origin["architecture"], origin["config"]["vocab_size"]) == ("BertForMaskedLM", 47)
