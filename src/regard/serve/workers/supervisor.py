"""The supervisor of several workers: it starts them, starts those again that die, and passes signals on.

All workers accept connections from one socket, which the supervisor holds as well. So connections that wait to be
accepted are not lost when a worker dies, and another takes them. The first worker is ready before the others are
started: a model that cannot be loaded is reported once, and kernels are compiled once.
"""

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.serve.listening import DRAIN_SECONDS, stop_connecting
from regard.serve.workers.member import READY, environment

FIRST_ATTEMPTS = 3
"""How often the first worker is started if it dies before it is ready."""
STABLE_SECONDS = 10.0
"""A worker that has been ready for so long is started again at once when it dies."""
_TICK = 0.1
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a worker is started again that died at once: the first time, and after many times."""
_KILL_SECONDS = 5.0
"""How much longer than the requests in progress a worker may take to end."""
_BAD_INPUT = 2
"""The exit code of a command that has told its user what is wrong."""


@dataclass(frozen=True)
class Plan:
    """What the workers run, and on what."""

    command: Sequence[str]
    devices: Sequence[str]
    """One per worker."""
    variables: dict[str, str]
    """Environment variables of all workers."""
    grace: float
    """Seconds that requests in progress have to finish when the server stops."""


@dataclass
class _Worker:
    """One place among the workers: its process, and when the next one may be started if that has ended."""

    number: int
    process: subprocess.Popen[bytes] | None = None
    control: socket.socket | None = None
    ready_since: float | None = None
    failures: int = 0
    """How often in a row it has died soon."""
    start_at: float = 0.0


@dataclass
class Supervisor:
    """Runs workers until it is told to stop."""

    plan: Plan
    listener: socket.socket
    on_ready: Callable[[], None]
    """Called once, when the first worker is ready."""
    on_exit: Callable[[int], None]
    """Called with the process id of each worker that has ended."""
    log: Callable[[str], None]
    _workers: list[_Worker] = field(default_factory=list)
    _signals: list[int] = field(default_factory=list)
    _announced: bool = False

    def run(self) -> int:
        """Run the workers; the exit code."""
        self._workers = [_Worker(number) for number in range(len(self.plan.devices))]
        with _signals_in(self._signals):
            try:
                code = self._supervise()
                return code if code is not None else self._stop()
            finally:
                for worker in self._workers:
                    if worker.process is not None:
                        worker.process.kill()
                        worker.process.wait()

    def _supervise(self) -> int | None:
        """Keep the workers running until a signal tells to stop. The exit code if none can be started."""
        while True:
            while self._signals:
                number = self._signals.pop(0)
                if number in (signal.SIGTERM, signal.SIGINT):
                    return None
                self._pass_on(number)
            now = time.monotonic()
            for worker in self._workers if self._announced else self._workers[:1]:
                if worker.process is None:
                    if now >= worker.start_at:
                        self._start(worker)
                elif worker.process.poll() is not None:
                    if (code := self._ended(worker)) is not None:
                        return code
                elif worker.ready_since is None and _is_ready(worker):
                    worker.ready_since = now
                    self._announce()
                elif worker.ready_since is not None and now - worker.ready_since > STABLE_SECONDS:
                    worker.failures = 0
            time.sleep(_TICK)

    def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            self.on_ready()

    def _start(self, worker: _Worker) -> None:
        control, theirs = socket.socketpair()
        control.setblocking(False)
        variables = environment(worker.number, self.listener, theirs, self.plan.devices[worker.number])
        with theirs:
            worker.process = subprocess.Popen(
                self.plan.command,
                stdin=subprocess.DEVNULL,
                env=os.environ | self.plan.variables | variables,
                pass_fds=(self.listener.fileno(), theirs.fileno()),
                start_new_session=True,  # Ctrl-C is for the supervisor, which tells the workers
            )
        worker.control, worker.ready_since = control, None

    def _ended(self, worker: _Worker) -> int | None:
        """Plan to start a worker again that has ended; an exit code if there is no hope."""
        assert worker.process is not None
        code = worker.process.returncode
        how = _describe(code)
        self._forget(worker)
        worker.failures += 1
        if not self._announced:
            if code == _BAD_INPUT:  # it has said what is wrong, and the next would say the same
                return _BAD_INPUT
            if worker.failures == FIRST_ATTEMPTS:
                self.log(f"No worker could be started: the first {how} before it was ready, {FIRST_ATTEMPTS} times.")
                return 1
        soon = worker.failures == 1 and self._announced
        pause = 0.0 if soon else min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(worker.failures - 1, 10))
        worker.start_at = time.monotonic() + pause
        again = "at once" if soon else f"in {pause:g} seconds"
        self.log(f"Worker {worker.number} {how}; it is started again {again}.")
        return None

    def _forget(self, worker: _Worker) -> None:
        assert worker.process is not None
        self.on_exit(worker.process.pid)
        if worker.control is not None:
            worker.control.close()
        worker.process, worker.control, worker.ready_since = None, None, None

    def _pass_on(self, number: int) -> None:
        """Send a signal to the workers that are ready. One that is starting reads the newest files anyway."""
        for worker in self._workers:
            if worker.process is not None and worker.ready_since is not None:
                worker.process.send_signal(number)

    def _stop(self) -> int:
        """Stop all workers, and wait for them; the exit code."""
        running = [worker for worker in self._workers if worker.process is not None]
        for worker in running:
            worker.process.terminate()  # type: ignore[union-attr]
        time.sleep(DRAIN_SECONDS)
        stop_connecting(self.listener)
        self.listener.close()  # the workers accept what waits, and the last of them closes the socket
        end, code = time.monotonic() + self.plan.grace + _KILL_SECONDS, 0
        while running:
            killed = time.monotonic() > end or signal.SIGINT in self._signals
            for worker in running:
                if killed and worker.process is not None:
                    worker.process.kill()
                    code = 1
            running = [worker for worker in running if not self._has_stopped(worker)]
            time.sleep(_TICK / 2)
        return code

    def _has_stopped(self, worker: _Worker) -> bool:
        if worker.process is not None and worker.process.poll() is not None:
            self._forget(worker)
        return worker.process is None


def _is_ready(worker: _Worker) -> bool:
    assert worker.control is not None
    try:
        return worker.control.recv(1) == READY
    except OSError:  # BlockingIOError: not yet
        return False


def _describe(code: int) -> str:
    """How a process has ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"


@contextlib.contextmanager
def _signals_in(received: list[int]) -> Iterator[None]:
    """Collect the signals that are for the supervisor in a list."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)]
    before: dict[Any, Any] = {number: signal.signal(number, lambda got, _: received.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
