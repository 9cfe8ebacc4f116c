"""Run commands side by side, each in a process of its own with a log file, and follow them to their end.

A run that diverges, is killed or runs out of memory ends its own process and nothing else. When the caller is
interrupted, runs in progress are asked to save a checkpoint before they end.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_TICK = 0.2
_GRACE = 30.0
"""Seconds that a run has to save a checkpoint when it is stopped."""
_MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class Finished:
    """How a process has ended."""

    key: str
    code: int
    seconds: float
    log: Path

    def problem(self) -> str | None:
        """What went wrong, in words, without a full stop; None if nothing did."""
        if self.code == 0:
            return None
        if self.code < 0:
            name = signal.Signals(-self.code).name if -self.code in set(signal.Signals) else f"signal {-self.code}"
            hint = ", perhaps because memory ran out" if -self.code == signal.SIGKILL else ""
            return f"its process was killed by {name}{hint}"
        return _last_line(self.log).removeprefix("regard: ").rstrip(".")


@dataclass
class _Active:
    key: str
    process: subprocess.Popen[bytes]
    log: Path
    start: float = field(default_factory=time.monotonic)


def run_processes(
    commands: Mapping[str, list[str]], logs: Path, *, parallel: int, on_finish: Callable[[Finished], None]
) -> None:
    """Run all commands, at most `parallel` at a time, which share the CPU's cores; `on_finish` is told how each has
    ended."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // parallel))
    waiting, active = list(commands), list[_Active]()
    logs.mkdir(parents=True, exist_ok=True)
    try:
        while waiting or active:
            while waiting and len(active) < parallel:
                key = waiting.pop(0)
                active.append(_start(key, commands[key], logs / f"{key}.log", threads))
            time.sleep(_TICK)
            for one in [each for each in active if each.process.poll() is not None]:
                active.remove(one)
                on_finish(Finished(one.key, one.process.returncode, time.monotonic() - one.start, one.log))
    finally:
        _stop(active)


def _start(key: str, command: list[str], log: Path, threads: str) -> _Active:
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": threads},
            start_new_session=True,  # Ctrl-C is for the caller, which then stops its runs itself
        )
    return _Active(key, process, log)


def _stop(active: list[_Active]) -> None:
    """Ask runs in progress to save a checkpoint and end."""
    for one in active:
        one.process.terminate()
    deadline = time.monotonic() + _GRACE
    for one in active:
        try:
            one.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.process.kill()
            one.process.wait()


def _last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1][:_MESSAGE_CHARACTERS] if lines else "its process printed nothing"
