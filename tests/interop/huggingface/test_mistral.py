"""Mistral models of transformers give the same logits after they are imported, beyond their window too."""

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

import regard
from regard.attention.ring import RingStore
from regard.errors import UserError
from regard.interop import import_huggingface

from .support import edit_json, ids

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
UNLIKE = {
    "grouped queries, a window": {},
    "no window, one key head": {"sliding_window": None, "num_key_value_heads": 1},
    "a window of two, wide heads, tied": {"sliding_window": 2, "head_dim": 10, "tie_word_embeddings": True},
    "a window as long as the text, as many key heads, coarse norm": {
        "sliding_window": 9,
        "num_key_value_heads": 6,
        "rms_norm_eps": 0.1,
    },
    "narrow heads, gelu, another base": {
        "hidden_size": 20,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 2,
        "hidden_act": "gelu",
        "sliding_window": 3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
    "stretched positions": {
        "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
        "num_hidden_layers": 1,
    },
}


def build(changes):
    return MistralForCausalLM(MistralConfig(**SMALL | changes))


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_logits_are_those_of_transformers(changes, bring, check_padded_writer):
    theirs = build(changes)
    check_padded_writer(theirs, bring(theirs))


@pytest.mark.parametrize("changes", UNLIKE.values(), ids=UNLIKE.keys())
def test_cached_decoding_is_that_of_transformers(changes, bring, check_cached_writer, chunks):
    theirs = build(changes)
    check_cached_writer(theirs, bring(theirs), chunks)


@pytest.mark.parametrize("sizes", [[1] * 30, [12, 1, 1, 5, 1, 1, 9], [30]], ids=["one at a time", "uneven", "at once"])
def test_far_beyond_the_window_decoding_is_that_of_transformers(sizes, bring, check_cached_writer):
    theirs = build({})
    ours = bring(theirs)
    check_cached_writer(theirs, ours, sizes)
    cache = ours.model.start(2, 30)
    assert all(isinstance(state.own, RingStore) and state.own.capacity == 4 for state in cache.layers)


@torch.no_grad()
def test_a_token_sees_just_the_window(bring):
    """In one layer logits change with the fourth token back, and not with the fifth."""
    ours = bring(build({"num_hidden_layers": 1}))
    tokens = ids(1, 10, 47)
    before = ours.logits(tokens)[0, 9]
    for back, seen in ((3, True), (4, False)):
        changed = tokens.clone()
        changed[0, 9 - back] = (changed[0, 9 - back] + 1) % 47
        assert torch.equal(ours.logits(changed)[0, 9], before) != seen


def test_a_window_of_one_is_itself_alone(bring, check_padded_writer):
    """Not cached: there transformers 5.22 keeps everything, and is not like itself."""
    theirs = build({"sliding_window": 1})
    check_padded_writer(theirs, bring(theirs))


def test_what_is_left_out_is_what_transformers_takes_for_it(save_theirs, tmp_path):
    theirs = build({"hidden_size": 16, "num_attention_heads": 8, "num_key_value_heads": 8})
    directory = save_theirs(theirs, sliding_window=..., num_key_value_heads=..., head_dim=None)
    import_huggingface(directory, tmp_path / "ours")
    attention = regard.load(tmp_path / "ours").config.decoder.attention
    assert (attention.pattern, attention.key_heads, attention.bias) == ("sliding(4096)", 8, False)


def test_as_many_key_heads_as_heads_may_be_spelled_null(save_theirs, tmp_path):
    directory = save_theirs(build({"num_key_value_heads": 6}), num_key_value_heads=None)
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.decoder.attention.key_heads == 6


@pytest.mark.parametrize(
    ("window", "kind", "pattern"), [(4, "sliding_attention", "sliding(4)"), (None, "full_attention", "full")]
)
def test_layers_of_one_kind_are_what_the_window_says(window, kind, pattern, save_theirs, tmp_path):
    directory = save_theirs(build({"sliding_window": window}), layer_types=[kind] * 3)
    import_huggingface(directory, tmp_path / "ours")
    assert regard.load(tmp_path / "ours").config.decoder.attention.pattern == pattern


WRONG = {
    "layers that differ": (
        {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        "by layer_types layer 0 has sliding_attention and layer 2 has full_attention, but regard has one window",
    ),
    "full layers with a window": (
        {"layer_types": ["full_attention"] * 3},
        "layer_types says full_attention for every layer, but sliding_window is 4",
    ),
    "windows without a width": (
        {"layer_types": ["sliding_attention"] * 3, "sliding_window": None},
        "layer_types says sliding_attention for every layer, but sliding_window is null",
    ),
    "layers of unknown kinds": ({"layer_types": ["chunked_attention"]}, "layer_types is .* should be a list of"),
    "no window at all": ({"sliding_window": 0}, "sliding_window is 0, but should be a whole number of at least 1"),
    "a window in words": ({"sliding_window": "wide"}, "sliding_window is 'wide'"),
}


@pytest.mark.parametrize(("changes", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_is_said_in_one_sentence(changes, sentence, save_theirs, tmp_path):
    directory = save_theirs(build({}))
    edit_json(directory / "config.json", **changes)
    with pytest.raises(UserError, match=sentence) as caught:
        import_huggingface(directory, tmp_path / "ours")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ours").exists()
