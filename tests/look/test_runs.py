"""Runs on disk are listed and followed, whatever state their files are in."""

import json
import os
import time
from pathlib import Path

import pytest

from regard.look.runs import UnknownRunError, run_lines, runs_in


def run(folder: Path, lines: list[dict[str, object]], steps: int = 100, tail: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(f'name = "small"\n[train]\nsteps = {steps}\n')
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return folder


def number(folder: Path, name: str) -> str:
    return next(one.id for one in runs_in(folder) if Path(one.folder).name == name)


def test_runs_are_listed_with_where_they_stand(tmp_path: Path) -> None:
    run(tmp_path / "one", [{"step": 1, "loss": 2.0}, {"step": 5, "loss": 1.5}])
    (found,) = runs_in(tmp_path)
    assert (found.recipe, found.steps, found.step, found.live) == ("small", 100, 5, True)
    assert found.folder == str(tmp_path / "one")


def test_runs_in_folders_within_are_found_and_the_last_to_write_comes_first(tmp_path: Path) -> None:
    old = run(tmp_path / "a" / "b" / "old", [{"step": 1}])
    run(tmp_path / "new", [{"step": 1}])
    os.utime(old / "metrics.jsonl", (1, 1))
    assert [Path(one.folder).name for one in runs_in(tmp_path)] == ["new", "old"]


def test_the_folder_itself_may_be_a_run(tmp_path: Path) -> None:
    run(tmp_path / "one", [{"step": 3}])
    (found,) = runs_in(tmp_path / "one")
    assert run_lines(tmp_path / "one", found.id).lines == [{"step": 3}]


def test_a_run_that_is_over_or_silent_is_not_live(tmp_path: Path) -> None:
    over, silent = run(tmp_path / "over", [{"step": 1}]), run(tmp_path / "silent", [{"step": 1}])
    (over / "run.json").write_text("{}")
    before = time.time() - 120
    os.utime(silent / "metrics.jsonl", (before, before))
    assert [one.live for one in runs_in(tmp_path)] == [False, False]


def test_only_new_lines_are_given(tmp_path: Path) -> None:
    folder = run(tmp_path / "one", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}])
    name = number(tmp_path, "one")
    first = run_lines(tmp_path, name)
    assert (first.next, first.lines) == (2, [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "loss": 1.0}\n{"step": 4, "lo')
    second = run_lines(tmp_path, name, first.next)
    assert (second.next, second.lines) == (3, [{"step": 3, "loss": 1.0}])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('ss": 0.5}\n')
    assert run_lines(tmp_path, name, second.next).lines == [{"step": 4, "loss": 0.5}]


def test_a_run_that_was_resumed_begins_anew(tmp_path: Path) -> None:
    run(tmp_path / "one", [{"step": 1}])
    found = run_lines(tmp_path, number(tmp_path, "one"), after=7)
    assert (found.next, found.lines) == (1, [{"step": 1}])


@pytest.mark.parametrize("bad", ["{", "[1]", '{"loss": 1}', '{"step": "1"}', "null", "", "\x00\xff"])
def test_lines_that_are_none_are_left_out(tmp_path: Path, bad: str) -> None:
    folder = run(tmp_path / "one", [{"step": 1}], tail=f'{bad}\n{{"step": 2}}\n')
    found = run_lines(tmp_path, number(tmp_path, "one"))
    assert (found.next, found.lines) == (3, [{"step": 1}, {"step": 2}])
    assert runs_in(tmp_path)[0].step == 2
    assert folder.is_dir()


def test_numbers_that_ran_away_are_null_and_words_are_left_out(tmp_path: Path) -> None:
    run(tmp_path / "one", [], tail='{"step": 1, "loss": null, "norm": NaN, "name": "x", "good": true, "rate": 1e-3}\n')
    assert run_lines(tmp_path, number(tmp_path, "one")).lines == [
        {"step": 1, "loss": None, "norm": None, "rate": 0.001}
    ]


def test_a_run_without_lines_or_recipe_is_listed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "metrics.jsonl").touch()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "metrics.jsonl").touch()
    (tmp_path / "odd" / "recipe.toml").write_text("train = 3\n= broken")
    assert {(one.recipe, one.steps, one.step) for one in runs_in(tmp_path)} == {("bare", 0, 0), ("odd", 0, 0)}


def test_a_folder_that_is_not_there_has_no_runs(tmp_path: Path) -> None:
    assert runs_in(tmp_path / "none") == []


@pytest.mark.parametrize("name", ["0" * 16, "../../etc", ""])
def test_a_run_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    run(tmp_path / "one", [{"step": 1}])
    with pytest.raises(UnknownRunError, match="no such run"):
        run_lines(tmp_path, name)
