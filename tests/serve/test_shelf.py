"""Traces are kept as long as there is room, the one looked at last longest."""

import pytest
import torch

from regard.look.trace import Trace
from regard.serve.shelf import GoneError, Shelf, UnknownError
from tests.look.support import every_task, request


def small() -> Trace:
    subject = every_task()["labelling"]
    return subject.trace(request(subject))


def test_a_trace_gets_a_name_of_its_own() -> None:
    shelf, trace = Shelf(), small()
    name = shelf.put(trace)
    assert shelf.get(name) is trace
    assert trace.header.id == name
    assert shelf.put(small()) != name


def test_the_oldest_go_when_there_are_too_many() -> None:
    shelf = Shelf(most=2)
    first, second, third = (shelf.put(small()) for _ in range(3))
    with pytest.raises(GoneError, match="run the text again"):
        shelf.get(first)
    assert shelf.get(second)
    assert shelf.get(third)


def test_they_go_when_they_take_too_much_room() -> None:
    trace = small()
    trace.arrays["large"] = torch.zeros(1000)
    shelf = Shelf(room=6000)
    first = shelf.put(trace)
    other = small()
    other.arrays["large"] = torch.zeros(1000)
    second = shelf.put(other)
    with pytest.raises(GoneError):
        shelf.get(first)
    assert shelf.get(second) is other  # the newest stays, however large


def test_what_is_looked_at_stays() -> None:
    shelf = Shelf(most=2)
    first, second = shelf.put(small()), shelf.put(small())
    shelf.get(first)
    shelf.put(small())
    assert shelf.get(first)
    with pytest.raises(GoneError):
        shelf.get(second)


def test_what_never_was_is_unknown() -> None:
    with pytest.raises(UnknownError, match="There is no such trace"):
        Shelf().get("none")
