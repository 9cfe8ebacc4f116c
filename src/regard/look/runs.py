"""Training runs on disk, and the metrics that they log while they train.

A run is a folder with a recipe and a `metrics.jsonl`, one JSON object per logged step. Only complete lines are read,
because the run may still be writing the last one. A resumed run drops the lines after the step it resumes from, so a
reader that is ahead of the file starts again from its beginning.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.config import parse_toml
from regard.errors import UserError
from regard.look.schema import RunMetrics, RunSummary

METRICS, RECIPE, FINISHED = "metrics.jsonl", "recipe.toml", "run.json"
LIVE_SECONDS = 60.0
"""A run that has logged nothing for this long counts as stopped."""
MAX_DEPTH = 4
"""Levels of folders that are searched for runs."""
MAX_RUNS = 500
"""Runs that are listed."""


class RunNotFoundError(UserError):
    """There is no such run."""


def list_runs(folder: Path) -> list[RunSummary]:
    """The runs in a folder and its subfolders, the most recently logged first."""
    paths = sorted(_find_runs(folder, MAX_DEPTH), key=lambda path: -_last_logged(path))[:MAX_RUNS]
    return [_summary(path, folder) for path in paths]


def read_run_metrics(folder: Path, run_id: str, after: int = 0) -> RunMetrics:
    """The records of a run from line `after` on; all of them, if it has fewer lines than that."""
    path = next((path for path in _find_runs(folder, MAX_DEPTH) if _run_id(path, folder) == run_id), None)
    if path is None:
        raise RunNotFoundError("There is no such run, or it was moved; reload the list.")
    lines = _complete_lines(path / METRICS)
    first = after if 0 <= after <= len(lines) else 0
    records = (_parse_record(line) for line in lines[first:])
    return RunMetrics(next_line=len(lines), records=[record for record in records if record is not None])


def _find_runs(folder: Path, depth: int) -> Iterator[Path]:
    """Folders that contain metrics. Runs are not searched for further runs, and links are not followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    if any(entry.name == METRICS and entry.is_file() for entry in entries):
        yield folder
        return
    if depth:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _find_runs(Path(entry.path), depth - 1)


def _summary(path: Path, folder: Path) -> RunSummary:
    recipe = _read_recipe(path)
    steps = recipe.get("train", {}).get("steps", 0) if isinstance(recipe.get("train"), dict) else 0
    finished = (path / FINISHED).is_file()
    return RunSummary(
        id=_run_id(path, folder),
        folder=str(path),
        recipe=str(recipe.get("name") or path.name),
        steps=steps if isinstance(steps, int) else 0,
        step=_last_step(path / METRICS),
        live=not finished and time.time() - _last_logged(path) < LIVE_SECONDS,
    )


def _run_id(path: Path, folder: Path) -> str:
    """An id of a run that can be part of a URL."""
    return hashlib.sha256(os.fsencode(path.relative_to(folder))).hexdigest()[:16]


def _last_logged(path: Path) -> float:
    """When a run last wrote metrics."""
    try:
        return (path / METRICS).stat().st_mtime
    except OSError:
        return 0.0


def _read_recipe(path: Path) -> dict[str, Any]:
    """The recipe of a run; empty if it cannot be read."""
    try:
        return parse_toml((path / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _complete_lines(path: Path) -> list[bytes]:
    """The lines of a file that end with a newline."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    *lines, _ = content.split(b"\n")
    return lines


def _parse_record(line: bytes) -> dict[str, float | None] | None:
    """The numbers of a line, None for those that are not finite; None for a line that is not a record."""
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or type(values.get("step")) is not int:
        return None
    record: dict[str, float | None] = {}
    for name, value in values.items():
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            record[name] = None
        elif isinstance(value, int | float) and not isinstance(value, bool):
            record[name] = value
    return record


def _last_step(path: Path) -> int:
    """The step of the last complete record."""
    for line in reversed(_complete_lines(path)):
        record = _parse_record(line)
        if record is not None:
            return int(record["step"] or 0)
    return 0
