"""BART models of transformers give the same logits after they are imported."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BartConfig, BartForConditionalGeneration, BartModel

import regard
from regard.errors import UserError
from regard.interop import import_huggingface

from .support import ids

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
UNLIKE = {
    "tied": {},
    "three tables of one vocabulary": {"tie_word_embeddings": False, "activation_function": "relu"},
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


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_logits_are_those_of_transformers(changes, bring, check_padded_translator):
    theirs = build(changes)
    check_padded_translator(theirs, bring(theirs))


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_cached_decoding_is_that_of_transformers(changes, bring, check_cached_translator, chunks):
    theirs = build(changes)
    check_cached_translator(theirs, bring(theirs), chunks)


def test_every_position_they_have_is_there(bring, same):
    theirs = build({})
    ours = bring(theirs)
    source, target = ids(1, 20, 41), ids(1, 20, 41, seed=2)
    with torch.no_grad():
        same(ours.logits(source, target), theirs(source, decoder_input_ids=target).logits)


def test_special_ids_are_kept(bring):
    ours = bring(build({"decoder_start_token_id": 5}))
    assert ours.config.tokens.plain() == {"padding": 1, "start": 5, "end": 2}


def test_special_ids_left_out_are_bart_s_usual_ones(save_theirs, tmp_path):
    absent = dict.fromkeys(("decoder_start_token_id", "pad_token_id", "eos_token_id"), ...)
    directory = save_theirs(build({"decoder_start_token_id": 7}), **absent)
    (directory / "generation_config.json").unlink()
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.tokens.plain() == {"padding": 1, "start": 2, "end": 2}


def test_dropout_is_kept_where_it_falls(bring):
    ours = bring(build({"dropout": 0.25, "attention_dropout": 0.2, "activation_dropout": 0.05}))
    for stack in (ours.config.encoder, ours.config.decoder):
        assert (stack.dropout, stack.attention.dropout, stack.feed_forward.dropout) == (0.25, 0.2, 0.05)


def test_a_file_without_the_head_is_whole_where_words_are_tied(save_theirs, tmp_path, check_padded_translator):
    """The first BART models were published as BartModel: names without a prefix, no head, no output bias."""
    theirs = build({})
    bare = BartModel(theirs.config)
    directory = save_theirs(bare)
    theirs.model.load_state_dict(bare.state_dict())
    import_huggingface(directory, tmp_path / "ours")
    check_padded_translator(theirs.eval(), regard.load(tmp_path / "ours"))


@pytest.mark.parametrize("names", [["model.encoder.embed_tokens.weight"], ["lm_head.weight"]])
def test_duplicates_of_tied_words_change_nothing(names, save_theirs, tmp_path, check_padded_translator):
    theirs = build({})
    directory = save_theirs(theirs)
    tensors = load_file(directory / "model.safetensors")
    tensors |= {name: tensors["model.shared.weight"].clone() for name in names}
    save_file(tensors, directory / "model.safetensors")
    import_huggingface(directory, tmp_path / "ours")
    ours = regard.load(tmp_path / "ours")
    assert ours.config.tie
    assert ours.config.source_vocabulary is None
    check_padded_translator(theirs, ours)


@pytest.mark.parametrize(
    "name", ["lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"]
)
def test_words_stored_twice_with_unlike_numbers_are_read_as_transformers_reads_them(
    name, save_theirs, tmp_path, check_padded_translator
):
    directory = save_theirs(build({}))
    tensors = load_file(directory / "model.safetensors")
    tensors[name] = torch.randn(41, 30)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    theirs = BartForConditionalGeneration.from_pretrained(directory).eval()
    import_huggingface(directory, tmp_path / "ours")
    check_padded_translator(theirs, regard.load(tmp_path / "ours"))


def test_untied_tables_do_not_stand_in_for_each_other(save_theirs, tmp_path):
    directory = save_theirs(build({"tie_word_embeddings": False}))
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.shared.weight"], tensors["model.encoder.embed_tokens.weight"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(UserError, match=r"lacks the tensor model\.shared\.weight"):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_old_version_marks_are_skipped(save_theirs, tmp_path):
    directory = save_theirs(build({}))
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
def test_an_option_without_a_part_is_refused_by_name(key, value, save_theirs, tmp_path):
    directory = save_theirs(build({}), **{key: value})
    with pytest.raises(UserError, match=f"config.json: {key} is "):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
