"""The attention cell view: query, keys, values, scores, weights and output equal those computed in plain PyTorch."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, Route

from regard.look.models.traced_model import TracedModel
from regard.look.schema import RunRequest
from tests.page import reference
from tests.page.conftest import ServerUrl, fresh_page, open_view, read
from tests.page.navigation import change_state, trace_of

pytestmark = pytest.mark.start_early(9)


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    with fresh_page(browser, server_url) as page:
        open_view(page, "cell")
        yield page


def is_close(values: Any, expected: torch.Tensor) -> bool:
    # This model has scores above 100, so rounding affects the fourth decimal place.
    return torch.allclose(torch.tensor(values), expected, rtol=1e-4, atol=1e-4)


ROWS = [("encoder", 5, 0, 1), ("decoder", 1, 2, 3), ("cross", 2, 3, 0)]


@pytest.mark.parametrize(("attention_type", "layer", "head", "query"), ROWS)
def test_cell_equals_pytorch(view: Page, attention_type: str, layer: int, head: int, query: int) -> None:
    change_state(view, attention_type=attention_type, layer=layer, head=head, token=query, token_role="query")
    check_cell(read(view, "cell"), attention_type, layer, head, query, trace_of(view)["target"])


def check_cell(cell: Any, attention_type: str, layer: int, head: int, query: int, target: list[Any]) -> None:
    assert cell["request"] == {"attention_type": attention_type, "layer": layer, "head": head, "query": query}
    expected = reference.ReferenceAttention(attention_type, layer, [token["id"] for token in target])
    assert is_close(cell["query"], expected.query[head, query])
    assert is_close(cell["keys"], expected.key[head])
    assert is_close(cell["values"], expected.value[head])
    assert is_close(cell["scores"], expected.scores[head, query])
    assert is_close(cell["scaled_scores"], expected.scaled_scores[head, query])
    assert [score is not None for score in cell["masked_scores"]] == expected.visible[query].tolist()
    assert is_close(cell["weights"], expected.weights[head, query])
    assert is_close(cell["output"], expected.output[head, query])
    assert is_close(cell["window"]["scaled_scores"], expected.scaled_scores[head])
    assert is_close(cell["window"]["weights"], expected.weights[head])
    masked = [[score is not None for score in row] for row in cell["window"]["masked_scores"]]
    assert masked == expected.visible.tolist()


def test_standalone_file_computes_the_same_rows(browser: Browser, traced_model: TracedModel, tmp_path: Path) -> None:
    """A file has the vectors of each head; the page computes all rows from them."""
    trace = traced_model.trace(RunRequest(text=reference.SENTENCE))
    target = [token.to_dict() for token in trace.header.target]
    path = tmp_path / "page.html"
    path.write_text(trace.html(), encoding="utf-8")
    with fresh_page(browser, path.as_uri()) as page:
        page.goto(f"{path.as_uri()}#view=cell")
        for attention_type, layer, head, query in ROWS:
            change_state(page, attention_type=attention_type, layer=layer, head=head, token=query, token_role="query")
            check_cell(read(page, "cell"), attention_type, layer, head, query, target)


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_table_shows_the_computed_numbers(view: Page) -> None:
    change_state(view, attention_type="decoder", layer=0, head=0, token=2, token_role="query")
    cell = read(view, "cell")
    for key, row in enumerate(view.locator(".attention-table [data-key]").all()):
        products, scaled, masked = row.locator("td.number").all_inner_texts()
        assert number(products) == pytest.approx(cell["scores"][key], abs=0.006)
        assert number(scaled) == pytest.approx(cell["scaled_scores"][key], abs=0.006)
        assert ("−∞" in masked) == (cell["masked_scores"][key] is None)
        assert number(row.locator(".fraction-label").inner_text()) == pytest.approx(cell["weights"][key], abs=0.0006)


def test_row_expands_to_all_numbers(view: Page) -> None:
    change_state(view, attention_type="cross", layer=0, head=0, token=1, token_role="query")
    cell = read(view, "cell")
    view.locator(".attention-table [data-key='1'] button").press("Enter")
    rows = view.locator(".all-numbers tbody tr")
    written = [[number(text) for text in row.locator("td.number").all_inner_texts()] for row in rows.all()[:4]]
    query, key, products, values = (torch.tensor(row) for row in written)
    assert torch.allclose(query, torch.tensor(cell["query"]), atol=0.006)
    assert torch.allclose(key, torch.tensor(cell["keys"][1]), atol=0.006)
    assert float(products.sum()) == pytest.approx(cell["scores"][1], abs=0.4)  # 64 numbers rounded to two decimals
    assert torch.allclose(values, torch.tensor(cell["values"][1]), atol=0.006)


def test_example_by_hand_is_computed(view: Page) -> None:
    """001, 003: 112 and 96 → 14 and 12 → 0.88 and 0.12."""
    slide = view.locator(".computation", has_text="Thinking").last.locator(".values").all_inner_texts()
    assert slide[1:4] == ["112 and 96", "14 and 12", "0.88 and 0.12"]
    assert re.fullmatch(r"z = 0\.88·v\(Thinking\) \+ 0\.12·v\(Machines\)", slide[4])


def test_matrix_row_is_selected_by_keyboard(view: Page) -> None:
    change_state(view, attention_type="encoder", layer=0, head=0, token=2, token_role="query")
    cell = read(view, "cell")
    matrix = view.locator("[data-window=Scores] .matrix-scroller")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):  # into the matrix, then two rows down
        matrix.press(key)
    shown = view.locator("[data-window=Scores] output").inner_text()
    assert number(shown.split(":")[1]) == pytest.approx(cell["window"]["scaled_scores"][4][0], rel=1e-3)
    matrix.press("Enter")
    assert read(view, "cell")["request"]["query"] == 4
    assert view.evaluate("document.activeElement.closest('figure').dataset.window") == "Scores"


def test_trace_without_arrays_is_explained(page: Page) -> None:
    def without_arrays(route: Route) -> None:
        response = route.fetch()
        route.fulfill(response=response, json=response.json() | {"arrays": []})

    page.route("**/api/traces/*", without_arrays)
    page.goto(f"{page.home}#view=cell&model=en-tr&attention_type=encoder")  # type: ignore[attr-defined]
    page.get_by_text("This trace contains no attention").wait_for()


def test_refused_cell_can_be_retried(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    refusal = '{"detail": "This trace was evicted."}'
    view.route("**/cell", lambda route: route.fulfill(status=410, body=refusal, content_type="application/json"))
    change_state(view, layer=1)
    view.get_by_text("This attention row could not be computed: This trace was evicted.").wait_for()
    view.unroute("**/cell")
    view.get_by_role("button", name="Try again").click()
    assert read(view, "cell")["request"]["layer"] == 1
