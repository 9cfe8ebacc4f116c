"""Listing runs and reading their metrics, whatever state their files are in."""

import json
import os
import time
from pathlib import Path

import pytest

from regard.look.runs import RunNotFoundError, list_runs, read_run_metrics


def write_run(folder: Path, lines: list[dict[str, object]], steps: int = 100, tail: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(f'name = "small"\n[train]\nsteps = {steps}\n')
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return folder


def run_id(folder: Path, name: str) -> str:
    return next(one.id for one in list_runs(folder) if Path(one.folder).name == name)


def test_summary_has_recipe_and_progress(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [{"step": 1, "loss": 2.0}, {"step": 5, "loss": 1.5}])
    (result,) = list_runs(tmp_path)
    assert (result.recipe, result.steps, result.step, result.live) == ("small", 100, 5, True)
    assert result.folder == str(tmp_path / "one")


def test_runs_in_subfolders_are_listed_most_recent_first(tmp_path: Path) -> None:
    old = write_run(tmp_path / "a" / "b" / "old", [{"step": 1}])
    write_run(tmp_path / "new", [{"step": 1}])
    os.utime(old / "metrics.jsonl", (1, 1))
    assert [Path(one.folder).name for one in list_runs(tmp_path)] == ["new", "old"]


def test_folder_itself_may_be_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [{"step": 3}])
    (result,) = list_runs(tmp_path / "one")
    assert read_run_metrics(tmp_path / "one", result.id).records == [{"step": 3}]


def test_finished_or_silent_run_is_not_live(tmp_path: Path) -> None:
    over, silent = write_run(tmp_path / "over", [{"step": 1}]), write_run(tmp_path / "silent", [{"step": 1}])
    (over / "run.json").write_text("{}")
    before = time.time() - 120
    os.utime(silent / "metrics.jsonl", (before, before))
    assert [one.live for one in list_runs(tmp_path)] == [False, False]


def test_only_new_records_are_read(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}])
    name = run_id(tmp_path, "one")
    first = read_run_metrics(tmp_path, name)
    assert (first.next_line, first.records) == (2, [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 1.0}\n{"step": 4, "lo')
    second = read_run_metrics(tmp_path, name, first.next_line)
    assert (second.next_line, second.records) == (3, [{"step": 3, "loss": 1.0}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('ss": 0.5}\n')
    assert read_run_metrics(tmp_path, name, second.next_line).records == [{"step": 4, "loss": 0.5}]


def test_resumed_run_is_read_from_the_beginning(tmp_path: Path) -> None:
    write_run(tmp_path / "one", [{"step": 1}])
    result = read_run_metrics(tmp_path, run_id(tmp_path, "one"), after=7)
    assert (result.next_line, result.records) == (1, [{"step": 1}])


@pytest.mark.parametrize("bad", ["{", "[1]", '{"loss": 1}', '{"step": "1"}', "null", "", "\x00\xff"])
def test_invalid_lines_are_skipped(tmp_path: Path, bad: str) -> None:
    folder = write_run(tmp_path / "one", [{"step": 1}], tail=f'{bad}\n{{"step": 2}}\n')
    result = read_run_metrics(tmp_path, run_id(tmp_path, "one"))
    assert (result.next_line, result.records) == (3, [{"step": 1}, {"step": 2}])
    assert list_runs(tmp_path)[0].step == 2
    assert folder.is_dir()


def test_non_finite_numbers_are_null_and_strings_are_dropped(tmp_path: Path) -> None:
    write_run(
        tmp_path / "one", [], tail='{"step": 1, "loss": null, "norm": NaN, "name": "x", "good": true, "lr": 1e-3}\n'
    )
    assert read_run_metrics(tmp_path, run_id(tmp_path, "one")).records == [
        {"step": 1, "loss": None, "norm": None, "lr": 0.001}
    ]


def test_run_without_metrics_or_recipe_is_listed(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "metrics.jsonl").touch()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "metrics.jsonl").touch()
    (tmp_path / "odd" / "recipe.toml").write_text("train = 3\n= broken")
    assert {(one.recipe, one.steps, one.step) for one in list_runs(tmp_path)} == {("bare", 0, 0), ("odd", 0, 0)}


def test_missing_folder_has_no_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path / "none") == []


@pytest.mark.parametrize("name", ["0" * 16, "../../etc", ""])
def test_missing_run_is_refused(tmp_path: Path, name: str) -> None:
    write_run(tmp_path / "one", [{"step": 1}])
    with pytest.raises(RunNotFoundError, match="no such run"):
        read_run_metrics(tmp_path, name)
