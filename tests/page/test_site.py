"""The documentation site in a browser: opened from the disk, it needs no server for its pages, images or search."""

from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="The site is built by Sphinx: pip install -c constraints.txt '.[docs]'")

from playwright.sync_api import Browser

from tests.test_site import build_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("docs"))


def test_site_can_be_read_and_searched_from_the_disk(site: Path, browser: Browser) -> None:
    page = browser.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto((site / "index.html").as_uri())
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    page.get_by_placeholder("Search").fill("paired bootstrap")
    page.keyboard.press("Enter")
    page.locator("#search-results a", has_text="500 sentences of my domain").first.click()
    assert page.locator("h1").inner_text().startswith("I have 500 sentences of my domain")
    page.close()
    assert requested
    assert not [url for url in requested if not url.startswith(("file:", "data:"))]


def test_pages_fit_a_narrow_screen(site: Path, browser: Browser) -> None:
    """Wide tables and code scroll by themselves; the page does not."""
    page = browser.new_page(viewport={"width": 380, "height": 800})
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), path.name
    page.close()
