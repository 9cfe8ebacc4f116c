"""The diagram is the model: every parameter in one box, boxes in order of computation."""

from collections.abc import Iterator

import pytest
import torch

from regard import UserError
from regard.look.analysis.attention_maps import attention_modules
from regard.look.analysis.model_diagram import draw_model
from regard.look.schema import ModuleBox
from regard.model import count_parameters
from tests.model.small_models import ENCODER_SAMPLES, SAMPLES, build, encoder_decoder, language_model, norm_order, stack

CONFIGS = {f"{kind}: {name}": one for kind, some in (SAMPLES | ENCODER_SAMPLES).items() for name, one in some.items()}
each_config = pytest.mark.parametrize("name", CONFIGS)


def boxes(box: ModuleBox) -> Iterator[ModuleBox]:
    yield box
    for child in box.children:
        yield from boxes(child)


@each_config
def test_every_parameter_is_counted_once(name: str) -> None:
    model = build(CONFIGS[name])
    root = draw_model(model)
    assert root.parameter_count == count_parameters(model)
    for box in boxes(root):
        assert box.parameter_count >= sum(child.parameter_count for child in box.children)


@each_config
def test_every_parameter_is_in_a_box_with_its_shape(name: str) -> None:
    model = build(CONFIGS[name])
    shapes = {one: list(parameter.shape) for one, parameter in model.named_parameters()}
    drawn = {one.name: one.shape for box in boxes(draw_model(model)) for one in box.parameters}
    assert drawn == shapes


@each_config
def test_paths_are_unique_and_every_attention_has_a_box(name: str) -> None:
    model = build(CONFIGS[name])
    drawn = list(boxes(draw_model(model)))
    paths = [box.path for box in drawn]
    assert len(set(paths)) == len(paths)
    keys = {(box.attention.attention_type, box.attention.layer) for box in drawn if box.attention is not None}
    assert keys == {
        (attention_type, layer)
        for attention_type, layers in attention_modules(model).items()
        for layer in range(len(layers))
    }
    assert all(box.kind == "attention" for box in drawn if box.attention is not None)
    assert all(box.description and box.label for box in drawn)


def test_boxes_are_in_order_of_computation() -> None:
    root = draw_model(build(encoder_decoder()), "a model")
    assert (root.label, root.path) == ("a model", "")
    assert [box.kind for box in root.children] == ["input", "stack", "input", "stack", "output"]
    decoder = root.children[3]
    assert [box.kind for box in decoder.children] == ["block", "block", "norm"]
    assert [sublayer.children[1].label for sublayer in decoder.children[0].children] == [
        "Masked self-attention",
        "Cross-attention",
        "Feed-forward",
    ]


@pytest.mark.parametrize(("order", "kinds"), [("pre", ["norm", "attention"]), ("post", ["attention", "norm"])])
def test_norm_position_decides_the_order_of_norm_and_function(order: str, kinds: list[str]) -> None:
    root = draw_model(build(language_model(decoder=stack(**norm_order(order)))))
    assert [box.kind for box in root.children[1].children[0].children[0].children] == kinds


def test_tied_embeddings_count_where_they_are_used_first() -> None:
    root = draw_model(build(language_model()))
    first, _, last = root.children
    assert [one.name for one in first.parameters] == [one.name for one in last.parameters] == ["embed_tokens.weight"]
    assert (first.parameter_count, last.parameter_count) == (13 * 16, 0)


def test_unknown_model_type_is_refused() -> None:
    with pytest.raises(UserError, match="type Linear"):
        draw_model(torch.nn.Linear(2, 2))
