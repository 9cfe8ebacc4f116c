"""Models whose attention goes through a latent: what their caches take, how beams share them, what has no fast form."""

from typing import Any

import pytest
import torch

from regard import UserError
from regard.attention import LatentConfig, RotaryConfig
from regard.fast import swift, swift_gpu
from regard.fast.swift_training import for_training
from regard.model import EmbeddingConfig, StackConfig

from .small_models import EXACT, build, encoder_decoder, ids, language_model, latent, stack


def small(layers: int = 3, rotary_width: int = 4, **more: Any) -> StackConfig:
    return stack(layers=layers, **{**latent(rotary_width), **more})


def test_a_cache_takes_the_latent_and_the_shared_key_of_every_layer_and_no_more():
    model = build(language_model(decoder=small(), position=RotaryConfig()))
    cache = model.start(rows=2, capacity=9)
    model.step(ids(2, 4), cache)
    assert cache.bytes() == 2 * 9 * (6 + 4) * 3 * 8  # rows, positions, latent and key, layers, bytes
    assert model.bytes_a_position() == (6 + 4) * 3 * 8


@pytest.mark.parametrize(("memory", "times"), [("layer", 3), ("shared", 1)])
def test_of_a_source_a_cache_takes_latents_for_each_layer_or_once_for_all(memory, times):
    model = build(encoder_decoder(decoder=small(), encoder=small(), position=RotaryConfig(), memory=memory))
    cache = model.start(ids(2, 5), capacity=9)
    assert cache.bytes() == 2 * 5 * 6 * times * 8
    assert model.config.decoder.attention.remembered(model.config.width) == 6
    model.step(ids(2, 1), cache)
    assert cache.bytes() == 2 * 5 * 6 * times * 8 + 2 * 9 * (6 + 4) * 3 * 8


@pytest.mark.parametrize("memory", ["layer", "shared"])
def test_beams_share_what_was_made_of_their_source(memory):
    model = build(encoder_decoder(decoder=small(), encoder=small(), position=RotaryConfig(), memory=memory))
    source, lengths, first = ids(2, 5, seed=1), torch.tensor([5, 3]), ids(2, 1, seed=2)
    cache = model.start(source, 4, lengths)
    model.step(first, cache)
    held = cache.layers[0].memory[1]
    cache.regroup(torch.tensor([0, 0, 0, 1, 1, 1]), None)
    second, third = ids(6, 1, seed=3), ids(6, 1, seed=4)
    model.step(second, cache)
    cache.regroup(torch.tensor([2, 0, 0, 3, 5, 4]), None)
    logits, _ = model.step(third, cache)
    assert cache.layers[0].memory[1] is held
    rows, order = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([2, 0, 0, 3, 5, 4])
    whole = torch.cat((first[rows], second[order], third), dim=1)
    with torch.no_grad():
        expected = model(source[rows], whole, source_lengths=lengths[rows])
    torch.testing.assert_close(logits[:, 0], expected[:, -1], **EXACT)


def test_rows_of_another_cache_take_the_place_of_some():
    model = build(encoder_decoder(decoder=small(), encoder=small(), position=RotaryConfig()))
    source, other, tokens = ids(2, 5, seed=1), ids(1, 7, seed=2), ids(2, 3, seed=3)
    cache, new = model.start(source, 4, torch.tensor([5, 4])), model.start(other, 6, torch.tensor([7]))
    model.step(tokens[:, :2], cache)
    model.put(cache, torch.tensor([0]), new)
    logits, _ = model.step(tokens[:, 2:], cache)
    with torch.no_grad():
        first = model(other, tokens[:1, 2:])
        second = model(source[1:, :4], tokens[1:])
    torch.testing.assert_close(logits[0, 0], first[0, -1], **EXACT)
    torch.testing.assert_close(logits[1, 0], second[0, -1], **EXACT)


# Fast forms


def wide() -> Any:
    """A model that has a fast form but for its attention."""
    decoder = StackConfig(attention=LatentConfig(heads=2, latent=6), layers=2, dropout=0.0)
    embedding = EmbeddingConfig(dropout=0.0)
    return build(language_model(vocabulary=80, decoder=decoder, embedding=embedding), torch.float32)


def test_a_model_has_no_fast_form_for_decoding_and_says_why():
    model = wide()
    assert swift.why_not(model) == "attention must be scaled dot products"
    assert swift.swift(model) is model
    with pytest.raises(UserError, match="scaled dot products"):
        swift.Swift(model)
    assert swift_gpu.why_not(model) is not None


def test_for_training_its_attention_goes_the_models_own_way():
    model = wide().train()
    fast, tokens = for_training(model), ids(3, 6)
    found = []
    for each in (model, fast):
        logits = each(tokens, lengths=torch.tensor([6, 4, 2]))
        real = torch.cat([logits[row, :length] for row, length in enumerate((6, 4, 2))])
        model.zero_grad()
        real.square().mean().backward()
        found.append([real.detach(), *(parameter.grad for parameter in model.parameters())])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(other, own, rtol=1e-4, atol=1e-5)  # float32, sums in another order


@pytest.mark.parametrize("memory", ["layer", "shared"])
@pytest.mark.parametrize("recompute", [False, True])
def test_for_training_it_also_looks_at_a_source_the_models_own_way(memory, recompute):
    model = build(encoder_decoder(encoder=small(), decoder=small(), position=RotaryConfig(), memory=memory)).float()
    fast, given = for_training(model, recompute=recompute), (ids(2, 5), ids(2, 6))
    found = []
    for each in (model, fast):
        logits = each(*given, source_lengths=torch.tensor([5, 3]))
        model.zero_grad()
        logits.square().mean().backward()
        found.append([logits.detach(), *(parameter.grad for parameter in model.parameters())])
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(other, own, rtol=1e-4, atol=1e-5)


# Settings


@pytest.mark.parametrize(
    ("attention", "problem"),
    [
        ({"kind": "latent", "heads": 4}, "decoder.attention.latent: this key is required;"),
        ({"kind": "latent", "latent": 6}, "decoder.attention.heads: 8 heads do not divide the width 12;"),
        ({"kind": "latent", "latent": 6, "heads": 4}, "decoder.attention.rotary_width: found 0; rotary positions"),
        ({"kind": "latent", "latent": 6, "heads": 4, "rotary_width": 3}, "decoder.attention.rotary_width: found 3;"),
        ({"kind": "latent", "latent": 6, "heads": 4, "key_heads": 2}, "decoder.attention.key_heads: unknown key;"),
        ({"kind": "talent"}, "decoder.attention.kind: found 'talent'; expected one of 'heads', 'latent'."),
        ({"kind": 3}, "decoder.attention.kind: found '3'; expected one of 'heads', 'latent'."),
        ({"heads": 4, "latent": 6}, "decoder.attention.latent: unknown key;"),
        (3, "decoder.attention: found 3; expected "),
    ],
)
def test_wrong_settings_are_refused_with_the_whole_key(attention, problem):
    with pytest.raises(UserError) as caught:
        language_model(width=12, decoder={"attention": attention}, position={"kind": "rotary"})
    assert problem in str(caught.value)
