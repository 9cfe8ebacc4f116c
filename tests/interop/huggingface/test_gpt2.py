"""GPT-2 models of transformers give the same logits after they are imported."""

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
UNLIKE = {
    "tied": {},
    "untied, narrow": {"tie_word_embeddings": False, "n_inner": 17, "n_head": 3},
    "scores unscaled": {"scale_attn_weights": False, "activation_function": "relu"},
    "scores by layer": {"scale_attn_by_inverse_layer_idx": True, "n_layer": 4},
    "unscaled and by layer, untied": {
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "tie_word_embeddings": False,
        "activation_function": "gelu",
    },
    "odd width, coarse norm": {"n_embd": 21, "n_head": 7, "layer_norm_epsilon": 0.1, "activation_function": "silu"},
}


def build(changes):
    return GPT2LMHeadModel(GPT2Config(**SMALL | changes))


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_logits_are_those_of_transformers(changes, bring, check_padded_writer):
    theirs = build(changes)
    check_padded_writer(theirs, bring(theirs))


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_cached_decoding_is_that_of_transformers(changes, bring, check_cached_writer, chunks):
    theirs = build(changes)
    check_cached_writer(theirs, bring(theirs), chunks)


@pytest.mark.parametrize(
    "name", ["relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "silu", "swish", "relu2"]
)
def test_every_activation_bends_as_theirs(name, bring, check_padded_writer):
    theirs = build({"activation_function": name, "n_layer": 1})
    check_padded_writer(theirs, bring(theirs))


def test_attention_reordered_for_half_precision_is_the_same_attention(bring, check_padded_writer):
    theirs = build({"reorder_and_upcast_attn": True})
    check_padded_writer(theirs, bring(theirs))


def test_dropout_is_kept_where_it_falls(bring):
    config = bring(build({"resid_pdrop": 0.3, "attn_pdrop": 0.2, "embd_pdrop": 0.05})).config
    stack = config.decoder
    assert (stack.dropout, stack.attention.dropout, stack.feed_forward.dropout) == (0.3, 0.2, 0.0)
    assert config.embedding.dropout == 0.05


def test_names_without_a_prefix_and_old_masks_are_read(save_theirs, tmp_path, check_padded_writer):
    """The first published GPT-2 files: no prefix, no head, and the causal mask stored with every layer."""
    theirs = build({})
    bare = GPT2Model(theirs.config)
    directory = save_theirs(bare)
    theirs.transformer.load_state_dict(bare.state_dict())
    tensors = load_file(directory / "model.safetensors")
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 16, 16).tril()
    tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    check_padded_writer(theirs.eval(), regard.load(tmp_path / "ours"))


def test_ids_beyond_the_vocabulary_name_no_word(bring):
    """Models cut down for tests keep GPT-2's id 50256, which they have no word for."""
    ours = bring(build({"bos_token_id": 50256, "eos_token_id": 50256, "pad_token_id": 7}))
    assert ours.config.tokens.plain() == {"padding": 7, "start": None, "end": None}


def test_cross_attention_is_refused_by_name(save_theirs, tmp_path):
    directory = save_theirs(build({}), add_cross_attention=True)
    with pytest.raises(UserError, match=r"config\.json: add_cross_attention is true"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
