"""Imported Marian models have the logits of transformers."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MarianConfig, MarianMTModel

import regard
from regard.errors import UserError
from regard.interop import import_huggingface

SMALL = {
    "vocab_size": 37,
    "d_model": 30,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 5,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 64,
    "pad_token_id": 36,
    "decoder_start_token_id": 36,
    "eos_token_id": 0,
}
TWO_VOCABULARIES = {
    "share_encoder_decoder_embeddings": False,
    "decoder_vocab_size": 23,
    "pad_token_id": 22,
    "decoder_start_token_id": 22,
}
VARIANTS = {
    "tied, scaled, swish": {"scale_embedding": True, "activation_function": "swish"},
    "two vocabularies, output tied": {**TWO_VOCABULARIES, "activation_function": "relu"},
    "two vocabularies, output untied": {
        **TWO_VOCABULARIES,
        "tie_word_embeddings": False,
        "activation_function": "gelu_new",
    },
    "three embeddings of one vocabulary": {"tie_word_embeddings": False, "decoder_layers": 4, "encoder_layers": 1},
    "odd width": {"d_model": 21, "encoder_attention_heads": 7, "decoder_attention_heads": 3},
    "one head, silu": {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "activation_function": "silu"},
}


def build(changes):
    return MarianMTModel(MarianConfig(**SMALL | changes))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_transformers(changes, from_hf, check_padded_translator):
    theirs = build(changes)
    check_padded_translator(theirs, from_hf(theirs))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_cached_decoding_equals_transformers(changes, from_hf, check_cached_translator, chunks):
    theirs = build(changes)
    check_cached_translator(theirs, from_hf(theirs), chunks)


def test_special_token_ids_are_imported(from_hf):
    ours = from_hf(build({}))
    assert ours.config.special_tokens.plain() == {"pad": 36, "bos": 36, "eos": 0}


def test_dropout_is_imported(from_hf):
    ours = from_hf(build({"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.15}))
    for stack in (ours.config.encoder, ours.config.decoder):
        assert (stack.dropout, stack.attention.dropout, stack.feed_forward.dropout) == (0.3, 0.2, 0.15)
    assert ours.config.embedding.dropout == 0.3


def test_zero_output_bias_is_omitted(save_hf, tmp_path):
    directory = save_hf(build({}))
    tensors = load_file(directory / "model.safetensors")
    tensors["final_logits_bias"].zero_()
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    assert not regard.load(tmp_path / "ours").config.output_bias


def test_stored_sinusoids_are_ignored(save_hf, tmp_path, check_padded_translator):
    theirs = build({})
    directory = save_hf(theirs)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.encoder.embed_positions.weight"] = theirs.model.encoder.embed_positions.weight.detach().clone()
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    check_padded_translator(theirs, regard.load(tmp_path / "ours"))


def test_stored_positions_that_are_not_sinusoids_are_refused(save_hf, tmp_path):
    directory = save_hf(build({}))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.decoder.embed_positions.weight"] = torch.randn(64, 30)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(UserError, match=r"decoder\.embed_positions\.weight holds no sinusoids"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalize_before", True),
        ("normalize_embedding", True),
        ("add_final_layer_norm", True),
        ("static_position_embeddings", False),
        ("activation_function", "tanh"),
    ],
)
def test_unsupported_option_is_refused_by_key(key, value, save_hf, tmp_path):
    directory = save_hf(build({}), **{key: value})
    with pytest.raises(UserError, match=f"config.json: {key} is "):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
