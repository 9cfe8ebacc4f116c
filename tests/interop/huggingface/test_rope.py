"""RoPE scaling of every kind equals that of transformers, within the trained length and beyond."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from regard.errors import UserError
from regard.interop import import_huggingface
from tests.interop.huggingface.support import ids

MAX_LENGTH = 16
SHORT, LONG = [1.0, 1.1, 1.3, 1.7], [1.5, 2.0, 4.0, 8.0]
ROPE_TYPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    "yarn, factor from lengths": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 8},
    "yarn, attention factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7},
    "yarn, mscale": {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    "yarn, betas": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.25, "truncate": False},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 8,
    },
    "longrope, factor from lengths": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 4,
    },
    "longrope, attention factor": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": SHORT,
        "long_factor": LONG,
        "attention_factor": 1.3,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8,
    },
    "llama3, default length": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0},
}
LENGTH_DEPENDENT = ("dynamic", "longrope", "longrope, factor from lengths", "longrope, attention factor")


def build(kind, **changes):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=31,
            hidden_size=32,
            intermediate_size=20,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=MAX_LENGTH,
            **{"num_hidden_layers": 2, "rope_parameters": {"rope_theta": 100.0, **ROPE_TYPES[kind]}} | changes,
        )
    )


@pytest.mark.one_in(2)
@pytest.mark.parametrize("length", [4, 8, 9, MAX_LENGTH, MAX_LENGTH + 1, 50])
@pytest.mark.parametrize("kind", ROPE_TYPES)
def test_logits_equal_transformers(kind, length, from_hf, equal_tensors):
    theirs = build(kind)
    ours = from_hf(theirs)
    tokens = ids(2, length, 31)
    with torch.no_grad():
        equal_tensors(ours.logits(tokens), theirs(tokens).logits)


@pytest.mark.parametrize("kind", [kind for kind in ROPE_TYPES if kind not in LENGTH_DEPENDENT])
def test_cached_decoding_equals_transformers(kind, from_hf, check_cached_language_model):
    theirs = build(kind)
    check_cached_language_model(theirs, from_hf(theirs), [1, 7, 1, 10, 1, 5])


@pytest.mark.parametrize("sizes", [[1] * 24, [3, 7, 1, 9, 1, 3]], ids=["step by step", "uneven chunks"])
@pytest.mark.parametrize("kind", LENGTH_DEPENDENT)
def test_cached_decoding_beyond_the_trained_length_equals_uncached_transformers(kind, sizes, from_hf, equal_tensors):
    """Their cache holds keys rotated for a shorter text, which are stale; ours rotates them again.

    The model has one layer: in deeper ones the cached keys of upper layers depend on the shorter text in any cache.
    """
    theirs = build(kind, num_hidden_layers=1)
    ours = from_hf(theirs)
    tokens = ids(2, sum(sizes), 31)
    cache, end = ours.model.start(2, sum(sizes)), 0
    for chunk in tokens.split(sizes, dim=1):
        actual, cache = ours.model.step(chunk, cache)
        end += chunk.shape[1]
        with torch.no_grad():
            equal_tensors(actual, theirs(tokens[:, :end]).logits[:, -chunk.shape[1] :])


@pytest.mark.parametrize("key", ["type", "rope_type"])
@pytest.mark.parametrize("kind", ROPE_TYPES)
def test_old_keys_give_the_same_config(kind, key, save_hf, tmp_path):
    directory = save_hf(build(kind))
    import_huggingface(directory, tmp_path / "new")
    path = directory / "config.json"
    values = json.loads(path.read_text())
    table = {name: value for name, value in values.pop("rope_parameters").items() if value is not None}
    values["rope_theta"] = table.pop("rope_theta")
    values["rope_scaling"] = {key: table.pop("rope_type"), **table}
    path.write_text(json.dumps(values))
    import_huggingface(directory, tmp_path / "old")
    assert regard.load(tmp_path / "old").config == regard.load(tmp_path / "new").config


def test_original_length_in_the_config_overrides_that_in_the_rope_parameters(from_hf, equal_tensors):
    theirs = build("longrope", original_max_position_embeddings=12)
    ours = from_hf(theirs)
    for length in (10, 14):
        tokens = ids(2, length, 31)
        with torch.no_grad():
            equal_tensors(ours.logits(tokens), theirs(tokens).logits)


def test_missing_rope_parameters_have_default_values(save_hf, tmp_path):
    import_huggingface(save_hf(build("default"), rope_parameters=...), tmp_path / "ours")
    position = regard.load(tmp_path / "ours").config.position
    assert (position.theta, position.scaling) == (10_000.0, None)


INVALID = {
    "unknown kind": ({"rope_type": "spiral"}, "rope_type is 'spiral'"),
    "no factor": ({"rope_type": "linear"}, "factor is missing"),
    "a factor of text": ({"rope_type": "dynamic", "factor": "two"}, "factor is 'two'"),
    "a factor of zero": ({"rope_type": "yarn", "factor": 0}, "factor is 0"),
    "partial rotary": ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "frequency factors reversed": (
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1},
        "high_freq_factor is 1",
    ),
    "too few factors": ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "found 1"),
    "factors of text": ({"rope_type": "longrope", "short_factor": ["a"], "long_factor": LONG}, "short_factor is"),
    "parameters per layer type": (
        {"full_attention": {"rope_type": "default"}},
        "full_attention its own RoPE parameters",
    ),
}


@pytest.mark.parametrize(("table", "message"), INVALID.values(), ids=INVALID.keys())
def test_invalid_rope_parameters_are_refused_by_key(table, message, save_hf, tmp_path):
    directory = save_hf(build("default"), rope_parameters=table)
    with pytest.raises(UserError, match=message):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
