"""The view Attention patterns: counts are those of the definitions, and used pairs those of the model's own weights."""

from collections.abc import Iterator

import pytest
import torch
from playwright.sync_api import Browser, Page
from torch import Tensor

from tests.page.conftest import ServerUrl, fresh_page, open_view, read
from tests.page.navigation import change_state, trace_of
from tests.page.reference import ReferenceAttention

pytestmark = pytest.mark.start_early(9)

LENGTH, WINDOW, STEP, TOKENS = 512, 40, 3, 7


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    with fresh_page(browser, server_url) as page:
        open_view(page, "patterns")
        page.get_by_label("Length of the sequence").select_option(str(LENGTH))
        for label, value in (("Window", WINDOW), ("Step of the dilated window", STEP), ("Global tokens", TOKENS)):
            page.get_by_label(label, exact=True).fill(str(value))
        read(page, "patterns")
        yield page


def definitions(*, causal: bool) -> dict[str, Tensor]:
    """The patterns written out, True where a pair is allowed.  # (length, length) each"""
    query, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None]
    distance, past = (query - key).abs(), key <= query
    sliding = distance < WINDOW
    grids = {
        "full": torch.ones(LENGTH, LENGTH, dtype=torch.bool),
        "causal": past,
        "sliding window": sliding,
        "dilated window": (distance < WINDOW * STEP) & (distance % STEP == 0),
        "global and sliding": sliding | (query < TOKENS) | (key < TOKENS),
    }
    if causal:
        del grids["full"]
    return {name: grid & past if causal else grid for name, grid in grids.items()}


def numbers(view: Page) -> dict[str, dict[str, int]]:
    """The numbers of each card: allowed pairs, computed blocks, and the pairs in them."""
    script = """all => all.map(card => [card.dataset.pattern, Object.fromEntries(
        [...card.querySelectorAll('[data-number]')].map(one => [one.dataset.number, Number(one.dataset.value)]))])"""
    read(view, "patterns")
    return dict(view.eval_on_selector_all("[data-pattern]", script))


def expected_numbers(grid: Tensor) -> dict[str, int]:
    counts = grid.view(LENGTH // 128, 128, LENGTH // 128, 128).sum(dim=(1, 3))
    blocks = int((counts > 0).sum())
    return {"pairs": int(grid.sum()), "blocks": blocks, "computed": blocks * 128 * 128}


def test_counts_are_those_of_the_definitions(view: Page) -> None:
    assert numbers(view) == {name: expected_numbers(grid) for name, grid in definitions(causal=False).items()}
    view.get_by_label("All of them causal").check()
    assert numbers(view) == {name: expected_numbers(grid) for name, grid in definitions(causal=True).items()}
    card = view.locator("[data-pattern='sliding window']")
    expected = expected_numbers(definitions(causal=True)["sliding window"])
    text = card.inner_text()
    assert "causal & sliding(40)" in text
    assert f"{expected['pairs']:,} of {LENGTH * LENGTH:,} pairs" in text
    assert f"{expected['blocks']} of 16 blocks of 128 × 128" in text
    assert f"{LENGTH**2 / expected['computed']:.1f} times fewer pairs" in text
    assert "no attention with this pattern" in text
    assert "in decoder self-attention" in view.locator("[data-pattern=causal]").inner_text()
    view.get_by_label("All of them causal").uncheck()


def test_cells_tell_allowed_from_computed_and_skipped(view: Page) -> None:
    grid = definitions(causal=False)["dilated window"]
    pattern = next(each for each in read(view, "patterns")["patterns"]["patterns"] if each["name"] == "dilated window")
    assert pattern["cells"] == grid.view(64, 8, 64, 8).sum(dim=(1, 3)).tolist()
    card = view.locator("[data-pattern='dilated window']")
    card.locator(".matrix-scroller").press("ArrowRight")
    said = {}
    for column in range(1, 64):
        card.locator(".matrix-scroller").press("ArrowRight")
        name, said[column] = card.locator("output").inner_text().split(": ")
        assert name == f"queries 0–7 · keys {8 * column}–{8 * column + 7}"
    assert said[1].endswith("of the pairs allowed")
    assert [said[column] for column in (20, 31, 32, 63)] == ["computed, but masked"] * 2 + ["skipped"] * 2


def test_own_pattern_is_written_as_in_a_recipe(view: Page) -> None:
    view.get_by_label("Your own pattern").fill("causal & (global(2) | sliding(9))")
    view.get_by_role("button", name="Show").click()
    view.locator("[data-pattern='your own']").wait_for()
    query, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None]
    grid = (key <= query) & (((query - key).abs() < 9) | (query < 2) | (key < 2))
    assert numbers(view)["your own"] == expected_numbers(grid)
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    view.get_by_label("Your own pattern").fill("wide(3)")
    view.get_by_label("Your own pattern").press("Enter")
    view.get_by_text("'wide(3)' is not a pattern").wait_for()
    view.get_by_label("Your own pattern").fill("")
    view.get_by_label("Your own pattern").press("Enter")
    assert set(numbers(view)) == set(definitions(causal=False))


@pytest.mark.parametrize(("attention_type", "layer", "head"), [("encoder", 4, 1), ("decoder", 1, 2), ("cross", 2, 0)])
def test_used_pairs_are_those_of_the_weights(view: Page, attention_type: str, layer: int, head: int) -> None:
    change_state(view, attention_type=attention_type, layer=layer, head=head, threshold=0.1)
    view.wait_for_function(
        """wanted => { const use = window.regard.read('patterns')?.use;
            return use && [use.layer.attention_type, use.layer.layer, use.head].join() === wanted }""",
        arg=f"{attention_type},{layer},{head}",
    )
    target = [token["id"] for token in trace_of(view)["target"]]
    module = ReferenceAttention(attention_type, layer, target)
    weights = module.weights[head]
    assert not bool(((weights - 0.1).abs() < 5e-4).any())  # none that rounding to float16 could decide
    use = read(view, "patterns")["use"]
    assert (use["used"], use["allowed"]) == (int((weights > 0.1).sum()), int(module.visible.sum()))
    assert use["layer"]["pattern"] == ("causal" if attention_type == "decoder" else "full")
    assert view.locator("[data-used]").inner_text() == str(use["used"])
