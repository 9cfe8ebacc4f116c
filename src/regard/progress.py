"""Progress: what work that takes long is doing now, and how much of it is done.

Such work runs in a `phase` and counts in it what it has done, which costs an addition. It knows nothing about
terminals: a `PhaseListener`, set by `listen_to_phases`, is told when phases begin and end, and reads the counts as
often as it likes. Without a listener nothing happens.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

Item = TypeVar("Item")


@dataclass(eq=False)
class Phase:
    """A piece of work that may take long."""

    name: str
    """What is being done, such as "Training the tokenizer"."""
    unit: str = "items"
    """What `done` and `total` count, in the plural."""
    total: int | None = None
    """How many there are, where this is known."""
    done: int = 0
    start: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self.start

    def update(self, done: int) -> None:
        """Set how many are done."""
        self.done = done

    def count(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, counted as they are taken."""
        for item in items:
            self.done += 1
            yield item


class PhaseListener(Protocol):
    """Follows phases. They nest: the one that began last ends first."""

    def on_phase_begin(self, phase: Phase) -> None: ...

    def on_phase_end(self, phase: Phase) -> None: ...


_listener: ContextVar[PhaseListener | None] = ContextVar("regard_phase_listener", default=None)


@contextlib.contextmanager
def phase(name: str, unit: str = "items", total: int | None = None) -> Iterator[Phase]:
    """Tell the listener, if there is one, what the code in this block does."""
    current, listener = Phase(name, unit, total), _listener.get()
    if listener is None:
        yield current
        return
    listener.on_phase_begin(current)
    try:
        yield current
    finally:
        listener.on_phase_end(current)


def counted(items: Iterable[Item], name: str, unit: str = "items", total: int | None = None) -> Iterator[Item]:
    """The items; a phase goes on from the first of them to the last."""
    with phase(name, unit, total) as current:
        yield from current.count(items)


@contextlib.contextmanager
def listen_to_phases(listener: PhaseListener | None) -> Iterator[None]:
    """Let a listener follow the phases of the code in this block, or nobody (None)."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
