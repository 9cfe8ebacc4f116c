"""Accessibility of every view in light and dark mode, and layout on a narrow screen."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.page.conftest import ServerUrl, fresh_page, open_view, read

pytestmark = pytest.mark.start_early(9)

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = (
    *("playground", "heads", "decoding", "why", "cell", "model", "ablation"),
    *("embeddings", "positions", "patterns", "runs"),
)
CONTRAST = {"resultTypes": ["violations"], "runOnly": {"type": "rule", "values": ["color-contrast"]}}
"""The only rule that dark mode affects."""
RULES = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


@pytest.fixture(scope="module")
def axe() -> str:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed; install it with `make tools`.")
    return AXE.read_text(encoding="utf-8")


def violations(page: Page, axe: str, rules: dict[str, Any]) -> list[str]:
    """Serious and critical violations: the rule, and the elements."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(axe)
    report: dict[str, Any] = page.evaluate("rules => axe.run(document, rules)", rules)
    return [
        f"{violation['id']}: {violation['help']} at {json.dumps([node['target'] for node in violation['nodes']][:4])}"
        for violation in report["violations"]
        if violation["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_serious_violations(browser: Browser, server_url: ServerUrl, axe: str, dark: bool) -> None:
    with fresh_page(browser, server_url, dark=dark) as page:
        open_view(page, "playground")
        for name in VIEWS:
            switch_view(page, name)
            assert violations(page, axe, CONTRAST if dark else RULES) == [], name


def test_views_fit_a_phone_screen(browser: Browser, server_url: ServerUrl, tmp_path: Path) -> None:
    with fresh_page(browser, server_url, width=390) as page:
        open_view(page, "playground")
        for name in VIEWS:
            switch_view(page, name)
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            assert page.screenshot(path=tmp_path / f"{name}.png", full_page=True).startswith(b"\x89PNG")


def switch_view(page: Page, name: str) -> None:
    page.click(f"nav.views a[data-name='{name}']")
    read(page, name)
