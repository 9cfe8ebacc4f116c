"""Run commands side by side, each in a process of its own with a log file, and follow them to their end.

A run that diverges, is killed or runs out of memory ends its own process and nothing else. When the caller is
interrupted, runs in progress are asked to save a checkpoint before they end.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from regard.progress import phase

_TICK = 0.2
_INTERVAL = 30.0
"""Seconds between two reports about processes in progress."""
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
    limit: float | None = None
    """The seconds after which it was stopped; None if it ended by itself."""

    def problem(self) -> str | None:
        """What went wrong, in words, without a full stop; None if nothing did."""
        if self.limit is not None:
            return f"it was stopped after {minutes(self.limit)}, the longest that a run may take (max_minutes)"
        if self.code == 0:
            return None
        if self.code < 0:
            name = signal.Signals(-self.code).name if -self.code in set(signal.Signals) else f"signal {-self.code}"
            hint = ", perhaps because memory ran out" if -self.code == signal.SIGKILL else ""
            return f"its process was killed by {name}{hint}"
        return _last_line(self.log).removeprefix("regard: ").rstrip(".")


@dataclass
class Running:
    """A process in progress."""

    key: str
    process: subprocess.Popen[bytes]
    log: Path
    start: float = field(default_factory=time.monotonic)
    timed_out: bool = False

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start


def run_all(
    name: str,
    commands: Mapping[str, list[str]],
    total: int,
    logs: Path,
    *,
    parallel: int,
    record: Callable[[Finished], str],
    describe: Callable[[Running], str],
    log: Callable[[str], None],
    needs: Mapping[str, Collection[str]] | None = None,
    max_seconds: float | None = None,
) -> None:
    """Run the commands that are left of `total`, and log how each has ended and how long the others will take.

    `name` is what the display calls this work; `record` notes how a command has ended, and gives it in words without a
    full stop; `describe` gives one in progress. The rest is as in `run_processes`.
    """
    done, seconds = total - len(commands), list[float]()
    if done:
        log(f"{done} of {total} runs are done already.")
    with phase(name, "runs", total) as progress:
        progress.update(done)

        def on_finish(finished: Finished) -> None:
            seconds.append(finished.seconds)
            progress.update(done + len(seconds))
            left = (len(commands) - len(seconds)) * sum(seconds) / len(seconds) / parallel
            shown = f"; about {minutes(left)} left" if left else ""
            log(f"{done + len(seconds)} of {total}: {record(finished)}{shown}.")

        def on_interval(running: Sequence[Running]) -> None:
            log(f"Running: {', '.join(map(describe, running))}.")

        run_processes(
            commands,
            logs,
            parallel=parallel,
            on_finish=on_finish,
            on_interval=on_interval,
            needs=needs,
            max_seconds=max_seconds,
        )


def run_processes(
    commands: Mapping[str, list[str]],
    logs: Path,
    *,
    parallel: int,
    on_finish: Callable[[Finished], None],
    on_interval: Callable[[Sequence[Running]], None] = lambda running: None,
    needs: Mapping[str, Collection[str]] | None = None,
    max_seconds: float | None = None,
) -> None:
    """Run all commands, at most `parallel` at a time, which share the CPU's cores.

    `on_finish` is told how each has ended, `on_interval` every half minute which are in progress. A command starts
    after all commands that it needs have ended, however they ended. One that takes longer than `max_seconds` is killed.
    """
    side_by_side = max(1, min(parallel, len(commands)))
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // side_by_side))
    waiting, active, reported = list(commands), list[Running](), time.monotonic()
    logs.mkdir(parents=True, exist_ok=True)
    with _interrupted_by_sigterm(), contextlib.ExitStack() as stack:
        stack.callback(_stop, active)
        while waiting or active:
            unfinished = {*waiting, *(one.key for one in active)}
            ready = [key for key in waiting if unfinished.isdisjoint((needs or {}).get(key, ()))]
            for key in ready[: parallel - len(active)]:
                waiting.remove(key)
                active.append(_start(key, commands[key], logs / f"{key}.log", threads))
            time.sleep(_TICK)
            for one in [each for each in active if each.process.poll() is not None]:
                active.remove(one)
                limit = max_seconds if one.timed_out else None
                on_finish(Finished(one.key, one.process.returncode, one.seconds, one.log, limit))
            for one in active:
                if max_seconds is not None and one.seconds > max_seconds and not one.timed_out:
                    one.timed_out = True
                    one.process.kill()
            if active and time.monotonic() - reported > _INTERVAL:
                on_interval(active)
                reported = time.monotonic()


def minutes(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM interrupt the caller as Ctrl-C does: otherwise its processes would go on without it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start(key: str, command: list[str], log: Path, threads: str) -> Running:
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": threads},
            start_new_session=True,  # Ctrl-C is for the caller, which then stops its runs itself
        )
    return Running(key, process, log)


def _stop(active: Sequence[Running]) -> None:
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
