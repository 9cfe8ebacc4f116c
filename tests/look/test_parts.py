"""The drawn stack is the model: every parameter in one box, boxes in the order of computing."""

from collections.abc import Iterator

import pytest
import torch

from regard import UserError
from regard.look.attentions import attentions_of
from regard.look.parts import parts_of
from regard.look.wire import Part
from regard.model import count_parameters
from tests.model.small_models import READERS, SAMPLES, build, encoder_decoder, language_model, stack

CONFIGS = {f"{kind}: {name}": one for kind, some in (SAMPLES | READERS).items() for name, one in some.items()}
every = pytest.mark.parametrize("name", CONFIGS)


def boxes(part: Part) -> Iterator[Part]:
    yield part
    for inner in part.parts:
        yield from boxes(inner)


@every
def test_all_numbers_are_counted_once(name: str) -> None:
    model = build(CONFIGS[name])
    whole = parts_of(model)
    assert whole.count == count_parameters(model)
    for box in boxes(whole):
        assert box.count >= sum(part.count for part in box.parts)


@every
def test_every_parameter_stands_in_a_box_with_its_shape(name: str) -> None:
    model = build(CONFIGS[name])
    shapes = {one: list(parameter.shape) for one, parameter in model.named_parameters()}
    told = {one.name: one.shape for box in boxes(parts_of(model)) for one in box.parameters}
    assert told == shapes


@every
def test_paths_are_different_and_every_attention_has_its_place(name: str) -> None:
    model = build(CONFIGS[name])
    found = list(boxes(parts_of(model)))
    paths = [box.path for box in found]
    assert len(set(paths)) == len(paths)
    places = {(box.attention.side, box.attention.layer) for box in found if box.attention is not None}
    assert places == {(side, layer) for side, layers in attentions_of(model).items() for layer in range(len(layers))}
    assert all(box.kind == "attention" for box in found if box.attention is not None)
    assert all(box.about and box.label for box in found)


def test_an_encoder_decoder_is_drawn_in_the_order_of_computing() -> None:
    whole = parts_of(build(encoder_decoder()), "a model")
    assert (whole.label, whole.path) == ("a model", "")
    assert [part.kind for part in whole.parts] == ["input", "stack", "input", "stack", "output"]
    decoder = whole.parts[3]
    assert [part.kind for part in decoder.parts] == ["block", "block", "norm"]
    assert [part.parts[1].label for part in decoder.parts[0].parts] == [
        "Masked self-attention",
        "Cross-attention",
        "Feed-forward",
    ]


@pytest.mark.parametrize(("order", "kinds"), [("pre", ["norm", "attention"]), ("post", ["attention", "norm"])])
def test_norm_and_part_stand_in_their_order(order: str, kinds: list[str]) -> None:
    whole = parts_of(build(language_model(decoder=stack(order=order))))
    assert [part.kind for part in whole.parts[1].parts[0].parts[0].parts] == kinds


def test_a_tied_table_counts_where_it_is_used_first() -> None:
    whole = parts_of(build(language_model()))
    first, _, last = whole.parts
    assert [one.name for one in first.parameters] == [one.name for one in last.parameters] == ["vocabulary.weight"]
    assert (first.count, last.count) == (13 * 16, 0)


def test_what_is_no_model_of_ours_cannot_be_drawn() -> None:
    with pytest.raises(UserError, match="kind Linear cannot be drawn"):
        parts_of(torch.nn.Linear(2, 2))
