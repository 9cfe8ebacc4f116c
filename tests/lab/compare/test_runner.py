"""Comparisons: one that fails does not stop the others, and nothing is done twice."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.quality.ladder import make_cases, restore
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.lab import processes
from regard.lab.compare import worker
from regard.lab.compare.ladder import Ladder, read_ladder
from regard.lab.compare.report.sections import write_comparison
from regard.lab.compare.runner import read_results, read_saved_ladder, run_ladder
from regard.lab.compare.speed import read_speeds
from regard.run.lock import lock_run
from regard.task.recipe_io import read_recipe, write_recipe
from tests.lab.tiny import LADDER, write_tiny

DIVERGING = """
[[rungs]]
name = "diverging"
label = "Diverging"
overrides = { train = { schedule = { lr = 100.0 }, optimizer = { kind = "adamw", weight_decay = 100.0 } } }

[[rungs]]
name = "failing"
label = "Failing"
overrides = { data = { max_length = 1 } }
"""


def started_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the runs that are started from now on."""
    started: list[str] = []
    start = processes._start

    def record(key: str, *rest: Any) -> Any:
        started.append(key)
        return start(key, *rest)

    monkeypatch.setattr(processes, "_start", record)
    return started


@pytest.mark.start_early(30)
def test_failed_rungs_are_reported_and_finished_runs_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = "budget.value=12"
    ladder, _ = read_ladder(write_tiny(tmp_path, LADDER + DIVERGING), [steps])
    out, lines = tmp_path / "out", []
    results = {result["rung"]: result for result in run_ladder(ladder, [], out, log=lines.append)}
    assert {name: result["status"] for name, result in results.items()} == {
        "small": "finished",
        "wide": "finished",
        "diverging": "diverged",
        "failing": "failed",
    }
    assert results["small"]["parameters"] < results["wide"]["parameters"]
    assert results["small"]["flops"] > 0
    assert results["small"]["decode"]["state_bytes"] > 0
    assert results["small"]["decode"]["bytes_per_token"] == 2 * 16 * 4  # a key and a value of one layer, in float32
    assert [row["step"] for row in results["small"]["curve"]] == [3, 6, 9, 12]
    assert results["small"]["recall"][0]["total"] > 0
    assert "no longer finite" in results["diverging"]["problem"]
    assert sum(" of 4: " in line for line in lines) == 4
    assert "left" in lines[0]
    speeds = read_speeds(out)
    assert speeds.keys() == {"small", "wide"}  # of models that finished, alone, after all runs
    assert all(one["tokens_per_second"] > 0 and one["ms_per_decoded_token"] > 0 for one in speeds.values()), speeds

    # The runs that finished or diverged are done; only the one that failed is tried again.
    started = started_runs(monkeypatch)
    before = (out / "results" / "small-full-1.json").stat().st_mtime_ns
    run_ladder(ladder, [], out)
    assert started == ["failing-full-1"]  # nor is the speed of the others measured again
    assert (out / "results" / "small-full-1.json").stat().st_mtime_ns == before

    (out / "results" / "wide-full-1.json").unlink()  # as if it had been interrupted before it was measured
    weights = (out / "runs" / "wide-full-1" / "model.safetensors").stat().st_mtime_ns
    run_ladder(ladder.only(["wide"]), [], out)
    assert started == ["failing-full-1", "wide-full-1"]
    assert (out / "runs" / "wide-full-1" / "model.safetensors").stat().st_mtime_ns == weights
    assert len(read_saved_ladder(out).rungs) == 4

    changed, rest = read_ladder(tmp_path / "tiny.toml", [steps, "train.batch_tokens=64"])
    with pytest.raises(UserError, match="holds another comparison"):
        run_ladder(changed, rest, out)

    ran = CliRunner().invoke(app, ["compare", str(tmp_path / "tiny.toml"), "--out", str(out), "--report-only"])
    assert ran.exit_code == 0
    report = (out / "report.md").read_text(encoding="utf-8")
    assert "Diverging (data 100%, seed 1) did not finish: it diverged" in report
    assert "Failing (data 100%, seed 1) did not finish:" in report

    restore(make_cases(out, {}), tmp_path / "restored")
    write_comparison(read_saved_ladder(out), read_results(tmp_path / "restored"), tmp_path / "restored")
    assert sorted((tmp_path / "restored" / "report.md").read_text().splitlines()) == sorted(report.splitlines())


def test_a_folder_is_used_by_one_comparison_at_a_time(tmp_path: Path) -> None:
    ladder, _ = read_ladder(write_tiny(tmp_path))
    (tmp_path / "out").mkdir()
    with lock_run(tmp_path / "out", print), pytest.raises(UserError, match="wait until it ends, or stop it"):
        run_ladder(ladder, [], tmp_path / "out")
    assert not (tmp_path / "out" / "plans").exists()


def test_a_killed_process_is_reported_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ladder, _ = read_ladder(write_tiny(tmp_path))
    command = ["sh", "-c", "kill -9 $$"]
    popen = processes.subprocess.Popen
    monkeypatch.setattr(processes.subprocess, "Popen", lambda _, **options: popen(command, **options))
    results = run_ladder(ladder, [], tmp_path / "out")
    assert {result["problem"] for result in results} == {
        "its process was killed by SIGKILL, perhaps because memory ran out"
    }


def test_a_budget_of_tokens_and_of_flops_is_met(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, LADDER.replace("recall = [1, 3]", "recall = []"))
    for kind, value, found in (("tokens", 4000, "tokens"), ("flops", 2e8, "flops")):
        out = tmp_path / kind
        ladder, _ = read_ladder(path, [f"budget.kind={kind}", f"budget.value={value:.0f}"])
        (result,) = run_ladder(ladder.only(["small"]), ["train.steps=50"], out)
        assert result["status"] == "finished", result
        assert result[found] == pytest.approx(value, rel=0.15)
        assert json.loads((out / "plans" / "small-full-1.json").read_text())["steps"] == result["steps"]


def test_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no comparison"):
        read_saved_ladder(tmp_path)
    assert read_results(tmp_path) == []


@pytest.mark.parametrize("kind", ["flops", "minutes"])
def test_a_counted_model_reads_its_data_once_whatever_the_budget(kind: str, tmp_path: Path) -> None:
    recipe = read_recipe("quick-ngram")
    ladder = Ladder.read(
        {
            "name": "counted",
            "description": "?",
            "base": "quick-ngram",
            "budget": {"kind": kind, "value": 1e9},
            "rungs": [{"name": "ngram", "label": "n-grams"}],
        }
    )
    plan = {"key": "ngram-full-1", "init_from": None, "size": 1.0, "recipe": tomllib.loads(write_recipe(recipe))}
    assert worker._recipe(tmp_path, plan, ladder, torch.device("cpu")).train.steps == recipe.train.steps
