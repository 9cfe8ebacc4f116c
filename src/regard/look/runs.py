"""Runs on disk, and what they write down about themselves while they train.

A run is a folder with a recipe and a `metrics.jsonl`, a line of numbers for each step that was logged. A line is read
only when it is whole: the last one may still be under way. A run that is resumed forgets the lines behind the step it
goes on from, so whoever has read further than there are lines begins anew.
"""

import hashlib
import json
import math
import os
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.errors import UserError
from regard.look.wire import RunLines, RunSummary

METRICS, RECIPE, FINISHED = "metrics.jsonl", "recipe.toml", "run.json"
LIVE = 60.0
"""Seconds after which a run that has written nothing counts as stopped."""
DEEPEST = 4
"""Levels of folders that are searched for runs."""
MOST = 500
"""Runs that are listed."""


class UnknownRunError(UserError):
    """There is no such run."""


def runs_in(folder: Path) -> list[RunSummary]:
    """The runs in a folder and the folders within, those that wrote last first."""
    found = sorted(_folders(folder, DEEPEST), key=lambda one: -_written(one))[:MOST]
    return [_summary(one, folder) for one in found]


def run_lines(folder: Path, number: str, after: int = 0) -> RunLines:
    """The lines of a run from number `after` on; all of them, if it has fewer than that."""
    place = next((one for one in _folders(folder, DEEPEST) if _id(one, folder) == number), None)
    if place is None:
        raise UnknownRunError("There is no such run, or it was moved; look at the list again.")
    lines = _lines(place / METRICS)
    first = after if 0 <= after <= len(lines) else 0
    found = (_numbers(line) for line in lines[first:])
    return RunLines(next=len(lines), lines=[one for one in found if one is not None])


def _folders(folder: Path, levels: int) -> Iterator[Path]:
    """Folders with metrics in them; nothing is searched inside of a run, and no link is followed."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    if any(entry.name == METRICS and entry.is_file() for entry in entries):
        yield folder
        return
    if levels:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _folders(Path(entry.path), levels - 1)


def _summary(place: Path, folder: Path) -> RunSummary:
    recipe = _recipe(place)
    steps = recipe.get("train", {}).get("steps", 0) if isinstance(recipe.get("train"), dict) else 0
    over = (place / FINISHED).is_file()
    return RunSummary(
        id=_id(place, folder),
        folder=str(place),
        recipe=str(recipe.get("name") or place.name),
        steps=steps if isinstance(steps, int) else 0,
        step=_last_step(place / METRICS),
        live=not over and time.time() - _written(place) < LIVE,
    )


def _id(place: Path, folder: Path) -> str:
    """A name for a run that an address can hold."""
    return hashlib.sha256(os.fsencode(place.relative_to(folder))).hexdigest()[:16]


def _written(place: Path) -> float:
    """When a run last wrote a line."""
    try:
        return (place / METRICS).stat().st_mtime
    except OSError:
        return 0.0


def _recipe(place: Path) -> dict[str, Any]:
    """What the recipe of a run says; nothing where it cannot be read."""
    try:
        return tomllib.loads((place / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _lines(path: Path) -> list[bytes]:
    """All lines that are whole."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    *lines, _ = content.split(b"\n")
    return lines


def _numbers(line: bytes) -> dict[str, float | None] | None:
    """The numbers of a line, null where one ran away; None for a line that is none."""
    try:
        values: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or type(values.get("step")) is not int:
        return None
    found: dict[str, float | None] = {}
    for name, value in values.items():
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            found[name] = None
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = value
    return found


def _last_step(path: Path) -> int:
    """The step of the last line that is whole."""
    for line in reversed(_lines(path)):
        numbers = _numbers(line)
        if numbers is not None:
            return int(numbers["step"] or 0)
    return 0
