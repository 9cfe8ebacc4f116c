"""Run a comparison: train and measure every run of a ladder, several side by side, each in a process of its own.

    OUT/ladder.json      the ladder, as it was run
    OUT/data/            parts of the training data
    OUT/plans/KEY.json   what a run is: its recipe, with every setting decided
    OUT/runs/KEY/        its run folder
    OUT/logs/KEY.log     what it printed
    OUT/results/KEY.json what was measured, or what went wrong
    OUT/speed.json       how fast each rung is when it runs alone
    OUT/report.html, OUT/report.md

A result is written at the very end of a run, so a comparison that was interrupted goes on where it was: runs with a
result are not repeated, and those without continue from their last checkpoint. Runs that failed are tried again.
"""

import contextlib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import write_text
from regard.kernels.dispatch import select_device
from regard.lab.compare.ladder import Ladder
from regard.lab.compare.plan import PlannedRun, plan_runs, size_name
from regard.lab.compare.speed import unmeasured
from regard.lab.processes import Finished, Running, minutes, run_all, run_processes
from regard.run.lock import lock_run
from regard.task.recipe_io import write_recipe

Log = Callable[[str], None]


class InterruptedComparisonError(Exception):
    """The comparison was interrupted; the same command continues it."""


def run_ladder(
    ladder: Ladder, overrides: Sequence[str], out: Path, *, device: str | None = None, log: Log = lambda message: None
) -> list[dict[str, Any]]:
    """Train and measure all runs that have no result yet; gives the results of all.

    A folder is used by one comparison at a time.
    """
    runs = plan_runs(ladder, overrides, out / "data")
    out.mkdir(parents=True, exist_ok=True)
    with lock_run(out, log):
        chosen = device or ladder.device
        parallel = ladder.parallel if select_device(chosen).type != "cpu" else min(ladder.parallel, os.cpu_count() or 1)
        _write_plans(ladder, runs, out, chosen)
        waiting = [run.key for run in runs if not _has_result(out, run.key)]
        try:
            run_all(
                "Comparing",
                {key: [sys.executable, "-m", "regard.lab.compare.worker", str(out.absolute()), key] for key in waiting},
                len(runs),
                out / "logs",
                parallel=parallel,
                record=lambda finished: describe_result(_result_of(out, finished), ladder),
                describe=lambda one: _progress_of(out, one),
                log=log,
                needs={run.key: run.needs for run in runs},
                max_seconds=None if ladder.max_minutes is None else ladder.max_minutes * 60,
            )
            results = read_results(out, [run.key for run in runs])
            _measure_speed(out, unmeasured(out, results), log)
        except KeyboardInterrupt:
            raise InterruptedComparisonError from None
    return results


def _measure_speed(out: Path, keys: Sequence[str], log: Log) -> None:
    """Measure the speed of these runs in one process, now that nothing else runs."""
    if not keys:
        return
    log("Measuring how fast each model is when it runs alone.")
    run_processes(
        {"speed": [sys.executable, "-m", "regard.lab.compare.speed", str(out.absolute()), *keys]},
        out / "logs",
        parallel=1,
        on_finish=lambda ended: None if ended.problem() is None else log(f"Speed: {ended.problem()}."),
    )


def read_results(out: Path, keys: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The results in a folder: those of these runs, or all."""
    paths = sorted((out / "results").glob("*.json")) if keys is None else [_result_path(out, key) for key in keys]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.is_file()]


def read_saved_ladder(out: Path) -> Ladder:
    """The ladder that was run in a folder."""
    path = out / "ladder.json"
    if not path.is_file():
        raise UserError(f"{out} holds no comparison, so there is nothing to report on; leave out --report-only.")
    return Ladder.read(json.loads(path.read_text(encoding="utf-8")), str(path))


def _result_of(out: Path, finished: Finished) -> dict[str, Any]:
    """The result that a process wrote, or else one that says how it ended."""
    path = _result_path(out, finished.key)
    if not path.is_file():
        plan = _read_plan(out, finished.key)
        result = {name: plan[name] for name in ("key", "rung", "label", "size", "seed")}
        result |= {"status": "failed", "problem": finished.problem() or "its process wrote no result"}
        write_text(path, json.dumps(result, ensure_ascii=False, indent=1))
    recorded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return recorded


def _progress_of(out: Path, one: Running) -> str:
    """How far a run is, such as "gru-full-1 (35 s, step 200 of 1,000)"."""
    path, step = out / "runs" / one.key / "metrics.jsonl", ""
    if path.is_file() and (lines := path.read_text(encoding="utf-8").splitlines()):
        with contextlib.suppress(ValueError, KeyError):  # a line that is being written
            plan = _read_plan(out, one.key)
            steps = plan.get("steps") or plan["recipe"]["train"]["steps"]
            step = f", step {json.loads(lines[-1])['step']:,} of {steps:,}"
    return f"{one.key} ({minutes(one.seconds)}{step})"


def describe_result(result: Mapping[str, Any], ladder: Ladder) -> str:
    """A result in one sentence, without its full stop."""
    what = f"{result['label']}, {size_name(result['size'])} data, seed {result['seed']}"
    if result["status"] != "finished":
        return f"{what}: {str(result['problem']).rstrip('.')}"
    scores = result["scores"].get(ladder.test, {})
    shown = [f"{name} {scores[key]:.2f}" for key, name in _SHOWN.items() if key in scores]
    return f"{what}: {', '.join(shown) or 'finished'} in {minutes(result['seconds'] or 0)}"


_SHOWN = {
    "bleu": "BLEU",
    "bits_per_byte": "bits per byte",
    "perplexity": "perplexity",
    "f1": "F1",
    "accuracy": "accuracy",
}


def _write_plans(ladder: Ladder, runs: Sequence[PlannedRun], out: Path, device: str) -> None:
    """Write what each run is; refuse a folder with other runs of the same name."""
    plain = ladder.plain()
    for run in runs:
        path = out / "plans" / f"{run.key}.json"
        recipe: dict[str, Any] = tomllib.loads(write_recipe(run.recipe))
        plan = {
            "key": run.key,
            "rung": run.rung.name,
            "label": run.rung.label,
            "size": run.size,
            "seed": run.seed,
            "init_from": run.init_from,
            "decodes": run.decodes,
            "needs": run.needs,
            "recipe": recipe,
            "ladder": plain,
            "device": device,
        }
        if path.is_file():
            old = json.loads(path.read_text(encoding="utf-8"))
            if old["recipe"] != recipe or old["ladder"]["budget"] != plain["budget"]:
                raise UserError(
                    f"{out} holds another comparison: the recipe of {run.key} or the budget was another one there; "
                    "choose another folder with --out, or delete it."
                )
            plan["steps"] = old.get("steps")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(plan, ensure_ascii=False, indent=1))
    (out / "results").mkdir(parents=True, exist_ok=True)
    saved = out / "ladder.json"
    write_text(saved, json.dumps(_joined(plain, saved), ensure_ascii=False, indent=1))


def _joined(plain: dict[str, Any], saved: Path) -> dict[str, Any]:
    """The ladder with the rungs that were run in this folder before, so that a report has all of them."""
    if not saved.is_file():
        return plain
    old = json.loads(saved.read_text(encoding="utf-8"))
    if old["name"] != plain["name"]:
        raise UserError(f"{saved.parent} holds the comparison {old['name']!r}; choose another folder with --out.")
    names = {rung["name"] for rung in plain["rungs"]}
    rungs = [*plain["rungs"], *(rung for rung in old["rungs"] if rung["name"] not in names)]
    now, before = plain.get("contrasts", []), old.get("contrasts", [])
    return plain | {"rungs": rungs, "contrasts": [*now, *(each for each in before if each not in now)]}


def _has_result(out: Path, key: str) -> bool:
    """Whether a run needs no more work; the result of one that failed is removed."""
    path = _result_path(out, key)
    if not path.is_file():
        return False
    if json.loads(path.read_text(encoding="utf-8"))["status"] == "failed":
        path.unlink()
        return False
    return True


def _result_path(out: Path, key: str) -> Path:
    return out / "results" / f"{key}.json"


def _read_plan(out: Path, key: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((out / "plans" / f"{key}.json").read_text(encoding="utf-8"))
    return plan
