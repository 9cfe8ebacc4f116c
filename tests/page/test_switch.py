"""Heads switched off on the page do what switching them off in Python does, and are worth what PyTorch says."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

from tests.page import plain
from tests.page.conftest import SENTENCE, Address, fresh_page, open_view, read
from tests.page.steer import change

PAIRS = [("The cat ate the mouse.", "Kedi fareyi yedi."), ("I am here.", "Buradayım."), ("Who is it?", "Kim o?")]


@pytest.fixture(scope="module")
def view(browser: Browser, address: Address) -> Iterator[Page]:
    with fresh_page(browser, address) as page:
        open_view(page, "switch")
        yield page


def target(written: list[dict[str, Any]]) -> list[int]:
    start = plain.model().config.tokens.start
    assert start is not None
    return [start, *(one["token"]["id"] for one in written)]


def shown(view: Page, when: str) -> list[tuple[str, float]]:
    """The units of an output as they are drawn, with the probabilities behind their bars."""
    found = view.eval_on_selector_all(
        f".unit.{when}[data-text]", "all => all.map(one => [one.dataset.text, Number(one.dataset.probability)])"
    )
    return [(text, chance) for text, chance in found]


@pytest.mark.parametrize("head", ["encoder.0.0", "cross.2.1"])
def test_a_head_that_is_off_changes_the_output_as_it_does_in_python(view: Page, head: str) -> None:
    change(view, off="", off_how="zero", merged="false")
    view.locator(f"[data-head='{head}']").press("Space")
    found = read(view, "switch")
    side, layer, place = head.split(".")
    with plain.without(side, int(layer), int(place)):
        assert found["after"]["output"] == plain.translator().translate_all([SENTENCE])[0].text
        expected = plain.probabilities(target(found["after"]["written"]))
    assert [one["probability"] for one in found["after"]["written"]] == pytest.approx(expected, abs=1e-5)
    assert [chance for _, chance in shown(view, "after")] == pytest.approx(expected, abs=1e-5)
    whole = plain.probabilities(target(found["before"]["written"]))
    assert [chance for _, chance in shown(view, "before")] == pytest.approx(whole, abs=1e-5)


def test_a_head_can_be_replaced_by_its_mean(view: Page) -> None:
    change(view, off="cross.1.2", off_how="mean")
    found = read(view, "switch")
    mean = plain.mean_handed_over("cross", 1, target(found["before"]["written"]))
    with plain.without("cross", 1, 2, mean):
        expected = plain.probabilities(target(found["after"]["written"]))
    assert [one["probability"] for one in found["after"]["written"]] == pytest.approx(expected, abs=1e-5)


def test_words_are_merged_and_their_probabilities_multiplied(view: Page) -> None:
    change(view, off="cross.1.2", off_how="zero", merged="false")
    read(view, "switch")
    tokens = shown(view, "before")
    view.get_by_label("merge sub-words to words").check()
    words = shown(view, "before")
    assert len(words) < len(tokens)
    assert "".join(text for text, _ in words) == "".join(text for text, _ in tokens)
    product = torch.tensor([chance for _, chance in words]).prod()
    assert float(product) == pytest.approx(float(torch.tensor([chance for _, chance in tokens]).prod()), rel=1e-4)


def test_what_changed_is_said_word_by_word(view: Page) -> None:
    """With one layer left that looks at the source something else is written; the two are aligned and told apart."""
    off = [f"cross.{layer}.{head}" for layer in (1, 2) for head in range(4)]
    change(view, off=",".join(off), off_how="zero", merged="true")
    found = read(view, "switch")
    assert found["after"]["output"] != found["before"]["output"]
    kinds = view.eval_on_selector_all(".pair[data-what]", "all => all.map(one => one.dataset.what)")
    assert set(kinds) - {"same"}
    texts = [text for text, _ in shown(view, "after")]
    assert len(texts) == len(kinds) - kinds.count("gone")


def test_all_heads_can_be_switched_on_again(view: Page) -> None:
    change(view, off="encoder.0.1")
    read(view, "switch")
    view.get_by_role("button", name="All on").click()
    assert view.locator("[role=switch][aria-checked=false]").count() == 0
    assert read(view, "switch")["after"] is None


def loss() -> float:
    """The mean of −log p over all tokens of the pairs."""
    chances: list[float] = []
    text = plain.translator().target_text
    tokens = plain.model().config.tokens
    for source, wanted in PAIRS:
        ids = [tokens.start, *text.encode(wanted), tokens.end]
        chances += plain.probabilities([one for one in ids if one is not None], source)
    return float(-torch.tensor(chances, dtype=torch.float64).log().mean())


def test_what_heads_are_worth_is_the_change_in_pytorchs_loss(view: Page) -> None:
    change(view, off="", off_how="zero")
    view.get_by_text("With sentences of your own").click()
    view.locator(".switch-view textarea").fill("\n".join("\t".join(pair) for pair in PAIRS))
    view.get_by_role("button", name="Measure every head").click()
    view.get_by_text("With all heads: a loss of").wait_for(timeout=30_000)
    view.get_by_role("button", name="Measure every head").and_(view.locator(":enabled")).wait_for(timeout=30_000)
    worth = read(view, "switch")["worth"]
    assert (worth["measure"], worth["sentences"]) == ("loss", len(PAIRS))
    assert worth["whole"] == pytest.approx(loss(), abs=1e-5)
    assert len(worth["heads"]) == 6 * 4 + 3 * 4 + 3 * 4
    for one in worth["heads"][::16]:
        with plain.without(one["side"], one["layer"], one["head"]):
            assert one["value"] == pytest.approx(loss(), abs=1e-5)
        drawn = view.locator(f"[data-head='{one['side']}.{one['layer']}.{one['head']}']").get_attribute("data-change")
        assert drawn is not None
        assert float(drawn) == pytest.approx(one["value"] - worth["whole"])
    view.reload()
    view.get_by_text("With all heads: a loss of").wait_for()
    assert read(view, "switch")["worth"] == worth
    view.get_by_text("With sentences of your own").click()


def test_measuring_can_be_stopped_and_keeps_what_it_has(view: Page) -> None:
    view.locator(".switch-view textarea").fill("")
    view.get_by_role("button", name="Measure every head").click()
    view.get_by_role("button", name="Stop", exact=True).click()
    view.get_by_text("Stopped.").wait_for(timeout=30_000)
    assert len(read(view, "switch")["worth"]["heads"]) < 48


def test_a_server_that_went_away_is_a_sentence_and_the_switches_stay(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    view.route("**/models/*/traces", lambda route: route.abort())
    change(view, off="decoder.0.0")
    view.get_by_text("It could not be decoded again:").wait_for()
    assert view.locator("[role=switch][aria-checked=false]").count() == 1
    view.unroute("**/models/*/traces")
    view.get_by_role("button", name="Try again").click()
    assert read(view, "switch")["off"] == [{"side": "decoder", "layer": 0, "head": 0, "how": "zero"}]


def test_a_measuring_that_is_refused_is_a_sentence(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    view.locator(".switch-view textarea").fill("no tab here")
    view.get_by_role("button", name="Measure every head").click()
    view.locator(".problem", has_text="The heads could not be measured").or_(
        view.locator(".problem", has_text="It failed")
    ).first.wait_for()
    assert view.locator("[role=switch]").count() == 48
