"""Dynamic batching: requests that wait for the same forward pass are computed together.

A request waits in the queue of a `Worker` like any other. When it is its turn, all that wait with the same key (what is
computed, and its options) are computed in one call, whose results are split again. So a batch forms only while
the model is busy, and a request that comes alone waits for nobody. If the call fails, its requests are computed again
one by one, so that only those fail that cannot be answered.
"""

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from regard.serve.models.cancellation import CanceledError
from regard.serve.worker import Worker

T = TypeVar("T")

MAX_ITEMS = 64
"""Items of several requests that are computed together. A request with more is computed alone."""
MAX_CHARACTERS = 20_000
"""Characters of their texts: nobody waits for much longer than alone."""

Compute = Callable[[Sequence[Any], Callable[[int], None]], Sequence[Any]]
"""Computes the results of items. Called with the items, and with a function to call now and then: it raises an error
when nobody waits for the results anymore."""


class Batcher:
    """Merges the requests to a model that wait for its worker."""

    def __init__(self, worker: Worker, max_items: int = MAX_ITEMS) -> None:
        self.worker, self.max_items = worker, max_items
        self.batches = 0
        """Calls so far."""
        self.items = 0
        """Items computed in all calls so far: divided by `batches`, how full they are on average."""
        self._waiting: dict[Hashable, list[_Part]] = {}
        self._lock = threading.Lock()

    def submit(self, key: Hashable, items: Sequence[Any], compute: Compute) -> Future[list[Any]]:
        """The results of some items. Equal keys mean that `compute` does the same. A full queue is an error."""
        part = _Part(items)
        with self._lock:
            self._waiting.setdefault(key, []).append(part)
        try:
            turn = self.worker.submit(lambda: self._run(key, part, compute))
        except BaseException:
            self._remove(key, part)
            raise

        def give_up_turn(_: object) -> None:  # its result has come with that of another, or nobody waits for it
            self._remove(key, part)
            turn.cancel()

        def end(_: object) -> None:  # a closed worker cancels what waits for it
            if turn.cancelled():
                part.result.cancel()

        turn.add_done_callback(end)
        part.result.add_done_callback(give_up_turn)
        return part.result

    def _run(self, key: Hashable, first: "_Part", compute: Compute) -> None:
        batch = self._take(key, first)
        if not batch:
            return
        self.batches += 1
        self.items += sum(len(part.items) for part in batch)
        try:
            _compute_batch(batch, compute)
        except Exception as error:
            if len(batch) == 1:
                batch[0].fail(error)
            else:
                for part in batch:
                    _compute_alone(part, compute)

    def _take(self, key: Hashable, first: "_Part") -> list["_Part"]:
        """A request and those that are computed with it, in the order in which they came; none if it is done."""
        with self._lock:
            waiting = self._waiting.get(key, [])
            if first not in waiting:
                return []
            batch, items, characters = [first], len(first.items), first.characters
            for part in waiting:
                fits = items + len(part.items) <= self.max_items and characters + part.characters <= MAX_CHARACTERS
                if part is not first and fits:
                    batch.append(part)
                    items, characters = items + len(part.items), characters + part.characters
            self._keep(key, [part for part in waiting if part not in batch])
            return batch

    def _remove(self, key: Hashable, part: "_Part") -> None:
        with self._lock:
            self._keep(key, [each for each in self._waiting.get(key, []) if each is not part])

    def _keep(self, key: Hashable, parts: list["_Part"]) -> None:
        if parts:
            self._waiting[key] = parts
        else:
            self._waiting.pop(key, None)


class _Part:
    """The items of a request, and the future of their results. It can be canceled until it has them."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.characters = sum(map(_characters, items))
        self.result: Future[list[Any]] = Future()

    def finish(self, results: list[Any]) -> None:
        with suppress(InvalidStateError):  # it was canceled
            self.result.set_result(results)

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.result.set_exception(error)


def _compute_batch(batch: Sequence[_Part], compute: Compute) -> None:
    def check(_: int) -> None:
        if all(part.result.cancelled() for part in batch):
            raise CanceledError

    check(0)
    results = list(compute([item for part in batch for item in part.items], check))
    assert len(results) == sum(len(part.items) for part in batch)
    first = 0
    for part in batch:
        part.finish(results[first : first + len(part.items)])
        first += len(part.items)


def _compute_alone(part: _Part, compute: Compute) -> None:
    try:
        _compute_batch([part], compute)
    except Exception as error:  # the client that waits for it gets it
        part.fail(error)


def _characters(item: Any) -> int:
    if isinstance(item, str):
        return len(item)
    return sum(map(_characters, item)) if isinstance(item, tuple) else 0
