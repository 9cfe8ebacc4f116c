"""What the display writes: live lines on a terminal, few plain lines elsewhere, and nothing on standard output."""

import contextlib
import io
import re
import time
from typing import Any

import pytest
from rich.console import Console

from regard.cli import progress, training_display
from regard.cli.progress import ProgressDisplay, bar_line, duration
from regard.cli.training_display import TrainingDisplay
from regard.progress import Phase, listen_to_phases, phase

pytestmark = pytest.mark.usefixtures("fast")


class Terminal(io.StringIO):
    """A standard error that is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.getvalue())


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redraw and write lines sooner than for a person."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "_TICK", 0.01)
    monkeypatch.setattr(progress, "INTERVAL", 0.3)


def wait_for(text: str, stream: Any) -> None:
    """Wait until a text has been written."""
    for _ in range(500):
        if text in (stream.text if isinstance(stream, Terminal) else stream.getvalue()):
            return
        time.sleep(0.01)
    pytest.fail(f"{text!r} was not written: {stream.getvalue()!r}")


def test_current_phase_is_drawn_on_a_terminal_while_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        contextlib.redirect_stderr(Terminal()) as terminal,
        ProgressDisplay() as display,
        listen_to_phases(display),
        phase("Preparing"),
    ):
        with phase("Tokenizing", "pairs", 2000) as tokenizing:
            tokenizing.update(1200)
            wait_for("Preparing · Tokenizing", terminal)
            wait_for("1,200 of 2,000 pairs", terminal)
            print("a result")
        display.log("a message")
    assert capsys.readouterr().out == "a result\n"  # rich would send it to standard error
    assert "a message" in terminal.text


def test_plain_lines_are_written_for_long_phases_only() -> None:
    with (
        contextlib.redirect_stderr(io.StringIO()) as plain,
        ProgressDisplay(plain_lines=True) as display,
        listen_to_phases(display),
    ):
        display.first_line_after = 0.1
        with phase("Loading"):
            pass
        with phase("Preparing"), phase("Tokenizing", "pairs") as tokenizing:
            wait_for("Tokenizing …\n", plain)
            tokenizing.update(3456)
            wait_for("Tokenizing: 3,456 pairs", plain)
    lines = plain.getvalue().splitlines()
    assert (lines[0], lines[-1].partition(" in ")[0]) == ("Tokenizing …", "Tokenizing: done, 3,456 pairs")
    assert not any("Loading" in line or "Preparing" in line for line in lines)


def test_same_work_in_several_phases_has_one_line() -> None:
    with (
        contextlib.redirect_stderr(io.StringIO()) as plain,
        ProgressDisplay(plain_lines=True) as display,
        listen_to_phases(display),
    ):
        display.first_line_after = 0.0
        for name in ("Compiling", "Compiling", "Training"):
            with phase(name):
                time.sleep(0.05)
    assert plain.getvalue().splitlines() == ["Compiling …", "Training …"]


def test_without_plain_lines_nothing_is_written_to_a_file() -> None:
    with (
        contextlib.redirect_stderr(io.StringIO()) as plain,
        ProgressDisplay() as display,
        listen_to_phases(display),
        phase("Preparing"),
    ):
        time.sleep(0.05)
    assert plain.getvalue() == ""


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_training_bar_moves_with_every_step_and_begins_where_a_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_display, "time", clock := Clock())
    with contextlib.redirect_stderr(Terminal()) as terminal, TrainingDisplay(300, "target tokens") as display:
        display.on_train_begin(200, 5000)
        wait_for("step 200 of 300", terminal)
        for step in range(201, 204):
            clock.now += 0.5
            display.on_step(step, 5000 + 100 * (step - 200))
        wait_for("step 203 of 300", terminal)  # without any metrics: log_every does not matter
        wait_for("200 tokens/s  0:02  0:48 left", terminal)  # of this part of the run: 97 steps of 0.5 s are left
        validation = Phase("Validating")
        display.on_phase_begin(validation)
        clock.now += 30
        display.on_phase_end(validation)
        clock.now += 0.5
        display.on_step(204, 5400)
        wait_for("200 tokens/s  0:32", terminal)  # validation counts for the time, not for the speed
        display.on_train_metrics(204, {"loss": 2.5, "nll": 2.0, "tokens_per_second": 1.0})
        wait_for("loss 2.500  200 tokens/s", terminal)


def test_validation_has_its_phase_below_the_bar_and_a_line_above_it() -> None:
    with contextlib.redirect_stderr(Terminal()) as terminal, TrainingDisplay(8) as display, listen_to_phases(display):
        display.on_train_begin(0, 0)
        with phase("Validating"), phase("Translating", "sentences", 10):
            wait_for("Validating · Translating", terminal)
        display.on_validation_metrics(0, {"loss": 2.25, "nll": 1.75, "bleu": 12.345})
    assert "validation at step 0 (the initial model): loss 2.250  nll 1.750  bleu 12.35" in terminal.text


def test_plain_training_writes_a_line_per_logging() -> None:
    with contextlib.redirect_stderr(io.StringIO()) as plain, TrainingDisplay(4, "target tokens") as display:
        display.on_train_begin(0, 0)
        for step in range(1, 5):
            display.on_step(step, 10 * step)
            if step % 2 == 0:
                display.on_train_metrics(step, {"loss": 1.5, "tokens_per_second": 1234.0})
    first, last = plain.getvalue().splitlines()
    assert re.fullmatch(r"step 2 of 4  loss 1\.500  1,234 tokens/s  0:0\d left", first)
    assert last == "step 4 of 4  loss 1.500  1,234 tokens/s"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (3661, "1:01:01")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_narrow_terminal_shows_a_shorter_bar(capsys: pytest.CaptureFixture[str]) -> None:
    line = bar_line("Training  step 12,000 of 100,000", 12000, 100000, "loss 4.721  13,328 tokens/s  0:04  10:00 left")
    for width in (80, 90, 120):
        Console(width=width).print(line)
        assert re.search(r"^Training  step 12,000 of 100,000 .* 10:00 left *$", capsys.readouterr().out.rstrip("\n"))
