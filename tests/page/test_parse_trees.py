"""The parse tree on the page: a phrase shows the attention of the step that opened its bracket, and leads to it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

from regard.look.models.traced_model import TracedModel
from regard.look.trace import Trace
from regard.serve.inspector.app import AppState
from tests.look.support import parser, request
from tests.model.before.samples import SAMPLES
from tests.page.conftest import ServerUrl, fresh_page, open_view, read, serving
from tests.page.test_accessibility import RULES, axe, violations  # noqa: F401  axe is a fixture

TEXT = "the old cat didn't eat (a) mouse"
WORDS = ["the", "old", "cat", "did", "n't", "eat", "(", "a", ")", "mouse"]
KINDS = ("Transformer", "LSTM")


@pytest.fixture(scope="module")
def models() -> dict[str, TracedModel]:
    before = SAMPLES["recurrent-attention"]["two vocabularies"]
    models = {"Transformer": parser(torch.float32), "LSTM": parser(torch.float32, before)}  # type: ignore[arg-type]
    for name, model in models.items():
        model.name = name
    return models


@pytest.fixture(scope="module")
def server(models: dict[str, TracedModel]) -> Iterator[ServerUrl]:
    with serving(AppState(list(models.values()))) as url:
        yield url


def weights_of_words(trace: Trace, row: torch.Tensor) -> list[float]:
    """The sum over the tokens of each word, which are spelled without spaces one after the other."""
    sums, word, left = [0.0] * len(WORDS), 0, WORDS[0]
    for token, weight in zip(trace.header.source, row.tolist(), strict=True):
        if token.special:
            continue
        sums[word] += weight
        left = left.removeprefix(token.text.strip("␣"))
        if not left and token.text != "␣" and word + 1 < len(WORDS):
            word, left = word + 1, WORDS[word + 1]
    return sums


def assert_row_is_shown(page: Page, trace: Trace, position: int, layer: int, head: int | None) -> None:
    """The cross-attention of the step that wrote a symbol; of the mean over the heads without a `head`."""
    shown = read(page, "playground")["tree"]
    weights = trace.attention("cross", layer)
    row = (weights.mean(dim=0) if head is None else weights[head])[position - 1]
    assert shown["position"] == position
    assert shown["weights"] == pytest.approx(row.tolist(), abs=1e-3)
    assert [word["text"] for word in shown["words"]] == WORDS
    assert [word["weight"] for word in shown["words"]] == pytest.approx(weights_of_words(trace, row), abs=2e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_phrase_shows_the_attention_of_its_step(
    browser: Browser,
    server: ServerUrl,
    models: dict[str, TracedModel],
    kind: str,
    axe: str,  # noqa: F811
) -> None:
    trace = models[kind].trace(request(models[kind], TEXT))
    symbols = [token.piece for token in trace.header.target]
    opened = [at for at, symbol in enumerate(symbols) if at > 0 and symbol != ")" and symbol != "<eos>"]
    last_layer = trace.header.model.attention[-1].layers - 1
    with fresh_page(browser, server) as page:
        open_view(page, "playground", model=kind, text=TEXT, max_new_tokens=7)
        items = page.locator(".tree-node")
        assert items.count() == len(opened)
        assert [int(at) for at in items.evaluate_all("all => all.map(one => one.dataset.position)")] == opened
        items.nth(1).click()
        only = 0 if trace.header.model.attention[-1].heads == 1 else None
        assert_row_is_shown(page, trace, opened[1], last_layer, only)
        page.keyboard.press("ArrowUp")  # by keyboard: to the root
        assert page.locator(".tree-node:focus").get_attribute("aria-level") == "1"
        assert page.locator("[role=treeitem][tabindex='0']").count() == 1
        assert_row_is_shown(page, trace, opened[0], last_layer, only)
        text = page.inner_text(".tree-panel")
        assert f"<bos> → {symbols[1]}" in text
        if kind == "Transformer":
            page.select_option(".tree-panel label:has-text('Layer') select", label="1")
            page.select_option(".tree-panel label:has-text('Head') select", label="3")
            assert_row_is_shown(page, trace, opened[0], 0, 2)
        assert violations(page, axe, RULES) == []
        assert drawn_below(page)


def drawn_below(page: Page) -> bool:
    """Whether the words stand on one line, and every phrase and tag above them."""
    words = page.eval_on_selector_all("svg.tree > g[aria-hidden] > text:not(.word-weight)", TOPS)
    phrases = page.eval_on_selector_all("svg.tree .tree-node > text", TOPS)
    return len(words) == len(WORDS) and len(set(words)) == 1 and max(phrases) < words[0]


TOPS = "all => all.map(one => Number(one.getAttribute('y')))"


def test_phrase_leads_to_its_step_and_its_row(
    browser: Browser, server: ServerUrl, models: dict[str, TracedModel]
) -> None:
    trace = models["Transformer"].trace(request(models["Transformer"], TEXT))
    with fresh_page(browser, server) as page:
        open_view(page, "playground", model="Transformer", text=TEXT, max_new_tokens=7, tree_head="1.3")
        page.locator(".tree-node").nth(3).click()
        assert_row_is_shown(page, trace, 4, 1, 3)
        page.click("button:has-text('Open this row')")
        shown = read(page, "heads")
        assert (shown["attention_type"], shown["layer"], shown["head"]) == ("cross", 1, 3)
        read_, written = (trace.header.target[at].piece for at in (3, 4))
        assert shown["matrix"]["rows"][3] == f"{read_} → {written}"
        assert page.locator(".queries .line-token.pinned").get_attribute("data-group") == "3"
        page.go_back()
        read(page, "playground")
        page.click("button:has-text('Open this step')")
        decoding = read(page, "decoding")
        assert len(decoding["parent"]["prefix"]) == 4
        assert decoding["parent"]["prefix"][-1]["piece"] == read_


def test_long_tree_scrolls_in_a_file(browser: Browser, models: dict[str, TracedModel], tmp_path: Path) -> None:
    trace: Any = models["LSTM"].trace(request(models["LSTM"], " ".join([TEXT] * 4)))
    path = tmp_path / "page.html"
    path.write_text(trace.html(), encoding="utf-8")
    with fresh_page(browser, path.as_uri(), width=390, dark=True) as page:
        page.goto(f"{path.as_uri()}#view=playground")
        read(page, "playground")
        page.locator(".tree-node").first.click()
        shown = read(page, "playground")["tree"]
        assert shown["weights"] == pytest.approx(trace.attention("cross", 0, 0)[0].tolist(), abs=1e-3)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("(frame => frame.scrollWidth > frame.clientWidth)(document.querySelector('.parse-tree'))")
