"""Changing what a page shows without loading it anew."""

from typing import Any

from playwright.sync_api import Page

_CHANGE = """change => {
    const words = new URLSearchParams(location.hash.slice(1));
    for (const [name, value] of Object.entries(change)) words.set(name, String(value));
    location.hash = String(words);
}"""


def change(page: Page, **state: Any) -> None:
    """Say something else in the address, as a link would; the rest stays."""
    page.evaluate(_CHANGE, state)
    page.wait_for_timeout(20)  # the browser tells the page of it a moment later


def trace_of(page: Page) -> dict[str, Any]:
    """The trace that is looked at, as the server has it."""
    asked = "fetch('api/traces/' + new URLSearchParams(location.hash.slice(1)).get('trace')).then(a => a.json())"
    found: dict[str, Any] = page.evaluate(asked)
    return found
