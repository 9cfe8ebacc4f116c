"""A worker runs functions in order, with a bounded queue."""

import threading
import time
from concurrent.futures import Future

import pytest

from regard.serve.worker import OverloadedError, Worker


class Blocked:
    """A worker that is busy until it is released."""

    def __init__(self, max_waiting: int) -> None:
        self.worker = Worker("the test", max_waiting=max_waiting)
        self.release = threading.Event()
        self.worker.submit(lambda: self.release.wait(10))


def test_functions_run_one_at_a_time_in_order() -> None:
    blocked, order = Blocked(5), []
    futures = [blocked.worker.submit(lambda number=number: order.append(number)) for number in range(5)]
    assert order == []
    blocked.release.set()
    for future in futures:
        future.result(5)
    assert order == [0, 1, 2, 3, 4]


def test_full_queue_is_refused_until_there_is_room() -> None:
    blocked = Blocked(2)
    waiting = [blocked.worker.submit(lambda: 1) for _ in range(2)]
    with pytest.raises(OverloadedError, match="2 requests are already waiting for the test"):
        blocked.worker.submit(lambda: 1)
    assert waiting[0].cancel()
    replaced = blocked.worker.submit(lambda: 2)  # in the place of the canceled one
    blocked.release.set()
    assert (waiting[1].result(5), replaced.result(5)) == (1, 2)


def test_canceled_function_never_runs() -> None:
    blocked, ran = Blocked(2), []
    assert blocked.worker.submit(lambda: ran.append("canceled")).cancel()
    last = blocked.worker.submit(lambda: ran.append("last"))
    blocked.release.set()
    last.result(5)
    assert ran == ["last"]


def test_call_is_never_refused_and_keeps_its_turn() -> None:
    """The steps of a job take turns with requests: a request that came first goes first."""
    blocked, order = Blocked(1), []
    first = blocked.worker.submit(lambda: order.append("request"))
    caller = threading.Thread(target=lambda: blocked.worker.call(lambda: order.append("job")))
    caller.start()
    blocked.release.set()
    caller.join(5)
    first.result(5)
    assert order == ["request", "job"]


def test_error_is_raised_where_the_result_is_awaited() -> None:
    worker = Worker("the test")
    failed: Future[object] = worker.submit(lambda: {}["missing"])
    with pytest.raises(KeyError):
        failed.result(5)
    assert worker.submit(lambda: "still working").result(5) == "still working"


def test_threads_end_when_nothing_is_left() -> None:
    worker = Worker("the test", threads=3)
    started = threading.Barrier(3, timeout=5)
    threads = [worker.submit(lambda: (started.wait(), threading.current_thread())[1]) for _ in range(3)]
    for thread in {future.result(5) for future in threads}:
        thread.join(5)
        assert not thread.is_alive()
    assert worker.submit(time.monotonic).result(5) > 0
