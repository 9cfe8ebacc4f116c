"""Threads wait for each other without spinning while other processes use their cores."""

import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from regard.errors import UserError
from regard.kernels.cpu import threads
from regard.kernels.cpu.threads import Monitor, ThreadTimes, check_threads, report_busy_cores, thread_times, watch_cores

needs_libgomp = pytest.mark.skipif(
    sys.platform != "linux" or threads.gomp_parallel() is None, reason="needs Linux and GCC's OpenMP"
)


class FakeIdleThreads:
    """Counts in place of starting threads."""

    running = 0

    def __init__(self, count: int) -> None:
        FakeIdleThreads.running += 1

    def end(self) -> None:
        FakeIdleThreads.running -= 1


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Monitor]:
    """The monitor of this process, which observes what a test says."""
    monitor = Monitor(dict)
    monkeypatch.setattr(threads, "IdleThreads", FakeIdleThreads)
    monkeypatch.setattr(threads, "_monitor", lambda: monitor)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    yield monitor
    FakeIdleThreads.running = 0


def observe(monitor: Monitor, *fractions: float) -> list[int]:
    """Whether there are idle threads after each interval."""
    running = []
    for fraction in fractions:
        monitor.observe(fraction)
        running.append(FakeIdleThreads.running)
    return running


def test_threads_yield_while_cores_are_busy(monitor: Monitor) -> None:
    assert observe(monitor, 0.01, 0.02, 0.5, 0.4) == [0, 0, 1, 1]
    assert observe(monitor, 0.01, 0.01, 0.01, 0.01, 0.01) == [1, 1, 1, 0, 0]
    assert observe(monitor, 0.6) == [1]


def test_between_the_thresholds_nothing_changes(monitor: Monitor) -> None:
    assert observe(monitor, *[0.12] * 9) == [0] * 9
    assert observe(monitor, 0.5, *[0.12] * 9, *[0.01, 0.01, 0.12] * 3) == [1] * 19


def test_busy_cores_are_reported_once(monitor: Monitor) -> None:
    messages: list[str] = []
    with report_busy_cores(messages.append):
        observe(monitor, 0.5, *[0.01] * 9)
        assert not messages, "a moment is not worth a message"
        observe(monitor, *[0.5] * 20, *[0.01] * 9, *[0.5] * 20)
    assert len(messages) == 1
    assert "Other processes" in messages[0]


def test_nothing_is_reported_on_an_idle_machine_or_after_the_block(monitor: Monitor) -> None:
    messages: list[str] = []
    with report_busy_cores(messages.append):
        observe(monitor, *[0.01] * 20)
    observe(monitor, *[0.5] * 20)
    assert not messages


def test_the_thread_that_waits_longest_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 16 threads on one core make all others wait; a thread that hardly runs waits longer and does not count."""
    start, seen = time.monotonic(), list[float]()

    def times() -> dict[str, ThreadTimes]:
        if len(seen) == 5:
            raise SystemExit
        elapsed = time.monotonic() - start
        computing = {str(number): ThreadTimes(int(elapsed * 5e8), int(elapsed * 5e8)) for number in range(2)}
        others = {str(number): ThreadTimes(int(elapsed * 1e9), 0) for number in range(2, 16)}
        return computing | others | {"sleeping": ThreadTimes(int(elapsed * 1e6), int(elapsed * 9e8))}

    monitor = Monitor(times)
    monkeypatch.setattr(monitor, "observe", seen.append)
    monkeypatch.setattr(threads, "_INTERVAL", 0.02)
    with pytest.raises(SystemExit):
        monitor._run()
    assert statistics.median(seen) == pytest.approx(0.5, rel=0.4)


def test_one_thread_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor(dict)
    monkeypatch.setattr(threads, "_monitor", lambda: monitor)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    watch_cores()
    assert monitor._thread is None


@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_settings_of_the_user_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "active")
    assert threads._monitor.__wrapped__() is None


@needs_libgomp
def test_times_of_all_threads() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert {str(os.getpid()), str(other.native_id)} <= thread_times().keys()
    finally:
        done.set()
        other.join()


WAITING = """
import time, torch
from regard.kernels.cpu.threads import IdleThreads
torch.set_num_threads(2)
x = torch.ones(400_000)

def seconds_of_waiting():
    seconds = 0.0
    for _ in range(20):
        x.add_(1)
        start = time.process_time()
        time.sleep(0.01)
        seconds += time.process_time() - start
    return seconds

spinning = seconds_of_waiting()
idle = IdleThreads({cores})
sleeping = seconds_of_waiting()
idle.end()
print(spinning, sleeping, seconds_of_waiting())
"""


@needs_libgomp
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="on one core, threads never spin")
def test_idle_threads_end_the_spinning() -> None:
    """After an operation, threads that wait for the next one use a core's time, or do not."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "GOMP"))}
    code = WAITING.format(cores=os.cpu_count())
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    spinning, sleeping, again = map(float, done.stdout.split())
    assert sleeping < spinning / 3
    assert sleeping < again / 3


@pytest.mark.parametrize("count", [0, -1, 100_000, 2**70])
def test_absurd_numbers_of_threads_are_refused(count: int) -> None:
    with pytest.raises(UserError, match=f"--threads.*{count}"):
        check_threads(count, "--threads")


def test_more_threads_than_cores_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert check_threads(64) == 64
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    assert check_threads(512) == 512
