"""Requests that wait together are computed together, and each gets its own results or its own error."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import Any

import pytest

from regard.errors import UserError
from regard.serve.models.batcher import MAX_CHARACTERS, Batcher
from regard.serve.models.cancellation import CanceledError
from regard.serve.worker import OverloadedError, Worker
from regard.task.classification.pipeline import TextLabeler
from tests.look.support import SENTENCES, task_models

Check = Callable[[int], None]


class Recorder:
    """Computes item + item, except for what is bad, and records its calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, items: Sequence[str], check: Check) -> list[str]:
        self.calls.append(list(items))
        if "bad" in items:
            raise UserError("This is bad.")
        return [item + item for item in items]


@contextmanager
def busy(worker: Worker) -> Iterator[None]:
    """Keep the worker busy within the block, so that what is submitted waits."""
    started, done = threading.Event(), threading.Event()
    worker.submit(lambda: (started.set(), done.wait(20)))
    assert started.wait(10)
    try:
        yield
    finally:
        done.set()


def results(*futures: Future[list[Any]]) -> list[list[Any]]:
    return [future.result(10) for future in futures]


def test_what_waits_with_the_same_key_is_computed_together() -> None:
    batcher, compute = Batcher(Worker("it")), Recorder()
    with busy(batcher.worker):
        futures = [batcher.submit(key, items, compute) for key, items in (("x", "ab"), ("y", "c"), ("x", "de"))]
    assert results(*futures) == [["aa", "bb"], ["cc"], ["dd", "ee"]]
    assert compute.calls == [["a", "b", "d", "e"], ["c"]]
    assert (batcher.batches, batcher.items) == (2, 5)
    assert results(batcher.submit("x", "f", compute)) == [["ff"]]


def test_one_that_fails_does_not_fail_the_others() -> None:
    batcher, compute = Batcher(Worker("it")), Recorder()
    with busy(batcher.worker):
        good, bad, other = (batcher.submit("x", items, compute) for items in (["a"], ["bad"], ["b"]))
    assert results(good, other) == [["aa"], ["bb"]]
    with pytest.raises(UserError, match="This is bad"):
        bad.result(10)


def test_a_batch_is_bounded() -> None:
    batcher, compute = Batcher(Worker("it"), max_items=3), Recorder()
    long = "a" * (MAX_CHARACTERS - 1)
    given = [["a", "b"], ["c", "d"], ["e"], [long], ["f"] * 9]
    with busy(batcher.worker):
        futures = [batcher.submit("x", items, compute) for items in given]
    results(*futures)
    assert compute.calls == [["a", "b", "e"], ["c", "d"], [long], ["f"] * 9]


def test_a_canceled_request_gives_up_its_place() -> None:
    batcher, compute = Batcher(Worker("it", max_waiting=2)), Recorder()
    with busy(batcher.worker):
        first, second = batcher.submit("x", "a", compute), batcher.submit("x", "b", compute)
        with pytest.raises(OverloadedError):
            batcher.submit("x", "c", compute)
        assert first.cancel()
        third = batcher.submit("x", "d", compute)
    assert results(second, third) == [["bb"], ["dd"]]
    assert compute.calls == [["b", "d"]]


def test_computing_stops_when_nobody_waits() -> None:
    batcher, started, canceled = Batcher(Worker("it")), threading.Event(), threading.Event()
    stopped: list[bool] = []

    def compute(items: Sequence[str], check: Check) -> list[str]:
        started.set()
        canceled.wait(10)
        try:
            check(1)
        except CanceledError:
            stopped.append(True)
            raise
        return list(items)

    future = batcher.submit("x", "a", compute)
    assert started.wait(10)
    assert future.cancel()
    canceled.set()
    assert results(batcher.submit("y", "b", lambda items, _: list(items))) == [["b"]]
    assert stopped == [True]


def test_a_closed_worker_cancels_what_waits() -> None:
    batcher = Batcher(Worker("it"))
    with busy(batcher.worker):
        future = batcher.submit("x", "a", Recorder())
        batcher.worker.close()
    with pytest.raises(CancelledError):
        future.result(10)


def test_answers_together_are_those_alone() -> None:
    tagger = task_models()["token-classification"].pipeline  # type: ignore[attr-defined]
    assert isinstance(tagger, TextLabeler)
    batcher = Batcher(Worker("it"))
    with busy(batcher.worker):
        futures = [batcher.submit("tag", [text], lambda texts, _: tagger.tag(list(texts))) for text in SENTENCES]
    assert batcher.batches == 0
    for text, (found,) in zip(SENTENCES, results(*futures), strict=True):
        alone = tagger.tag(text)
        assert (found.words, found.tags) == (alone.words, alone.tags)
        assert found.probabilities == pytest.approx(alone.probabilities, abs=1e-6)
    assert batcher.batches == 1
