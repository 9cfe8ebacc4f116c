"""The input in the header: it runs in every view, offers examples, and keeps what was typed."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from regard.serve.inspector.app import AppState
from regard.task.translation.pipeline import Translator, split_text
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


PASSAGE = "Dr. Smith was late. The cat ate the mouse! Where did you buy these two books?"


def test_passage_is_split_as_regard_translate_does(page: Page, translator: Translator) -> None:
    """Its first sentence runs; the others, and the text as one input, can be chosen, also by keyboard."""
    sentences = split_text(PASSAGE).sentences
    open_view(page, "decoding", step=2, max_new_tokens=30)
    page.fill(BOX, PASSAGE)
    page.keyboard.press("Enter")
    wait_for_input(page, sentences[0])
    buttons = page.locator(".sentence-buttons button")
    buttons.first.wait_for()
    assert [button.get_attribute("title") for button in buttons.all()] == list(sentences)
    assert page.inner_text(".sentence-position") == "Sentence 1 of 3"
    assert page.get_by_role("button", name="Previous sentence").is_disabled()
    page.get_by_role("button", name="Next sentence").click()
    wait_for_input(page, sentences[1])
    assert page.inner_text(".trace-summary .output-text") == translator.translate(sentences[1])
    assert page.get_attribute(".view", "data-view") == "decoding"
    buttons.nth(1).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    wait_for_input(page, sentences[2])
    assert buttons.nth(2).get_attribute("aria-pressed") == "true"
    assert buttons.nth(2).evaluate("button => button === document.activeElement")
    page.reload()  # all of it is in the address
    wait_for_input(page, sentences[2])
    page.wait_for_selector(".sentence-position:text-is('Sentence 3 of 3')")
    assert page.input_value(BOX) == PASSAGE
    page.get_by_role("button", name="Whole text as one input").click()
    wait_for_input(page, PASSAGE)
    ((whole, *_),) = translator.translate_sentences([PASSAGE])
    assert page.inner_text(".trace-summary .output-text") == whole.text
    page.go_back()
    wait_for_input(page, sentences[2])
    assert page.inner_text(".sentence-position") == "Sentence 3 of 3"
    page.fill(BOX, sentences[0])
    page.keyboard.press("Enter")
    wait_for_input(page, sentences[0])
    assert not page.is_visible(".sentences")


def test_address_with_a_passage_runs_its_first_sentence(page: Page) -> None:
    open_view(page, "playground", text=PASSAGE)
    wait_for_input(page, split_text(PASSAGE).sentences[0])
    page.wait_for_selector(".sentence-position:text-is('Sentence 1 of 3')")


def test_other_tasks_do_not_split_a_text(browser: Browser, tasks_url: ServerUrl) -> None:
    text = "the old sea. the cat."
    with fresh_page(browser, tasks_url) as page:
        for task in ("language-modeling", "parsing", "text-classification"):
            open_view(page, "heads", model=task_models()[task].id, text=text)
            assert trace_of(page)["request"]["text"] == text
            assert not page.is_visible(".sentences")


def test_page_says_what_was_cut(page: Page) -> None:
    open_view(page, "playground", max_new_tokens=3)
    note = "The output was cut after 3 tokens, before an end token: that is the maximum number of new tokens."
    assert page.inner_text(".cut-note") == note
    open_view(page, "playground")
    assert page.inner_text(".cut-note") == ""
