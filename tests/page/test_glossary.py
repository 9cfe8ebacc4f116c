"""The glossary: every term that is linked has an entry; the dialog works by keyboard, by link and in a file."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from tests.page.conftest import SENTENCE, fresh_page, open_view, read
from tests.page.navigation import change_state
from tests.page.test_accessibility import RULES, VIEWS, axe, switch_view, violations  # noqa: F401  axe is a fixture

pytestmark = pytest.mark.start_early(9)

SOURCE = Path(__file__).parents[2] / "web" / "src"
ENTRIES = """() => Object.fromEntries([...document.querySelectorAll('dialog.glossary [data-entry]')].map((entry) =>
  [entry.dataset.entry, [...entry.querySelectorAll('dt, dd')].map((one) => one.innerText)]))"""


def entry_id(term: str) -> str:
    """The id that a term has in links."""
    return re.sub("[^a-z]+", "-", term.lower())


def opened(page: Page) -> str:
    """The id of the entry that the open dialog points at."""
    page.wait_for_selector("dialog.glossary[open]")
    shown: str = page.evaluate("document.querySelector('.glossary .current')?.dataset.entry ?? ''")
    return shown


def test_every_linked_term_has_an_entry(page: Page) -> None:
    """Those of the source, which has the texts for all kinds of models, and those on every view."""
    open_view(page, "playground", glossary="all")
    assert opened(page) == ""
    entries: dict[str, list[str]] = page.evaluate(ENTRIES)
    assert len(entries) >= 40
    assert all(
        len(text) > 30 and text.endswith(".") and views.startswith("See ") for _, text, views in entries.values()
    )
    files = [path for folder in ("views", "tour") for path in sorted((SOURCE / folder).rglob("*.js"))]
    sources = [path.read_text(encoding="utf-8") for path in files]
    marked = {link.split("|")[-1] for text in sources for link in re.findall(r"\[\[([\w |,-]+)\]\]", text)}
    assert {entry_id(term) for term in marked} <= set(entries)
    page.keyboard.press("Escape")
    for name in VIEWS:
        switch_view(page, name)
        links = page.eval_on_selector_all("main a[data-term]", "all => all.map(one => one.dataset.term)")
        assert links, name
        assert set(links) <= set(entries), name
        assert "[[" not in page.inner_text("main"), name


def test_dialog_opens_and_closes_by_keyboard(page: Page, axe: str) -> None:  # noqa: F811
    open_view(page, "heads", attention_type="cross", layer=1, head=3)
    page.focus("header button:has-text('Glossary')")
    page.keyboard.press("Enter")
    assert opened(page) == ""
    assert violations(page, axe, RULES) == []
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog.glossary:not([open])", state="attached")
    assert page.evaluate("document.activeElement.innerText") == "Glossary"
    for name in VIEWS:
        switch_view(page, name)
        link = page.locator("main a[data-term]").first
        link.focus()
        page.keyboard.press("Enter")
        assert opened(page) == link.get_attribute("data-term")
        assert page.evaluate("document.activeElement.closest('[data-entry]')?.dataset.entry") == opened(page)
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog.glossary:not([open])", state="attached")
        assert link.evaluate("one => one === document.activeElement")
        page.wait_for_function("() => !location.hash.includes('glossary')")  # the close event is asynchronous


def test_link_shows_an_entry_and_leads_to_the_views(page: Page) -> None:
    open_view(page, "playground", glossary="kv-cache")
    assert opened(page) == "kv-cache"
    assert page.locator(".glossary .current").bounding_box() is not None
    page.locator(".glossary .current").get_by_role("link", name="Decoding").click()
    assert read(page, "decoding")["steps"] > 0
    assert page.locator("dialog.glossary[open]").count() == 0
    change_state(page, glossary="no-such-term")  # a broken link shows all terms
    assert opened(page) == ""
    page.mouse.click(5, 5)  # outside
    page.wait_for_selector("dialog.glossary:not([open])", state="attached")


def test_glossary_works_in_a_standalone_file(browser: Browser, traced_model: TracedModel, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(traced_model.trace(RunRequest(text=SENTENCE)).html(), encoding="utf-8")
    with fresh_page(browser, path.as_uri(), width=390) as page:
        page.goto(f"{path.as_uri()}#view=heads&glossary=softmax")
        read(page, "heads")
        assert opened(page) == "softmax"
        assert page.evaluate("document.querySelector('dialog.glossary').scrollWidth") <= 390
        page.keyboard.press("Escape")
        page.click("main a[data-term=query]")
        assert opened(page) == "query"
