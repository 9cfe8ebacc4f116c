"""CPU threads: how many there may be, and how they wait for each other.

PyTorch, its libraries and our kernels divide an operation among the threads of one OpenMP library, and the threads that
finish first wait for the others. In GCC's library (libgomp) they spin for some milliseconds before they sleep, because
waking up takes as long as a short operation. That is fastest while every thread has a core to itself. As soon as
another process needs one, spinning threads use up the time of the thread that they wait for, and training slows down to
a twentieth.

libgomp hardly spins while it has more threads than there are cores (see GOMP_SPINCOUNT in its manual). So while threads
of this process have to wait for a core, which Linux counts, a monitor adds idle threads to libgomp's. The number of
threads that compute stays the same, and with it every bit of the results. There is no monitor on other systems, with
another OpenMP library, and if OMP_WAIT_POLICY or GOMP_SPINCOUNT says how threads are to wait.
"""

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import torch

from regard.errors import UserError

_MIN_LIMIT, _LIMIT_PER_CORE = 64, 4
"""How many threads there may be: so many on any machine, and on large ones so many per core."""
_INTERVAL = 0.25
"""Seconds between two looks at the threads."""
_BUSY, _FREE = 0.15, 0.08
"""The fraction of its time that a thread waits for a core: from which on cores are busy, and up to which they are free.
A process that competes for one core causes about 0.5, an idle machine 0.01."""
_FREE_INTERVALS, _REPORT_INTERVALS = 4, 8
"""After how many free intervals threads spin again, and after how many without spinning that is reported."""
_MIN_RUN = 0.02
"""The fraction of its time that a thread must run to count: one that sleeps most of the time, such as the monitor,
waits for a core whenever all of them compute, which slows nothing down."""
_IDLE, _IDLE_INTERVALS = 0.1, 3
"""A process that uses less than this fraction of a core is idle, and is then left alone for so many more intervals."""
_MESSAGE = (
    "Other processes are using the CPU cores: threads now sleep instead of spinning while they wait for each other. "
    "Results stay the same."
)
_TASKS = Path("/proc/self/task")

Log = Callable[[str], None]
GompParallel = Callable[[int | None, int | None, int, int], None]


def check_threads(threads: int, source: str = "threads") -> int:
    """The number of threads, or an error if it is absurd: thousands of threads have no stack and crash the process.

    `source` is the option, argument or environment variable that it comes from.
    """
    cores = os.cpu_count() or 1
    limit = max(_MIN_LIMIT, _LIMIT_PER_CORE * cores)
    if not 1 <= threads <= limit:
        raise UserError(f"{source}: must be between 1 and {limit} on this machine with {cores} cores; found {threads}.")
    return threads


def watch_cores() -> None:
    """From now on, threads of this process do not spin while other processes use their cores."""
    monitor = _monitor()
    if monitor is not None and 1 < torch.get_num_threads() <= _cores():  # more threads than cores never spin
        monitor.start()


@contextlib.contextmanager
def report_busy_cores(log: Log) -> Iterator[None]:
    """`watch_cores`, and if cores are busy during the block, `log` gets one message, from another thread."""
    watch_cores()
    monitor = _monitor()
    with contextlib.nullcontext() if monitor is None else monitor.reporting_to(log):
        yield


@cache
def gomp_parallel() -> GompParallel | None:
    """OpenMP's function that runs a function on several threads, as GCC calls it, in the library that PyTorch uses."""
    try:
        function = ctypes.CDLL(torch._C.__file__).GOMP_parallel
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None
    return cast(GompParallel, function)


class ThreadTimes(NamedTuple):
    """Nanoseconds that a thread has run, and that it has waited for a core while it could have run."""

    running: int
    waiting: int


class Monitor:
    """Measures, on a thread of its own, how long threads of this process wait for a core, and adds idle threads."""

    def __init__(self, times: Callable[[], dict[str, ThreadTimes]]) -> None:
        """times: those of every thread of this process so far"""
        self.idle_threads: IdleThreads | None = None
        self._times = times
        self._free = self._yielding = 0
        self._logs: list[Log] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the thread, unless it is running; it is not in a process that was forked."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="regard-cores", daemon=True)
                self._thread.start()

    @contextlib.contextmanager
    def reporting_to(self, log: Log) -> Iterator[None]:
        with self._lock:
            self._logs.append(log)
        try:
            yield
        finally:
            with self._lock:
                if log in self._logs:
                    self._logs.remove(log)

    def observe(self, fraction: float) -> None:
        """Take into account which fraction of an interval a thread has waited for a core, the longest-waiting one."""
        self._free = self._free + 1 if fraction < _FREE else 0
        busy = fraction > _BUSY or (self._free < _FREE_INTERVALS and self.idle_threads is not None)
        self._set_idle_threads(busy)
        self._yielding = self._yielding + 1 if busy else 0
        if self._yielding >= _REPORT_INTERVALS:
            self._report()

    def _run(self) -> None:
        before, then = self._times(), time.monotonic()
        while True:
            used = time.process_time()
            time.sleep(_INTERVAL)
            if time.process_time() - used < _IDLE * _INTERVAL:
                time.sleep(_IDLE_INTERVALS * _INTERVAL)
            times, now = self._times(), time.monotonic()
            self.observe(_longest_wait(before, times) / 1e9 / (now - then))
            before, then = times, now

    def _set_idle_threads(self, wanted: bool) -> None:
        if wanted and self.idle_threads is None:
            with contextlib.suppress(RuntimeError):  # the system allows no more threads
                self.idle_threads = IdleThreads(_cores())
        elif not wanted and self.idle_threads is not None:
            self.idle_threads.end()
            self.idle_threads = None

    def _report(self) -> None:
        with self._lock:
            while self._logs:
                self._logs.pop()(_MESSAGE)


class IdleThreads:
    """Threads of libgomp's that sleep, so many that it has more threads than there are cores."""

    def __init__(self, count: int) -> None:
        self._started, self._end = threading.Event(), threading.Event()
        # The threads of a team belong to the thread that started it, and end with it.
        self._owner = threading.Thread(target=self._run, args=(count,), name="regard-idle", daemon=True)
        self._owner.start()
        self._started.wait()

    def end(self) -> None:
        self._end.set()
        self._owner.join()

    def _run(self, count: int) -> None:
        parallel = gomp_parallel()
        assert parallel is not None
        do_nothing = ctypes.cast(ctypes.CDLL(torch._C.__file__).omp_get_thread_num, ctypes.c_void_p)
        parallel(do_nothing.value, None, count + 1, 0)
        self._started.set()
        self._end.wait()


@cache
def _monitor() -> Monitor | None:
    """The monitor of this process; None if there is nothing to measure or to change."""
    if {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        return None
    try:
        is_supported = bool(thread_times()) and "libgomp" in Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return None
    return Monitor(thread_times) if is_supported and gomp_parallel() is not None else None


def thread_times() -> dict[str, ThreadTimes]:
    """The times of every thread of this process."""
    times = {}
    for thread in os.listdir(_TASKS):
        with contextlib.suppress(OSError, ValueError):  # it may have ended
            running, waiting, _ = map(int, (_TASKS / thread / "schedstat").read_bytes().split())
            times[thread] = ThreadTimes(running, waiting)
    return times


def _longest_wait(before: dict[str, ThreadTimes], after: dict[str, ThreadTimes]) -> int:
    """The nanoseconds that a thread has waited for a core, of those that compute the longest-waiting one."""
    longest = 0
    for thread, (running, waiting) in after.items():
        if thread in before:
            ran, waited = running - before[thread].running, waiting - before[thread].waiting
            longest = max(longest, waited if ran >= _MIN_RUN * (ran + waited) else 0)
    return longest


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
