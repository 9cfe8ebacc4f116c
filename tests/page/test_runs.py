"""The runs view: its curves are the logged metrics, also while a run is training."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.page.conftest import ServerUrl, fresh_page, open_view, read

pytestmark = pytest.mark.start_early(9)

Line = dict[str, float | None]
RECIPE = 'name = "a-recipe"\n[train]\nsteps = 400\n'


def log_lines(steps: int, lr: float) -> list[Line]:
    """Lines as training logs them: the loss every 10 steps, validation metrics every 100."""
    lines: list[Line] = []
    for step in range(10, steps + 1, 10):
        lines.append({"step": step, "loss": 5 / (1 + lr * step) + 0.01 * (step % 7), "seconds": step / 4, "lr": lr})
        if step % 100 == 0:
            lines.append({"step": step, "valid/loss": 6 / (1 + lr * step), "valid/bleu": step / 10})
    return lines


def write_run(folder: Path, lines: list[Line], finished: bool = True) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        (folder / "run.json").write_text("{}")


@pytest.fixture(scope="module")
def files(runs_folder: Path) -> dict[str, list[Line]]:
    metrics = {"first": log_lines(400, 0.01), "second": log_lines(200, 0.02)}
    metrics["second"][4]["loss"] = None  # NaN is logged as null
    for name, lines in metrics.items():
        write_run(runs_folder / name, lines)
    return metrics


@pytest.fixture(scope="module")
def view(browser: Browser, server_url: ServerUrl, files: dict[str, list[Line]]) -> Iterator[Page]:
    with fresh_page(browser, server_url) as page:
        open_view(page, "runs")
        yield page


def select_runs(view: Page, *names: str) -> dict[str, dict[str, list[list[float]]]]:
    """Select only these runs; return the drawn curves of each."""
    for item in view.locator(".run-list li").all():
        text = item.locator("b").inner_text()
        item.get_by_role("checkbox").set_checked(text.split("/")[-1] in names)
    drawn = read(view, "runs")["runs"]
    return {run["folder"].replace("\\", "/").split("/")[-1]: run["curves"] for run in drawn}


def points(lines: list[Line], field: str) -> list[list[Any]]:
    return [[line["step"], line[field]] for line in lines if field in line]


def test_curves_are_the_logged_metrics(view: Page, files: dict[str, list[Line]]) -> None:
    drawn = select_runs(view, "first", "second")
    assert set(drawn) == {"first", "second"}
    for name, lines in files.items():
        assert set(drawn[name]) == {"loss", "lr", "valid/loss", "valid/bleu"}
        for field, curve in drawn[name].items():
            shown = [[x, None if math.isnan(y) else y] for x, y in curve]
            assert shown == points(lines, field)
    assert view.locator("[data-chart]").count() == 3


def test_validation_time_is_interpolated(view: Page, files: dict[str, list[Line]]) -> None:
    select_runs(view, "first")
    view.get_by_role("radio", name="time").check(force=True)
    curves = read(view, "runs")["runs"][0]["curves"]
    assert [x for x, _ in curves["loss"]] == [line["seconds"] for line in files["first"] if "seconds" in line]
    assert [x for x, _ in curves["valid/loss"]] == [25, 50, 75, 100]
    view.get_by_role("radio", name="steps").check(force=True)


def test_smoothing_leaves_validation_unchanged(view: Page, files: dict[str, list[Line]]) -> None:
    select_runs(view, "first")
    view.get_by_label("Smoothing").fill("0.8")
    curves = read(view, "runs")["runs"][0]["curves"]
    total, weight, expected = 0.0, 0.0, []
    for _, value in points(files["first"], "loss"):
        total, weight = 0.8 * total + 0.2 * value, 0.8 * weight + 0.2
        expected.append(total / weight)
    assert [y for _, y in curves["loss"]] == pytest.approx(expected)
    assert curves["valid/loss"] == points(files["first"], "valid/loss")
    assert view.get_by_text("moving average over about 5 values").is_visible()
    assert view.locator(".curve.raw").count() == 1
    view.get_by_label("Smoothing").fill("0")


def test_link_restores_runs_and_settings(view: Page) -> None:
    select_runs(view, "second")
    view.get_by_label("Smoothing").fill("0.5")
    view.get_by_role("radio", name="time").check(force=True)
    view.get_by_role("radio", name="logarithmic").check(force=True)
    before = read(view, "runs")
    assert (before["axis"], before["log"], before["smoothing"]) == ("time", True, 0.5)
    assert [run["folder"].split("/")[-1] for run in before["runs"]] == ["second"]
    view.reload()
    assert read(view, "runs") == before
    select_runs(view)
    view.reload()
    assert read(view, "runs")["runs"] == []
    open_view(view, "runs", runs="no-such-run", smoothing=7)
    assert view.get_by_text("Select a run above.").is_visible()
    open_view(view, "runs")


def test_cursor_reads_values(view: Page, files: dict[str, list[Line]]) -> None:
    select_runs(view, "first")
    slider = view.get_by_role("slider", name="Cursor")
    slider.press("Home")
    cell = view.locator("[data-field=loss]")
    assert float(cell.get_attribute("data-value") or "nan") == files["first"][0]["loss"]
    for _ in range(30):
        slider.press("ArrowRight")  # to 3 % of 390 steps, where the second line is nearer than the first
    assert float(cell.get_attribute("data-value") or "nan") == files["first"][1]["loss"]
    box = view.locator("[data-chart=Loss] .chart").bounding_box()
    assert box is not None
    view.mouse.move(box["x"] + box["width"] - 24, box["y"] + 60)
    assert cell.get_attribute("data-step") == "400"


def test_log_scale_falls_back_to_linear_at_zero(view: Page, runs_folder: Path) -> None:
    write_run(runs_folder / "third", [{"step": 1, "loss": 4.0, "lr": 0.0}, {"step": 2, "loss": 2.0, "lr": 0.1}])
    open_view(view, "runs")
    select_runs(view, "third")
    view.get_by_role("radio", name="logarithmic").check(force=True)
    assert view.locator("[data-chart='Learning rate']").get_by_text("linear, because it includes zero").is_visible()
    assert view.locator("[data-chart=Loss]").get_by_text("linear, because it includes zero").count() == 0


def test_damaged_run_is_listed_with_its_problem(view: Page, runs_folder: Path) -> None:
    write_run(runs_folder / "damaged", log_lines(100, 0.01))
    (runs_folder / "damaged" / "run.json").write_text("{")
    open_view(view, "runs")
    item = view.locator(".run-list li", has_text="damaged")
    assert item.locator(".problem").inner_text() == "run.json is damaged."
    assert len(select_runs(view, "damaged")["damaged"]["loss"]) == 10
    assert view.locator(".run-list li", has_text="first").locator(".problem").count() == 0


def has_points(view: Page, count: int) -> bool:
    """Wait until the loss curve has this many points."""
    for _ in range(100):
        if len(read(view, "runs")["runs"][0]["curves"]["loss"]) == count:
            return True
        view.wait_for_timeout(100)
    return False


def test_live_run_is_followed_and_restarted_on_resume(view: Page, runs_folder: Path) -> None:
    lines = log_lines(100, 0.03)
    write_run(runs_folder / "training", lines[:5], finished=False)
    open_view(view, "runs")
    assert view.get_by_text("● in training").is_visible()
    assert len(select_runs(view, "training")["training"]["loss"]) == 5
    with (runs_folder / "training" / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines[5:]))
    assert has_points(view, 10)
    write_run(runs_folder / "training", lines[:3], finished=False)
    assert has_points(view, 3)


def test_unreachable_server_is_an_error_and_the_curves_stay(view: Page) -> None:
    view.expected.append("Failed to load resource")  # type: ignore[attr-defined]
    open_view(view, "runs")
    select_runs(view, "first")
    view.route("**/api/runs/*", lambda route: route.abort())
    view.locator(".run-list li", has_text="second").get_by_role("checkbox").check()
    view.locator(".run-list .problem", has_text="could not be loaded").first.wait_for()
    assert view.locator("[data-chart=Loss] .curve").count() == 2
    view.unroute("**/api/runs/*")
