"""Drawings of attention patterns: cells and blocks add up to the pattern's own count, and texts mean their pattern."""

import pytest
import torch

from regard import UserError
from regard.attention import read_pattern
from regard.look.analysis.attention_patterns import compare_patterns, model_patterns, pattern_text
from regard.look.schema import PatternsRequest
from tests.look.support import autoregressive_model, request, task_models
from tests.model.before.samples import SAMPLES
from tests.model.small_models import encoder_decoder, stack


def wanted(**changes) -> PatternsRequest:
    default = {"length": 300, "window": 20, "step": 3, "tokens": 5, "causal": False, "own": "causal & sliding(9)"}
    return PatternsRequest(**(default | changes))


def allows(name: str, query: int, key: int, *, causal: bool) -> bool:
    """The definitions, written out."""
    distance = abs(query - key)
    allowed = {
        "full": True,
        "causal": True,
        "sliding window": distance < 20,
        "dilated window": distance < 60 and distance % 3 == 0,
        "global and sliding": distance < 20 or query < 5 or key < 5,
        "your own": distance < 9,
    }[name]
    return allowed and (key <= query or not (causal or name in ("causal", "your own")))


@pytest.mark.parametrize("causal", [False, True])
def test_numbers_are_those_of_the_definitions(causal: bool) -> None:
    result = compare_patterns(wanted(causal=causal))
    assert (result.dense, result.block, result.cell) == (300 * 300, 128, 8)
    names = ["causal", "sliding window", "dilated window", "global and sliding", "your own"]
    assert [each.name for each in result.patterns] == ([] if causal else ["full"]) + names
    for each in result.patterns:
        grid = torch.tensor([[allows(each.name, i, j, causal=causal) for j in range(300)] for i in range(300)])
        padded = torch.nn.functional.pad(grid, (0, 84, 0, 84)).view(3, 128, 3, 128)
        counts = padded.sum(dim=(1, 3))
        assert each.pairs == int(grid.sum()) == read_pattern(each.pattern).pairs(300)
        assert sum(map(sum, each.cells)) == each.pairs
        sizes = torch.tensor([128, 128, 44])
        tiles = (counts > 0).long() + (counts == 128 * 128)
        assert each.tiles == tiles.tolist()
        assert (each.blocks, each.full_blocks, each.all_blocks) == (int((tiles > 0).sum()), int((tiles > 1).sum()), 9)
        assert each.computed_pairs == int(((tiles > 0) * sizes[:, None] * sizes).sum())


def test_short_sequences_are_drawn_pair_by_pair() -> None:
    dilated = next(each for each in compare_patterns(wanted(length=40)).patterns if each.name == "dilated window")
    expected = [[int(allows("dilated window", i, j, causal=False)) for j in range(40)] for i in range(40)]
    assert dilated.cells == expected


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"length": 1}, "length"), ({"length": 9999}, "length"), ({"window": 0}, "window"), ({"own": "wide"}, "pattern")],
)
def test_impossible_patterns_are_refused(changes: dict[str, object], word: str) -> None:
    with pytest.raises(UserError, match=word):
        compare_patterns(wanted(**changes))


@pytest.mark.parametrize(
    "text",
    ["full", "causal", "causal & (global(4) | sliding(8))", "causal & sliding(3) & dilated(9, 2)", "full & sliding(4)"],
)
def test_text_of_a_pattern_means_the_same(text: str) -> None:
    pattern = read_pattern(text)
    assert torch.equal(read_pattern(pattern_text(pattern)).dense_mask(20), pattern.dense_mask(20))


def test_patterns_of_a_model_are_those_of_its_layers() -> None:
    traced_model = autoregressive_model(encoder_decoder(encoder=stack(pattern="sliding(3)")), torch.float32)
    trace = traced_model.trace(request(traced_model))
    layers = model_patterns(trace).layers
    sizes = {name: trace.array(f"attention/{name}").shape for name in ("encoder", "decoder", "cross")}
    assert len(layers) == sum(shape[0] for shape in sizes.values())
    for layer in layers:
        queries, keys = sizes[layer.attention_type][-2:]
        weights = trace.attention(layer.attention_type, layer.layer)
        assert layer.dense == queries * keys
        assert layer.pairs == int(((weights > 0).any(dim=0)).sum())
        assert layer.pattern == {"encoder": "sliding(3)", "decoder": "causal", "cross": "full"}[layer.attention_type]


def test_models_before_the_transformer_have_no_patterns() -> None:
    traced_model = autoregressive_model(SAMPLES["recurrent-attention"]["plain"], torch.float32)
    assert model_patterns(traced_model.trace(request(traced_model))).layers == []


def test_model_of_images_attends_to_all_patches() -> None:
    traced_model = task_models()["image-classification"]
    layers = model_patterns(traced_model.trace(request(traced_model))).layers
    assert {(each.attention_type, each.pattern, each.pairs == each.dense) for each in layers} == {
        ("encoder", "full", True)
    }
