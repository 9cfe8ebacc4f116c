"""The progress of a training run: a bar with speed and time left on a terminal, plain lines elsewhere."""

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from regard.cli.progress import INTERVAL, ProgressDisplay, bar_line, duration
from regard.progress import Phase
from regard.train.callback import Callback

if TYPE_CHECKING:
    from rich.console import RenderableType

_WINDOW = 10.0
"""Seconds over which the speed is averaged."""
_SAMPLE_EVERY = 0.25
_THREE_DIGITS = ("loss", "nll")


class TrainingDisplay(Callback):
    """Shows a training run on a display.

    The trainer gives the number of steps and tokens after each step, which costs nothing; the display reads them
    several times a second. The loss is that of the last logging, because reading it makes the CPU wait for the device.
    """

    def __init__(self, steps: int, counted: str = "words") -> None:
        """`counted`: the unit that the loss is averaged over."""
        self.display = ProgressDisplay(plain_lines=True)
        self.steps, self.counted = steps, counted.split()[-1]
        self._step = self._tokens = 0
        self._loss = ""
        self._pace: _Pace | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop drawing; the bar stays where it is."""
        self.display.close()

    def log(self, message: str) -> None:
        self.display.log(message)

    def on_phase_begin(self, phase: Phase) -> None:
        if self._pace is not None:
            self._pace.pause()
        self.display.on_phase_begin(phase)

    def on_phase_end(self, phase: Phase) -> None:
        self.display.on_phase_end(phase)
        if self._pace is not None:
            self._pace.go_on()

    def on_steps_known(self, steps: int) -> None:
        self.steps = steps

    def on_train_begin(self, step: int, tokens: int) -> None:
        self._step, self._tokens, self._pace = step, tokens, _Pace(step, tokens)
        self.display.header, self.display.first_line_after = self._render, INTERVAL
        self.display.start()

    def on_step(self, step: int, tokens: int) -> None:
        self._step, self._tokens = step, tokens
        if self._pace is not None:
            self._pace.add(step, tokens)

    def on_train_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._loss = f"loss {metrics['loss']:.3f}  "
        if not self.display.is_terminal:
            speed = f"{metrics['tokens_per_second']:,.0f} {self.counted}/s"
            self.log(f"step {step:,} of {self.steps:,}  {self._loss}{speed}{self._time_left()}")

    def on_validation_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        text = "  ".join(f"{name} {value:.{3 if name in _THREE_DIGITS else 2}f}" for name, value in metrics.items())
        self.log(f"validation at step {step:,}{'' if step else ' (the initial model)'}: {text}")

    def _render(self) -> "RenderableType":
        assert self._pace is not None
        speed = self._pace.tokens_per_second()
        words = "" if speed is None else f"{speed:,.0f} {self.counted}/s  "
        details = f"{self._loss}{words}{duration(self._pace.seconds())}{self._time_left()}"
        return bar_line(f"Training  step {self._step:,} of {self.steps:,}", self._step, self.steps, details)

    def _time_left(self) -> str:
        left = None if self._pace is None or self._step >= self.steps else self._pace.seconds_left(self.steps)
        return "" if left is None else f"  {duration(left)} left"


class _Pace:
    """The speed of a run since it began or was resumed."""

    def __init__(self, step: int, tokens: int) -> None:
        self._begin = time.monotonic()
        self._first: tuple[int, float] | None = None
        self._last = step
        self._samples = deque([(0.0, tokens)])  # seconds of training, and the tokens by then
        self._phases, self._paused, self._pause_begin = 0, 0.0, 0.0

    def pause(self) -> None:
        """Something else than training steps begins; it does not count for the speed."""
        if self._phases == 0:
            self._pause_begin = time.monotonic()
        self._phases += 1

    def go_on(self) -> None:
        self._phases = max(self._phases - 1, 0)
        if self._phases == 0:
            self._paused += time.monotonic() - self._pause_begin

    def add(self, step: int, tokens: int) -> None:
        """Take a step into account."""
        now = time.monotonic()
        self._last = step
        if self._first is None:  # not from the beginning: kernels are compiled in the first step
            self._first = step, now
        seconds = now - self._begin - self._paused
        if seconds - self._samples[-1][0] >= _SAMPLE_EVERY:
            self._samples.append((seconds, tokens))
            while self._samples[1][0] < seconds - _WINDOW:
                self._samples.popleft()

    def seconds(self) -> float:
        """How long the run has been going on, validation and saving included."""
        return time.monotonic() - self._begin

    def tokens_per_second(self) -> float | None:
        """The speed of the last seconds, without validation and saving."""
        (begin, before), (end, after) = self._samples[0], self._samples[-1]
        return (after - before) / (end - begin) if end > begin else None

    def seconds_left(self, steps: int) -> float | None:
        """The time left at the pace so far, validation and saving included; None if it is not known yet."""
        if self._first is None or self._last == self._first[0]:
            return None
        first, begin = self._first
        return (time.monotonic() - begin) / (self._last - first) * (steps - self._last)
