"""Long texts: 512 tokens with 6 x 8 heads are painted in under a second, 2,048 in under five and pooled."""

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser, Page

from regard import load
from regard.look.models.auto import make_traced_model
from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from regard.look.trace import Trace
from regard.model import EncoderDecoderConfig
from regard.run import LoadedModel
from regard.serve.inspector.app import AppState
from regard.task.translation.pipeline import Translator
from tests.page.conftest import ServerUrl, fresh_page, read, serving
from tests.page.test_frame import download

pytestmark = pytest.mark.start_early(9)

WORDS = ("cat", "dog", "man", "sun")
ATTEMPTS = 3
"""The fastest attempt counts: a busy machine is not the page's fault."""
PAINTED = """head => new Promise((done) => {
  const start = performance.now();
  const shown = () => document.querySelector('[data-painted]');
  const look = () => shown() === null
    ? requestAnimationFrame(look)
    : requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
  document.querySelector("nav.views a[data-name=heads]").click();
  look();
})"""

STRIDE = 97
"""Every 97th of a million weights is compared."""
SAMPLE = """stride => { const { pooled, matrix, lines } = window.regard.read('heads');
  return { pooled, rows: matrix.rows.length, columns: matrix.columns.length, lines: lines.lines.length,
           note: lines.note, values: matrix.values.filter((_, index) => index % stride === 0) } }"""


MAX_ELEMENTS = 2000
"""Elements of a view, however long its text is."""


def elements(page: Page) -> int:
    return int(page.evaluate("document.querySelectorAll('.view *').length"))


def shown_rows(page: Page) -> list[str]:
    rows: list[str] = page.evaluate("window.regard.read('heads').matrix.rows")
    return rows


def focused_token(page: Page) -> int:
    return int(page.evaluate("document.activeElement.dataset.group"))


@pytest.fixture(scope="module")
def large() -> TracedModel:
    """An untrained, narrow model with as many layers and heads as the paper's base model."""
    pretrained = load("en-tr")
    assert isinstance(pretrained, Translator)
    stack = {"layers": 6, "attention": {"heads": 8}, "feed_forward": {"hidden": 32}}
    sizes = {"width": 64, "encoder": stack, "decoder": {**stack, "layers": 1}}
    torch.manual_seed(1)
    model = EncoderDecoderConfig.read(pretrained.config.plain() | sizes).build()
    return make_traced_model(Translator(LoadedModel(model, pretrained.loaded.tokenizer), pretrained.decode), "large")


@pytest.fixture(scope="module")
def server(large: TracedModel) -> Iterator[ServerUrl]:
    with serving(AppState([large])) as url:
        yield url


def add_trace(server: ServerUrl, large: TracedModel, tokens: int) -> str:
    """The id of a trace of a text with this many tokens, including EOS."""
    encode = large.pipeline.source_tokenizer.encode  # type: ignore[attr-defined]
    words = [WORDS[number % 4] for number in range(tokens)]
    longest = bisect_right(range(tokens), tokens - 1, key=lambda count: len(encode(" ".join(words[:count])))) - 1
    words = words[:longest]
    request = RunRequest.model_validate(
        {"text": " ".join(words), "decoding": {"method": "greedy", "max_new_tokens": 2}}
    )
    return server.state.add_trace(large.trace(request))


def seconds_to_paint(page: Page, server: ServerUrl, trace: str) -> float:
    """Seconds from the click on the view until it is painted, on a page that has fetched none of its data."""
    page.goto("about:blank")
    page.goto(
        f"{server}#view=playground&model=large&trace={trace}&attention_type=encoder&layer=0&head=0&threshold=0.001"
    )
    read(page, "playground")
    return float(page.evaluate(PAINTED)) / 1000


@pytest.mark.parametrize(("tokens", "seconds", "pooled"), [(512, 1.0, 1), (2048, 5.0, 2)])
def test_long_text_is_painted_in_time(
    browser: Browser, server: ServerUrl, large: TracedModel, tmp_path: Path, tokens: int, seconds: float, pooled: int
) -> None:
    trace = add_trace(server, large, tokens)
    with fresh_page(browser, server) as page:
        times = []
        while not times or (min(times) >= seconds and len(times) < ATTEMPTS):
            times.append(seconds_to_paint(page, server, trace))
        assert min(times) < seconds, times
        shown = page.evaluate(SAMPLE, STRIDE)
        weights = server.state.store.get(trace).attention("encoder", 0, 0).float()
        blocks = torch.nn.functional.max_pool2d(weights[None], pooled, ceil_mode=True)[0]
        assert (shown["pooled"], shown["rows"], shown["columns"]) == (pooled, *blocks.shape)
        torch.testing.assert_close(torch.tensor(shown["values"]), blocks.flatten()[::STRIDE], atol=1e-6, rtol=0)
        assert shown["lines"] == 300
        assert "are not drawn" in shown["note"]
        notes = page.inner_text(".view-notes")
        assert ("stands for 2 tokens" in notes) == (pooled == 2)
        assert elements(page) < MAX_ELEMENTS
        page.screenshot(path=tmp_path / "long.png")
        first, last = page.locator(".queries .line-token").first, len(shown_rows(page)) - 1
        first.focus()
        page.keyboard.press("ArrowDown")
        assert focused_token(page) == 1
        page.evaluate("document.querySelector('.lines').scrollTop = 1e6")
        page.wait_for_selector(f".queries [data-group='{last}']")
        assert focused_token(page) == 1  # it stays, though it is out of sight
        page.keyboard.press("ArrowDown")
        assert focused_token(page) == 2


def add_long_search(server: ServerUrl, large: TracedModel, steps: int, candidates: int) -> str:
    """A trace with a search of so many steps, all with the candidates of a real one."""
    short = server.state.store.get(add_trace(server, large, 100))
    token, other = (node.token for node in short.header.nodes[:2])
    nodes = [
        short.header.nodes[0].model_copy(
            update={
                "id": step * candidates + rank,
                "parent": (step - 1) * candidates if step else -1,
                "step": step + 1,
                "token": token if rank == 0 else other,
                "state": "active" if rank == 0 else "pruned",
                "in_output": rank == 0,
                "total_log_probability": -float(step) - rank,
                "cache_row": rank if rank < 2 else -1,
                "cache_copied": rank == 1,
                "attention_index": -1,
            }
        )
        for step in range(steps)
        for rank in range(candidates)
    ]
    generated = [short.header.generated[0]] * steps
    header = short.header.model_copy(
        update={"nodes": nodes, "target": [short.header.target[0], *[token] * steps], "generated": generated}
    )
    return server.state.add_trace(Trace(header, short.arrays, large))


def test_long_search_has_few_elements(browser: Browser, server: ServerUrl, large: TracedModel, tmp_path: Path) -> None:
    """The tree is drawn where it is visible; the keyboard goes through all of it, and files have all nodes."""
    steps, candidates = 2000, 5
    trace = add_long_search(server, large, steps, candidates)
    with fresh_page(browser, server) as page:
        page.goto(f"{server}#view=decoding&model=large&trace={trace}&step=3")
        shown = read(page, "decoding", seconds=60)
        assert shown["steps"] == steps
        assert elements(page) < MAX_ELEMENTS
        page.get_by_label("collapse pruned nodes").uncheck()
        assert len(page.evaluate("window.regard.read('decoding').tree")) == steps * candidates
        assert elements(page) < MAX_ELEMENTS
        page.get_by_role("slider", name="Decoding step").press("End")
        selected = page.locator(".search-tree .node.selected")
        page.wait_for_selector(f".search-tree .node.selected[data-node='{(steps - 1) * candidates}']")
        page.wait_for_selector(f".kv-cache [data-step='{steps}']")
        values = read(page, "decoding", seconds=60)
        assert len(values["parent"]["prefix"]) == steps
        own = large.node(server.state.store.get(trace), (steps - 2) * candidates)
        assert values["parent"]["cross"] == own.cross
        assert values["parent"]["hidden_state"] == own.hidden_state
        assert elements(page) < MAX_ELEMENTS
        selected.focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_selector(f".search-tree .node.selected[data-node='{(steps - 2) * candidates}']")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector(f".search-tree .node.selected[data-node='{(steps - 2) * candidates + 1}']")
        assert page.evaluate("document.activeElement.dataset.node") == str((steps - 2) * candidates + 1)
        drawing = download(page, "This view as SVG", tmp_path).read_text(encoding="utf-8")
        assert f"visible part of a search tree with {steps * candidates + 1:,} nodes, steps" in drawing
        table = download(page, "This view’s data as CSV", tmp_path).read_text(encoding="utf-8")
        assert len(table.splitlines()) == 1 + steps * candidates
        for name in ("playground", "why", "embeddings"):
            page.click(f"nav.views a[data-name={name}]")
            page.wait_for_selector(f".view-{name}")
            read(page, name, seconds=60)
            assert elements(page) < MAX_ELEMENTS, name
        first = page.locator(".token-page-control").first
        first.get_by_role("button", name="Later tokens").click()
        assert "Tokens 61–100 of 100" in first.inner_text()


def test_export_that_is_too_large_is_an_error(browser: Browser, server: ServerUrl, large: TracedModel) -> None:
    trace = add_trace(server, large, 2048)
    with fresh_page(browser, server) as page:
        page.expected.append("Failed to load resource")  # type: ignore[attr-defined]
        seconds_to_paint(page, server, trace)
        page.click(".save-menu summary")
        page.click(".save-menu button:has-text('standalone HTML file')")
        page.wait_for_selector(".error")
        assert page.inner_text(".error span").endswith(".")
        page.click(".queries .line-token >> nth=3")  # the rest of the page still works
        assert "token=6" in page.url
