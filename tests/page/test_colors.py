"""Heads have colors that color-blind readers can tell apart, too; a number has the same color in every view."""

from itertools import combinations
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page
from torch import Tensor

from tests.page.conftest import ServerUrl, fresh_page, open_view, read
from tests.page.navigation import change_state

pytestmark = pytest.mark.start_early(9)

PLACES = 12
"""Heads until a color is used again."""
MIN_DISTANCE = 0.11
"""Of two colors in OKLab. A just noticeable difference is about 0.02."""
MIN_CONTRAST = 3.0
"""Of graphics to their background (WCAG 2.1, 1.4.11)."""

# Machado, Oliveira and Fernandes 2009, severity 1.0; in linear RGB
VISION = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Ottosson 2020
LINEAR_TO_LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
LMS_TO_OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
SELECTED = """() => ({
  keys: [...document.querySelectorAll('.head-key')].map((key) => {
    const line = key.querySelector('line');
    return [line.getAttribute('stroke'), line.getAttribute('stroke-dasharray'), key.innerText.trim()] }),
  lines: [...document.querySelectorAll('.attention-lines path')].map((line) =>
    [line.getAttribute('stroke'), line.getAttribute('stroke-dasharray')]),
  thumbnails: Object.fromEntries([...document.querySelectorAll('.thumbnail.overlaid')].map((cell) => {
    const { layer, head } = cell.querySelector('.select-head').dataset;
    const badge = cell.querySelector('.overlay-head');
    return [`${layer}.${head}`, [badge.style.backgroundColor, badge.innerText]] })),
  backgrounds: ['--panel', '--paper'].map((name) => getComputedStyle(document.documentElement).getPropertyValue(name)),
})"""


def linear(color: str) -> Tensor:
    """Linear RGB of a color such as #aabbcc or rgb(1, 2, 3)."""
    if color.startswith("#"):
        srgb = torch.tensor([int(color[start : start + 2], 16) for start in (1, 3, 5)]) / 255
    else:
        srgb = torch.tensor([int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")]) / 255
    return torch.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def oklab(color: str, vision: str) -> Tensor:
    seen = (torch.tensor(VISION[vision]).float() @ linear(color)).clamp(0, 1)
    return torch.tensor(LMS_TO_OKLAB) @ (torch.tensor(LINEAR_TO_LMS) @ seen).pow(1 / 3)


def contrast(first: str, second: str) -> float:
    """The contrast ratio of WCAG 2.1."""
    dark, light = sorted(float(linear(color) @ torch.tensor([0.2126, 0.7152, 0.0722])) for color in (first, second))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_twelve_heads_can_be_told_apart(browser: Browser, server_url: ServerUrl, dark: bool) -> None:
    heads = [f"{layer}.{head}" for layer in (4, 0, 2, 5) for head in (2, 0, 3, 1)][: PLACES + 1]
    with fresh_page(browser, server_url, dark=dark) as page:
        open_view(page, "heads", attention_type="encoder", layer=4, head=2, heads=",".join(heads), threshold=0.1)
        shown: dict[str, Any] = page.evaluate(SELECTED)
        colors = [color for color, _, _ in shown["keys"]]
        assert len(set(colors[:PLACES])) == PLACES
        for vision in VISION:
            seen = [oklab(color, vision) for color in colors[:PLACES]]
            assert min(float((one - other).norm()) for one, other in combinations(seen, 2)) >= MIN_DISTANCE, vision
        assert min(contrast(color, paper) for color in colors for paper in shown["backgrounds"]) >= MIN_CONTRAST
        # The color is the place in the order of selection, in keys, thumbnails and lines; the 13th has another pattern.
        names = [f"layer {int(layer) + 1}, head {int(head) + 1}" for layer, head in (name.split(".") for name in heads)]
        assert [name for _, _, name in shown["keys"]] == [f"{place}{name}" for place, name in enumerate(names, 1)]
        for place, name in enumerate(heads):
            color, number = shown["thumbnails"][name]
            assert torch.equal(linear(color), linear(colors[place]))
            assert number == str(place + 1)
        assert {tuple(line) for line in shown["lines"]} == {(color, dash) for color, dash, _ in shown["keys"]}
        assert shown["keys"][PLACES][0] == shown["keys"][0][0]
        assert shown["keys"][PLACES][1] != shown["keys"][0][1]
        change_state(page, heads=",".join(reversed(heads)))
        read(page, "heads")
        assert [color for color, _, _ in page.evaluate(SELECTED)["keys"]] == colors  # the same places, other heads


def test_weight_has_the_same_color_in_every_view(page: Page) -> None:
    """The mean over the heads of the last layer: as a matrix, and as the tokens of a decoding step."""
    open_view(page, "heads", attention_type="cross", layer=2, head=0, average_heads="true")
    matrix = read(page, "heads")["matrix"]
    legend = page.evaluate(
        """() => { const drawn = document.querySelector('.matrix-section .legend canvas');
                   return Array.from(drawn.getContext('2d').getImageData(0, 0, 256, 1).data) }"""
    )
    columns = len(matrix["columns"])
    open_view(page, "decoding", step=2)
    chips = (
        page.locator(".decoding .tokens")
        .first.locator(".token")
        .evaluate_all("all => all.map(one => [one.style.backgroundColor, one.title])")
    )
    assert len(chips) == columns
    for (color, title), weight in zip(chips, matrix["values"][columns : 2 * columns], strict=True):
        assert float(title.removeprefix("attention weight ")) == pytest.approx(weight, abs=1e-3)
        index = round(255 * (weight / matrix["maxWeight"]) ** 0.5)
        near = [legend[4 * at : 4 * at + 3] for at in range(max(0, index - 1), min(256, index + 2))]
        assert min((linear(color) - linear(f"rgb{tuple(each)}")).abs().max() for each in near) < 0.02
