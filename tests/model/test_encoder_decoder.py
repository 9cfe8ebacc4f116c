"""The encoder–decoder: packed pairs, padded sources, cross-attention keys and values, and invalid inputs."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from regard import UserError
from regard.attention import RotaryConfig
from regard.attention.multi_head import CrossAttention
from regard.model import EncoderDecoder, EncoderDecoderConfig, count_parameters
from tests.model.small_models import (
    EXACT,
    PATTERNS,
    VOCAB_SIZE,
    build,
    encoder_decoder,
    encoder_decoders,
    ids,
    source_vocab_size_of,
    stack,
)

often = settings(max_examples=max(100, settings().max_examples))  # an example takes about 15 ms
seeds = some.integers(0, 999)


def pack(sequences: list[Tensor], order: list[int], padding: int) -> tuple[Tensor, Tensor]:
    """The sequences concatenated in this order, with random padding, and the index of the sequence at each position."""
    row = torch.cat([*(sequences[index] for index in order), ids(1, padding, vocab_size=9)[0]])
    documents = [torch.full_like(sequences[index], index) for index in order]
    return row[None], torch.cat([*documents, torch.full((padding,), -1)])[None]


@often
@given(config=encoder_decoders(), data=some.data(), seed=seeds)
def test_packed_pairs_equal_separate_rows(config, data, seed):
    """Each side has its own order and padding: only the document numbers say which source a target has."""
    model = build(config, seed=seed)
    pairs = data.draw(some.lists(some.tuples(some.integers(1, 4), some.integers(1, 4)), min_size=1, max_size=3))
    sources = [ids(1, length, source_vocab_size_of(config), seed + pair)[0] for pair, (length, _) in enumerate(pairs)]
    targets = [ids(1, length, seed=seed + 7 * pair)[0] for pair, (_, length) in enumerate(pairs)]
    orders = some.permutations(range(len(pairs)))
    source, source_documents = pack(sources, data.draw(orders), data.draw(some.integers(0, 2)))
    target, target_documents = pack(targets, data.draw(orders), data.draw(some.integers(0, 2)))
    packed = model(source, target, source_documents=source_documents, target_documents=target_documents)
    assert packed.isfinite().all()
    for pair in range(len(pairs)):
        alone = model(sources[pair][None], targets[pair][None])
        torch.testing.assert_close(packed[target_documents == pair][None], alone, **EXACT)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_packed_pairs_equal_separate_rows_in_every_pattern(pattern):
    """Each document of the encoder has its own global tokens and its own windows."""
    model = build(encoder_decoder(encoder=stack(pattern=pattern), decoder=stack(pattern=pattern)))
    pairs = [(ids(1, 4, seed=1), ids(1, 3, seed=2)), (ids(1, 5, seed=3), ids(1, 4, seed=4))]
    source, target = (torch.cat(side, dim=1) for side in zip(*pairs, strict=True))
    source_documents, target_documents = torch.tensor([[0] * 4 + [1] * 5]), torch.tensor([[0] * 3 + [1] * 4])
    packed = model(source, target, source_documents=source_documents, target_documents=target_documents)
    alone = torch.cat([model(*pair) for pair in pairs], dim=1)
    torch.testing.assert_close(packed, alone, **EXACT)


@often
@given(config=encoder_decoders(), lengths=some.lists(some.integers(1, 5), min_size=1, max_size=3), data=some.data())
def test_source_padding_does_not_change_the_logits(config, lengths, data):
    model = build(config)
    rows, tokens = len(lengths), max(lengths) + data.draw(some.integers(0, 2))
    source = ids(rows, tokens, source_vocab_size_of(config), data.draw(seeds))
    target = ids(rows, data.draw(some.integers(1, 5)), seed=data.draw(seeds))
    padded = model(source, target, source_lengths=torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(padded[row], alone[0], **EXACT)


@often
@given(config=encoder_decoders(), lengths=some.lists(some.integers(1, 5), min_size=2, max_size=3), data=some.data())
def test_cached_steps_ignore_source_padding(config, lengths, data):
    model = build(config)
    source = ids(len(lengths), max(lengths), source_vocab_size_of(config), data.draw(seeds))
    target = ids(len(lengths), 1)
    cached, _ = model.step(target, model.start(source, 1, torch.tensor(lengths)))
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(cached[row], alone[0], **EXACT)


@given(config=encoder_decoders(), length=some.integers(1, 4), padding=some.integers(1, 3))
def test_encoder_output_does_not_depend_on_padding(config, length, padding):
    model = build(config)
    source = ids(1, length + padding, source_vocab_size_of(config))
    encoded = model.encode(source, lengths=torch.tensor([length]))
    torch.testing.assert_close(encoded[:, :length], model.encode(source[:, :length]), **EXACT)


def test_every_source_token_affects_every_target_token():
    """Encoder self-attention and cross-attention are not masked."""
    model = build(encoder_decoder())
    source, target = ids(1, 4), ids(1, 3)
    before = model(source, target)
    for position in range(4):
        changed = source.clone()
        changed[0, position] = (source[0, position] + 1) % VOCAB_SIZE
        assert (model(changed, target) - before).abs().amax(dim=-1).gt(1e-6).all()


@pytest.mark.parametrize("position", [None, RotaryConfig()], ids=["sinusoidal", "rotary"])
@pytest.mark.parametrize("cross_kv", ["per_layer", "shared"])
def test_cached_decoding_equals_uncached_with_either_cross_kv(cross_kv, position):
    more = {} if position is None else {"position": position}
    model = build(encoder_decoder(cross_kv=cross_kv, decoder=stack(layers=3, kv_heads=2), **more))
    source, target, lengths = ids(2, 5), ids(2, 6), torch.tensor([5, 3])
    cache = model.start(source, 6, lengths)
    cached = torch.cat([model.step(target[:, index : index + 1], cache)[0] for index in range(6)], dim=1)
    torch.testing.assert_close(cached, model(source, target, source_lengths=lengths), **EXACT)


def test_shared_cross_kv_is_stored_once_after_a_reorder():
    model = build(encoder_decoder(cross_kv="shared", decoder=stack(layers=3)))
    cache = model.start(ids(2, 5), 6)
    cache.reorder(torch.tensor([1, 0, 1]))
    assert len({id(layer.cross_kv) for layer in cache.layers}) == 1


def test_shared_cross_kv_has_one_projection_for_all_layers():
    layers, width = 3, 16
    sizes = [
        count_parameters(encoder_decoder(cross_kv=cross_kv, decoder=stack(layers=layers)).build())
        for cross_kv in ("per_layer", "shared")
    ]
    assert sizes[0] - sizes[1] == (layers - 1) * 2 * (width * width + width)


def test_cross_kv_is_projected_once_per_cache():
    model = build(encoder_decoder())
    calls: list[Any] = []
    cross_attentions = [module for module in model.modules() if isinstance(module, CrossAttention)]
    for cross in cross_attentions:
        cross.k_proj.register_forward_hook(lambda module, args, output: calls.append(module))
    cache = model.start(ids(2, 5), 4)
    for position in range(4):
        model.step(ids(2, 4)[:, position : position + 1], cache)
    assert calls == [cross.k_proj for cross in cross_attentions]


def test_source_vocabulary_adds_an_embedding_matrix():
    shared, separate = encoder_decoder().build(), encoder_decoder(source_vocab_size=9).build()
    assert count_parameters(separate) - count_parameters(shared) == 9 * 16


def test_config_builds_its_model():
    model = encoder_decoder().build()
    assert isinstance(model, EncoderDecoder)
    assert model.config == encoder_decoder()


# Invalid input


def error_message(*args: Tensor, config: EncoderDecoderConfig | None = None, **named: Tensor) -> str:
    with pytest.raises(UserError) as caught:
        build(config or encoder_decoder())(*args, **named)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_source_and_target_with_different_rows_are_refused():
    message = error_message(ids(2, 5), ids(3, 4))
    assert "same number of rows" in message
    assert "(2, 5) and (3, 4)" in message


@pytest.mark.parametrize("side", ["source", "target"])
def test_documents_of_only_one_side_are_refused(side):
    message = error_message(ids(2, 4), ids(2, 4), **{f"{side}_documents": torch.zeros(2, 4).long()})
    assert "give both source_documents and target_documents" in message


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("lengths", [torch.tensor([1, 2, 3]), torch.tensor([[1, 2]]), torch.tensor([1.0, 2.0])])
def test_lengths_of_wrong_shape_or_dtype_are_refused(side, lengths):
    message = error_message(ids(2, 4), ids(2, 4), **{f"{side}_lengths": lengths})
    assert message.startswith("lengths must contain integers of shape (2,); ")
    assert f"found {tuple(lengths.shape)} of {lengths.dtype}" in message


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("documents", [torch.zeros(2).long(), torch.zeros(2, 5).long(), torch.zeros(2, 4)])
def test_documents_of_wrong_shape_or_dtype_are_refused(side, documents):
    named = {f"{each}_documents": torch.zeros(2, 4).long() for each in ("source", "target")}
    message = error_message(ids(2, 4), ids(2, 4), **{**named, f"{side}_documents": documents})
    assert message.startswith("documents ")
    assert f"found {tuple(documents.shape)} of {documents.dtype}" in message


@pytest.mark.parametrize(("size", "wrong"), [(None, VOCAB_SIZE), (9, 9), (17, 17), (None, -1)])
def test_source_ids_outside_their_vocabulary_are_refused(size, wrong):
    source = ids(2, 4, 9)
    source[0, 2] = wrong
    message = error_message(source, ids(2, 3), config=encoder_decoder(source_vocab_size=size))
    assert f"id {wrong} is outside the vocabulary of {size or VOCAB_SIZE}:" in message


def test_source_of_wrong_shape_is_refused():
    assert "(rows, tokens); found (4,)" in error_message(ids(1, 4)[0], ids(4, 3))


def test_source_of_floats_is_refused():
    message = error_message(ids(2, 4).float(), ids(2, 3))
    assert "integers" in message
    assert "torch.float32" in message


def test_empty_source_has_finite_logits():
    assert build(encoder_decoder())(ids(2, 0), ids(2, 3)).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"encoder": stack(heads=4).plain() | {"attention": {"heads": 5}}}, "encoder.attention.heads: 5 heads do not "),
        ({"encoder": {"attention": {"head": 4}}}, "encoder.attention.head: unknown key; did you mean 'heads'?"),
        ({"cross_kv": "none"}, "cross_kv: found 'none'; expected 'per_layer' or 'shared'."),
        ({"source_vocab_size": 0}, "source_vocab_size: found 0; expected greater than or equal to 1."),
        ({"position": {"kind": "rotary"}, "encoder": stack(head_dim=3)}, "position.kind: RoPE rotates pairs of "),
        ({"kind": "language-model"}, "kind: found 'language-model'; expected 'encoder-decoder'."),
    ],
    ids=["heads", "unknown key", "cross_kv", "source vocabulary", "rotary", "kind"],
)
def test_invalid_setting_is_refused_by_key(settings, expected):
    with pytest.raises(UserError) as caught:
        encoder_decoder(**settings)
    assert str(caught.value).startswith(expected)
