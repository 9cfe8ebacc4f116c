"""The LRU store of traces."""

import pytest
import torch

from regard.look.trace import Trace
from regard.serve.inspector.trace_store import EvictedError, NotFoundError, TraceStore
from tests.look.support import request, task_models


def small() -> Trace:
    traced_model = task_models()["text-classification"]
    return traced_model.trace(request(traced_model))


def test_trace_gets_a_unique_id() -> None:
    store, trace = TraceStore(), small()
    trace_id = store.add(trace)
    assert store.get(trace_id) is trace
    assert trace.header.id == trace_id
    assert store.add(small()) != trace_id


def test_oldest_is_evicted_over_the_count_limit() -> None:
    store = TraceStore(max_traces=2)
    first, second, third = (store.add(small()) for _ in range(3))
    with pytest.raises(EvictedError, match="run the text again"):
        store.get(first)
    assert store.get(second)
    assert store.get(third)


def test_oldest_is_evicted_over_the_size_limit() -> None:
    trace = small()
    trace.arrays["large"] = torch.zeros(1000)
    store = TraceStore(max_bytes=6000)
    first = store.add(trace)
    other = small()
    other.arrays["large"] = torch.zeros(1000)
    second = store.add(other)
    with pytest.raises(EvictedError):
        store.get(first)
    assert store.get(second) is other  # the newest is never evicted


def test_nodes_of_a_search_count_towards_the_size_limit() -> None:
    traced_model = task_models()["translation"]
    traces = [traced_model.trace(request(traced_model)) for _ in range(2)]
    store = TraceStore(max_bytes=3 * traces[0].nbytes)
    first, second = (store.add(trace) for trace in traces)
    with pytest.raises(EvictedError):
        store.get(first)
    assert store.get(second)


def test_used_trace_is_not_evicted() -> None:
    store = TraceStore(max_traces=2)
    first, second = store.add(small()), store.add(small())
    store.get(first)
    store.add(small())
    assert store.get(first)
    with pytest.raises(EvictedError):
        store.get(second)


def test_unknown_trace_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="There is no such trace"):
        TraceStore().get("none")
