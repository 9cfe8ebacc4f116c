"""One cell opened: query, keys, values, products, scores, weights and their sum are PyTorch's."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser, Page, Route

from tests.page import plain
from tests.page.conftest import Address, fresh_page, open_view, read
from tests.page.steer import change, trace_of


@pytest.fixture(scope="module")
def view(browser: Browser, address: Address) -> Iterator[Page]:
    with fresh_page(browser, address) as page:
        open_view(page, "cell")
        yield page


def near(found: Any, expected: torch.Tensor) -> bool:
    # Scores of this model go beyond 100, so rounding shows in the fourth digit behind the point.
    return torch.allclose(torch.tensor(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("side", "layer", "head", "query"), [("encoder", 5, 0, 1), ("decoder", 1, 2, 3), ("cross", 2, 3, 0)]
)
def test_every_number_of_a_cell_is_pytorchs(view: Page, side: str, layer: int, head: int, query: int) -> None:
    change(view, side=side, layer=layer, head=head, token=query, token_side="query")
    found = read(view, "cell")
    assert found["request"] == {"side": side, "layer": layer, "head": head, "query": query}
    expected = plain.Opened(side, layer, [token["id"] for token in trace_of(view)["target"]])
    assert near(found["query"], expected.query[head, query])
    assert near(found["keys"], expected.key[head])
    assert near(found["values"], expected.value[head])
    assert near(found["products"], expected.products[head, query])
    assert near(found["scaled"], expected.scaled[head, query])
    assert [score is not None for score in found["masked"]] == expected.seen[query].tolist()
    assert near(found["weights"], expected.weights[head, query])
    assert near(found["result"], expected.result[head, query])
    assert near(found["square"]["scores"], expected.scaled[head])
    assert near(found["square"]["weights"], expected.weights[head])
    masked = [[score is not None for score in row] for row in found["square"]["masked"]]
    assert masked == expected.seen.tolist()


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_the_table_writes_out_what_was_computed(view: Page) -> None:
    change(view, side="decoder", layer=0, head=0, token=2, token_side="query")
    found = read(view, "cell")
    for key, row in enumerate(view.locator(".stages [data-key]").all()):
        products, scaled, masked = row.locator("td.number").all_inner_texts()
        assert number(products) == pytest.approx(found["products"][key], abs=0.006)
        assert number(scaled) == pytest.approx(found["scaled"][key], abs=0.006)
        assert ("−∞" in masked) == (found["masked"][key] is None)
        assert number(row.locator(".share-number").inner_text()) == pytest.approx(found["weights"][key], abs=0.0006)


def test_the_line_of_a_token_opens_to_all_its_numbers(view: Page) -> None:
    change(view, side="cross", layer=0, head=0, token=1, token_side="query")
    found = read(view, "cell")
    view.locator(".stages [data-key='1'] button").press("Enter")
    rows = view.locator(".all-numbers tbody tr")
    written = [[number(text) for text in row.locator("td.number").all_inner_texts()] for row in rows.all()[:4]]
    query, key, products, values = (torch.tensor(row) for row in written)
    assert torch.allclose(query, torch.tensor(found["query"]), atol=0.006)
    assert torch.allclose(key, torch.tensor(found["keys"][1]), atol=0.006)
    assert float(products.sum()) == pytest.approx(found["products"][1], abs=0.4)  # 64 numbers of two digits
    assert torch.allclose(values, torch.tensor(found["values"][1]), atol=0.006)


def test_the_slides_example_is_computed(view: Page) -> None:
    """001, 003: 112 and 96 → 14 and 12 → 0.88 and 0.12."""
    slide = view.locator(".chain-row", has_text="Thinking").last.locator(".values").all_inner_texts()
    assert slide[1:4] == ["112 and 96", "14 and 12", "0.88 and 0.12"]
    assert re.fullmatch(r"z = 0\.88·v\(Thinking\) \+ 0\.12·v\(Machines\)", slide[4])


def test_a_row_of_the_matrices_opens_by_the_keyboard(view: Page) -> None:
    change(view, side="encoder", layer=0, head=0, token=2, token_side="query")
    found = read(view, "cell")
    canvas = view.locator("[data-square=Scores] .tiles canvas")
    for key in ("ArrowRight", "ArrowDown", "ArrowDown"):  # to the row that is marked, and two below it
        canvas.press(key)
    shown = view.locator("[data-square=Scores] output").inner_text()
    assert number(shown.split(":")[1]) == pytest.approx(found["square"]["scores"][4][0], rel=1e-3)
    canvas.press("Enter")
    assert read(view, "cell")["request"]["query"] == 4


def test_a_trace_without_its_arrays_is_a_sentence(page: Page) -> None:
    def without_arrays(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"arrays": []})

    page.route("**/api/traces/*", without_arrays)
    page.goto(f"{page.home}#view=cell&model=en-tr&side=encoder")  # type: ignore[attr-defined]
    page.get_by_text("This trace has no attention in it").wait_for()


def test_a_refused_cell_is_a_sentence_that_can_be_tried_again(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    refusal = '{"detail": "This trace was let go."}'
    view.route("**/cell", lambda route: route.fulfill(status=410, body=refusal, content_type="application/json"))
    change(view, layer=1)
    view.get_by_text("This attention could not be opened: This trace was let go.").wait_for()
    view.unroute("**/cell")
    view.get_by_role("button", name="Try again").click()
    assert read(view, "cell")["request"]["layer"] == 1
