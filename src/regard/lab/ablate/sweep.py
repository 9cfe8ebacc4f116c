"""Run a sweep: a recipe and its variations, with several seeds, each run in a process of its own.

    OUT/recipe.toml, OUT/sweep.json, OUT/recipes/    the plan (`plan.py`)
    OUT/runs/KEY/                                    the run folder of each run
    OUT/logs/KEY.log                                 what it printed
    OUT/failures/KEY.json                            what went wrong, if it did
    OUT/measured/KEY.json                            what was measured on it after training
    OUT/report.html, OUT/report.md

An interrupted sweep goes on where it was: runs that were measured are not repeated, and others continue from their last
checkpoint. Of runs that failed, those that would fail again in the same way (a loss that diverged) are left alone, and
all others are tried again.
"""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.config import parse_json
from regard.files import write_text
from regard.lab.ablate.plan import Sweep, failure_path, run_key
from regard.lab.ablate.worker import DIVERGED
from regard.lab.processes import Finished, minutes, run_all
from regard.run.lock import lock_run

Log = Callable[[str], None]


def run_sweep(sweep: Sweep, *, device: str = "auto", parallel: int = 1, log: Log = lambda message: None) -> None:
    """Train and measure every run that has not been. A run that fails is reported, and the others go on.

    A folder is used by one sweep at a time.
    """
    with lock_run(sweep.out, log):
        runs = [(plan.name, seed) for seed in range(1, sweep.seeds + 1) for plan in sweep.planned]
        waiting = [run_key(name, seed) for name, seed in runs if not _is_done(sweep, name, seed)]
        run_all(
            "Training",
            {
                key: [sys.executable, "-m", "regard.lab.ablate.worker", str(sweep.out.absolute()), key, device]
                for key in waiting
            },
            len(runs),
            sweep.out / "logs",
            parallel=parallel,
            record=lambda finished: f"{finished.key}: {_record(sweep.out, finished)} in {minutes(finished.seconds)}",
            describe=lambda one: f"{one.key} ({minutes(one.seconds)})",
            log=log,
        )


def _is_done(sweep: Sweep, name: str, seed: int) -> bool:
    """Whether a run needs no more work; what is known of a failure that may not happen again is forgotten."""
    if sweep.measured(name, seed).is_file():
        return True
    path = failure_path(sweep.out, run_key(name, seed))
    if path.is_file() and parse_json(path.read_text(encoding="utf-8"))["diverged"]:
        return True
    path.unlink(missing_ok=True)
    return False


def _record(out: Path, finished: Finished) -> str:
    """Note how a run has ended; gives it in words."""
    problem = finished.problem()
    if problem is not None:
        path = failure_path(out, finished.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"problem": problem, "diverged": finished.code == DIVERGED}) + "\n")
        return f"failed ({problem})"
    found = parse_json((out / "measured" / f"{finished.key}.json").read_text(encoding="utf-8"))
    shown = [] if found["valid_nll"] is None else [f"PPL {math.exp(min(found['valid_nll'], 99)):.2f}"]
    scores: dict[str, Any] = next(iter(found["scores"].values()), {})
    names = {"bleu": "BLEU", "bits_per_byte": "bits per byte"}
    shown += [f"{label} {scores[name]:.2f}" for name, label in names.items() if scores.get(name) is not None]
    return ", ".join(shown) or "finished"
