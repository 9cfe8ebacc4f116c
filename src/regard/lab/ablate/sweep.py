"""Run a sweep: a recipe and its variations, with several seeds, each run in a process of its own.

    OUT/recipe.toml, OUT/sweep.json, OUT/recipes/    the plan (`plan.py`)
    OUT/runs/KEY/                                    the run folder of each run
    OUT/logs/KEY.log                                 what it printed
    OUT/failures/KEY.txt                             what went wrong, if it did
    OUT/measured/KEY.json                            what was measured on it after training
    OUT/report.html, OUT/report.md

An interrupted sweep goes on where it was: runs that were measured are not repeated, and others continue from their last
checkpoint. Of runs that failed, those that would fail again in the same way (a loss that diverged) are left alone, and
all others are tried again.
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regard.config import parse_json
from regard.files import write_text
from regard.lab.ablate.plan import Sweep, failure_path, run_key
from regard.lab.processes import Finished, Running, minutes, run_processes
from regard.progress import phase
from regard.run.lock import lock_run

_DIVERGED = "not finite"
"""Words of the trainer's message about a loss that diverged."""

Log = Callable[[str], None]


def run_sweep(sweep: Sweep, *, device: str = "auto", parallel: int = 1, log: Log = lambda message: None) -> None:
    """Train and measure every run that has not been. A run that fails is reported, and the others go on.

    A folder is used by one sweep at a time.
    """
    with lock_run(sweep.out, log):
        _run_all(sweep, device, parallel, log)


def _run_all(sweep: Sweep, device: str, parallel: int, log: Log) -> None:
    runs = [(plan, seed) for seed in range(1, sweep.seeds + 1) for plan in sweep.planned]
    commands: dict[str, list[str]] = {}
    for plan, seed in runs:
        if not _is_done(sweep, plan.name, seed):
            key = run_key(plan.name, seed)
            commands[key] = [sys.executable, "-m", "regard.lab.ablate.worker", str(sweep.out.absolute()), key, device]
    done, total = len(runs) - len(commands), len(runs)
    if done:
        log(f"{done} of {total} runs are done already.")
    seconds: list[float] = []
    with phase("Training", "runs", total) as progress:
        progress.update(done)

        def on_finish(finished: Finished) -> None:
            seconds.append(finished.seconds)
            progress.update(done + len(seconds))
            left = (len(commands) - len(seconds)) * sum(seconds) / len(seconds) / parallel
            result = _record(sweep.out, finished)
            log(
                f"{done + len(seconds)} of {total}: {finished.key}: {result} in {minutes(finished.seconds)}"
                f"{f'; about {minutes(left)} left' if left else ''}."
            )

        def on_interval(running: Sequence[Running]) -> None:
            log(f"Running: {', '.join(f'{one.key} ({minutes(one.seconds)})' for one in running)}.")

        logs = sweep.out / "logs"
        run_processes(commands, logs, parallel=parallel, on_finish=on_finish, on_interval=on_interval)


def _is_done(sweep: Sweep, name: str, seed: int) -> bool:
    """Whether a run needs no more work; what is known of a failure that may not happen again is forgotten."""
    if sweep.measured(name, seed).is_file():
        return True
    failure = sweep.failure(name, seed)
    if failure is not None and _DIVERGED in failure:
        return True
    failure_path(sweep.out, run_key(name, seed)).unlink(missing_ok=True)
    return False


def _record(out: Path, finished: Finished) -> str:
    """Note how a run has ended; gives it in words."""
    problem = finished.problem()
    if problem is not None:
        path = failure_path(out, finished.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, problem + "\n")
        return f"failed ({problem})"
    found = parse_json((out / "measured" / f"{finished.key}.json").read_text(encoding="utf-8"))
    shown = [] if found["valid_nll"] is None else [f"PPL {math.exp(min(found['valid_nll'], 99)):.2f}"]
    scores: dict[str, Any] = next(iter(found["scores"].values()), {})
    names = {"bleu": "BLEU", "bits_per_byte": "bits per byte"}
    shown += [f"{label} {scores[name]:.2f}" for name, label in names.items() if scores.get(name) is not None]
    return ", ".join(shown) or "finished"
