"""The playground shows the model's output with the probability of each token."""

import pytest
from playwright.sync_api import Page

from regard.task.translation.pipeline import Translator
from tests.page.conftest import open_view, read
from tests.page.forced_pass import ForcedPass

pytestmark = pytest.mark.start_early(9)


def test_token_probabilities_are_the_models(page: Page, expected_pass: ForcedPass) -> None:
    shown = open_view(page, "playground")
    assert shown["output"] == "Kedi fareyi yedi."
    assert [token["text"] for token in shown["tokens"]] == ["Kedi", "far", "eyi", "yedi", ".", "⟨eos⟩"]
    for token in shown["tokens"]:
        position = token["position"]
        expected = expected_pass.probabilities[position - 1, expected_pass.target[position]].item()
        assert token["probability"] == pytest.approx(expected, abs=2e-4)


def test_focus_shows_alternatives(page: Page, expected_pass: ForcedPass) -> None:
    open_view(page, "playground")
    page.focus(".token[data-position='2']")
    shown = page.eval_on_selector_all(
        ".tooltip tr", "rows => rows.map((row) => [row.className, Number(row.dataset.probability)])"
    )
    best = expected_pass.probabilities[1].topk(len(shown)).values.tolist()
    assert [probability for _, probability in shown] == pytest.approx(best, abs=2e-4)
    assert [kind for kind, _ in shown].count("chosen") == 1
    page.keyboard.press("Escape")
    assert page.locator(".tooltip").is_hidden()


def test_run_is_stored_in_the_url(page: Page, translator: Translator) -> None:
    open_view(page, "playground")
    page.fill("textarea", "Thank you.")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-ready=yes] .trace-summary .input-text:has-text('Thank you.')")
    assert read(page, "playground")["output"] == translator.translate("Thank you.")
    assert "text=Thank+you." in page.url
    page.go_back()
    page.wait_for_selector("[data-ready=yes] .trace-summary .input-text:has-text('The cat ate the mouse.')")
    assert read(page, "playground")["output"] == "Kedi fareyi yedi."


def test_decoding_settings_are_sent(page: Page) -> None:
    open_view(page, "playground")
    page.select_option("[data-control=method]", "sample")
    page.fill("[data-control=seed]", "3")
    page.fill("[data-control=temperature]", "1.5")
    page.keyboard.press("Tab")
    with page.expect_request(lambda request: request.method == "POST") as pending:
        page.click("button:has-text('Translate')")
    decoding = pending.value.post_data_json["decoding"]
    assert (decoding["method"], decoding["seed"], decoding["temperature"]) == ("sample", 3, 1.5)
    page.wait_for_selector("[data-role=run-summary]")
    assert "method=sample" in page.url


def test_empty_input_is_an_error(page: Page) -> None:
    open_view(page, "playground")
    page.fill("textarea", "   ")
    page.keyboard.press("Enter")
    assert page.inner_text(".errors").startswith("Enter a text first.")
    assert read(page, "playground")["output"] == "Kedi fareyi yedi."
