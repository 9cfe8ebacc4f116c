"""Imported GPT-2 models have the logits of transformers."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

import regard
from regard.errors import UserError
from regard.interop import import_huggingface

SMALL = {
    "vocab_size": 43,
    "n_embd": 30,
    "n_head": 5,
    "n_layer": 3,
    "n_positions": 16,
    "bos_token_id": 42,
    "eos_token_id": 42,
}
VARIANTS = {
    "tied": {},
    "untied, narrow": {"tie_word_embeddings": False, "n_inner": 17, "n_head": 3},
    "unscaled attention": {"scale_attn_weights": False, "activation_function": "relu"},
    "attention scaled by layer": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 4},
    "attention scaled by layer only, untied": {
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "tie_word_embeddings": False,
        "activation_function": "gelu",
    },
    "odd width, large eps": {"n_embd": 21, "n_head": 7, "layer_norm_epsilon": 0.1, "activation_function": "silu"},
}


def build(changes):
    return GPT2LMHeadModel(GPT2Config(**SMALL | changes))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_transformers(changes, from_hf, check_padded_language_model):
    theirs = build(changes)
    check_padded_language_model(theirs, from_hf(theirs))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_cached_decoding_equals_transformers(changes, from_hf, check_cached_language_model, chunks):
    theirs = build(changes)
    check_cached_language_model(theirs, from_hf(theirs), chunks)


@pytest.mark.parametrize(
    "name", ["relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "silu", "swish", "relu2"]
)
def test_every_activation_equals_transformers(name, from_hf, check_padded_language_model):
    theirs = build({"activation_function": name, "n_layer": 1})
    check_padded_language_model(theirs, from_hf(theirs))


def test_reorder_and_upcast_attn_changes_nothing(from_hf, check_padded_language_model):
    theirs = build({"reorder_and_upcast_attn": True})
    check_padded_language_model(theirs, from_hf(theirs))


def test_dropout_is_imported(from_hf):
    config = from_hf(build({"resid_pdrop": 0.3, "attn_pdrop": 0.2, "embd_pdrop": 0.05})).config
    stack = config.decoder
    assert (stack.dropout, stack.attention.dropout, stack.feed_forward.dropout) == (0.3, 0.2, 0.0)
    assert config.embedding.dropout == 0.05


def test_old_files_without_prefix_and_with_masks_can_be_imported(save_hf, tmp_path, check_padded_language_model):
    """The first published GPT-2 files: no prefix, no head, and the causal mask stored with every layer."""
    theirs = build({})
    base_class = GPT2Model(theirs.config)
    directory = save_hf(base_class)
    theirs.transformer.load_state_dict(base_class.state_dict())
    tensors = load_file(directory / "model.safetensors")
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    check_padded_language_model(theirs.eval(), regard.load(tmp_path / "ours"))


def test_special_token_ids_outside_the_vocabulary_are_ignored(from_hf):
    """Small test models keep GPT-2's id 50256, which is outside their vocabulary."""
    ours = from_hf(build({"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 7}))
    assert ours.config.special_tokens.plain() == {"pad": 7, "bos": None, "eos": None}


def test_cross_attention_is_refused_by_key(save_hf, tmp_path):
    directory = save_hf(build({}), add_cross_attention=True)
    with pytest.raises(UserError, match=r"config\.json: add_cross_attention is true"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
