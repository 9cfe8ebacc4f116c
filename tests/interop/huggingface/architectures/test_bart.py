"""Imported BART models have the logits of transformers."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BartForConditionalGeneration, BartModel

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from tests.interop.huggingface.support import ids

SMALL = {
    "vocab_size": 41,
    "d_model": 30,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 5,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 36,
    "max_position_embeddings": 20,
}
VARIANTS = {
    "tied": {},
    "three embeddings of one vocabulary": {"tie_word_embeddings": False, "activation_function": "relu"},
    "scaled, deeper encoder": {"scale_embedding": True, "encoder_layers": 3, "decoder_layers": 1},
    "odd width, gelu_new": {
        "d_model": 15,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 15,
        "activation_function": "gelu_new",
    },
    "silu": {"activation_function": "silu", "encoder_attention_heads": 1},
}


def build(changes):
    return BartForConditionalGeneration(BartConfig(**SMALL | changes))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_transformers(changes, from_hf, check_padded_translator):
    theirs = build(changes)
    check_padded_translator(theirs, from_hf(theirs))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_cached_decoding_equals_transformers(changes, from_hf, check_cached_translator, chunks):
    theirs = build(changes)
    check_cached_translator(theirs, from_hf(theirs), chunks)


def test_all_learned_positions_are_imported(from_hf, equal_tensors):
    theirs = build({})
    ours = from_hf(theirs)
    source, target = ids(1, 20, 41), ids(1, 20, 41, seed=2)
    with torch.no_grad():
        equal_tensors(ours.logits(source, target), theirs(source, decoder_input_ids=target).logits)


def test_special_token_ids_are_imported(from_hf):
    ours = from_hf(build({"decoder_start_token_id": 5}))
    assert ours.config.special_tokens.plain() == {"pad": 1, "bos": 5, "eos": 2}


def test_missing_special_token_ids_have_bart_s_defaults(save_hf, tmp_path):
    absent = dict.fromkeys(("decoder_start_token_id", "pad_token_id", "eos_token_id"), ...)
    directory = save_hf(build({"decoder_start_token_id": 7}), **absent)
    (directory / "generation_config.json").unlink()
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.special_tokens.plain() == {"pad": 1, "bos": 2, "eos": 2}


def test_dropout_is_imported(from_hf):
    ours = from_hf(build({"dropout": 0.25, "attention_dropout": 0.2, "activation_dropout": 0.05}))
    for stack in (ours.config.encoder, ours.config.decoder):
        assert (stack.dropout, stack.attention.dropout, stack.feed_forward.dropout) == (0.25, 0.2, 0.05)


def test_tied_model_without_a_head_can_be_imported(save_hf, tmp_path, check_padded_translator):
    """The first BART models were published as BartModel: names without a prefix, no head, no output bias."""
    theirs = build({})
    base_class = BartModel(theirs.config)
    directory = save_hf(base_class)
    theirs.model.load_state_dict(base_class.state_dict())
    import_huggingface(directory, tmp_path / "ours")
    check_padded_translator(theirs.eval(), regard.load(tmp_path / "ours"))


@pytest.mark.parametrize("names", [["model.encoder.embed_tokens.weight"], ["lm_head.weight"]])
def test_duplicates_of_tied_embeddings_change_nothing(names, save_hf, tmp_path, check_padded_translator):
    theirs = build({})
    directory = save_hf(theirs)
    tensors = load_file(directory / "model.safetensors")
    tensors |= {name: tensors["model.shared.weight"].clone() for name in names}
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    ours = regard.load(tmp_path / "ours")
    assert ours.config.tie_weights
    assert ours.config.source_vocab_size is None
    check_padded_translator(theirs, ours)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
)
def test_conflicting_copies_of_tied_embeddings_are_resolved_as_in_transformers(
    name, save_hf, tmp_path, check_padded_translator
):
    directory = save_hf(build({}))
    tensors = load_file(directory / "model.safetensors")
    tensors[name] = torch.randn(41, 30)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    theirs = BartForConditionalGeneration.from_pretrained(directory).eval()
    import_huggingface(directory, tmp_path / "ours")
    check_padded_translator(theirs, regard.load(tmp_path / "ours"))


def test_missing_untied_embedding_is_refused(save_hf, tmp_path):
    directory = save_hf(build({"tie_word_embeddings": False}))
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.shared.weight"], tensors["model.encoder.embed_tokens.weight"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks the tensor model\.shared\.weight"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_version_tensor_of_old_files_is_ignored(save_hf, tmp_path):
    directory = save_hf(build({}))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.encoder.version"] = torch.tensor([3.0])
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    assert (tmp_path / "ours").is_dir()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalize_before", True),
        ("normalize_embedding", False),
        ("add_final_layer_norm", True),
        ("static_position_embeddings", True),
    ],
)
def test_unsupported_option_is_refused_by_key(key, value, save_hf, tmp_path):
    directory = save_hf(build({}), **{key: value})
    with pytest.raises(UserError, match=f"config.json: {key} is "):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
