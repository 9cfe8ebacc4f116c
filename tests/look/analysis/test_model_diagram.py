"""The diagram is the model: every parameter in one box, boxes in order of computation."""

import pytest
import torch

from regard import UserError
from regard.attention import LearnedConfig, NoPositionConfig, RotaryConfig, SinusoidalConfig
from regard.attention.positions.config import PositionConfig
from regard.look.analysis.attention_maps import attention_modules
from regard.look.analysis.diagram_box import all_boxes
from regard.look.analysis.model_diagram import draw_model
from regard.model import count_parameters
from tests.model.small_models import ENCODER_SAMPLES, SAMPLES, build, encoder_decoder, language_model, norm_order, stack

CONFIGS = {f"{kind}: {name}": one for kind, some in (SAMPLES | ENCODER_SAMPLES).items() for name, one in some.items()}
each_config = pytest.mark.parametrize("name", CONFIGS)


@each_config
def test_every_parameter_is_counted_once(name: str) -> None:
    model = build(CONFIGS[name])
    root = draw_model(model)
    assert root.parameter_count == count_parameters(model)
    for box in all_boxes(root):
        assert box.parameter_count >= sum(child.parameter_count for child in box.children)


@each_config
def test_every_parameter_is_in_a_box_with_its_shape(name: str) -> None:
    model = build(CONFIGS[name])
    shapes = {one: list(parameter.shape) for one, parameter in model.named_parameters()}
    drawn = {one.name: one.shape for box in all_boxes(draw_model(model)) for one in box.parameters}
    assert drawn == shapes


@each_config
def test_paths_are_unique_and_every_attention_has_a_box(name: str) -> None:
    model = build(CONFIGS[name])
    drawn = list(all_boxes(draw_model(model)))
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
    kinds = ["input", "position", "stack", "input", "position", "stack", "output"]
    assert [box.kind for box in root.children] == kinds
    decoder = root.children[5]
    assert [box.kind for box in decoder.children] == ["block", "block", "norm"]
    assert [sublayer.children[1].label for sublayer in decoder.children[0].children] == [
        "Masked self-attention",
        "Cross-attention",
        "Feed-forward",
    ]


@pytest.mark.parametrize(("order", "kinds"), [("pre", ["norm", "attention"]), ("post", ["attention", "norm"])])
def test_norm_position_decides_the_order_of_norm_and_function(order: str, kinds: list[str]) -> None:
    root = draw_model(build(language_model(decoder=stack(**norm_order(order)))))
    assert [box.kind for box in root.children[2].children[0].children[0].children] == kinds


def test_tied_embeddings_count_where_they_are_used_first() -> None:
    root = draw_model(build(language_model()))
    first, *_, last = root.children
    assert [one.name for one in first.parameters] == [one.name for one in last.parameters] == ["embed_tokens.weight"]
    assert (first.parameter_count, last.parameter_count) == (13 * 16, 0)


@pytest.mark.parametrize(
    ("position", "label", "joins"),
    [
        (SinusoidalConfig(), "Sinusoidal positions", "added"),
        (LearnedConfig(max_length=20), "Learned positions", "added"),
        (SinusoidalConfig(combine="concatenate", features=6), "Sinusoidal positions", "concatenated"),
        (RotaryConfig(), None, "rotary"),
        (NoPositionConfig(), None, None),
    ],
)
def test_positional_encoding_is_drawn_where_the_config_puts_it(
    position: PositionConfig, label: str | None, joins: str | None
) -> None:
    root = draw_model(build(language_model(position=position, tie_weights=joins != "concatenated")))
    drawn = [(box.label, box.position) for box in root.children if box.kind == "position"]
    assert drawn == ([] if label is None else [(label, joins)])
    rotary = [box.position for box in all_boxes(root) if box.kind == "attention"]
    assert rotary == (["rotary"] * 2 if joins == "rotary" else [None] * 2)


def test_unknown_model_type_is_refused() -> None:
    with pytest.raises(UserError, match="type Linear"):
        draw_model(torch.nn.Linear(2, 2))
