"""One server and one browser for all tests of the page.

Every test has a page of its own. It fails if the page complains (an error in the console, an exception) or if a request
leaves the server's address: nothing is ever fetched from elsewhere.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("playwright", reason="The tests of the page need playwright: pip install 'regard[dev]'.")
pytest.importorskip("uvicorn", reason="The tests of the page need the extra serve: pip install 'regard[serve]'.")

import uvicorn
from playwright.sync_api import Browser, Page, sync_playwright
from scripts.chromium import FLAGS, find_chromium

from regard.look.opening import open_subject
from regard.look.subject import Subject
from regard.serve.app import Desk, create_app
from regard.task import Translator

from . import plain
from .plain import SENTENCE
from .tensors import Pass, forced


class Address(str):
    """Where a server is, with what it serves."""

    desk: Desk


@pytest.fixture(scope="session")
def subject() -> Subject:
    """The translator that ships, as something to look into: what the page is compared with."""
    return open_subject("en-tr")


@pytest.fixture(scope="session")
def translator() -> Translator:
    """The same translator, as PyTorch has it."""
    return plain.translator()


@pytest.fixture(scope="session")
def seen(translator: Translator) -> Pass:
    """Its pass over the sentence and what it answers."""
    return forced(translator, SENTENCE)


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server looks for runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def address(subject: Subject, runs_folder: Path) -> Iterator[Address]:
    """Where the server is."""
    with serving(Desk([subject], runs_folder)) as found:
        yield found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = find_chromium()
    if found is None:
        pytest.skip("There is no Chromium here; `make chromium` installs one where it may.")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, address: Address) -> Iterator[Page]:
    """An empty page. What it says in the console and asks of others than the server fails the test."""
    with fresh_page(browser, address) as page:
        yield page


class fresh_page:  # noqa: N801  a context manager, named as what it gives
    """A page of its own, `width` pixels wide, in light or dark, that is checked when it is closed."""

    def __init__(self, browser: Browser, allowed: str, *, width: int = 1280, dark: bool = False) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", accept_downloads=True
        )
        self.allowed = allowed
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Page:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))
        page.expected = []  # type: ignore[attr-defined]  # complaints that a test provokes: parts of their words
        page.home = self.allowed  # type: ignore[attr-defined]
        self.page = page
        return page

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        if kind is not None:
            return
        expected = self.page.expected  # type: ignore[attr-defined]
        assert [said for said in self.complaints if not any(part in said for part in expected)] == []
        own = (self.allowed, "data:", "blob:", "about:")
        assert [url for url in self.requests if not url.startswith(own)] == []


class serving:  # noqa: N801
    """A server of a desk, in a thread of its own, at an address that is free."""

    def __init__(self, desk: Desk, port: int = 0) -> None:
        self.desk = desk
        settings = uvicorn.Config(
            create_app(desk), host="127.0.0.1", port=port, log_level="error", ws="none", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(settings)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> Address:
        self.thread.start()
        end = time.monotonic() + 20
        while not self.server.started:
            assert time.monotonic() < end, "The server did not start."
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        found = Address(f"http://127.0.0.1:{port}/")
        found.desk = self.desk
        return found

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)


def open_view(page: Page, name: str, **state: Any) -> Any:
    """Go to a view with some state, and wait until it has drawn. Gives what it reads."""
    words = {"view": name, "model": "en-tr", "text": SENTENCE, **state}
    page.goto("about:blank")  # an address that differs behind the # alone would not load anew
    page.goto(f"{page.home}#{urlencode(words)}")  # type: ignore[attr-defined]
    return read(page, name)


def read(page: Page, name: str, *, seconds: float = 20) -> Any:
    """What a view has drawn, as plain values, as soon as the answer is there and no view is waiting for it."""
    end = time.monotonic() + seconds
    while True:
        found = page.evaluate(
            "name => document.documentElement.dataset.ready === 'yes' ? window.regard?.read(name) ?? null : null", name
        )
        if found:
            return found
        assert time.monotonic() < end, f"The view {name} showed nothing."
        page.wait_for_timeout(30)
