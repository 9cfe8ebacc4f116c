"""Two runs side by side: both panes, their difference and the diff of their outputs equal plain PyTorch."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page
from torch import Tensor

from regard.look.models.auto import load_traced_model
from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from regard.serve.inspector.app import AppState
from tests.page import reference
from tests.page.conftest import ServerUrl, fresh_page, open_view, read, serving
from tests.page.navigation import change_state
from tests.page.test_accessibility import CONTRAST, RULES, VIEWS, axe, violations  # noqa: F401  axe is a fixture
from tests.page.test_frame import download

pytestmark = pytest.mark.start_early(9)

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
WITHOUT_HEAD = json.dumps({"ablated_heads": ["cross.2.1.zero"]})


@pytest.fixture(scope="module")
def other_model() -> TracedModel:
    """The translator again, as if it were another one, into French."""
    other = load_traced_model("en-tr")
    other.name = other.id = "copy-en-fr"
    return other


@pytest.fixture(scope="module")
def two_models(traced_model: TracedModel, other_model: TracedModel) -> Iterator[ServerUrl]:
    with serving(AppState([traced_model, other_model])) as url:
        yield url


@pytest.fixture
def page(browser: Browser, two_models: ServerUrl) -> Iterator[Page]:
    with fresh_page(browser, two_models) as page:
        yield page


def part(page: Page, name: str, which: Any) -> Any:
    """What the second pane has drawn (2), or the difference above both."""
    read(page, name)
    handle = page.wait_for_function(
        "([name, part]) => document.documentElement.dataset.ready === 'yes' && window.regard.read(name, part)",
        arg=[name, which],
    )
    return handle.json_value()


def drawn(values: dict[str, Any]) -> Tensor:
    matrix = values["matrix"]
    return torch.tensor(matrix["values"], dtype=torch.float32).view(len(matrix["rows"]), len(matrix["columns"]))


def translation(text: str) -> list[int]:
    """The translation, as the decoder reads it."""
    output = reference.translator().translate_batch([text])[0].text
    tokens = reference.model().config.special_tokens
    ids = [tokens.bos, *reference.translator().target_tokenizer.encode(output), tokens.eos]
    return [each for each in ids if each is not None]


def weights(attention_type: str, layer: int, text: str, target: list[int]) -> Tensor:
    """The attention of all heads of a layer.  # (heads, queries, keys)"""
    found: Tensor = reference.ReferenceAttention(attention_type, layer, target, text).weights
    return found


def common(first: list[int], second: list[int]) -> list[list[int]]:
    """Positions of the same tokens in two sequences that differ in one place only."""
    start = next(index for index, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    end = next(index for index in range(1, len(first)) if first[-index] != second[-index]) - 1
    pairs = [(index, index) for index in range(start)]
    return [list(pair) for pair in [*pairs, *((len(first) - k, len(second) - k) for k in range(end, 0, -1))]]


def outputs(page: Page) -> dict[str, list[float]]:
    """The drawn probabilities of both outputs."""
    script = "all => all.map(one => [one.classList.contains('before'), Number(one.dataset.probability)])"
    units = page.eval_on_selector_all(".side-by-side-top .unit[data-text]", script)
    return {"first": [p for is_first, p in units if is_first], "second": [p for is_first, p in units if not is_first]}


@pytest.mark.parametrize("attention_type", ["encoder", "decoder", "cross"])
def test_panes_and_difference_of_two_sentences_equal_pytorch(page: Page, attention_type: str) -> None:
    state = {"text": TIRED, "second": json.dumps({"text": WIDE}), "attention_type": attention_type}
    open_view(page, "heads", layer=1, head=2, **state)
    difference = part(page, "heads", "difference")
    sources = [reference.source(text)[0].tolist() for text in (TIRED, WIDE)]
    targets = [translation(text) for text in (TIRED, WIDE)]
    first, second = (weights(attention_type, 1, *each) for each in zip((TIRED, WIDE), targets, strict=True))
    assert torch.allclose(drawn(read(page, "heads")), first[2], atol=6e-4, rtol=0)
    assert torch.allclose(drawn(part(page, "heads", 2)), second[2], atol=6e-4, rtol=0)

    rows = common(*(sources if attention_type == "encoder" else targets))
    columns = common(*(targets if attention_type == "decoder" else sources))
    assert (difference["rows"], difference["columns"]) == (rows, columns)
    (ones, others), (keys, other_keys) = zip(*rows, strict=True), zip(*columns, strict=True)
    expected = second[:, others][:, :, other_keys] - first[:, ones][:, :, keys]
    assert expected.abs().max() > 0.02
    assert torch.allclose(drawn(difference), expected[2], atol=1.2e-3, rtol=0)
    for head in range(4):
        name = {"attention_type": attention_type, "layer": 1, "head": head}
        moved = next(each["moved"] for each in difference["heads"] if name.items() <= each.items())
        assert moved == pytest.approx(float(expected[head].abs().sum() / 2 / len(rows)), abs=2e-3)
    assert [each["moved"] for each in difference["heads"]] == sorted(
        (each["moved"] for each in difference["heads"]), reverse=True
    )
    assert outputs(page) == {
        "first": pytest.approx(reference.probabilities(targets[0], TIRED), abs=1e-5),
        "second": pytest.approx(reference.probabilities(targets[1], WIDE), abs=1e-5),
    }


def test_head_off_beside_the_same_text_survives_a_reload_and_a_server_restart(
    browser: Browser, traced_model: TracedModel
) -> None:
    first = serving(AppState([traced_model]))
    server_url = first.__enter__()
    with fresh_page(browser, server_url) as page:
        page.expected.extend(["Failed to load resource", "ERR_"])
        open_view(page, "heads", text=TIRED, attention_type="cross", layer=0, head=1)
        page.get_by_role("button", name="Compare").click()
        assert drawn(part(page, "heads", "difference")).abs().max() == 0  # the same run twice
        page.get_by_role("button", name="Without cross-attention head 1.2").click()
        page.wait_for_selector(".pane-conditions")
        change_state(page, layer=2)
        with reference.without_head("cross", 0, 1):
            target = translation(TIRED)
            probabilities = reference.probabilities(target, TIRED)
            expected = weights("cross", 2, TIRED, target)[1]

        def check() -> None:
            difference = part(page, "heads", "difference")
            assert torch.allclose(drawn(part(page, "heads", 2)), expected, atol=6e-4, rtol=0)
            unablated = weights("cross", 2, TIRED, translation(TIRED))[1]
            assert torch.allclose(drawn(read(page, "heads")), unablated, atol=6e-4, rtol=0)
            ones, others = zip(*difference["rows"], strict=True)
            change = expected[list(others)] - unablated[list(ones)]
            assert change.abs().max() > 0.05
            assert torch.allclose(drawn(difference), change, atol=1.2e-3, rtol=0)
            assert outputs(page)["second"] == pytest.approx(probabilities, abs=1e-5)
            assert "cross-attention 1.2 (zeros)" in page.inner_text(".second-run .pane-heading")
            assert page.locator(".run-notice").is_hidden()  # the first run is a plain one

        check()
        page.reload()
        check()
        before = page.url
        first.__exit__()
        page.wait_for_selector(".banner:not([hidden])")
        with serving(AppState([traced_model]), port=int(server_url.split(":")[2].strip("/"))):
            page.wait_for_url(lambda url: url != before)
            check()
            page.locator(".moved-heads button").first.click()
            moved = part(page, "heads", "difference")
            assert moved["heads"][0].items() >= {name: read(page, "heads")[name] for name in ("layer", "head")}.items()
            page.get_by_role("button", name="Swap both runs").click()
            page.wait_for_selector(".run-notice:has-text('cross-attention 1.2 (zeros)')")
            assert outputs(page)["first"] == pytest.approx(probabilities, abs=1e-5)


def test_panes_stay_in_step(page: Page, traced_model: TracedModel) -> None:
    open_view(page, "decoding", text=TIRED, second=json.dumps({"text": WIDE}))
    part(page, "decoding", 2)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    for which in (1, 2):
        assert part(page, "decoding", which)["node"]["node"] >= 0
        pane = page.locator(".run-pane").nth(which - 1)
        assert "step 3 of" in pane.inner_text()
    node = page.locator(".second-run .search-pane [data-node]").nth(1)
    node.click()
    page.mouse.move(0, 0)
    assert "own" in page.url  # a node of the second tree is not one of the first

    source = [token.text for token in traced_model.trace(RunRequest(text=TIRED)).header.source]
    change_state(page, view="heads", attention_type="encoder", token=source.index("tired"))
    part(page, "heads", 2)
    pinned = page.eval_on_selector_all(
        ".run-pane", "all => all.map(one => one.querySelector('.weighted-sums [data-sum]')?.textContent)"
    )
    assert [text.split(" = ")[0].removeprefix("1layer 1, head 1") for text in pinned] == ["tired", "ide"]  # of "w ide"
    change_state(page, view="model")
    norms = [
        {path: figures.get("norm") for path, figures in part(page, "model", number)["figures"].items()}
        for number in (1, 2)
    ]
    assert set(norms[0]) == set(norms[1])
    assert norms[0] != norms[1]  # of the same model, but of another text
    change_state(page, view="runs")
    page.wait_for_selector(".side-by-side-top .note:has-text('Training runs have')")
    assert page.locator(".second-run").is_hidden()


def test_presets_open_the_pronoun_and_another_model(page: Page) -> None:
    open_view(page, "heads", text="I am here.")
    page.get_by_role("button", name="Compare").click()
    page.get_by_role("button", name="The same with copy-en-fr").click()
    page.wait_for_selector(".second-run .pane-run:has-text('copy-en-fr')")
    assert drawn(part(page, "heads", "difference")).abs().max() == 0  # it is the same model
    page.get_by_role("button", name="The animal and the street: tired / wide").click()
    page.wait_for_selector(".second-run .pane-run:has-text('wide')")
    read(page, "heads")
    assert [page.input_value("#model"), page.inner_text(".first-run .pane-run").split(" → ")[0]] == [
        "copy-en-fr",
        f"copy-en-fr: {TIRED}",
    ]
    page.get_by_label("Text of the second run").fill("It was too wide.")
    page.get_by_role("button", name="Run", exact=True).click()
    page.wait_for_selector(".second-run .pane-run:has-text('copy-en-fr: It was too wide. →')")
    page.get_by_role("button", name="Close the second pane").click()
    assert "second=" not in page.url
    assert page.locator(".second-run").is_hidden()


def test_failed_second_run_says_why_and_can_be_repeated(page: Page) -> None:
    page.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    open_view(page, "heads", text=TIRED, second=json.dumps({"ablated_heads": ["cross.9.9.zero"]}))
    page.wait_for_selector(".second-run .problem:has-text('9')")
    assert page.locator(".second-run").get_by_role("button", name="Try again").is_visible()
    change_state(page, second=json.dumps({"model": "lost"}))
    page.wait_for_selector(".second-run .problem:has-text('There is no such model here')")
    change_state(page, second=WITHOUT_HEAD)
    assert part(page, "heads", 2)


def test_files_name_both_runs(page: Page, tmp_path: Path) -> None:
    open_view(page, "heads", text=TIRED, second=WITHOUT_HEAD, attention_type="cross", layer=2, head=1)
    difference = part(page, "heads", "difference")
    svg = download(page, "This view as SVG", tmp_path).read_text(encoding="utf-8")
    for title in (
        "First run",
        "Second run",
        "Difference: second run − first run",
        "with heads off: cross-attention 3.2",
    ):
        assert title in svg, title
    lines = download(page, "This view’s data as CSV", tmp_path).read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith('"# First run: en-tr, “The animal')
    assert "Second run: en-tr" in lines[0]
    assert "heads off" in lines[0]
    values = [
        float(line.rsplit(",", 1)[1])
        for line in lines
        if line.startswith("difference,") and "attention,query" not in line
    ]
    assert values == pytest.approx(difference["matrix"]["values"], abs=1e-6)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_two_panes_are_accessible(browser: Browser, two_models: ServerUrl, axe: str, width: int, dark: bool) -> None:  # noqa: F811
    with fresh_page(browser, two_models, width=width, dark=dark) as page:
        open_view(page, "playground", text=TIRED, second=json.dumps({"text": WIDE}))
        for name in VIEWS:
            page.click(f"nav.views a[data-name='{name}']")
            if name in ("positions", "patterns", "runs"):
                read(page, name)
            else:
                part(page, name, 2)
            if name == "heads" or not dark:
                assert violations(page, axe, CONTRAST if dark else RULES) == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            ids = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
            assert len(ids) == len(set(ids)), name


def test_standalone_file_has_one_run(browser: Browser, traced_model: TracedModel, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(traced_model.trace(RunRequest(text=TIRED)).html(), encoding="utf-8")
    with fresh_page(browser, file.as_uri()) as page:
        page.goto(f"{file.as_uri()}#view=heads&second=%7B%7D")
        assert read(page, "heads")
        assert page.get_by_role("button", name="Compare").is_hidden()
        assert page.locator(".second-run").is_hidden()
