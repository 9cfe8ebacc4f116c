"""The box shows what the model wrote, and how sure it was."""

import pytest
from playwright.sync_api import Page

from regard.task import Translator

from .conftest import open_view, read
from .tensors import Pass


def test_every_token_has_the_probability_that_the_model_gave_it(page: Page, seen: Pass) -> None:
    shown = open_view(page, "box")
    assert shown["output"] == "Kedi fareyi yedi."
    assert [token["text"] for token in shown["tokens"]] == ["Kedi", "far", "eyi", "yedi", ".", "⟨end⟩"]
    for token in shown["tokens"]:
        place = token["position"]
        wanted = seen.probabilities[place - 1, seen.target[place]].item()
        assert token["probability"] == pytest.approx(wanted, abs=2e-4)


def test_alternatives_come_on_focus_with_their_probabilities(page: Page, seen: Pass) -> None:
    open_view(page, "box")
    page.focus(".token[data-position='2']")
    shown = page.eval_on_selector_all(
        ".tooltip tr", "rows => rows.map((row) => [row.className, Number(row.dataset.probability)])"
    )
    best = seen.probabilities[1].topk(len(shown)).values.tolist()
    assert [probability for _, probability in shown] == pytest.approx(best, abs=2e-4)
    assert [kind for kind, _ in shown].count("taken") == 1
    page.keyboard.press("Escape")
    assert page.locator(".tooltip").is_hidden()


def test_another_text_is_run_and_stands_in_the_address(page: Page, translator: Translator) -> None:
    open_view(page, "box")
    page.fill("textarea", "Thank you.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".sentence .read:has-text('Thank you.')")
    assert read(page, "box")["output"] == translator.translate("Thank you.")
    assert "text=Thank+you." in page.url
    page.go_back()
    page.wait_for_selector(".sentence .read:has-text('The cat ate the mouse.')")
    assert read(page, "box")["output"] == "Kedi fareyi yedi."


def test_decoding_is_controlled_from_the_page(page: Page) -> None:
    open_view(page, "box")
    page.select_option("[data-control=method]", "sample")
    page.fill("[data-control=seed]", "3")
    page.fill("[data-control=temperature]", "1.5")
    page.keyboard.press("Tab")
    with page.expect_request(lambda request: request.method == "POST") as asked:
        page.click("button:has-text('Translate')")
    decoding = asked.value.post_data_json["decoding"]
    assert (decoding["method"], decoding["seed"], decoding["temperature"]) == ("sample", 3, 1.5)
    page.wait_for_selector("[data-role=facts]")
    assert "method=sample" in page.url


def test_what_cannot_be_run_is_said_in_a_sentence_and_the_rest_stays(page: Page) -> None:
    open_view(page, "box")
    page.fill("textarea", "   ")
    page.keyboard.press("Enter")
    assert page.inner_text(".errors").startswith("Write something first.")
    assert read(page, "box")["output"] == "Kedi fareyi yedi."
