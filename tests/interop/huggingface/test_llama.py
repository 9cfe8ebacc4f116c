"""Llama models of transformers give the same logits after they are imported."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from regard.errors import UserError
from regard.interop import import_huggingface

from .support import edit_json

SMALL = {
    "vocab_size": 47,
    "hidden_size": 24,
    "intermediate_size": 33,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,
}
UNLIKE = {
    "multi-head": {},
    "grouped queries, biases": {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
    "multi-query, wide heads, tied": {"num_key_value_heads": 1, "head_dim": 10, "tie_word_embeddings": True},
    "odd heads, coarse norm": {
        "hidden_size": 30,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "rms_norm_eps": 0.1,
        "num_hidden_layers": 1,
    },
    "five heads, narrow, gelu, another base": {
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


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_logits_are_those_of_transformers(changes, bring, check_padded_writer):
    theirs = build(changes)
    check_padded_writer(theirs, bring(theirs))


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_cached_decoding_is_that_of_transformers(changes, bring, check_cached_writer, chunks):
    theirs = build(changes)
    check_cached_writer(theirs, bring(theirs), chunks)


@pytest.mark.parametrize("name", ["silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"])
def test_every_activation_gates_as_theirs(name, bring, check_padded_writer):
    theirs = build({"hidden_act": name, "num_hidden_layers": 1})
    check_padded_writer(theirs, bring(theirs))


def test_dropout_on_attention_is_kept(bring):
    config = bring(build({"attention_dropout": 0.2})).config
    assert (config.decoder.attention.dropout, config.decoder.dropout, config.embedding.dropout) == (0.2, 0.0, 0.0)


def test_of_several_ends_the_first_is_taken_and_all_are_noted(bring, tmp_path):
    ours = bring(build({"eos_token_id": [5, 9], "bos_token_id": 3, "pad_token_id": None}))
    assert ours.config.tokens.plain() == {"padding": None, "start": 3, "end": 5}
    assert json.loads((tmp_path / "ours" / "run.json").read_text())["origin"]["config"]["eos_token_id"] == [5, 9]


def test_special_ids_may_stand_in_the_generation_config_alone(save_theirs, tmp_path):
    directory = save_theirs(build({}), bos_token_id=None, eos_token_id=...)
    edit_json(directory / "generation_config.json", bos_token_id=8, eos_token_id=[11])
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.tokens.plain() == {"padding": None, "start": 8, "end": 11}


def test_a_model_trained_in_pieces_is_the_same_model(bring, check_padded_writer):
    theirs = build({})
    check_padded_writer(theirs, bring(theirs, pretraining_tp=4))


def test_stored_frequencies_are_skipped(save_theirs, tmp_path, check_padded_writer):
    theirs = build({})
    directory = save_theirs(theirs)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(2)
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    check_padded_writer(theirs, regard.load(tmp_path / "ours"))


def test_an_untied_model_without_its_output_lacks_a_tensor(save_theirs, tmp_path):
    directory = save_theirs(build({"tie_word_embeddings": True}), tie_word_embeddings=False)
    with pytest.raises(UserError, match=r"lacks the tensor lm_head\.weight"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_tied_words_stored_under_the_name_of_the_output_are_found(save_theirs, tmp_path, check_padded_writer):
    theirs = build({"tie_word_embeddings": True})
    directory = save_theirs(theirs)
    tensors = load_file(directory / "model.safetensors")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    check_padded_writer(theirs, regard.load(tmp_path / "ours"))


def test_a_gate_without_a_part_is_refused_by_name(save_theirs, tmp_path):
    directory = save_theirs(build({}), hidden_act="relu")
    with pytest.raises(UserError, match=r"config\.json: hidden_act is 'relu', but should be one of silu"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
