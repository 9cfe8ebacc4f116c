"""Imported Llama models have the logits of transformers."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from tests.interop.huggingface.support import edit_json

SMALL = {
    "vocab_size": 47,
    "hidden_size": 24,
    "intermediate_size": 33,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,
}
VARIANTS = {
    "multi-head": {},
    "grouped-query, biases": {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
    "multi-query, wide heads, tied": {"num_key_value_heads": 1, "head_dim": 10, "tie_word_embeddings": True},
    "odd heads, large eps": {
        "hidden_size": 30,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "rms_norm_eps": 0.1,
        "num_hidden_layers": 1,
    },
    "five narrow heads, gelu, another theta": {
        "hidden_size": 20,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
}


def build(changes):
    return LlamaForCausalLM(LlamaConfig(**SMALL | changes))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_transformers(changes, from_hf, check_padded_language_model):
    theirs = build(changes)
    check_padded_language_model(theirs, from_hf(theirs))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_cached_decoding_equals_transformers(changes, from_hf, check_cached_language_model, chunks):
    theirs = build(changes)
    check_cached_language_model(theirs, from_hf(theirs), chunks)


@pytest.mark.parametrize("name", ["silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"])
def test_every_activation_equals_transformers(name, from_hf, check_padded_language_model):
    theirs = build({"hidden_act": name, "num_hidden_layers": 1})
    check_padded_language_model(theirs, from_hf(theirs))


def test_attention_dropout_is_imported(from_hf):
    config = from_hf(build({"attention_dropout": 0.2})).config
    assert (config.decoder.attention.dropout, config.decoder.dropout, config.embedding.dropout) == (0.2, 0.0, 0.0)


def test_first_of_several_eos_ids_is_used_and_all_are_recorded(from_hf, tmp_path):
    ours = from_hf(build({"eos_token_id": [5, 9], "bos_token_id": 3, "pad_token_id": None}))
    assert ours.config.special_tokens.plain() == {"pad": None, "bos": 3, "eos": 5}
    assert json.loads((tmp_path / "ours" / "run.json").read_text())["origin"]["config"]["eos_token_id"] == [5, 9]


def test_special_token_ids_are_read_from_the_generation_config(save_hf, tmp_path):
    directory = save_hf(build({}), bos_token_id=None, eos_token_id=...)
    edit_json(directory / "generation_config.json", bos_token_id=8, eos_token_id=[11])
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.special_tokens.plain() == {"pad": None, "bos": 8, "eos": 11}


def test_pretraining_tp_changes_nothing(from_hf, check_padded_language_model):
    theirs = build({})
    check_padded_language_model(theirs, from_hf(theirs, pretraining_tp=4))


def test_stored_frequencies_are_ignored(save_hf, tmp_path, check_padded_language_model):
    theirs = build({})
    directory = save_hf(theirs)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    check_padded_language_model(theirs, regard.load(tmp_path / "ours"))


def test_untied_model_without_lm_head_is_refused(save_hf, tmp_path):
    directory = save_hf(build({"tie_word_embeddings": True}), tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"lacks the tensor lm_head\.weight"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_tied_embeddings_stored_as_lm_head_are_imported(save_hf, tmp_path, check_padded_language_model):
    theirs = build({"tie_word_embeddings": True})
    directory = save_hf(theirs)
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    check_padded_language_model(theirs, regard.load(tmp_path / "ours"))


def test_unsupported_activation_is_refused_by_key(save_hf, tmp_path):
    directory = save_hf(build({}), hidden_act="relu")
    with pytest.raises(UserError, match=r"config\.json: hidden_act is 'relu', but should be one of silu"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
