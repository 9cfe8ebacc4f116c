"""Threads for what takes long, with a bounded queue.

A request that waits for its turn waits in the event loop and occupies no thread, so that the page's files and other
cheap requests are answered at once, whatever is being computed. When the queue is full, further requests are refused;
clients try again later.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from regard.errors import UserError

T = TypeVar("T")

MAX_WAITING = 16
"""Requests that wait for a model while it is busy with another."""
RETRY_SECONDS = 2
"""When a client that was refused should try again."""


class OverloadedError(UserError):
    """Too many requests are already waiting."""


class Worker:
    """Runs functions in the order in which they are submitted, by default one at a time.

    `subject` names what they wait for in the error message. The threads are started on demand, and end when nothing is
    left to do.
    """

    def __init__(self, subject: str, *, threads: int = 1, max_waiting: int = MAX_WAITING) -> None:
        self.subject, self.threads, self.max_waiting = subject, threads, max_waiting
        self._waiting: deque[_Task[Any]] = deque()
        self._unfinished = 0
        self._running = 0
        self.closed = False
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """The number of functions that wait for a thread."""
        return max(0, self._unfinished - self.threads)

    @property
    def unfinished(self) -> int:
        """The number of functions that wait or run."""
        return self._unfinished

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function when it is its turn. Its future can be canceled until then. A full queue is an error."""
        with self._lock:
            if self.waiting >= self.max_waiting:
                raise OverloadedError(
                    f"The server is busy: {self.waiting} requests are already waiting for {self.subject}; try again in "
                    f"{RETRY_SECONDS} seconds."
                )
            return self._add(function)

    def call(self, function: Callable[[], T]) -> T:
        """Run a function when it is its turn, and wait for it in this thread, however many are waiting already.

        This is for the steps of a background job, which must not fail because the page is busy.
        """
        with self._lock:
            future = self._add(function)
        return future.result()

    def close(self) -> None:
        """Cancel what is waiting. What is running is asked to stop where it checks `closed`."""
        self.closed = True
        with self._lock:
            waiting = list(self._waiting)
        for task in waiting:
            task.future.cancel()

    def _add(self, function: Callable[[], T]) -> Future[T]:
        task = _Task(function)
        task.future.add_done_callback(lambda _: self._remove(task))
        self._waiting.append(task)
        self._unfinished += 1
        if self._running < self.threads:
            self._running += 1
            threading.Thread(target=self._run, name="regard-worker", daemon=True).start()
        return task.future

    def _remove(self, task: "_Task[Any]") -> None:
        """Called when a task is done, or was canceled and must not keep its place in the queue."""
        with self._lock:
            self._unfinished -= 1
            if task in self._waiting:
                self._waiting.remove(task)

    def _run(self) -> None:
        """Run what is waiting until nothing is left."""
        while (task := self._next()) is not None:
            task.run()
            del task

    def _next(self) -> "_Task[Any] | None":
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._running -= 1
            return None


class _Task(Generic[T]):
    """A function to run, and the future of its result."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.function = function
        self.future: Future[T] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except BaseException as error:  # the caller that waits for the result gets it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
