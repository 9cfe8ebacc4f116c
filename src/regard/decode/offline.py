"""A whole list of requests, in the order that is fastest, with results in the order they were asked.

Requests are sorted by length, so that rows searched together are about equally long and little is padded, and put into
batches of a bounded number of tokens. The longest come first: if they do not fit into memory, that shows at once.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from typing import TypeVar

import torch

from regard.decode.engine import Request, Worker, filled_up
from regard.decode.observe import Observer
from regard.decode.replay import fitting_rows
from regard.decode.search import Hypothesis, State, search
from regard.decode.settings import make_chooser
from regard.decode.threads import thread_pool

Item = TypeVar("Item")
Result = TypeVar("Result")


def search_all(
    worker: Worker[State],
    requests: Sequence[Request],
    end: int,
    *,
    batch_tokens: int,
    threads: int = 1,
    progress: Callable[[int], None] | None = None,
    search: Callable[[Worker[State], Sequence[Request], int], list[list[Hypothesis]]] | None = None,
) -> list[list[Hypothesis]]:
    """For each request what was found, best first, by `search_batch` or another such `search`.

    `progress` hears how many are done. With several `threads` as many batches are worked on at a time, each by one.
    """
    found: list[list[Hypothesis]] = [[] for _ in requests]
    done = 0

    def work(group: list[int]) -> tuple[list[int], list[list[Hypothesis]]]:
        return group, (search or search_batch)(worker, [requests[number] for number in group], end)

    groups = list(_groups(requests, batch_tokens, threads))
    for group, results in _worked(work, groups, min(threads, len(groups))):
        for number, hypotheses in zip(group, results, strict=True):
            found[number] = hypotheses
        done += len(group)
        if progress is not None:
            progress(done)
    return found


def _worked(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> Iterator[Result]:
    """What comes of the items, as it comes."""
    if threads <= 1:
        yield from map(work, items)
        return
    pool = thread_pool(threads)
    pending = [pool.submit(work, item) for item in items]
    try:
        for one in as_completed(pending):
            yield one.result()
    finally:
        for one in pending:
            one.cancel()


@torch.inference_mode()
def search_batch(
    worker: Worker[State], requests: Sequence[Request], end: int, observer: Observer | None = None
) -> list[list[Hypothesis]]:
    """Requests of one lane, searched together."""
    asked = len(requests)
    if getattr(worker, "in_place", False):
        requests = filled_up(requests, fitting_rows(asked))
    limits = [request.limit for request in requests]
    state, start = worker.begin([request.source for request in requests], max(limits))
    chooser = make_chooser(
        requests[0].config,
        limits,
        end,
        wishes=[request.wish for request in requests],
        alternatives=requests[0].alternatives,
        device=start.device,
    )
    return search(worker, state, start, chooser, observer)[:asked]


def _groups(requests: Sequence[Request], budget: int, threads: int) -> Iterator[list[int]]:
    """Numbers of requests of one lane and of about equal length, as many as the budget holds, some for each thread."""
    lanes: dict[object, list[int]] = {}
    for number, request in enumerate(requests):
        lanes.setdefault(request.lane, []).append(number)
    for lane in lanes.values():
        total = sum(len(requests[number].source) + 1 for number in lane)
        budget = min(budget, -(-total // threads))
        group: list[int] = []
        longest = 0
        for number in sorted(lane, key=lambda number: -len(requests[number].source)):
            if group and longest * (len(group) + 1) > budget:
                yield group
                group = []
            if not group:
                longest = len(requests[number].source) + 1
            group.append(number)
        yield group
