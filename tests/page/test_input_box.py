"""The input in the header: it runs in every view, offers examples, and keeps what was typed."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from regard.serve.inspector.app import AppState
from regard.task.translation.pipeline import Translator
from tests.look.support import task_models
from tests.page.conftest import ServerUrl, fresh_page, open_view, read, serving
from tests.page.navigation import trace_of

pytestmark = pytest.mark.start_early(9)

BOX = ".input-form textarea"


@pytest.fixture(scope="module")
def tasks_url() -> Iterator[ServerUrl]:
    """The URL of a server with a model for each task."""
    with serving(AppState(list(task_models().values()))) as url:
        yield url


def wait_for_input(page: Page, text: str) -> None:
    """Wait until the trace of this text is shown."""
    page.wait_for_selector(f".trace-summary .input-text:text-is('{text}')")
    page.wait_for_selector("html[data-ready=yes]")


@pytest.mark.parametrize("view", ["decoding", "model"])
def test_run_stays_in_the_view(page: Page, translator: Translator, view: str) -> None:
    open_view(page, view, step=5, node=9, contrast="kıyı")
    page.fill(BOX, "Thank you.")
    page.keyboard.press("Enter")
    wait_for_input(page, "Thank you.")
    assert read(page, view)
    assert page.inner_text(".trace-summary .output-text") == translator.translate("Thank you.")
    assert page.get_attribute(".view", "data-view") == view
    assert "step=" not in page.url  # it was a step of the other sentence
    assert "contrast=" not in page.url
    page.go_back()
    wait_for_input(page, "The cat ate the mouse.")
    assert "step=5" in page.url


def test_examples_run_in_the_view(page: Page, translator: Translator) -> None:
    open_view(page, "decoding")
    page.click("summary:has-text('Examples')")
    examples = page.locator(".input-form .menu-item")
    assert examples.count() == 8
    example = examples.nth(3).inner_text()
    examples.nth(3).click()
    wait_for_input(page, example)
    assert page.input_value(BOX) == example
    assert read(page, "decoding")["hypotheses"][0]["text"] == translator.translate(example)


def test_typed_text_stays_when_view_and_model_change(browser: Browser, tasks_url: ServerUrl) -> None:
    ids = {task: model.id for task, model in task_models().items()}
    with fresh_page(browser, tasks_url) as page:
        page.goto(f"{tasks_url}#view=decoding&model={ids['translation']}&max_new_tokens=7")
        wait_for_input(page, "The cat ate the mouse.")
        page.fill(BOX, "the old sea")  # not run
        page.click("nav.views a[data-name='heads']")
        assert page.input_value(BOX) == "the old sea"
        page.select_option("#model", ids["text-classification"])
        wait_for_input(page, "the old sea")
        assert trace_of(page)["model"]["id"] == ids["text-classification"]
        page.click("nav.views a[data-name='playground']")
        page.fill(BOX, "the sea")
        page.keyboard.press("Enter")
        wait_for_input(page, "the sea")
        page.select_option("#model", ids["image-classification"])  # takes no text
        page.wait_for_selector(".input-form input[type=file]")
        page.select_option("#model", ids["language-modeling"])
        wait_for_input(page, "the sea")
        page.select_option("#model", ids["masked-lm"])  # takes a text with a mask
        wait_for_input(page, task_models()["masked-lm"].example)
        assert "[MASK]" in page.input_value(BOX)


def test_zero_is_sent_as_typed(browser: Browser, tasks_url: ServerUrl) -> None:
    traced_model = task_models()["language-modeling"]
    assert traced_model.decoding_settings().top_k == 50
    with fresh_page(browser, tasks_url) as page:

        def sent() -> tuple[int, int, int]:
            with page.expect_request(lambda request: request.method == "POST") as pending:
                page.click("button:has-text('Run with these settings')")
            page.wait_for_selector("html[data-ready=yes]")
            decoding = pending.value.post_data_json["decoding"]
            return decoding["top_k"], decoding["seed"], decoding["beam_size"]

        # A beam size of 0, which there is none of, is the model's own.
        page.goto(f"{tasks_url}#model={traced_model.id}&text=the&max_new_tokens=3&seed=4&beam_size=0")
        read(page, "playground")
        assert sent() == (50, 4, 5)
        page.fill("[data-control=seed]", "0")
        page.fill("[data-control=top_k]", "0")
        assert sent() == (0, 0, 5)
        page.reload()  # the link has them
        read(page, "playground")
        assert (page.input_value("[data-control=top_k]"), page.input_value("[data-control=seed]")) == ("0", "0")
        page.fill("[data-control=top_k]", "")
        assert sent() == (50, 0, 5)
        assert page.input_value("[data-control=top_k]") == "50"
