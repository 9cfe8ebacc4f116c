"""Runs: curves on the page are the lines of the files, also while a run is training."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.page.conftest import Address, fresh_page, open_view, read

Line = dict[str, float | None]
RECIPE = 'name = "a-recipe"\n[train]\nsteps = 400\n'


def trained(steps: int, rate: float) -> list[Line]:
    """Lines as a training writes them: a loss now and then, and a validation at every hundredth step."""
    lines: list[Line] = []
    for step in range(10, steps + 1, 10):
        lines.append(
            {"step": step, "loss": 5 / (1 + rate * step) + 0.01 * (step % 7), "seconds": step / 4, "rate": rate}
        )
        if step % 100 == 0:
            lines.append({"step": step, "valid/loss": 6 / (1 + rate * step), "valid/bleu": step / 10})
    return lines


def write(folder: Path, lines: list[Line], over: bool = True) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if over:
        (folder / "run.json").write_text("{}")


@pytest.fixture(scope="module")
def files(runs_folder: Path) -> dict[str, list[Line]]:
    found = {"first": trained(400, 0.01), "second": trained(200, 0.02)}
    found["second"][4]["loss"] = None  # it ran away for a moment
    for name, lines in found.items():
        write(runs_folder / name, lines)
    return found


@pytest.fixture(scope="module")
def view(browser: Browser, address: Address, files: dict[str, list[Line]]) -> Iterator[Page]:
    with fresh_page(browser, address) as page:
        open_view(page, "runs")
        yield page


def choose(view: Page, *names: str) -> dict[str, dict[str, list[list[float]]]]:
    """Show these runs and no others; gives the curves that are drawn of each."""
    for item in view.locator(".run-list li").all():
        text = item.locator("b").inner_text()
        item.get_by_role("checkbox").set_checked(text.split("/")[-1] in names)
    drawn = read(view, "runs")["runs"]
    return {one["folder"].replace("\\", "/").split("/")[-1]: one["curves"] for one in drawn}


def points(lines: list[Line], field: str) -> list[list[Any]]:
    return [[line["step"], line[field]] for line in lines if field in line]


def test_curves_of_several_runs_are_the_lines_of_their_files(view: Page, files: dict[str, list[Line]]) -> None:
    drawn = choose(view, "first", "second")
    assert set(drawn) == {"first", "second"}
    for name, lines in files.items():
        assert set(drawn[name]) == {"loss", "rate", "valid/loss", "valid/bleu"}
        for field, curve in drawn[name].items():
            shown = [[x, None if math.isnan(y) else y] for x, y in curve]
            assert shown == points(lines, field)
    assert view.locator("[data-chart]").count() == 3


def test_along_the_time_a_validation_stands_where_its_step_was(view: Page, files: dict[str, list[Line]]) -> None:
    choose(view, "first")
    view.get_by_role("radio", name="time").check(force=True)
    curves = read(view, "runs")["runs"][0]["curves"]
    assert [x for x, _ in curves["loss"]] == [line["seconds"] for line in files["first"] if "seconds" in line]
    assert [x for x, _ in curves["valid/loss"]] == [25, 50, 75, 100]
    view.get_by_role("radio", name="steps").check(force=True)


def test_smoothing_says_what_it_is_and_leaves_validation_alone(view: Page, files: dict[str, list[Line]]) -> None:
    choose(view, "first")
    view.get_by_label("Smoothing").fill("0.8")
    curves = read(view, "runs")["runs"][0]["curves"]
    total, weight, expected = 0.0, 0.0, []
    for _, value in points(files["first"], "loss"):
        total, weight = 0.8 * total + 0.2 * value, 0.8 * weight + 0.2
        expected.append(total / weight)
    assert [y for _, y in curves["loss"]] == pytest.approx(expected)
    assert curves["valid/loss"] == points(files["first"], "valid/loss")
    assert view.get_by_text("each point is a mean of about 5 lines").is_visible()
    assert view.locator(".curve.raw").count() == 1
    view.get_by_label("Smoothing").fill("0")


def test_a_link_shows_the_same_runs_in_the_same_way(view: Page) -> None:
    choose(view, "second")
    view.get_by_label("Smoothing").fill("0.5")
    view.get_by_role("radio", name="time").check(force=True)
    view.get_by_role("radio", name="logarithmic").check(force=True)
    before = read(view, "runs")
    assert (before["axis"], before["log"], before["smoothing"]) == ("time", True, 0.5)
    assert [run["folder"].split("/")[-1] for run in before["runs"]] == ["second"]
    view.reload()
    assert read(view, "runs") == before
    choose(view)
    view.reload()
    assert read(view, "runs")["runs"] == []
    open_view(view, "runs", runs="no-such-run", smoothing=7)
    assert view.get_by_text("Choose a run above.").is_visible()
    open_view(view, "runs")


def test_arrow_keys_and_the_mouse_read_values(view: Page, files: dict[str, list[Line]]) -> None:
    choose(view, "first")
    slider = view.get_by_role("slider", name="Read values at")
    slider.press("Home")
    cell = view.locator("[data-field=loss]")
    assert float(cell.get_attribute("data-value") or "nan") == files["first"][0]["loss"]
    for _ in range(30):
        slider.press("ArrowRight")  # three hundredths of 390 steps: the second line is nearer than the first
    assert float(cell.get_attribute("data-value") or "nan") == files["first"][1]["loss"]
    box = view.locator("[data-chart=Loss] .chart").bounding_box()
    assert box is not None
    view.mouse.move(box["x"] + box["width"] - 24, box["y"] + 60)
    assert cell.get_attribute("data-step") == "400"


def test_a_logarithmic_scale_is_linear_where_there_is_a_zero(view: Page, runs_folder: Path) -> None:
    write(runs_folder / "third", [{"step": 1, "loss": 4.0, "rate": 0.0}, {"step": 2, "loss": 2.0, "rate": 0.1}])
    open_view(view, "runs")
    choose(view, "third")
    view.get_by_role("radio", name="logarithmic").check(force=True)
    assert view.locator("[data-chart='Learning rate']").get_by_text("linear: it reaches zero").is_visible()
    assert view.locator("[data-chart=Loss]").get_by_text("linear: it reaches zero").count() == 0


def grown(view: Page, to: int) -> bool:
    """Wait until the curve of the loss has so many points."""
    for _ in range(100):
        if len(read(view, "runs")["runs"][0]["curves"]["loss"]) == to:
            return True
        view.wait_for_timeout(100)
    return False


def test_a_run_that_is_training_grows_and_begins_anew_where_it_is_resumed(view: Page, runs_folder: Path) -> None:
    lines = trained(100, 0.03)
    write(runs_folder / "training", lines[:5], over=False)
    open_view(view, "runs")
    assert view.get_by_text("training now").is_visible()
    assert len(choose(view, "training")["training"]["loss"]) == 5
    with (runs_folder / "training" / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines[5:]))
    assert grown(view, to=10)
    write(runs_folder / "training", lines[:3], over=False)
    assert grown(view, to=3)


def test_a_server_that_went_away_is_a_sentence_and_the_curves_stay(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    open_view(view, "runs")
    choose(view, "first")
    view.route("**/api/runs/*", lambda route: route.abort())
    view.locator(".run-list li", has_text="second").get_by_role("checkbox").check()
    view.locator(".run-list .problem", has_text="could not be read").first.wait_for()
    assert view.locator("[data-chart=Loss] .curve").count() == 2
    view.unroute("**/api/runs/*")
