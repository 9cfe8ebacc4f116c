"""Progress and messages on standard error: live lines on a terminal, plain lines elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from regard.progress import Phase, phase

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

INTERVAL = 15.0
"""Seconds between two plain lines about the same phase."""
_FIRST_LINE_AFTER = 2.0
"""Seconds until a phase gets its first plain line: shorter ones get none."""
_TICK = 0.25


class ProgressDisplay:
    """Shows phases (`regard.progress`), and messages above them.

    On a terminal the current phase is a line that is redrawn several times a second and disappears with it. Elsewhere,
    with `plain_lines`, a phase that takes long gets a line after it has begun, more now and then, and one at its end.
    """

    def __init__(self, *, plain_lines: bool = False) -> None:
        self.is_terminal = _is_terminal()
        self.header: Callable[[], RenderableType] | None = None
        """Drawn above the current phase on a terminal, and left there in the end: the bar of a training run."""
        self.first_line_after = _FIRST_LINE_AFTER
        self._phases: list[Phase] = []
        self._written: dict[Phase, list[float]] = {}
        """When lines were written about a phase, or about one that began within it."""
        self._plain_lines = plain_lines and not self.is_terminal
        self._last_line = ""
        self._live: Live | None = None
        self._ticker: _Ticker | None = None
        self._lock = threading.RLock()  # a server answers requests on several threads

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def on_phase_begin(self, phase: Phase) -> None:
        self._phases.append(phase)
        self.start()

    def on_phase_end(self, phase: Phase) -> None:
        if phase in self._phases:
            self._phases.remove(phase)
        if len(self._written.pop(phase, [])) > 1:
            count = f"{_count(phase)} in " if phase.done > 1 else ""
            self.log(f"{phase.name}: done, {count}{duration(phase.seconds)}.")
        if not self._phases and self.header is None:
            self.close()  # and leave the terminal to whatever prints next

    def start(self) -> None:
        """Begin to draw, or to write lines; done by the first phase."""
        with self._lock:
            if self.is_terminal and self._live is None:
                self._live = _start_live(self._render)
            elif self._plain_lines and self._ticker is None:
                self._ticker = _Ticker(self._write_lines)

    def close(self) -> None:
        """Stop drawing. The next phase begins again."""
        with self._lock:
            if self._live is not None:
                self._live.transient = self.header is None
                self._live.stop()
                self._live = None
            if self._ticker is not None:
                self._ticker.stop()
                self._ticker = None

    def log(self, message: str) -> None:
        """Print a message."""
        if self._live is not None:
            self._live.console.print(message, markup=False, highlight=False, soft_wrap=True)
        else:
            print(message, file=sys.stderr, flush=True)

    def _render(self) -> "RenderableType":
        from rich.console import Group

        lines = [] if self.header is None else [self.header()]
        if phases := self._phases[-2:]:
            lines.append(_phase_line(" · ".join(one.name for one in phases), phases[-1]))
        return Group(*lines)

    def _write_lines(self) -> None:
        """Write a line about the current phase if it is due."""
        phases = list(self._phases)
        for current in phases[-1:]:
            written = self._written.get(current)
            if written is None and current.seconds >= self.first_line_after:
                if current.name != self._last_line:  # the same work in several phases, such as compiling kernels
                    self.log(f"{current.name} …")
                self._last_line = current.name
                for one in phases:
                    self._written.setdefault(one, [time.monotonic()])
            elif written is not None and time.monotonic() - written[-1] >= INTERVAL:
                self.log(f"{current.name}: {_details(current)}")
                written.append(time.monotonic())


def duration(seconds: float) -> str:
    """Minutes and seconds, after hours if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def bar_line(name: str, done: int, total: int, details: str) -> "RenderableType":
    """A line with a progress bar."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_column(max_width=24)  # the first to shrink on a narrow terminal
    grid.add_column(no_wrap=True, overflow="ellipsis")
    grid.add_row(Text(name), ProgressBar(total=max(total, 1), completed=done), Text(details))
    return grid


@contextlib.contextmanager
def progress_bar(name: str, unit: str, total: int | None, *, visible: bool = True) -> Iterator[Callable[[int], None]]:
    """A phase, to be called with the number of items done."""
    if not visible:
        yield lambda done: None
        return
    with phase(name, unit, total) as current:
        yield current.update


def offset_progress(progress: Callable[[int], None], offset: int, processes: int = 1) -> Callable[[int], None]:
    """A callback that adds `offset`, and assumes that all processes have made the same progress."""
    return lambda done: progress(offset + done * processes)


@contextlib.contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A line per file; on a terminal nothing, because a download is a phase, which is shown there."""
    started: set[str] = set()

    def print_line(file: str, done: int, total: int | None) -> None:
        if file not in started and not _is_terminal():
            started.add(file)
            size = "" if total is None else f" ({total:,} bytes)"
            print(f"Downloading {file}{size}", file=sys.stderr)

    yield print_line


class _Ticker:
    """Calls a function every now and then, on a thread of its own."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call, self._stopped = call, threading.Event()
        self._thread = threading.Thread(target=self._run, name="regard-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_TICK):
            self._call()


def _is_terminal() -> bool:
    """Whether standard error is a terminal on which lines can be redrawn."""
    if not sys.stderr.isatty():
        return False
    from rich.console import Console

    return not Console(stderr=True).is_dumb_terminal


def _start_live(render: "Callable[[], RenderableType]") -> "Live":
    from rich.console import Console
    from rich.live import Live

    live = Live(
        console=Console(stderr=True),
        get_renderable=render,
        refresh_per_second=1 / _TICK,
        # Otherwise rich would send standard output to the console, which is standard error.
        redirect_stdout=bool(sys.stdout is not None and sys.stdout.isatty()),
    )
    live.start()
    return live


def _phase_line(name: str, current: Phase) -> "RenderableType":
    from rich.text import Text

    if current.total:
        return bar_line(name, current.done, current.total, _details(current))
    return Text(f"{name}  {_details(current)}", no_wrap=True, overflow="ellipsis")


def _details(current: Phase) -> str:
    """How much is done, how fast, since when, and the time left where it can be known."""
    seconds = current.seconds
    parts: list[Any] = []
    if current.done > 1:
        parts.append(_count(current))
        if seconds >= 1:
            speed, is_bytes = current.done / seconds, current.unit == "bytes"
            parts.append(f"{speed / 1e6:,.1f} MB/s" if is_bytes else f"{speed:,.{0 if speed >= 10 else 1}f}/s")
    parts.append(duration(seconds))
    if current.total and current.done and seconds >= 1:
        parts.append(f"{duration(seconds / current.done * max(current.total - current.done, 0))} left")
    return "  ".join(parts)


def _count(current: Phase) -> str:
    if current.unit == "bytes":
        of = f" of {current.total / 1e6:,.1f}" if current.total else ""
        return f"{current.done / 1e6:,.1f}{of} MB"
    of = f" of {current.total:,}" if current.total else ""
    return f"{current.done:,}{of} {current.unit}"
