"""The progress of a training run: a bar with speed and time left on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich import progress as bars
from rich.console import Console

from regard.train.trainer import Callback


class TrainingDisplay(Callback):
    """Shows the progress of a training run on standard error."""

    def __init__(self, steps: int, counted: str = "words") -> None:
        """`counted`: the unit that the loss is averaged over."""
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

    def log(self, message: str) -> None:
        if self._terminal:
            self._bar.console.print(message, markup=False, highlight=False)
        else:
            print(message, file=sys.stderr, flush=True)

    def on_train_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        left = self._time_left(step)
        text = f"loss {metrics['loss']:.3f}  {metrics['tokens_per_second']:,.0f} {self.counted}/s{left}"
        if self._terminal:
            self._bar.start()
            self._bar.update(self._task, completed=step, description=text)
        else:
            self.log(f"step {step:,} of {self.steps:,}  {text}")

    def on_validation_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        text = "  ".join(f"{name} {value:.2f}" for name, value in metrics.items())
        self.log(f"validation at step {step:,}: {text}")

    def _time_left(self, step: int) -> str:
        """Time left at the pace so far, validation and saving included."""
        now = time.monotonic()
        if self._first is None:
            self._first = step, now
            return ""
        first, start = self._first
        return f"  {_duration((now - start) / max(step - first, 1) * (self.steps - step))} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
