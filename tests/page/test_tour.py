"""The tour: each page sets the view that it names, and every number in its text is the model's."""

import math
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
from playwright.sync_api import Browser, Page

from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from regard.serve.inspector.app import AppState
from tests.look.support import autoregressive_model, request, task_models
from tests.model.before.samples import SAMPLES
from tests.page import reference
from tests.page.conftest import SENTENCE, ServerUrl, fresh_page, open_view, read
from tests.page.forced_pass import ForcedPass
from tests.page.navigation import trace_of
from tests.page.reference import ReferenceAttention
from tests.page.test_accessibility import CONTRAST, RULES, axe, violations  # noqa: F401  axe is a fixture
from tests.page.test_embeddings import stages
from tests.serve.support import serving

pytestmark = pytest.mark.start_early(9)

PAGES = ("words", "vectors", "attention", "heads", "masks", "positions", "encoder", "decoder", "beam", "ablation")
VIEWS = dict(
    zip(
        PAGES,
        ("playground", "embeddings", "cell", "heads", "heads", "positions", "model", "heads", "decoding", "ablation"),
        strict=True,
    )
)
BANKS = ("We went to the river bank.", "I need to go to the bank to make a deposit.")
SHOWN = """number => {
  const body = document.querySelector('.tour:not([hidden]) .tour-body:not([aria-busy])');
  const progress = document.querySelector('.tour-progress')?.innerText;
  return body && progress === `Tour: ${number} of 10` && !/as soon as|Reading|Running|Computing/.test(body.innerText);
}"""
FACTS = """() => Object.fromEntries([...document.querySelectorAll('.tour-body [data-fact]')].map((fact) =>
  [fact.dataset.fact, Number.isNaN(Number(fact.dataset.value)) ? fact.dataset.value : Number(fact.dataset.value)]))"""
SWIPE = """([from, to]) => {
  const panel = document.querySelector('.tour h2');
  const touch = (x) => [new Touch({ identifier: 1, target: panel, clientX: x, clientY: 700 })];
  panel.dispatchEvent(new TouchEvent('touchstart', { bubbles: true, touches: touch(from) }));
  panel.dispatchEvent(new TouchEvent('touchend', { bubbles: true, changedTouches: touch(to) }));
}"""


def shown(page: Page, name: str) -> dict[str, Any]:
    """The numbers of a page of the tour, as soon as it is complete."""
    page.wait_for_function(SHOWN, arg=PAGES.index(name) + 1)
    facts: dict[str, Any] = page.evaluate(FACTS)
    return facts


def state(page: Page) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).fragment).items()}


@pytest.fixture(scope="module")
def tour(browser: Browser, server_url: ServerUrl) -> Iterator[dict[str, Any]]:
    """The whole tour by keyboard: each page's numbers, state, and what its view has drawn."""
    with fresh_page(browser, server_url) as page:
        open_view(page, "playground")
        trace = trace_of(page)
        page.focus("header button:has-text('Tour')")
        page.keyboard.press("Enter")
        pages = {}
        for name in PAGES:
            facts = shown(page, name)
            assert page.evaluate("document.activeElement.id") == "tour-title"
            drawn = read(page, VIEWS[name])
            pages[name] = {"facts": facts, "state": state(page), "drawn": drawn, "trace": trace}
            assert state(page)["tour"] == name
            page.keyboard.press("ArrowRight")
        yield pages


def row(page: dict[str, Any], head: str | None = None) -> tuple[str, int, int, int]:
    """The row of attention that the state shows: type, layer, head and token."""
    shown_state = page["state"]
    layer, index = (head or f"{shown_state.get('layer', 0)}.{shown_state.get('head', 0)}").split(".")
    return shown_state.get("attention_type", "encoder"), int(layer), int(index), int(shown_state["token"])


def weight_to_others(expected: ForcedPass, attention_type: str, layer: int, head: int, query: int) -> float:
    """The largest weight of a row on a token that is neither special nor the query itself."""
    weights = expected.attention[attention_type][layer, head, query].clone()
    weights[-1] = 0  # eos
    if attention_type != "cross":
        weights[query] = 0
    return float(weights.max())


def test_words_and_vectors_are_the_models(tour: dict[str, Any], expected_pass: ForcedPass) -> None:
    facts = tour["words"]["facts"]
    assert facts["tokens"] == len(expected_pass.source)
    assert facts["id"] in expected_pass.source
    assert facts["vocab_size"] == 8000
    assert facts["probability"] == pytest.approx(
        float(expected_pass.probabilities[0, expected_pass.target[1]]), abs=1e-5
    )
    facts, drawn = tour["vectors"]["facts"], tour["vectors"]["drawn"]
    token = int(tour["vectors"]["state"]["neighbors_of"].removeprefix("source."))
    vectors = torch.nn.functional.normalize(reference.model().embed_tokens.weight.detach(), dim=-1)
    similarities = vectors @ vectors[token]
    similarities[token] = -1
    expected = similarities.topk(3).values.tolist()
    assert [facts[f"similarity {rank}"] for rank in (1, 2, 3)] == pytest.approx(expected, abs=1e-5)
    assert (facts["rows"], facts["width"]) == tuple(vectors.shape)
    assert drawn["neighbors"]["token"]["id"] == token


def test_attention_heads_and_masks_are_the_models(tour: dict[str, Any], expected_pass: ForcedPass) -> None:
    page = tour["attention"]
    attention_type, layer, head, query = row(page)
    assert tuple(page["drawn"]["request"].values()) == (attention_type, layer, head, query)
    attention = ReferenceAttention(attention_type, layer, expected_pass.target)
    key = int(attention.weights[head, query].argmax())
    facts = page["facts"]
    for name, values in (
        ("score", attention.scores),
        ("scaled", attention.scaled_scores),
        ("weight", attention.weights),
    ):
        assert facts[name] == pytest.approx(float(values[head, query, key]), abs=1e-4)
    assert (facts["dimension"], facts["root"], facts["keys"]) == (64, 8, len(expected_pass.source))
    assert 0.3 < facts["weight"] < 0.95  # an example with something left for other tokens

    page = tour["heads"]
    heads = page["state"]["heads"].split(",")
    assert [f"{each['layer']}.{each['head']}" for each in page["drawn"]["overlaid"]] == heads
    expected = [weight_to_others(expected_pass, *row(page, each)) for each in heads]
    assert [page["facts"][f"weight {place}"] for place in (1, 2)] == pytest.approx(expected, abs=1e-3)
    assert [page["facts"][name] for name in ("layers", "heads", "all")] == [6, 4, 24]

    page = tour["masks"]
    attention_type, layer, head, query = row(page)
    weights = ReferenceAttention("decoder", layer, expected_pass.target).weights[head, query]
    assert (attention_type, page["drawn"]["head"]) == ("decoder", head)
    assert page["facts"]["visible"] == int((weights > 0).sum()) == query + 1
    assert page["facts"]["hidden"] == int((weights == 0).sum()) > 0
    assert page["facts"]["ahead"] == 0


def test_positions_and_encoder_are_the_models(tour: dict[str, Any]) -> None:
    facts = tour["positions"]["facts"]
    assert facts["sine"] == pytest.approx(math.sin(facts["position"]), abs=1e-5)
    assert facts["cosine"] == pytest.approx(math.cos(facts["position"]), abs=1e-5)
    encoder: Any = reference.model().encoder
    facts = tour["encoder"]["facts"]
    assert facts["parameters"] == sum(each.numel() for each in encoder.parameters())
    assert (facts["layers"], facts["width"], facts["hidden"]) == (6, 256, 512)
    one, other = (stages(text, "bank") for text in BANKS)
    for name, layer in (("bank before", 0), ("bank after", -1)):
        assert facts[name] == pytest.approx(float(torch.cosine_similarity(one[layer], other[layer], dim=0)), abs=1e-4)


def test_steps_and_search_are_the_models(tour: dict[str, Any], expected_pass: ForcedPass) -> None:
    page = tour["decoder"]
    attention_type, layer, head, query = row(page)
    assert attention_type == page["drawn"]["attention_type"] == "cross"
    assert page["facts"]["weight"] == pytest.approx(
        weight_to_others(expected_pass, attention_type, layer, head, query), abs=1e-3
    )
    probabilities = reference.probabilities(expected_pass.target)
    assert page["facts"]["probability"] == pytest.approx(probabilities[query], abs=1e-5)
    assert page["facts"]["steps"] == len(probabilities)

    page = tour["beam"]
    facts, trace = page["facts"], page["trace"]
    step = facts["step"]
    assert step == int(page["state"]["step"]) == probabilities.index(min(probabilities)) + 1
    assert page["drawn"]["node"] is not None
    assert facts["chosen"] == pytest.approx(probabilities[step - 1], abs=1e-5)
    (chosen,) = [node for node in trace["nodes"] if node["in_output"] and node["step"] == step]
    rivals = [node["token"]["id"] for node in trace["nodes"] if node["parent"] == chosen["parent"] and node != chosen]
    prefix = expected_pass.target[:step]
    expected = max(reference.probabilities([*prefix, rival])[-1] for rival in rivals)
    assert facts["rival"] == pytest.approx(expected, abs=1e-5)
    assert facts["hypotheses"] == len(trace["hypotheses"])
    penalty = trace["length_penalty"]
    assert penalty["kind"] == "gnmt"
    score = sum(map(math.log, probabilities)) / ((5 + len(probabilities)) / 6) ** penalty["alpha"]
    assert facts["score 1"] == pytest.approx(score, abs=1e-4)
    assert facts["score 2"] == max(each["score"] for each in trace["hypotheses"][1:])


def test_output_without_cross_attention_is_the_models(tour: dict[str, Any], expected_pass: ForcedPass) -> None:
    facts, shown_state, drawn = (tour["ablation"][name] for name in ("facts", "state", "drawn"))
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    assert shown_state["ablated_heads"] == ",".join(f"cross.{layer}.{head}" for layer, head in heads)
    assert (facts["ablated"], facts["output"]) == (12, drawn["after"]["output"])
    assert drawn["before"]["output"] == "Kedi fareyi yedi." != facts["output"]
    words = expected_pass.target[:-1]
    before = reference.probabilities(words)
    with ExitStack() as stack:
        for layer, head in heads:
            stack.enter_context(reference.without_head("cross", layer, head))
        after = reference.probabilities(words)
    assert (facts["before"], facts["after"]) == pytest.approx((before[0], after[0]), abs=1e-5)
    assert facts["log before"] == pytest.approx(sum(map(math.log, before)), abs=1e-3)
    assert facts["log after"] == pytest.approx(sum(map(math.log, after)), abs=1e-3)


def largest_weight(page: Page) -> float:
    """The largest weight on a token that is not special, in the row that the view shows."""
    matrix = read(page, "heads")["matrix"]
    weights = matrix["values"][int(state(page)["token"]) * len(matrix["columns"]) :][: len(matrix["columns"]) - 1]
    return float(max(weights))


def test_page_is_remembered_and_follows_the_text(page: Page) -> None:
    open_view(page, "heads", tour="decoder")
    shown(page, "decoder")
    first = state(page)
    assert (first["tour"], first["attention_type"]) == ("decoder", "cross")
    page.fill(".input-form textarea", "He sat on the bank of the river.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".trace-summary:has-text('river') .output-text")
    facts = shown(page, "decoder")
    assert facts["steps"] == len(trace_of(page)["generated"])
    assert (facts["weight"], state(page)["attention_type"]) == (pytest.approx(largest_weight(page), abs=1e-6), "cross")
    assert state(page)["trace"] != first["trace"]
    page.reload()
    read(page, "heads")
    assert shown(page, "decoder") == facts  # the address has the page
    page.click(".tour button:has-text('Close')")
    open_view(page, "decoding", step=2)
    page.wait_for_selector(".tour", state="hidden")
    page.click("header button:has-text('Tour')")
    shown(page, "decoder")  # the browser remembers the page
    page.keyboard.press("ArrowRight")
    shown(page, "beam")
    page.locator("main h1").focus()
    before = state(page)["step"]
    page.keyboard.press("ArrowRight")  # outside of the panel, it is the step
    assert (int(state(page)["step"]), state(page)["tour"]) == (int(before) + 1, "beam")
    page.click(".tour-show")
    assert state(page)["step"] == before
    page.go_back()
    shown(page, "decoder")
    page.locator(".tour h2").focus()
    page.keyboard.press("Escape")
    page.wait_for_selector(".tour", state="hidden")
    assert page.evaluate("document.activeElement.innerText") == "Tour"
    assert "tour" not in state(page)


def test_tour_works_in_a_standalone_file(browser: Browser, traced_model: TracedModel, tmp_path: Path) -> None:
    """On a phone, by swiping. What needs the running model says so."""
    path = tmp_path / "page.html"
    trace = traced_model.trace(RunRequest(text=SENTENCE))
    path.write_text(trace.html(), encoding="utf-8")
    with fresh_page(browser, path.as_uri(), width=390) as page:
        page.goto(f"{path.as_uri()}#tour=words")
        for name, following in pairwise((*PAGES, "")):
            facts = shown(page, name)
            assert facts, name
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            assert page.locator("main .problem").count() == 0, name
            if following:
                page.evaluate(SWIPE, [300, 120])
        assert "Run: regard look en-tr" in page.inner_text(".tour-body")
        assert facts["equal"] == pytest.approx(1 / len(trace.header.source))
        page.evaluate(SWIPE, [120, 300])
        shown(page, "beam")


def test_steps_that_a_model_does_not_have_are_explained(browser: Browser) -> None:
    """A language model has no encoder, a classifier writes nothing, and a model before the Transformer has no heads."""
    models = {
        "language-modeling": ({"encoder"}, task_models()["language-modeling"]),
        "text-classification": ({"masks", "decoder", "beam"}, task_models()["text-classification"]),
        "recurrent-attention": (
            {"heads", "masks", "positions", "encoder", "ablation"},
            autoregressive_model(SAMPLES["recurrent-attention"]["plain"]),
        ),
    }
    with serving(AppState([model for _, model in models.values()])) as url, fresh_page(browser, url) as page:
        page.goto(str(url))
        ids = page.evaluate("() => fetch('api/models').then((answer) => answer.json())")
        for (skipped, model), listed in zip(models.values(), ids, strict=True):
            page.goto("about:blank")
            page.goto(f"{url}#model={listed['id']}&text={request(model).text}&max_new_tokens=7&tour=words")
            for name in PAGES:
                facts = shown(page, name)
                text = page.inner_text(".tour-body")
                assert (page.locator(".tour-show").count() == 0) == (name in skipped), name
                assert (facts == {}) == (name in skipped), name
                assert name not in skipped or (listed["name"] in text and text.count(".") <= 3)
                page.click(f".tour-pages li:nth-child({min(len(PAGES), PAGES.index(name) + 2)}) button")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_serious_violations(browser: Browser, server_url: ServerUrl, axe: str, dark: bool) -> None:  # noqa: F811
    with fresh_page(browser, server_url, dark=dark) as page:
        for name in ("attention", "ablation"):
            open_view(page, VIEWS[name], tour=name)
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 900})
                shown(page, name)
                assert violations(page, axe, CONTRAST if dark else RULES) == [], (name, width)
                assert page.evaluate("document.documentElement.scrollWidth") <= width
