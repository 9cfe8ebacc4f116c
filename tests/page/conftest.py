"""One server and one browser for all tests of the page.

Every test has its own page. It fails on an uncaught exception, an error in the console, or a request to any other site.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip(
    "playwright", reason="The tests of the page need playwright: pip install -c constraints.txt '.[dev]'."
)
pytest.importorskip(
    "uvicorn", reason="The tests of the page need the extra serve: pip install -c constraints.txt '.[serve]'."
)

from playwright.sync_api import Browser, Page, sync_playwright
from scripts.chromium import FLAGS, find_chromium

from regard.look.models.auto import load_traced_model
from regard.look.models.traced_model import TracedModel
from regard.serve.inspector.app import AppState
from regard.task.translation.pipeline import Translator
from tests.page import reference
from tests.page.forced_pass import ForcedPass, forced_pass
from tests.page.reference import SENTENCE
from tests.serve.support import ServerUrl, serving


@pytest.fixture(scope="session")
def traced_model() -> TracedModel:
    """The traced pretrained translator, which the server has too."""
    return load_traced_model("en-tr")


@pytest.fixture(scope="session")
def translator() -> Translator:
    """The same translator, loaded separately and never traced."""
    return reference.translator()


@pytest.fixture(scope="session")
def expected_pass(translator: Translator) -> ForcedPass:
    """Its teacher-forced pass over the sentence and its translation."""
    return forced_pass(translator, SENTENCE)


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's folder of runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def server_url(traced_model: TracedModel, runs_folder: Path) -> Iterator[ServerUrl]:
    """The URL of the server."""
    with serving(AppState([traced_model], runs_folder)) as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("Chromium was not found; install it with `make chromium`.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    """An empty page. Console errors, and requests to anything but the server, fail the test."""
    with fresh_page(browser, server_url) as page:
        yield page


class fresh_page:  # noqa: N801  used as a context manager
    """A new page in light or dark mode, `width` pixels wide. Its errors and requests are checked when it is closed.

    `password` is what its user enters when the browser asks for one.
    """

    def __init__(
        self, browser: Browser, allowed: str, *, width: int = 1280, dark: bool = False, password: str | None = None
    ) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
            http_credentials=None if password is None else {"username": "", "password": password},
        )
        self.allowed = allowed
        self.errors: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))
        page.expected = []  # type: ignore[attr-defined]  # parts of errors that a test provokes
        page.home = self.allowed  # type: ignore[attr-defined]
        self.page = page
        return page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        if kind is not None:
            return
        expected = self.page.expected  # type: ignore[attr-defined]
        assert [error for error in self.errors if not any(part in error for part in expected)] == []
        allowed = (self.allowed, "data:", "blob:", "about:")
        assert [url for url in self.requests if not url.startswith(allowed)] == []


def open_view(page: Page, name: str, **state: Any) -> Any:
    """Open a view with some state in its URL, wait until it is drawn, and return its values."""
    fragment = {"view": name, "model": "en-tr", "text": SENTENCE, **state}
    page.goto("about:blank")  # a URL that differs in its fragment only would not be reloaded
    page.goto(f"{page.home}#{urlencode(fragment)}")  # type: ignore[attr-defined]
    return read(page, name)


def read(page: Page, name: str, *, seconds: float = 20) -> Any:
    """The values that a view has drawn, as soon as the page has all responses."""
    deadline = time.monotonic() + seconds
    while True:
        values = page.evaluate(
            "name => document.documentElement.dataset.ready === 'yes' ? window.regard?.read(name) ?? null : null", name
        )
        if values:
            return values
        assert time.monotonic() < deadline, f"The view {name} was not drawn within {seconds} seconds."
        page.wait_for_timeout(30)
