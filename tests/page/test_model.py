"""The drawn stack has the boxes, shapes and counts of the model."""

import math

from playwright.sync_api import Page

from regard.look.subject import Subject

from .conftest import open_view, read


def test_every_box_counts_the_parameters_of_its_module(page: Page, subject: Subject) -> None:
    shown = {part["path"]: part for part in open_view(page, "model")["parts"]}
    model = subject.model
    assert shown[""]["count"] == sum(parameter.numel() for parameter in model.parameters())
    for name in ("encoder", "decoder", "encoder.blocks.2", "decoder.blocks.1.cross.function", "decoder.norm"):
        module = model.get_submodule(name)
        assert shown[name]["count"] == sum(parameter.numel() for parameter in module.parameters()), name


def test_layers_are_drawn_with_arrows_from_the_encoder_to_every_one_of_the_decoder(page: Page) -> None:
    shown = open_view(page, "model")
    names = {box["path"]: box["as"] for box in shown["drawn"]}
    assert [names[f"encoder.blocks.{layer}"] for layer in range(6)] == ["frame", *["closed"] * 5]
    assert [names[f"decoder.blocks.{layer}"] for layer in range(3)] == ["frame", "closed", "closed"]
    assert shown["crossings"] == 3
    page.check("text=Show all layers open")
    opened = read(page, "model")
    attention = [
        box["path"] for box in opened["drawn"] if box["path"].endswith(("attention.function", "cross.function"))
    ]
    assert len(attention) == 6 + 3 + 3
    assert opened["crossings"] == 3


def test_a_box_says_its_parameters_and_shapes(page: Page, subject: Subject) -> None:
    open_view(page, "model")
    page.hover("[data-path='encoder.blocks.0.feed_forward.function']")
    rows = page.eval_on_selector_all(
        ".details tbody tr", "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    module = subject.model.get_submodule("encoder.blocks.0.feed_forward.function")
    wanted = {
        tuple(name.split(".")[-2:]): (" × ".join(map(str, parameter.shape)), f"{math.prod(parameter.shape):,}")
        for name, parameter in module.named_parameters()
    }
    assert {tuple(name.split(".")[-2:]): (shape, count) for name, shape, count in rows} == wanted


def test_a_click_on_an_attention_opens_its_heads(page: Page) -> None:
    open_view(page, "model")
    page.click("[data-path='decoder.blocks.0.cross.function']")
    shown = read(page, "heads")
    assert (shown["side"], shown["layer"]) == ("cross", 0)


def test_the_keyboard_goes_from_box_to_box(page: Page) -> None:
    open_view(page, "model")
    page.focus(".stack .part[tabindex='0']")
    seen = set()
    for _ in range(30):
        seen.add(page.evaluate("document.activeElement.dataset.path"))
        page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.column") == "1"
    assert "encoder.blocks.0.attention.function" in seen
