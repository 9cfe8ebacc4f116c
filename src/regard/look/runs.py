"""Training runs on disk, and the metrics that they log while they train.

A run is a folder with a recipe and a `metrics.jsonl`, one JSON object per logged step. Only complete lines are read,
because the run may still be writing the last one. A resumed run drops the lines after the step it resumes from, so a
reader that is ahead of the file starts again from its beginning.
"""

import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from regard.config import parse_json, parse_toml
from regard.errors import UserError
from regard.look.schema import RunMetrics, RunSummary

T = TypeVar("T")

METRICS, RECIPE, FINISHED = "metrics.jsonl", "recipe.toml", "run.json"
LIVE_SECONDS = 60.0
"""A run that has logged nothing for this long counts as stopped."""
MAX_DEPTH = 4
"""Levels of folders that are searched for runs."""
MAX_RUNS = 500
"""Runs that are listed."""
MAX_CONFIG_BYTES, MAX_METRICS_BYTES = 8 << 20, 256 << 20
"""Bytes of a recipe or a run's config, and of its metrics; larger files are not read."""
TAIL_BYTES = 1 << 16
"""Bytes at the end of the metrics in which the last step is looked for."""
MAX_STEP, MAX_NAME = 2**53, 200
"""The largest step, which is the largest integer of a browser, and the characters of a recipe's name."""


class RunNotFoundError(UserError):
    """There is no such run."""


def list_runs(folder: Path) -> list[RunSummary]:
    """The runs in a folder and its subfolders, the most recently logged first.

    A run with a damaged file is listed with its problem, so that one bad folder never hides the others.
    """
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
    if any(entry.name == METRICS and _is_file(entry) for entry in entries):
        yield folder
        return
    if depth:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _find_runs(Path(entry.path), depth - 1)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def _summary(path: Path, folder: Path) -> RunSummary:
    problems: list[str] = []
    recipe: dict[str, Any] = _read_checked(_read_recipe, path / RECIPE, {}, problems)
    _read_checked(_read_config, path / FINISHED, None, problems)
    step = _read_checked(_last_step, path / METRICS, 0, problems)
    train = recipe.get("train")
    steps = train.get("steps") if isinstance(train, dict) else None
    is_finished = _modified(path / FINISHED) >= _last_logged(path)  # a finished run that is extended logs again
    return RunSummary(
        id=_run_id(path, folder),
        folder=_printable(path),
        recipe=str(recipe.get("name") or _printable(path.name))[:MAX_NAME],
        steps=steps if type(steps) is int and 0 <= steps <= MAX_STEP else 0,
        step=step,
        live=not is_finished and time.time() - _last_logged(path) < LIVE_SECONDS,
        problem=" ".join(problems),
    )


def _read_checked(read: Callable[[Path], T], path: Path, default: T, problems: list[str]) -> T:
    """What `read` finds in a file; the default if the file is damaged, which is added to the problems."""
    try:
        return read(path)
    except UserError as error:
        problems.append(str(error))
    except ValueError:
        problems.append(f"{path.name} is damaged.")
    return default


def _read_recipe(path: Path) -> dict[str, Any]:
    return parse_toml(_read(path, MAX_CONFIG_BYTES).decode("utf-8"))


def _read_config(path: Path) -> None:
    """Only check that it can be read."""
    content = _read(path, MAX_CONFIG_BYTES)
    if os.path.isfile(path) and not isinstance(parse_json(content), dict):
        raise ValueError


def _last_step(path: Path) -> int:
    """The step of the last complete record. It is looked for at the end of the file first."""
    lines: list[bytes] = []
    for last in (TAIL_BYTES, None):
        *lines, _ = _read(path, MAX_METRICS_BYTES, last).split(b"\n")
        for line in reversed(lines):
            record = _parse_record(line)
            if record is not None:
                return int(record["step"] or 0)
    if any(lines):
        raise UserError(f"{path.name} is damaged: none of its {len(lines)} lines is a record.")
    return 0


def _printable(name: Path | str) -> str:
    """A path as text; what is not valid Unicode in it is replaced."""
    return os.fsencode(name).decode("utf-8", "replace")


def _run_id(path: Path, folder: Path) -> str:
    """An id of a run that can be part of a URL."""
    return hashlib.sha256(os.fsencode(path.relative_to(folder))).hexdigest()[:16]


def _last_logged(path: Path) -> float:
    """When a run last wrote metrics."""
    return _modified(path / METRICS)


def _modified(path: Path) -> float:
    """When a file was last modified; 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read(path: Path, max_bytes: int, last: int | None = None) -> bytes:
    """The content of a file or its `last` bytes; empty if there is none. Pipes are refused, which could block."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise UserError(f"{path.name} is not a file.")
        if state.st_size > max_bytes:
            raise UserError(f"{path.name} is too large: it has {state.st_size:,} bytes, and {max_bytes:,} are read.")
        with path.open("rb") as file:
            file.seek(0 if last is None else max(0, state.st_size - last))
            return file.read(max_bytes)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise UserError(f"{path.name} cannot be read ({error.strerror}).") from None


def _complete_lines(path: Path) -> list[bytes]:
    """The lines of a file that end with a newline."""
    *lines, _ = _read(path, MAX_METRICS_BYTES).split(b"\n")
    return lines


def _parse_record(line: bytes) -> dict[str, float | None] | None:
    """The numbers of a line, None for those that are not finite; None for a line that is not a record."""
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or type(values.get("step")) is not int or abs(values["step"]) > MAX_STEP:
        return None
    record: dict[str, float | None] = {}
    for name, value in values.items():
        if not _is_text(name) or isinstance(value, bool):
            continue
        if value is None or isinstance(value, int | float):
            record[name] = value if value is not None and abs(value) <= sys.float_info.max else None
    return record


def _is_text(name: str) -> bool:
    """Whether a string is valid Unicode: JSON can spell half of a character."""
    return not any("\ud800" <= sign <= "\udfff" for sign in name)
