"""Marian models of transformers give the same logits after they are imported."""

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
APART = {
    "share_encoder_decoder_embeddings": False,
    "decoder_vocab_size": 23,
    "pad_token_id": 22,
    "decoder_start_token_id": 22,
}
UNLIKE = {
    "tied, scaled, swish": {"scale_embedding": True, "activation_function": "swish"},
    "two vocabularies, output tied": {**APART, "activation_function": "relu"},
    "two vocabularies, output apart": {**APART, "tie_word_embeddings": False, "activation_function": "gelu_new"},
    "three tables of one vocabulary": {"tie_word_embeddings": False, "decoder_layers": 4, "encoder_layers": 1},
    "odd width": {"d_model": 21, "encoder_attention_heads": 7, "decoder_attention_heads": 3},
    "one head, silu": {"encoder_attention_heads": 1, "decoder_attention_heads": 1, "activation_function": "silu"},
}


def build(changes):
    return MarianMTModel(MarianConfig(**SMALL | changes))


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_logits_are_those_of_transformers(changes, bring, check_padded_translator):
    theirs = build(changes)
    check_padded_translator(theirs, bring(theirs))


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_cached_decoding_is_that_of_transformers(changes, bring, check_cached_translator, chunks):
    theirs = build(changes)
    check_cached_translator(theirs, bring(theirs), chunks)


def test_special_ids_are_kept(bring):
    ours = bring(build({}))
    assert ours.config.tokens.plain() == {"padding": 36, "start": 36, "end": 0}


def test_dropout_is_kept_where_it_falls(bring):
    ours = bring(build({"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.15}))
    for stack in (ours.config.encoder, ours.config.decoder):
        assert (stack.dropout, stack.attention.dropout, stack.feed_forward.dropout) == (0.3, 0.2, 0.15)
    assert ours.config.embedding.dropout == 0.3


def test_an_output_bias_of_zeros_is_left_out(save_theirs, tmp_path):
    directory = save_theirs(build({}))
    tensors = load_file(directory / "model.safetensors")
    tensors["final_logits_bias"].zero_()
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    assert not regard.load(tmp_path / "ours").config.output_bias


def test_stored_sinusoids_are_skipped(save_theirs, tmp_path, check_padded_translator):
    theirs = build({})
    directory = save_theirs(theirs)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.encoder.embed_positions.weight"] = theirs.model.encoder.embed_positions.weight.detach().clone()
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    check_padded_translator(theirs, regard.load(tmp_path / "ours"))


def test_stored_positions_that_are_no_sinusoids_are_refused(save_theirs, tmp_path):
    directory = save_theirs(build({}))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.decoder.embed_positions.weight"] = torch.randn(64, 30)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(UserError, match=r"decoder\.embed_positions\.weight holds other positions"):
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
def test_an_option_without_a_part_is_refused_by_name(key, value, save_theirs, tmp_path):
    directory = save_theirs(build({}), **{key: value})
    with pytest.raises(UserError, match=f"config.json: {key} is "):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
