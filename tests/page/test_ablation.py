"""Head ablation on the page: outputs and head importance equal those computed in plain PyTorch."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

from tests.page import reference
from tests.page.conftest import SENTENCE, ServerUrl, fresh_page, open_view, read
from tests.page.navigation import change_state

pytestmark = pytest.mark.start_early(9)

PAIRS = [("The cat ate the mouse.", "Kedi fareyi yedi."), ("I am here.", "Buradayım."), ("Who is it?", "Kim o?")]


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    with fresh_page(browser, server_url) as page:
        open_view(page, "ablation")
        yield page


def target_ids(generated: list[dict[str, Any]]) -> list[int]:
    """The ids of the generated tokens after BOS."""
    bos = reference.model().config.special_tokens.bos
    assert bos is not None
    return [bos, *(item["token"]["id"] for item in generated)]


def shown(view: Page, when: str) -> list[tuple[str, float]]:
    """The drawn units of an output (tokens or words), with the probabilities of their bars."""
    units = view.eval_on_selector_all(
        f".unit.{when}[data-text]", "all => all.map(one => [one.dataset.text, Number(one.dataset.probability)])"
    )
    return [(text, probability) for text, probability in units]


@pytest.mark.parametrize("head", ["encoder.0.0", "cross.2.1"])
def test_ablated_output_equals_pytorch(view: Page, head: str) -> None:
    change_state(view, ablated_heads="", ablation="zero", merge_subwords="false")
    view.locator(f"[data-head='{head}']").press("Space")
    values = read(view, "ablation")
    attention_type, layer, index = head.split(".")
    with reference.without_head(attention_type, int(layer), int(index)):
        assert values["after"]["output"] == reference.translator().translate_batch([SENTENCE])[0].text
        expected = reference.probabilities(target_ids(values["after"]["generated"]))
    assert [token["probability"] for token in values["after"]["generated"]] == pytest.approx(expected, abs=1e-5)
    assert [probability for _, probability in shown(view, "after")] == pytest.approx(expected, abs=1e-5)
    unablated = reference.probabilities(target_ids(values["before"]["generated"]))
    assert [probability for _, probability in shown(view, "before")] == pytest.approx(unablated, abs=1e-5)


def test_mean_ablation_equals_pytorch(view: Page) -> None:
    change_state(view, ablated_heads="cross.1.2", ablation="mean")
    values = read(view, "ablation")
    mean = reference.mean_head_outputs("cross", 1, target_ids(values["before"]["generated"]))
    with reference.without_head("cross", 1, 2, mean):
        expected = reference.probabilities(target_ids(values["after"]["generated"]))
    assert [token["probability"] for token in values["after"]["generated"]] == pytest.approx(expected, abs=1e-5)


def test_merged_subwords_multiply_their_probabilities(view: Page) -> None:
    change_state(view, ablated_heads="cross.1.2", ablation="zero", merge_subwords="false")
    read(view, "ablation")
    tokens = shown(view, "before")
    view.get_by_label("merge subwords into words").check()
    words = shown(view, "before")
    assert len(words) < len(tokens)
    assert "".join(text for text, _ in words) == "".join(text for text, _ in tokens)
    product = torch.tensor([probability for _, probability in words]).prod()
    assert float(product) == pytest.approx(
        float(torch.tensor([probability for _, probability in tokens]).prod()), rel=1e-4
    )


def test_outputs_are_aligned_word_by_word(view: Page) -> None:
    """With cross-attention in one layer only, the output differs; both outputs are aligned, and changes are marked."""
    ablated = [f"cross.{layer}.{head}" for layer in (1, 2) for head in range(4)]
    change_state(view, ablated_heads=",".join(ablated), ablation="zero", merge_subwords="true")
    values = read(view, "ablation")
    assert values["after"]["output"] != values["before"]["output"]
    kinds = view.eval_on_selector_all(".pair[data-change]", "all => all.map(one => one.dataset.change)")
    assert set(kinds) - {"same"}
    texts = [text for text, _ in shown(view, "after")]
    assert len(texts) == len(kinds) - kinds.count("removed")


def test_all_heads_can_be_restored(view: Page) -> None:
    change_state(view, ablated_heads="encoder.0.1")
    read(view, "ablation")
    view.get_by_role("button", name="Restore all heads").click()
    assert view.locator("[role=switch][aria-checked=false]").count() == 0
    assert read(view, "ablation")["after"] is None


def loss() -> float:
    """The mean of −log p over all tokens of the pairs."""
    probabilities: list[float] = []
    text = reference.translator().target_tokenizer
    tokens = reference.model().config.special_tokens
    for source, target in PAIRS:
        ids = [tokens.bos, *text.encode(target), tokens.eos]
        probabilities += reference.probabilities([token for token in ids if token is not None], source)
    return float(-torch.tensor(probabilities, dtype=torch.float64).log().mean())


def test_head_importance_is_the_change_of_pytorchs_loss(view: Page) -> None:
    change_state(view, ablated_heads="", ablation="zero")
    view.get_by_text("Use your own sentences").click()
    view.locator(".ablation-view textarea").fill("\n".join("\t".join(pair) for pair in PAIRS))
    view.get_by_role("button", name="Measure all heads").click()
    view.get_by_text("Without ablation: a loss of").wait_for(timeout=30_000)
    view.get_by_role("button", name="Measure all heads").and_(view.locator(":enabled")).wait_for(timeout=30_000)
    importance = read(view, "ablation")["importance"]
    assert (importance["metric"], importance["examples"]) == ("loss", len(PAIRS))
    assert importance["baseline"] == pytest.approx(loss(), abs=1e-5)
    assert len(importance["heads"]) == 6 * 4 + 3 * 4 + 3 * 4
    for head in importance["heads"][::16]:
        with reference.without_head(head["attention_type"], head["layer"], head["head"]):
            assert head["value"] == pytest.approx(loss(), abs=1e-5)
        drawn = view.locator(f"[data-head='{head['attention_type']}.{head['layer']}.{head['head']}']").get_attribute(
            "data-change"
        )
        assert drawn is not None
        assert float(drawn) == pytest.approx(head["value"] - importance["baseline"])
    view.reload()
    view.get_by_text("Without ablation: a loss of").wait_for()
    assert read(view, "ablation")["importance"] == importance
    view.get_by_text("Use your own sentences").click()


def test_stopped_measurement_keeps_its_results(view: Page) -> None:
    view.locator(".ablation-view textarea").fill("")
    view.get_by_role("button", name="Measure all heads").click()
    view.get_by_role("button", name="Stop", exact=True).click()
    view.get_by_text("Stopped.").wait_for(timeout=30_000)
    assert len(read(view, "ablation")["importance"]["heads"]) < 48


def test_unreachable_server_is_an_error_and_the_toggles_stay(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    view.route("**/models/*/traces", lambda route: route.abort())
    change_state(view, ablated_heads="decoder.0.0")
    view.get_by_text("Decoding again failed:").wait_for()
    assert view.locator("[role=switch][aria-checked=false]").count() == 1
    view.unroute("**/models/*/traces")
    view.get_by_role("button", name="Try again").click()
    assert read(view, "ablation")["ablated_heads"] == [
        {"attention_type": "decoder", "layer": 0, "head": 0, "ablation": "zero"}
    ]


def test_refused_measurement_is_an_error(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    view.locator(".ablation-view textarea").fill("no tab here")
    view.get_by_role("button", name="Measure all heads").click()
    view.locator(".problem", has_text="The heads could not be measured").or_(
        view.locator(".problem", has_text="The job failed")
    ).first.wait_for()
    assert view.locator("[role=switch]").count() == 48
