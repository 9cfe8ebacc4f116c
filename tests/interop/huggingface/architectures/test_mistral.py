"""Imported Mistral models have the logits of transformers, also beyond the sliding window."""

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

import regard
from regard.attention.rolling_kv_cache import RollingKVBuffer
from regard.errors import UserError
from regard.interop import import_huggingface
from tests.interop.huggingface.support import edit_json, ids

SMALL = {
    "vocab_size": 47,
    "hidden_size": 24,
    "intermediate_size": 33,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "sliding_window": 4,
}
VARIANTS = {
    "grouped-query, sliding window": {},
    "no window, multi-query": {"sliding_window": None, "num_key_value_heads": 1},
    "window of two, wide heads, tied": {"sliding_window": 2, "head_dim": 10, "tie_word_embeddings": True},
    "window as long as the text, multi-head, large eps": {
        "sliding_window": 9,
        "num_key_value_heads": 6,
        "rms_norm_eps": 0.1,
    },
    "narrow heads, gelu, another theta": {
        "hidden_size": 20,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "hidden_act": "gelu",
        "sliding_window": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
    "linear RoPE scaling": {
        "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
        "num_hidden_layers": 1,
    },
}


def build(changes):
    return MistralForCausalLM(MistralConfig(**SMALL | changes))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_logits_equal_transformers(changes, from_hf, check_padded_language_model):
    theirs = build(changes)
    check_padded_language_model(theirs, from_hf(theirs))


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_cached_decoding_equals_transformers(changes, from_hf, check_cached_language_model, chunks):
    theirs = build(changes)
    check_cached_language_model(theirs, from_hf(theirs), chunks)


@pytest.mark.parametrize(
    "sizes", [[1] * 30, [12, 1, 1, 5, 1, 1, 9], [30]], ids=["step by step", "uneven chunks", "one chunk"]
)
def test_cached_decoding_far_beyond_the_window_equals_transformers(sizes, from_hf, check_cached_language_model):
    theirs = build({})
    ours = from_hf(theirs)
    check_cached_language_model(theirs, ours, sizes)
    cache = ours.model.start(2, 30)
    assert all(isinstance(state.self_kv, RollingKVBuffer) and state.self_kv.capacity == 4 for state in cache.layers)


@torch.no_grad()
def test_tokens_attend_to_the_window_only(from_hf):
    """In one layer, logits depend on the three preceding tokens but not on the fourth."""
    ours = from_hf(build({"num_hidden_layers": 1}))
    tokens = ids(1, 10, 47)
    before = ours.logits(tokens)[0, 9]
    for distance, attended in ((3, True), (4, False)):
        changed = tokens.clone()
        changed[0, 9 - distance] = (changed[0, 9 - distance] + 1) % 47
        assert torch.equal(ours.logits(changed)[0, 9], before) != attended


def test_window_of_one_equals_transformers(from_hf, check_padded_language_model):
    """Uncached only: the cache of transformers 5.22 keeps everything, so that its cached and uncached logits differ."""
    theirs = build({"sliding_window": 1})
    check_padded_language_model(theirs, from_hf(theirs))


def test_missing_keys_have_the_defaults_of_transformers(save_hf, tmp_path):
    theirs = build({"hidden_size": 16, "num_attention_heads": 8, "num_key_value_heads": 8})
    directory = save_hf(theirs, sliding_window=..., num_key_value_heads=..., head_dim=None)
    import_huggingface(directory, tmp_path / "ours")
    attention = regard.load(tmp_path / "ours").config.decoder.attention
    assert (attention.pattern, attention.kv_heads, attention.bias) == ("sliding(4096)", 8, False)


def test_null_kv_heads_means_multi_head(save_hf, tmp_path):
    directory = save_hf(build({"num_key_value_heads": 6}), num_key_value_heads=None)
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.decoder.attention.kv_heads == 6


@pytest.mark.parametrize(
    ("window", "kind", "pattern"), [(4, "sliding_attention", "sliding(4)"), (None, "full_attention", "full")]
)
def test_equal_layer_types_agree_with_the_window(window, kind, pattern, save_hf, tmp_path):
    directory = save_hf(build({"sliding_window": window}), layer_types=[kind] * 3)
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.decoder.attention.pattern == pattern


INVALID = {
    "layers that differ": (
        {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        "layer_types has sliding_attention for layer 0 and full_attention for layer 2, but regard has one window",
    ),
    "full layers with a window": (
        {"layer_types": ["full_attention"] * 3},
        "layer_types says full_attention for every layer, but sliding_window is 4",
    ),
    "sliding layers without a window": (
        {"layer_types": ["sliding_attention"] * 3, "sliding_window": None},
        "layer_types says sliding_attention for every layer, but sliding_window is null",
    ),
    "unknown layer types": ({"layer_types": ["chunked_attention"]}, "layer_types is .* should be a list of"),
    "a window of zero": ({"sliding_window": 0}, "sliding_window is 0, but should be an integer of at least 1"),
    "a window of text": ({"sliding_window": "wide"}, "sliding_window is 'wide'"),
}


@pytest.mark.parametrize(("changes", "message"), INVALID.values(), ids=INVALID.keys())
def test_unsupported_config_is_refused_and_nothing_is_written(changes, message, save_hf, tmp_path):
    directory = save_hf(build({}))
    edit_json(directory / "config.json", **changes)
    with pytest.raises(UserError, match=message) as caught:
        import_huggingface(directory, tmp_path / "ours")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()
