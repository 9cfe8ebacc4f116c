"""Progress of long operations on standard error: bars on a terminal, plain lines elsewhere."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rich import progress as bars
from rich.console import Console


@contextlib.contextmanager
def progress_bar(unit: str, total: int | None, *, visible: bool = True) -> Iterator[Callable[[int], None]]:
    """A progress bar, to be called with the number of items done; shown on a terminal only."""
    if not visible or not sys.stderr.isatty():
        yield lambda done: None
        return
    columns: tuple[Any, ...] = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(unit, total=total)
        yield lambda done: display.update(task, completed=done)


def offset_progress(progress: Callable[[int], None], offset: int, processes: int = 1) -> Callable[[int], None]:
    """A callback that adds `offset`, and assumes that all processes have made the same progress."""
    return lambda done: progress(offset + done * processes)


@contextlib.contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar per file on a terminal, a line per file elsewhere."""
    if not sys.stderr.isatty():
        started: set[str] = set()

        def print_line(file: str, done: int, total: int | None) -> None:
            if file not in started:
                started.add(file)
                size = "" if total is None else f" ({total:,} bytes)"
                print(f"Downloading {file}{size}", file=sys.stderr)

        yield print_line
        return

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as display:
        tasks: dict[str, bars.TaskID] = {}

        def update_bar(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = display.add_task(file, total=total)
            display.update(tasks[file], completed=done, total=total)

        yield update_bar
