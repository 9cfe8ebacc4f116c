"""Run a comparison: train and measure every run of a ladder, several side by side, each in a process of its own.

    OUT/ladder.json      the ladder, as it was run
    OUT/data/            parts of the training data
    OUT/plans/KEY.json   what a run is: its recipe, with every setting decided
    OUT/runs/KEY/        its run folder
    OUT/logs/KEY.log     what it printed
    OUT/results/KEY.json what was measured, or what went wrong
    OUT/report.html, OUT/report.md

A result is written at the very end of a run, so a comparison that was interrupted goes on where it was: runs with a
result are not repeated, and those without continue from their last checkpoint. Runs that failed are tried again.
"""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.files import write_text
from regard.lab.compare.ladder import Ladder, RungConfig
from regard.lab.compare.plan import PlannedRun, plan_runs, size_name
from regard.progress import phase
from regard.task.recipe_io import write_recipe

_TICK = 0.2
_INTERVAL = 30.0
"""Seconds between two lines about runs in progress."""
_GRACE = 30.0
"""Seconds that a run has to save a checkpoint when it is stopped."""

Log = Callable[[str], None]


class InterruptedComparisonError(Exception):
    """The comparison was interrupted; the same command continues it."""


@dataclass
class _Active:
    """A run in progress."""

    key: str
    process: subprocess.Popen[bytes]
    start: float = field(default_factory=time.monotonic)
    timed_out: bool = False


def run_ladder(
    ladder: Ladder, overrides: Sequence[str], out: Path, *, device: str | None = None, log: Log = lambda message: None
) -> list[dict[str, Any]]:
    """Train and measure all runs that have no result yet; gives the results of all."""
    runs = plan_runs(ladder, overrides, out / "data")
    chosen = device or ladder.device
    threads = max(1, (os.cpu_count() or 1) // min(ladder.parallel, len(runs)))
    _write_plans(ladder, runs, out, chosen, threads)
    waiting = [run for run in runs if not _has_result(out, run.key)]
    done = len(runs) - len(waiting)
    if done:
        log(f"{done} of {len(runs)} runs are done already.")
    runner = _Runner(ladder, out, len(runs), done, threads, log)
    for depth in range(max((_depth(ladder, run.rung) for run in waiting), default=0) + 1):
        runner.run([run.key for run in waiting if _depth(ladder, run.rung) == depth])
    return read_results(out, [run.key for run in runs])


def _depth(ladder: Ladder, rung: RungConfig) -> int:
    """How many rungs have to be trained before this one, one after the other."""
    needed = rung.init_from or rung.decodes
    return 0 if needed is None else 1 + _depth(ladder, ladder.rung(needed))


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


class _Runner:
    """Starts runs while there is room, and collects those that have ended."""

    def __init__(self, ladder: Ladder, out: Path, total: int, done: int, threads: int, log: Log) -> None:
        self.ladder, self.out, self.total, self.done, self.threads, self.log = ladder, out, total, done, threads, log
        self.active: list[_Active] = []
        self.seconds: list[float] = []

    def run(self, waiting: list[str]) -> None:
        waiting, last_line = list(waiting), time.monotonic()
        with phase("Comparing", "runs", self.total) as progress:
            try:
                while waiting or self.active:
                    progress.update(self.done)
                    while waiting and len(self.active) < self.ladder.parallel:
                        self._start(waiting.pop(0))
                    time.sleep(_TICK)
                    for one in [each for each in self.active if each.process.poll() is not None]:
                        self.active.remove(one)
                        self._finish(one, len(waiting))
                    self._stop_overdue()
                    if self.active and time.monotonic() - last_line > _INTERVAL:
                        self.log("Running: " + ", ".join(map(self._describe, self.active)) + ".")
                        last_line = time.monotonic()
                progress.update(self.done)
            except KeyboardInterrupt:
                raise InterruptedComparisonError from None
            finally:
                self._stop_all()

    def _start(self, key: str) -> None:
        command = [sys.executable, "-m", "regard.lab.compare.worker", str(self.out.absolute()), key]
        environment = os.environ | {"OMP_NUM_THREADS": str(self.threads)}
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        with (self.out / "logs" / f"{key}.log").open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the comparison, which then stops its runs itself
            )
        self.active.append(_Active(key, process))

    def _finish(self, one: _Active, waiting: int) -> None:
        """Record how a run has ended, and say so."""
        code, path = one.process.returncode, _result_path(self.out, one.key)
        if not path.is_file():
            self._write_failure(one, code)
        result = json.loads(path.read_text(encoding="utf-8"))
        self.done += 1
        self.seconds.append(time.monotonic() - one.start)
        self.log(f"{self.done} of {self.total}: {describe_result(result, self.ladder)}{self._time_left(waiting)}")

    def _write_failure(self, one: _Active, code: int) -> None:
        plan = _read_plan(self.out, one.key)
        if one.timed_out:
            problem = f"it was stopped after {self.ladder.max_minutes:g} minutes (max_minutes)"
        elif code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            hint = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
            problem = f"its process was killed by {name}{hint}"
        else:
            problem = f"its process ended with exit code {code}: {_last_line(self.out / 'logs' / f'{one.key}.log')}"
        result = {name: plan[name] for name in ("key", "rung", "label", "size", "seed")}
        result |= {"status": "failed", "problem": problem}
        write_text(_result_path(self.out, one.key), json.dumps(result, ensure_ascii=False, indent=1))

    def _time_left(self, waiting: int) -> str:
        mean, now = sum(self.seconds) / len(self.seconds), time.monotonic()
        left = sum(max(0.0, mean - (now - one.start)) for one in self.active) + waiting * mean
        return f"; about {minutes(left / self.ladder.parallel)} left" if left else ""

    def _stop_overdue(self) -> None:
        limit = self.ladder.max_minutes
        for one in self.active:
            if limit is not None and not one.timed_out and time.monotonic() - one.start > limit * 60:
                one.timed_out = True
                one.process.kill()

    def _stop_all(self) -> None:
        """Ask runs in progress to save a checkpoint and end."""
        for one in self.active:
            one.process.terminate()
        deadline = time.monotonic() + _GRACE
        for one in self.active:
            try:
                one.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()

    def _describe(self, one: _Active) -> str:
        path = self.out / "runs" / one.key / "metrics.jsonl"
        step = ""
        if path.is_file() and (lines := path.read_text(encoding="utf-8").splitlines()):
            try:
                plan = _read_plan(self.out, one.key)
                steps = plan.get("steps") or plan["recipe"]["train"]["steps"]
                step = f", step {json.loads(lines[-1])['step']:,} of {steps:,}"
            except (ValueError, KeyError):  # a line that is being written
                step = ""
        return f"{one.key} ({minutes(time.monotonic() - one.start)}{step})"


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


def minutes(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def _write_plans(ladder: Ladder, runs: Sequence[PlannedRun], out: Path, device: str, threads: int) -> None:
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
            "threads": threads,
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
    return plain | {"rungs": [*plain["rungs"], *(rung for rung in old["rungs"] if rung["name"] not in names)]}


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


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
