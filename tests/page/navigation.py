"""Changing the state of a page without reloading it."""

from typing import Any

from playwright.sync_api import Page

_CHANGE = """change => {
    const state = new URLSearchParams(location.hash.slice(1));
    for (const [name, value] of Object.entries(change)) state.set(name, String(value));
    location.hash = String(state);
}"""


def change_state(page: Page, **state: Any) -> None:
    """Change parts of the state in the URL's fragment, as a link does."""
    page.evaluate(_CHANGE, state)
    page.wait_for_timeout(20)  # the hashchange event is asynchronous


def trace_of(page: Page) -> dict[str, Any]:
    """The header of the displayed trace, fetched from the server."""
    script = "fetch('api/traces/' + new URLSearchParams(location.hash.slice(1)).get('trace')).then(a => a.json())"
    header: dict[str, Any] = page.evaluate(script)
    return header
