"""The page on the server of the API: it translates, shows attention, and asks for the API key."""

import threading
from contextlib import closing

import pytest
import torch
from playwright.sync_api import Browser

from regard.serve.api.access import Access
from regard.serve.api.app import create_service_app
from regard.serve.api.hosting import run_service
from regard.serve.api.service import Service
from regard.serve.limits import Limits
from regard.serve.listening import bind
from regard.serve.models.registry import ModelRegistry, parse_sources
from regard.serve.models.served_model import LoadOptions
from regard.task.translation.pipeline import Translator
from tests.page.conftest import fresh_page, open_view
from tests.page.forced_pass import ForcedPass
from tests.page.reference import SENTENCE
from tests.page.test_heads import FLOAT16_TOLERANCE

KEY = "open sesame"


@pytest.fixture(scope="module")
def service_url() -> str:
    """The URL of a server with the pretrained translator, which needs a key."""
    models = ModelRegistry(parse_sources(["en-tr"]), Limits(), LoadOptions(fused=False), lambda _: None)
    service = Service(models, Limits(), Access.with_keys([KEY], local_only=False))
    listener = bind("127.0.0.1", None, 0)
    ready = threading.Event()
    app = create_service_app(service, lambda _: None)
    server = threading.Thread(
        target=lambda: run_service(app, service, listener, grace=1, on_ready=ready.set), daemon=True
    )
    server.start()
    assert ready.wait(20)
    return f"http://127.0.0.1:{listener.getsockname()[1]}/"


def test_page_translates_with_the_key_and_shows_attention(
    browser: Browser, service_url: str, translator: Translator, expected_pass: ForcedPass
) -> None:
    with fresh_page(browser, service_url, password=KEY) as page:
        shown = open_view(page, "heads", attention_type="encoder", layer=4, head=2)
        expected = expected_pass.attention["encoder"][4, 2][: len(expected_pass.source)]
        values = torch.tensor(shown["matrix"]["values"]).view(expected.shape)
        torch.testing.assert_close(values, expected, atol=FLOAT16_TOLERANCE, rtol=0)
        assert translator.translate(SENTENCE) in page.inner_text("body")


def test_page_needs_the_key(browser: Browser, service_url: str) -> None:
    with closing(browser.new_context()) as context:
        response = context.request.get(service_url)
        assert response.status == 401
        assert response.headers["www-authenticate"].startswith("Basic")
