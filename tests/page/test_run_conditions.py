"""A run with heads off, edited tokens or conditions says so everywhere, and is repeated if its trace is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page

from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from regard.serve.inspector.app import AppState
from regard.serve.inspector.trace_store import TraceStore
from tests.page import reference
from tests.page.conftest import SENTENCE, ServerUrl, fresh_page, open_view, read, serving
from tests.page.navigation import trace_of
from tests.page.test_accessibility import RULES, VIEWS, axe, switch_view, violations  # noqa: F401  axe is a fixture
from tests.page.test_frame import download

pytestmark = pytest.mark.start_early(9)

HEADS_OFF = [
    {"attention_type": "cross", "layer": 2, "head": 1, "ablation": "zero"},
    {"attention_type": "cross", "layer": 2, "head": 3, "ablation": "zero"},
    {"attention_type": "encoder", "layer": 0, "head": 1, "ablation": "mean"},
]
NOTICE = "Run with heads off: cross-attention 3.2, 3.4 (zeros), encoder self-attention 1.2 (mean)."


def request(**conditions: Any) -> RunRequest:
    return RunRequest.model_validate({"text": SENTENCE, **conditions})


def is_the_ablated_pass(page: Page) -> bool:
    """Whether the drawn matrix and the probabilities are those of PyTorch without the heads."""
    shown, trace = read(page, "heads"), trace_of(page)
    target = [token["id"] for token in trace["target"]]
    mean = reference.mean_head_outputs("encoder", 0, target)
    with (
        reference.without_head("cross", 2, 1),
        reference.without_head("cross", 2, 3),
        reference.without_head("encoder", 0, 1, mean),
    ):
        assert trace["output"] == reference.translator().translate_batch([SENTENCE])[0].text
        weights = reference.ReferenceAttention("cross", 2, target).weights[0]
        probabilities = reference.probabilities(target)
    matrix = torch.tensor(shown["matrix"]["values"]).view(weights.shape)
    assert [token["probability"] for token in trace["generated"]] == pytest.approx(probabilities, abs=1e-5)
    return torch.allclose(matrix, weights, atol=6e-4, rtol=0)


def test_heads_stay_off_after_a_reload_and_a_server_restart(browser: Browser, traced_model: TracedModel) -> None:
    state = AppState([traced_model])
    first = serving(state)
    server_url = first.__enter__()
    trace = state.add_trace(traced_model.trace(request(ablated_heads=HEADS_OFF)))
    with fresh_page(browser, server_url) as page:
        page.expected.extend(["Failed to load resource", "ERR_"])  # type: ignore[attr-defined]
        open_view(page, "heads", attention_type="cross", layer=2, head=0, trace=trace)
        assert is_the_ablated_pass(page)
        state.store = TraceStore()  # as if it had been restarted while no page was open
        page.reload()
        page.wait_for_url(lambda url: f"trace={trace}" not in url)
        assert is_the_ablated_pass(page)
        before = page.url
        first.__exit__()
        page.wait_for_selector(".banner:not([hidden])")
        with serving(AppState([traced_model]), port=int(server_url.split(":")[2].strip("/"))):
            page.wait_for_url(lambda url: url != before)
            assert is_the_ablated_pass(page)
            assert page.inner_text(".run-conditions") == NOTICE
            page.click("text=Run the plain text again")
            page.wait_for_selector(".run-notice", state="hidden")
            assert trace_of(page)["output"] == "Kedi fareyi yedi."
            assert "run=" not in page.url


def edited(traced_model: TracedModel) -> RunRequest:
    """`ordinary` becomes `house`. The new text, if it is tokenized, has as many tokens, but not the same."""
    text = "Tom doesn't understand extraordinary regulations."
    pieces = [token.piece for token in traced_model.trace(RunRequest(text=text)).header.source]
    return request(text=text, source_tokens=[*pieces[:5], "house", *pieces[6:]])


def conditioned(_: TracedModel) -> RunRequest:
    prefix = reference.translator().target_tokenizer.encode("Fareyi")
    return request(prefix_tokens=prefix, require=["bir"], forbid=["kedi", "Kedi"], decoding={"beam_size": 3})


@pytest.mark.parametrize(
    ("make", "notice"),
    [
        (edited, "Run with edited source tokens."),
        (
            conditioned,
            "Run with a given prefix: F · ar · eyi; with required words: “bir”; with forbidden words: “kedi”, “Kedi”.",
        ),
    ],
)
def test_lost_run_is_repeated_as_it_was(
    page: Page,
    server_url: ServerUrl,
    traced_model: TracedModel,
    make: Callable[[TracedModel], RunRequest],
    notice: str,
) -> None:
    first = server_url.state.add_trace(traced_model.trace(make(traced_model)))
    form = {"beam_size": 2}  # in the form of the page, but not used yet
    open_view(page, "heads", attention_type="cross", layer=1, head=0, trace=first, **form)
    before = (trace_of(page), read(page, "heads")["matrix"])
    assert page.inner_text(".run-conditions") == notice
    page.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    server_url.state.store = TraceStore()
    page.reload()
    page.wait_for_url(lambda url: f"trace={first}" not in url)
    assert read(page, "heads")["matrix"] == before[1]
    after = trace_of(page)
    assert page.inner_text(".run-conditions") == notice
    for name in ("source", "target", "output", "generated", "nodes"):
        assert after[name] == before[0][name], name


@pytest.fixture
def heads_off(page: Page, server_url: ServerUrl, traced_model: TracedModel) -> Page:
    trace = server_url.state.add_trace(traced_model.trace(request(ablated_heads=HEADS_OFF)))
    open_view(page, "playground", trace=trace, attention_type="cross", layer=2, head=0)
    return page


def test_every_view_says_that_heads_are_off(heads_off: Page, axe: str) -> None:  # noqa: F811
    heads_off.set_viewport_size({"width": 390, "height": 900})
    for name in VIEWS:
        switch_view(heads_off, name)
        assert heads_off.locator(".run-notice").is_visible(), name
        assert heads_off.inner_text(".run-conditions") == NOTICE
        assert heads_off.evaluate("document.documentElement.scrollWidth") <= 390, name
    assert violations(heads_off, axe, RULES) == []


def test_files_say_that_heads_are_off(heads_off: Page, browser: Browser, tmp_path: Path) -> None:
    switch_view(heads_off, "heads")
    svg = download(heads_off, "This view as SVG", tmp_path)
    assert svg.name == "regard-heads-heads-off.svg"
    assert "Run with heads off: cross-attention" in svg.read_text(encoding="utf-8")
    assert download(heads_off, "This view as PNG", tmp_path).name == "regard-heads-heads-off.png"
    table = download(heads_off, "This view’s data as CSV", tmp_path)
    assert table.name == "regard-attention-heads-off.csv"
    assert table.read_text(encoding="utf-8").splitlines()[0] == f'"# {NOTICE}"'

    file = download(heads_off, "The trace as a file", tmp_path)
    page_file = download(heads_off, "The page as a standalone HTML file", tmp_path)
    assert (file.name, page_file.name) == ("trace-heads-off.safetensors", "regard-heads-off.html")
    switch_view(heads_off, "model")
    assert download(heads_off, "This view as SVG", tmp_path).name == "regard-model-heads-off.svg"
    switch_view(heads_off, "positions")
    assert download(heads_off, "This view as SVG", tmp_path).name == "regard-positions.svg"  # it shows no run
    open_view(heads_off, "heads", text=SENTENCE)
    assert heads_off.locator(".run-notice").is_hidden()
    heads_off.set_input_files("#trace-file", file)
    heads_off.wait_for_selector(f".run-notice:has-text('{NOTICE}')")
    with fresh_page(browser, page_file.as_uri()) as standalone:
        for name in ("playground", "heads", "decoding", "why", "cell", "ablation"):
            standalone.goto("about:blank")
            standalone.goto(f"{page_file.as_uri()}#view={name}")
            standalone.wait_for_selector(f".run-notice:has-text('{NOTICE}')")
            assert standalone.locator(".run-notice button").is_hidden()
