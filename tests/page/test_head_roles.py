"""What heads do on the page: the numbers of the Python function, as tags, in order, as a table and as CSV."""

import csv
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from regard.look.analysis.head_roles import roles as head_roles
from regard.look.models.auto import load_traced_model
from regard.look.schema import HeadRole, HeadRoles, HeadRolesRequest, RunRequest
from regard.serve.inspector.app import AppState
from tests.look.support import autoregressive_model
from tests.page.conftest import ServerUrl, fresh_page, open_view, read
from tests.page.navigation import change_state
from tests.page.test_accessibility import CONTRAST, RULES, axe, violations  # noqa: F401  axe is a fixture
from tests.serve.support import serving

pytestmark = pytest.mark.start_early(9)


@pytest.fixture(scope="module")
def expected() -> HeadRoles:
    traced_model = load_traced_model("en-tr")
    return head_roles.measure_head_roles(traced_model, HeadRolesRequest(), traced_model.folder)


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl) -> Iterator[Page]:
    """The page after everything was measured."""
    with fresh_page(browser, server_url) as page:
        open_view(page, "heads", attention_type="cross", layer=0, head=0)
        page.get_by_role("button", name="Measure what heads do").click()
        measured(page)
        yield page


def measured(page: Page) -> None:
    page.get_by_text("Measured on 100 examples.").wait_for(timeout=60_000)


def of_type(roles: HeadRoles, attention_type: str) -> list[HeadRole]:
    return [role for role in roles.heads if role.attention_type == attention_type]


def drawn(page: Page) -> dict[tuple[str, str], tuple[float, bool]]:
    """The numbers of the table, and whether they are marked."""
    script = """all => all.map(one => [
        one.dataset.head, one.dataset.measure, Number(one.dataset.value), one.querySelector("strong") !== null])"""
    found = page.eval_on_selector_all(".roles-table td[data-measure]", script)
    return {(head, measure): (value, marked) for head, measure, value, marked in found}


@pytest.mark.parametrize("attention_type", ["encoder", "decoder", "cross"])
def test_numbers_and_tags_are_those_of_python(view: Page, expected: HeadRoles, attention_type: str) -> None:
    change_state(view, attention_type=attention_type, sort_heads="", head_tag="")
    read(view, "heads")
    numbers = drawn(view)
    roles = of_type(expected, attention_type)
    assert len(numbers) == len(roles)
    tags = {measure.name: measure.tag for measure in expected.measures if measure.attention_type == attention_type}
    expected_tags: dict[str, list[str]] = {}
    for role in roles:
        name = f"{role.layer}.{role.head}"
        assert numbers[name, role.measure] == (pytest.approx(role.value, abs=1e-5), role.tagged)
        expected_tags.setdefault(name, []).extend([tags[role.measure]] if role.tagged else [])
    script = """all => all.map(one => {
        const { layer, head } = one.querySelector(".select-head").dataset;
        return [`${layer}.${head}`, [...one.querySelectorAll(".head-tag")].map(tag => tag.textContent)]; })"""
    assert dict(view.eval_on_selector_all(".head-cell", script)) == expected_tags


def test_heads_are_sorted_and_filtered(view: Page, expected: HeadRoles) -> None:
    change_state(view, attention_type="cross", sort_heads="", head_tag="")
    view.get_by_role("button", name="alignment error (written)", exact=True).click()
    errors = [role for role in of_type(expected, "cross") if role.measure == "alignment-written"]
    order = [{"layer": role.layer, "head": role.head} for role in sorted(errors, key=lambda role: role.value)]
    assert read(view, "heads")["order"] == order
    best = min(errors, key=lambda role: role.value)
    caption = f"{best.layer + 1}.{best.head + 1} · {100 * best.value:.0f} %"
    assert view.locator(".head-caption").first.inner_text() == caption
    view.locator(".select-head").first.scroll_into_view_if_needed()
    view.wait_for_timeout(200)  # scrolling closes tooltips
    view.locator(".select-head").first.focus()
    tooltip = view.get_by_role("tooltip").inner_text()
    assert f"alignment error (written): {100 * best.value:.0f} %" in tooltip
    assert f"Baseline: {100 * best.baseline:.0f} %, {best.strategy}." in tooltip
    view.keyboard.press("ArrowRight")  # to the second best, in another layer or not
    second = view.evaluate("({ ...document.activeElement.dataset })")
    assert {name: int(second[name]) for name in ("layer", "head")} == order[1]
    view.locator(".roles-control select").last.select_option("alignment-written")
    tagged = {(role.layer, role.head) for role in errors if role.tagged}
    found = [(each["layer"], each["head"]) for each in read(view, "heads")["order"]]
    assert found == [(each["layer"], each["head"]) for each in order if (each["layer"], each["head"]) in tagged]
    view.reload()  # the order is in the address, and the server remembers what it has measured
    measured(view)
    assert [(each["layer"], each["head"]) for each in read(view, "heads")["order"]] == found


def test_table_is_saved(view: Page, expected: HeadRoles, tmp_path: Path) -> None:
    with view.expect_download() as download:
        view.get_by_role("button", name="Save all numbers as CSV").click()
    path = tmp_path / "roles.csv"
    download.value.save_as(path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(expected.heads)
    for row, role in zip(rows, expected.heads, strict=True):
        assert (row["attention"], row["measure"]) == (role.attention_type, role.measure)
        assert (int(row["layer"]), int(row["head"])) == (role.layer + 1, role.head + 1)
        assert float(row["value"]) == pytest.approx(role.value, abs=1e-6)
        assert float(row["baseline"]) == pytest.approx(role.baseline, abs=1e-6)
        assert (row["tag"] == "yes") == role.tagged


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_measured_heads_are_accessible_and_narrow(
    browser: Browser,
    server_url: ServerUrl,
    axe: str,  # noqa: F811
    dark: bool,
) -> None:
    with fresh_page(browser, server_url, dark=dark, width=390) as page:
        open_view(page, "heads", attention_type="cross", layer=0, head=0, sort_heads="alignment-written")
        measured(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert violations(page, axe, CONTRAST if dark else RULES) == []


def test_measurement_is_stopped_and_fails_in_a_sentence(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    measure = head_roles.measure_roles

    def slowly(*arguments: Any) -> Iterator[Any]:
        for number, step in enumerate(measure(*arguments)):
            yield step
            if number == 12:
                go_on.wait(60)

    monkeypatch.setattr("regard.serve.inspector.app.measure_roles", slowly)
    with serving(AppState([autoregressive_model()])) as url, fresh_page(browser, url) as page:
        open_view(page, "heads", model="small", text="the old cat ate")
        page.get_by_role("button", name="Measure what heads do").click()
        page.get_by_text("give lines (sentence, tab, translation)").wait_for()
        page.get_by_text("Use your own sentences").click()
        page.get_by_label("Your own sentences").fill("\n".join(["the old cat\ta mouse"] * 30))
        page.get_by_role("button", name="Measure what heads do").click()
        page.get_by_text("12 of 31 steps.").wait_for()
        page.get_by_role("button", name="Stop", exact=True).click()
        page.wait_for_timeout(200)
        go_on.set()
        page.get_by_text("Stopped after 9 examples.").wait_for()
        assert len(drawn(page)) > 0


def test_a_file_has_no_measurement(browser: Browser, server_url: ServerUrl, tmp_path: Path) -> None:
    (traced,) = server_url.state.traced_models.values()
    path = tmp_path / "look.html"
    path.write_text(traced.trace(RunRequest(text="The cat.")).html(), encoding="utf-8")
    with fresh_page(browser, path.as_uri()) as page:
        page.goto(f"{path.as_uri()}#view=heads")
        assert read(page, "heads")["roles"] is None
        assert not page.get_by_role("button", name="Measure what heads do").is_visible()
        page.get_by_text("needs the running model").wait_for()
