"""Models with multi-head latent attention: cache size, beams, fused forms and configs."""

from typing import Any

import pytest
import torch

from regard import UserError
from regard.attention import LatentAttentionConfig, RotaryConfig
from regard.fused.cpu_decoder import CpuDecoder, make_cpu_decoder
from regard.fused.support import cpu_decoder_unsupported_reason, cuda_decoder_unsupported_reason
from regard.fused.training import fuse_for_training
from regard.model import EmbeddingConfig, StackConfig
from tests.model.small_models import EXACT, build, encoder_decoder, ids, language_model, latent, stack


def small(layers: int = 3, rope_head_dim: int = 4, **more: Any) -> StackConfig:
    return stack(layers=layers, **{**latent(rope_head_dim), **more})


def test_cache_holds_one_latent_and_one_rotary_key_per_layer():
    model = build(language_model(decoder=small(), position=RotaryConfig()))
    cache = model.start(rows=2, capacity=9)
    model.step(ids(2, 4), cache)
    assert cache.nbytes() == 2 * 9 * (6 + 4) * 3 * 8  # rows, positions, latent and rotary key, layers, bytes
    assert model.kv_bytes_per_token() == (6 + 4) * 3 * 8


@pytest.mark.parametrize(("cross_kv", "copies"), [("per_layer", 3), ("shared", 1)])
def test_cross_kv_holds_latents_per_layer_or_shared(cross_kv, copies):
    model = build(encoder_decoder(decoder=small(), encoder=small(), position=RotaryConfig(), cross_kv=cross_kv))
    cache = model.start(ids(2, 5), capacity=9)
    assert cache.nbytes() == 2 * 5 * 6 * copies * 8
    assert model.config.decoder.attention.cross_kv_features(model.config.width) == 6
    model.step(ids(2, 1), cache)
    assert cache.nbytes() == 2 * 5 * 6 * copies * 8 + 2 * 9 * (6 + 4) * 3 * 8


@pytest.mark.parametrize("cross_kv", ["per_layer", "shared"])
def test_beams_share_the_latents_of_their_source(cross_kv):
    model = build(encoder_decoder(decoder=small(), encoder=small(), position=RotaryConfig(), cross_kv=cross_kv))
    source, lengths, first = ids(2, 5, seed=1), torch.tensor([5, 3]), ids(2, 1, seed=2)
    cache = model.start(source, 4, lengths)
    model.step(first, cache)
    latents = cache.layers[0].cross_kv[1]
    cache.reorder_beams(torch.tensor([0, 0, 0, 1, 1, 1]), None)
    second, third = ids(6, 1, seed=3), ids(6, 1, seed=4)
    model.step(second, cache)
    cache.reorder_beams(torch.tensor([2, 0, 0, 3, 5, 4]), None)
    logits, _ = model.step(third, cache)
    assert cache.layers[0].cross_kv[1] is latents
    rows, order = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([2, 0, 0, 3, 5, 4])
    tokens = torch.cat((first[rows], second[order], third), dim=1)
    with torch.no_grad():
        expected = model(source[rows], tokens, source_lengths=lengths[rows])
    torch.testing.assert_close(logits[:, 0], expected[:, -1], **EXACT)


def test_scatter_rows_replaces_rows_by_those_of_another_cache():
    model = build(encoder_decoder(decoder=small(), encoder=small(), position=RotaryConfig()))
    source, other, tokens = ids(2, 5, seed=1), ids(1, 7, seed=2), ids(2, 3, seed=3)
    cache, new = model.start(source, 4, torch.tensor([5, 4])), model.start(other, 6, torch.tensor([7]))
    model.step(tokens[:, :2], cache)
    cache.scatter_rows(torch.tensor([0]), new)
    logits, _ = model.step(tokens[:, 2:], cache)
    with torch.no_grad():
        first = model(other, tokens[:1, 2:])
        second = model(source[1:, :4], tokens[1:])
    torch.testing.assert_close(logits[0, 0], first[0, -1], **EXACT)
    torch.testing.assert_close(logits[1, 0], second[0, -1], **EXACT)


# Fused forms


def only_attention_unsupported() -> Any:
    """A model whose only unsupported component is its attention."""
    decoder = StackConfig(attention=LatentAttentionConfig(heads=2, kv_latent=6), layers=2, dropout=0.0)
    embedding = EmbeddingConfig(dropout=0.0)
    return build(language_model(vocab_size=80, decoder=decoder, embedding=embedding), torch.float32)


def test_latent_attention_has_no_fused_decoder():
    model = only_attention_unsupported()
    assert cpu_decoder_unsupported_reason(model) == "attention must be scaled dot-product attention"
    assert make_cpu_decoder(model) is model
    with pytest.raises(UserError, match="scaled dot-product"):
        CpuDecoder(model)
    assert cuda_decoder_unsupported_reason(model) is not None


def test_language_model_fused_for_training_equals_unfused():
    model = only_attention_unsupported().train()
    fused, tokens = fuse_for_training(model), ids(3, 6)
    results = []
    for forward in (model, fused):
        logits = forward(tokens, lengths=torch.tensor([6, 4, 2]))
        real = torch.cat([logits[row, :length] for row, length in enumerate((6, 4, 2))])
        model.zero_grad()
        real.square().mean().backward()
        results.append([real.detach(), *(parameter.grad for parameter in model.parameters())])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)  # float32 sums in another order


@pytest.mark.parametrize("cross_kv", ["per_layer", "shared"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_encoder_decoder_fused_for_training_equals_unfused(cross_kv, checkpointing):
    model = build(encoder_decoder(encoder=small(), decoder=small(), position=RotaryConfig(), cross_kv=cross_kv)).float()
    fused, batch = fuse_for_training(model, activation_checkpointing=checkpointing), (ids(2, 5), ids(2, 6))
    results = []
    for forward in (model, fused):
        logits = forward(*batch, source_lengths=torch.tensor([5, 3]))
        model.zero_grad()
        logits.square().mean().backward()
        results.append([logits.detach(), *(parameter.grad for parameter in model.parameters())])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


# Configs


@pytest.mark.parametrize(
    ("attention", "problem"),
    [
        ({"kind": "latent", "heads": 4}, "decoder.attention.kv_latent: this key is required"),
        ({"kind": "latent", "kv_latent": 6}, "decoder.attention.heads: 8 heads do not divide the width 12;"),
        ({"kind": "latent", "kv_latent": 6, "heads": 4}, "decoder.attention.rope_head_dim: found 0; "),
        (
            {"kind": "latent", "kv_latent": 6, "heads": 4, "rope_head_dim": 3},
            "decoder.attention.rope_head_dim: found 3;",
        ),
        ({"kind": "latent", "kv_latent": 6, "heads": 4, "kv_heads": 2}, "decoder.attention.kv_heads: unknown key;"),
        ({"kind": "talent"}, "decoder.attention.kind: found 'talent'; expected one of 'multi_head', 'latent'."),
        ({"kind": 3}, "decoder.attention.kind: found '3'; expected one of 'multi_head', 'latent'."),
        ({"heads": 4, "kv_latent": 6}, "decoder.attention.kv_latent: unknown key;"),
        (3, "decoder.attention: found 3; expected "),
    ],
)
def test_invalid_settings_are_refused_by_key(attention, problem):
    with pytest.raises(UserError) as caught:
        language_model(width=12, decoder={"attention": attention}, position={"kind": "rotary"})
    assert problem in str(caught.value)
