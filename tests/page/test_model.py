"""The model view: its boxes, shapes and parameter counts are those of the model."""

import math

import pytest
from playwright.sync_api import Page

from regard.look.models.traced_model import TracedModel
from tests.page.conftest import open_view, read

pytestmark = pytest.mark.start_early(9)


def test_boxes_count_the_parameters_of_their_modules(page: Page, traced_model: TracedModel) -> None:
    shown = {part["path"]: part for part in open_view(page, "model")["modules"]}
    model = traced_model.model
    assert shown[""]["parameter_count"] == sum(parameter.numel() for parameter in model.parameters())
    for name in ("encoder", "decoder", "encoder.layers.2", "decoder.layers.1.cross_attn", "decoder.final_norm"):
        module = model.get_submodule(name)
        assert shown[name]["parameter_count"] == sum(parameter.numel() for parameter in module.parameters()), name


def test_encoder_is_connected_to_every_decoder_layer(page: Page) -> None:
    shown = open_view(page, "model")
    names = {box["path"]: box["form"] for box in shown["drawn"]}
    assert [names[f"encoder.layers.{layer}"] for layer in range(6)] == ["open", *["closed"] * 5]
    assert [names[f"decoder.layers.{layer}"] for layer in range(3)] == ["open", "closed", "closed"]
    assert shown["crossConnections"] == 3
    page.check("text=Show all layers")
    opened = read(page, "model")
    attention = [box["path"] for box in opened["drawn"] if box["path"].endswith(("self_attn", "cross_attn"))]
    assert len(attention) == 6 + 3 + 3
    assert opened["crossConnections"] == 3


def test_details_list_parameters_and_shapes(page: Page, traced_model: TracedModel) -> None:
    open_view(page, "model")
    page.hover("[data-path='encoder.layers.0.feed_forward']")
    rows = page.eval_on_selector_all(
        ".details tbody tr", "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    module = traced_model.model.get_submodule("encoder.layers.0.feed_forward")
    expected = {
        tuple(name.split(".")[-2:]): (" × ".join(map(str, parameter.shape)), f"{math.prod(parameter.shape):,}")
        for name, parameter in module.named_parameters()
    }
    assert {tuple(name.split(".")[-2:]): (shape, count) for name, shape, count in rows} == expected


def test_click_on_attention_opens_its_heads(page: Page) -> None:
    open_view(page, "model")
    page.click("[data-path='decoder.layers.0.cross_attn']")
    shown = read(page, "heads")
    assert (shown["attention_type"], shown["layer"]) == ("cross", 0)


def test_arrow_keys_move_between_boxes(page: Page) -> None:
    open_view(page, "model")
    page.focus(".diagram .module[tabindex='0']")
    visited = set()
    for _ in range(30):
        visited.add(page.evaluate("document.activeElement.dataset.path"))
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.column") == "1"
    assert "encoder.layers.0.self_attn" in visited
