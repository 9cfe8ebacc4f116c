"""Stopping a request wherever it is: waiting for its turn, in a slot of the engine, or between two searches.

A request is handled in a thread, by code that knows nothing of servers. So what belongs to it is found through a
context variable: the outputs that are being decoded for it are registered, and canceling the request cancels them.
"""

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from regard.decode import DecodeFuture

T = TypeVar("T")


class CanceledError(Exception):
    """The request was canceled, and nobody waits for its result."""


class Cancellation:
    """Whether a request was canceled, and the outputs that are being decoded for it."""

    def __init__(self) -> None:
        self.canceled = False
        self._futures: set[DecodeFuture] = set()
        self._lock = threading.Lock()

    def run(self, function: Callable[[], T]) -> T:
        """Call a function as part of this request."""
        self.check()
        token = _current.set(self)
        try:
            return function()
        finally:
            _current.reset(token)

    def cancel(self) -> None:
        """Stop the request. Its slots in the engine are free at the next step."""
        with self._lock:
            self.canceled = True
            futures = list(self._futures)
        for future in futures:
            future.cancel()

    def check(self) -> None:
        if self.canceled:
            raise CanceledError

    def add(self, future: DecodeFuture) -> None:
        """An output that is being decoded for this request."""
        with self._lock:
            self._futures.add(future)
        if self.canceled:
            future.cancel()

    def remove(self, future: DecodeFuture) -> None:
        """An output that is finished."""
        with self._lock:
            self._futures.discard(future)


def current_cancellation() -> Cancellation:
    """That of the request that this thread works on; a new one if it works on none."""
    return _current.get() or Cancellation()


_current: ContextVar[Cancellation | None] = ContextVar("regard_request", default=None)
