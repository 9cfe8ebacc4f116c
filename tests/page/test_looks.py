"""Every view in light and dark, wide and narrow: readable for everybody, and nothing sticks out."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from .conftest import Address, fresh_page, open_view, read

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ("box", "heads", "decoding", "cell", "model", "switch", "positions", "runs")
CONTRAST = {"resultTypes": ["violations"], "runOnly": {"type": "rule", "values": ["color-contrast"]}}
"""All that dark colours can change."""
RULES = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed; `make tools` installs it where there is npm.")
    return AXE.read_text(encoding="utf-8")


def violations(page: Page, axe: str, rules: dict[str, Any]) -> list[str]:
    """What axe finds that is serious: the rule, and where."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe)
    found: dict[str, Any] = page.evaluate("rules => axe.run(document, rules)", rules)
    return [
        f"{each['id']}: {each['help']} at {json.dumps([node['target'] for node in each['nodes']][:4])}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious_in_any_view(browser: Browser, address: Address, axe: str, dark: bool) -> None:
    with fresh_page(browser, address, dark=dark) as page:
        open_view(page, "box")
        for name in VIEWS:
            turn_to(page, name)
            assert violations(page, axe, CONTRAST if dark else RULES) == [], name


def test_no_view_is_wider_than_a_phone(browser: Browser, address: Address, tmp_path: Path) -> None:
    with fresh_page(browser, address, width=390) as page:
        open_view(page, "box")
        for name in VIEWS:
            turn_to(page, name)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            assert page.screenshot(path=tmp_path / f"{name}.png", full_page=True).startswith(b"\x89PNG")


def turn_to(page: Page, name: str) -> None:
    page.click(f"nav.views a[data-name='{name}']")
    read(page, name)
