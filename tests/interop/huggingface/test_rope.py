"""Every kind of rotary scaling turns queries and keys as transformers does, within the trained length and beyond it."""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import regard
from regard.errors import UserError
from regard.interop import import_huggingface

from .support import ids

LONGEST = 16
SHORT, LONG = [1.0, 1.1, 1.3, 1.7], [1.5, 2.0, 4.0, 8.0]
KINDS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    "yarn, lengths alone": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 8},
    "yarn, its attention factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7},
    "yarn, mscale": {"rope_type": "yarn", "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    "yarn, its turns": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.25, "truncate": False},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 8,
    },
    "longrope, lengths alone": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": 4,
    },
    "longrope, its attention factor": {
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
    "llama3, one length": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 2.0},
}
CHANGING = ("dynamic", "longrope", "longrope, lengths alone", "longrope, its attention factor")


def build(kind, **changes):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=31,
            hidden_size=32,
            intermediate_size=20,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=LONGEST,
            **{"num_hidden_layers": 2, "rope_parameters": {"rope_theta": 100.0, **KINDS[kind]}} | changes,
        )
    )


@pytest.mark.parametrize("length", [4, 8, 9, LONGEST, LONGEST + 1, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_transformers(kind, length, bring, same):
    theirs = build(kind)
    ours = bring(theirs)
    tokens = ids(2, length, 31)
    with torch.no_grad():
        same(ours.logits(tokens), theirs(tokens).logits)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in CHANGING])
def test_cached_decoding_is_that_of_transformers(kind, bring, check_cached_writer):
    theirs = build(kind)
    check_cached_writer(theirs, bring(theirs), [1, 7, 1, 10, 1, 5])


@pytest.mark.parametrize("sizes", [[1] * 24, [3, 7, 1, 9, 1, 3]], ids=["one at a time", "uneven chunks"])
@pytest.mark.parametrize("kind", CHANGING)
def test_cached_decoding_beyond_the_trained_length_is_their_uncached(kind, sizes, bring, same):
    """Their cache keeps keys turned by the angles of a shorter text, so its results are stale; ours turns them anew.

    The model has one layer: in a deeper one every cache, ours too, holds what upper layers made of the shorter text.
    """
    theirs = build(kind, num_hidden_layers=1)
    ours = bring(theirs)
    tokens = ids(2, sum(sizes), 31)
    cache, end = ours.model.start(2, sum(sizes)), 0
    for chunk in tokens.split(sizes, dim=1):
        found, cache = ours.model.step(chunk, cache)
        end += chunk.shape[1]
        with torch.no_grad():
            same(found, theirs(tokens[:, :end]).logits[:, -chunk.shape[1] :])


@pytest.mark.parametrize("word", ["type", "rope_type"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_old_spelling_is_the_same_model(kind, word, save_theirs, tmp_path):
    directory = save_theirs(build(kind))
    import_huggingface(directory, tmp_path / "new")
    path = directory / "config.json"
    values = json.loads(path.read_text())
    table = {key: value for key, value in values.pop("rope_parameters").items() if value is not None}
    values["rope_theta"] = table.pop("rope_theta")
    values["rope_scaling"] = {word: table.pop("rope_type"), **table}
    path.write_text(json.dumps(values))
    import_huggingface(directory, tmp_path / "old")
    assert regard.load(tmp_path / "old").config == regard.load(tmp_path / "new").config


def test_a_trained_length_beside_the_table_counts_for_more_than_the_one_in_it(bring, same):
    theirs = build("longrope", original_max_position_embeddings=12)
    ours = bring(theirs)
    for length in (10, 14):
        tokens = ids(2, length, 31)
        with torch.no_grad():
            same(ours.logits(tokens), theirs(tokens).logits)


def test_settings_without_a_word_about_angles_are_the_usual_ones(save_theirs, tmp_path):
    import_huggingface(save_theirs(build("default"), rope_parameters=...), tmp_path / "ours")
    position = regard.load(tmp_path / "ours").config.position
    assert (position.base, position.scaling) == (10_000.0, None)


WRONG = {
    "unknown kind": ({"rope_type": "spiral"}, "rope_type is 'spiral'"),
    "no factor": ({"rope_type": "linear"}, "factor is missing"),
    "a factor of words": ({"rope_type": "dynamic", "factor": "two"}, "factor is 'two'"),
    "a factor of nothing": ({"rope_type": "yarn", "factor": 0}, "factor is 0"),
    "half the head": ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    "bands upside down": (
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1},
        "high_freq_factor is 1",
    ),
    "too few factors": ({"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, "found 1"),
    "factors of words": ({"rope_type": "longrope", "short_factor": ["a"], "long_factor": LONG}, "short_factor is"),
    "angles by layer": ({"full_attention": {"rope_type": "default"}}, "full_attention angles of its own"),
}


@pytest.mark.parametrize(("table", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_turned_is_refused_by_name(table, sentence, save_theirs, tmp_path):
    directory = save_theirs(build("default"), rope_parameters=table)
    with pytest.raises(UserError, match=sentence):
        import_huggingface(directory, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
