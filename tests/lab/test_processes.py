"""Processes side by side: order, limits and interruption."""

import signal
import sys
import time
from pathlib import Path

import pytest

from regard.lab import processes
from regard.lab.processes import Finished, Running, run_processes


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def run(commands: dict[str, list[str]], logs: Path, **options: object) -> dict[str, Finished]:
    """How each command ended, in this order."""
    ended: dict[str, Finished] = {}
    run_processes(commands, logs, on_finish=lambda one: ended.update({one.key: one}), **options)  # type: ignore[arg-type]
    return ended


def test_a_command_waits_for_those_it_needs_even_if_they_fail(tmp_path: Path) -> None:
    commands = {"last": python("pass"), "first": python("import sys; print('no data'); sys.exit(2)")}
    ended = run(commands, tmp_path, parallel=2, needs={"last": ["first", "known before"]})
    assert list(ended) == ["first", "last"]
    assert ended["first"].problem() == "no data"
    assert ended["last"].problem() is None


def test_a_command_that_takes_too_long_is_stopped_and_the_others_go_on(tmp_path: Path) -> None:
    commands = {"slow": python("import time; time.sleep(60)"), "quick": python("pass")}
    ended = run(commands, tmp_path, parallel=1, max_seconds=1.0)
    assert ended["slow"].problem() == "it was stopped after 1 s, the longest that a run may take (max_minutes)"
    assert ended["quick"].problem() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_what_runs_is_reported_and_stopped_when_the_caller_is_interrupted(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_INTERVAL", 0.0)
    if number == signal.SIGINT:  # a background job of a shell ignores it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    seen: list[Running] = []
    saving = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved')); print('ready'"
    saving += ", flush=True); time.sleep(60)"

    def interrupt(running: list[Running]) -> None:
        (one,) = running
        seen[:] = running
        if "ready" in one.log.read_text(encoding="utf-8"):
            signal.raise_signal(number)

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_processes(
            {"one": python(saving)}, tmp_path, parallel=1, on_finish=lambda one: None, on_interval=interrupt
        )  # fmt: skip
    assert time.monotonic() - start < 30
    assert seen[0].process.returncode == 1
    assert "saved" in seen[0].log.read_text(encoding="utf-8")
