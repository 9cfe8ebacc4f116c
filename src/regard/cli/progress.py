"""What long work shows: a bar with rate and time left on a terminal, plain lines elsewhere; on standard error."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from rich import progress as bars
from rich.console import Console


class TrainingDisplay:
    """Follows a training run: a `Listener` of the loop."""

    def __init__(self, steps: int, counted: str = "words") -> None:
        """`counted`: what the loss is a mean over."""
        self.steps, self.counted = steps, counted.split()[-1]
        self._first: tuple[int, float] | None = None
        self._terminal = sys.stderr.isatty()
        self._bar = bars.Progress(
            bars.TextColumn("step {task.completed:,} of {task.total:,}"),
            bars.BarColumn(),
            bars.TextColumn("{task.description}", markup=False),
            console=Console(stderr=True),
            disable=not self._terminal,
        )
        self._task = self._bar.add_task("", total=steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, sentence: str) -> None:
        if self._terminal:
            self._bar.console.print(sentence, markup=False, highlight=False)
        else:
            print(sentence, file=sys.stderr, flush=True)

    def stepped(self, step: int, values: Mapping[str, float]) -> None:
        left = self._left(step)
        facts = f"loss {values['loss']:.3f}  {values['words_per_second']:,.0f} {self.counted}/s{left}"
        if self._terminal:
            self._bar.start()
            self._bar.update(self._task, completed=step, description=facts)
        else:
            self.say(f"step {step:,} of {self.steps:,}  {facts}")

    def validated(self, step: int, values: Mapping[str, float]) -> None:
        facts = "  ".join(f"{name} {value:.2f}" for name, value in values.items())
        self.say(f"validation at step {step:,}: {facts}")

    def _left(self, step: int) -> str:
        """Time left at the pace so far, validation and saving included."""
        now = time.monotonic()
        if self._first is None:
            self._first = step, now
            return ""
        first, began = self._first
        return f"  {_duration((now - began) / max(step - first, 1) * (self.steps - step))} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextlib.contextmanager
def counting(what: str, total: int | None, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar over things that are counted; nothing elsewhere than on a terminal, or if it is not to be `shown`."""
    if not shown or not sys.stderr.isatty():
        yield lambda done: None
        return
    columns: tuple[Any, ...] = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        task = display.add_task(what, total=total)
        yield lambda done: display.update(task, completed=done)


def further(progress: Callable[[int], None], before: int, processes: int = 1) -> Callable[[int], None]:
    """Counts on from what was done before; of several processes, the others are taken to be as far."""
    return lambda done: progress(before + done * processes)


@contextlib.contextmanager
def download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each file on a terminal, a line for each elsewhere; both on standard error."""
    if not sys.stderr.isatty():
        seen: set[str] = set()

        def line(file: str, done: int, total: int | None) -> None:
            if file not in seen:
                seen.add(file)
                size = "" if total is None else f" ({total:,} bytes)"
                print(f"downloading {file}{size}", file=sys.stderr)

        yield line
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

        def bar(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = display.add_task(file, total=total)
            display.update(tasks[file], completed=done, total=total)

        yield bar
