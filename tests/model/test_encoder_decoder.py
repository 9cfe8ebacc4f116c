"""The encoder–decoder's own promises: pairs packed on both sides, padded sources, its memory, and what it refuses."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from regard import UserError
from regard.attention import RotaryConfig
from regard.attention.heads import CrossAttention
from regard.model import EncoderDecoder, EncoderDecoderConfig, count_parameters

from .small_models import EXACT, PATTERNS, VOCABULARY, build, encoder_decoder, encoder_decoders, ids, source_size, stack

often = settings(max_examples=max(100, settings().max_examples))  # an example takes about 15 ms
seeds = some.integers(0, 999)


def pack(pieces: list[Tensor], order: list[int], padding: int) -> tuple[Tensor, Tensor]:
    """The pieces in this order in one row, padded with anything, and the number of the piece at each place."""
    row = torch.cat([*(pieces[piece] for piece in order), ids(1, padding, vocabulary=9)[0]])
    numbers = [torch.full_like(pieces[piece], piece) for piece in order]
    return row[None], torch.cat([*numbers, torch.full((padding,), -1)])[None]


@often
@given(config=encoder_decoders(), data=some.data(), seed=seeds)
def test_packed_pairs_equal_separate_rows(config, data, seed):
    """On each side in an order and with a padding of its own: the numbers alone say which belong together."""
    model = build(config, seed=seed)
    pairs = data.draw(some.lists(some.tuples(some.integers(1, 4), some.integers(1, 4)), min_size=1, max_size=3))
    sources = [ids(1, length, source_size(config), seed + pair)[0] for pair, (length, _) in enumerate(pairs)]
    targets = [ids(1, length, seed=seed + 7 * pair)[0] for pair, (_, length) in enumerate(pairs)]
    orders = some.permutations(range(len(pairs)))
    source, source_numbers = pack(sources, data.draw(orders), data.draw(some.integers(0, 2)))
    target, target_numbers = pack(targets, data.draw(orders), data.draw(some.integers(0, 2)))
    packed = model(source, target, source_documents=source_numbers, target_documents=target_numbers)
    assert packed.isfinite().all()
    for pair in range(len(pairs)):
        alone = model(sources[pair][None], targets[pair][None])
        torch.testing.assert_close(packed[target_numbers == pair][None], alone, **EXACT)


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
def test_padding_of_the_source_changes_nothing_whatever_it_holds(config, lengths, data):
    model = build(config)
    rows, most = len(lengths), max(lengths) + data.draw(some.integers(0, 2))
    source = ids(rows, most, source_size(config), data.draw(seeds))
    target = ids(rows, data.draw(some.integers(1, 5)), seed=data.draw(seeds))
    padded = model(source, target, source_lengths=torch.tensor(lengths))
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(padded[row], alone[0], **EXACT)


@often
@given(config=encoder_decoders(), lengths=some.lists(some.integers(1, 5), min_size=2, max_size=3), data=some.data())
def test_cached_steps_see_no_padding_of_the_source(config, lengths, data):
    model = build(config)
    source = ids(len(lengths), max(lengths), source_size(config), data.draw(seeds))
    target = ids(len(lengths), 1)
    cached, _ = model.step(target, model.start(source, 1, torch.tensor(lengths)))
    for row, length in enumerate(lengths):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        torch.testing.assert_close(cached[row], alone[0], **EXACT)


@given(config=encoder_decoders(), length=some.integers(1, 4), padding=some.integers(1, 3))
def test_what_is_encoded_does_not_change_with_padding(config, length, padding):
    model = build(config)
    source = ids(1, length + padding, source_size(config))
    encoded = model.encode(source, lengths=torch.tensor([length]))
    torch.testing.assert_close(encoded[:, :length], model.encode(source[:, :length]), **EXACT)


def test_every_source_word_reaches_every_target_word():
    """The encoder looks both ways and the decoder at all of it: a test that no mask is too narrow."""
    model = build(encoder_decoder())
    source, target = ids(1, 4), ids(1, 3)
    before = model(source, target)
    for place in range(4):
        changed = source.clone()
        changed[0, place] = (source[0, place] + 1) % VOCABULARY
        assert (model(changed, target) - before).abs().amax(dim=-1).gt(1e-6).all()


@pytest.mark.parametrize("position", [None, RotaryConfig()], ids=["sinusoidal", "rotary"])
@pytest.mark.parametrize("memory", ["layer", "shared"])
def test_each_form_of_memory_steps_as_it_runs_uncached(memory, position):
    more = {} if position is None else {"position": position}
    model = build(encoder_decoder(memory=memory, decoder=stack(layers=3, key_heads=2), **more))
    source, target, lengths = ids(2, 5), ids(2, 6), torch.tensor([5, 3])
    cache = model.start(source, 6, lengths)
    cached = torch.cat([model.step(target[:, place : place + 1], cache)[0] for place in range(6)], dim=1)
    torch.testing.assert_close(cached, model(source, target, source_lengths=lengths), **EXACT)


def test_a_shared_memory_is_kept_once_in_a_cache_also_after_reordering():
    model = build(encoder_decoder(memory="shared", decoder=stack(layers=3)))
    cache = model.start(ids(2, 5), 6)
    model.reorder(cache, torch.tensor([1, 0, 1]))
    assert len({id(layer.memory) for layer in cache.layers}) == 1


def test_a_shared_memory_saves_the_projections_of_all_layers_but_one():
    layers, width = 3, 16
    sizes = [
        count_parameters(encoder_decoder(memory=memory, decoder=stack(layers=layers)).build())
        for memory in ("layer", "shared")
    ]
    assert sizes[0] - sizes[1] == (layers - 1) * 2 * (width * width + width)


def test_the_source_is_projected_when_a_cache_starts_and_never_again():
    model = build(encoder_decoder())
    calls: list[Any] = []
    crosses = [module for module in model.modules() if isinstance(module, CrossAttention)]
    for cross in crosses:
        cross.source.register_forward_hook(lambda module, given, made: calls.append(module))
    cache = model.start(ids(2, 5), 4)
    for place in range(4):
        model.step(ids(2, 4)[:, place : place + 1], cache)
    assert calls == [cross.source for cross in crosses]


def test_a_shared_vocabulary_is_one_matrix_and_a_separate_one_another():
    shared, separate = encoder_decoder().build(), encoder_decoder(source_vocabulary=9).build()
    assert count_parameters(separate) - count_parameters(shared) == 9 * 16


def test_a_config_builds_its_model():
    model = encoder_decoder().build()
    assert isinstance(model, EncoderDecoder)
    assert model.config == encoder_decoder()


# Wrong input


def refusal(*given: Tensor, config: EncoderDecoderConfig | None = None, **named: Tensor) -> str:
    with pytest.raises(UserError) as caught:
        build(config or encoder_decoder())(*given, **named)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_source_and_target_of_unlike_rows_are_refused_with_both_shapes():
    sentence = refusal(ids(2, 5), ids(3, 4))
    assert "same number of rows" in sentence
    assert "(2, 5) and (3, 4)" in sentence


@pytest.mark.parametrize("side", ["source", "target"])
def test_documents_on_one_side_only_are_refused(side):
    sentence = refusal(ids(2, 4), ids(2, 4), **{f"{side}_documents": torch.zeros(2, 4).long()})
    assert "documents for source and target" in sentence


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("lengths", [torch.tensor([1, 2, 3]), torch.tensor([[1, 2]]), torch.tensor([1.0, 2.0])])
def test_lengths_of_another_shape_or_type_are_refused_with_what_was_found(side, lengths):
    sentence = refusal(ids(2, 4), ids(2, 4), **{f"{side}_lengths": lengths})
    assert sentence.startswith("lengths must hold whole numbers in the shape (2,); ")
    assert f"found {tuple(lengths.shape)} of {lengths.dtype}" in sentence


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("documents", [torch.zeros(2).long(), torch.zeros(2, 5).long(), torch.zeros(2, 4)])
def test_documents_of_another_shape_or_type_are_refused_with_what_was_found(side, documents):
    named = {f"{each}_documents": torch.zeros(2, 4).long() for each in ("source", "target")}
    sentence = refusal(ids(2, 4), ids(2, 4), **{**named, f"{side}_documents": documents})
    assert sentence.startswith("documents ")
    assert f"found {tuple(documents.shape)} of {documents.dtype}" in sentence


@pytest.mark.parametrize(("size", "wrong"), [(None, VOCABULARY), (9, 9), (17, 17), (None, -1)])
def test_source_ids_outside_their_vocabulary_are_named_with_its_size(size, wrong):
    source = ids(2, 4, 9)
    source[0, 2] = wrong
    sentence = refusal(source, ids(2, 3), config=encoder_decoder(source_vocabulary=size))
    assert f"id {wrong} is outside the vocabulary of {size or VOCABULARY}:" in sentence


def test_a_source_of_another_shape_is_refused_with_the_shape():
    assert "(rows, tokens); found (4,)" in refusal(ids(1, 4)[0], ids(4, 3))


def test_a_source_of_floats_is_refused_with_the_type():
    sentence = refusal(ids(2, 4).float(), ids(2, 3))
    assert "whole numbers" in sentence
    assert "torch.float32" in sentence


def test_an_empty_source_gives_finite_logits():
    assert build(encoder_decoder())(ids(2, 0), ids(2, 3)).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"encoder": stack(heads=4).plain() | {"attention": {"heads": 5}}}, "encoder.attention.heads: 5 heads do not "),
        ({"encoder": {"attention": {"head": 4}}}, "encoder.attention.head: unknown key; did you mean 'heads'?"),
        ({"memory": "none"}, "memory: found 'none'; expected 'layer' or 'shared'."),
        ({"source_vocabulary": 0}, "source_vocabulary: found 0; expected greater than or equal to 1."),
        ({"position": {"kind": "rotary"}, "encoder": stack(head_width=3)}, "position.kind: rotary turns pairs of "),
        ({"kind": "language-model"}, "kind: found 'language-model'; expected 'encoder-decoder'."),
    ],
    ids=["heads", "unknown key", "memory", "source vocabulary", "rotary", "kind"],
)
def test_a_wrong_setting_is_named(settings, expected):
    with pytest.raises(UserError) as caught:
        encoder_decoder(**settings)
    assert str(caught.value).startswith(expected)
