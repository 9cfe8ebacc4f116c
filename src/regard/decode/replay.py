"""A search whose turns are recorded once and replayed.

On a GPU a step of a small model takes less time than telling the device what to do. So a whole turn (a step of the
model, the choice, moving the rows) is recorded as a CUDA graph and from then on started with one call. A recording
reads and writes the same places in memory each time: it fits any search of the same shape, whose state and chooser are
copied to those places first. Whether all is settled is asked only now and then, so that the device never waits.

Rows are not taken out on the way: a turn costs a GPU about the same with fewer of them, and a recording has a fixed
number. On other devices the same happens without a recording, which is how it is tested.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Generic, Protocol, Self

import torch
from torch import Tensor

from regard.decode.search import Chooser, Hypothesis, State
from regard.decode.slotted import Slotted

_TURNS, _KEPT = 8, 16
"""Turns between two looks at what is settled, and recordings kept for each stepper."""


class StateInPlace(Protocol):
    """What a stepper needs its state to be, so that steps can be recorded: tensors that stay where they are."""

    @property
    def signature(self) -> Hashable:
        """States alike in this can stand in for each other."""
        ...

    def take(self, other: Self) -> None:
        """Become what another of the same signature is, in place."""
        ...

    def leave(self, other: Self) -> None:
        """Have tensors of its own in place of those that are another's."""
        ...


class StepperInPlace(Protocol):
    """A stepper whose `step` and `regroup` change a state in place and never ask the device for an answer."""

    in_place: bool
    recorder: Recorder | None

    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def regroup(self, state: Any, rows: Tensor, sources: Tensor | None) -> Any: ...

    def passed(self, state: Any) -> None:
        """Note that a step is taken, by `step` or by replaying one."""
        ...


class Turns(Generic[State]):
    """A search under way, in tensors that stay where they are."""

    def __init__(self, stepper: StepperInPlace, state: State, chooser: Chooser, token: Tensor) -> None:
        self.stepper, self.state, self.chooser = stepper, state, chooser
        chooser.hold([tensor.clone(memory_format=torch.contiguous_format) for tensor in chooser.held()])
        self.token = token.clone()
        self.settled = chooser.settled().clone()
        self.graph: Any = None
        self.warm = False

    def take(self, state: Any, chooser: Chooser, token: Tensor) -> None:
        """Go on with another search of the same shape, or with this one after it was changed from outside."""
        self.state.take(state)  # type: ignore[attr-defined]
        for mine, theirs in zip(self.chooser.held(), chooser.held(), strict=True):
            if mine is not theirs:
                mine.copy_(theirs)
        self.chooser.reach = chooser.reach
        self.token.copy_(token)

    def apart(self) -> tuple[State, Chooser, Tensor]:
        """State, chooser and tokens as they are now, to be changed without harm to what is recorded."""
        return copy.copy(self.state), self.chooser.copied(), self.token

    def turn(self) -> None:
        """One step in every slot. The first is taken as it is, the second recorded; from then on it is replayed."""
        if self.graph is not None:
            self.stepper.passed(self.state)
            self.chooser.reach += 1
            self.graph.replay()
        elif self.warm and self.token.is_cuda:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._turn()
            self.graph = graph
            graph.replay()
        else:
            self._turn()
            self.warm = True

    def _turn(self) -> None:
        places = self.chooser.held()
        logits, self.state = self.stepper.step(self.token[:, None], self.state)
        choice = self.chooser.choose(logits[:, -1])
        for place, tensor in zip(places, self.chooser.held(), strict=True):
            if tensor is not place:
                place.copy_(tensor)
        self.chooser.hold(places)
        if choice.rows is not None:
            self.state = self.stepper.regroup(self.state, choice.rows, None)
        self.token = _left(choice.tokens, places, self.token)
        self.settled = _left(self.chooser.settled(), places, self.settled)


class Recorder:
    """Turns that no search uses at the moment, by the shape they are for. Threads may share it."""

    def __init__(self, most: int = _KEPT) -> None:
        self.most = most
        self._kept: OrderedDict[tuple[Any, ...], Turns[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def lend(self, stepper: Any, state: Any, chooser: Chooser, token: Tensor) -> Turns[Any]:
        """Turns for this search: some of its shape that were recorded before, or new ones."""
        with self._lock:
            turns = self._kept.pop(_shape(state, chooser), None)
        if turns is None:
            return Turns(stepper, state, chooser, token)
        turns.take(state, chooser, token)
        return turns

    def follow(self, turns: Turns[Any] | None, stepper: Any, state: Any, chooser: Chooser, token: Tensor) -> Turns[Any]:
        """The same turns for a search whose rows came and went, or others where its shape has changed."""
        if turns is not None:
            if _shape(turns.state, turns.chooser) == _shape(state, chooser):
                turns.take(state, chooser, token)
                return turns
            state.leave(turns.state)
            self.take_back(turns)
        return self.lend(stepper, state, chooser, token)

    def take_back(self, turns: Turns[Any]) -> None:
        with self._lock:
            self._kept[_shape(turns.state, turns.chooser)] = turns
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)


def recorder_of(stepper: Any, chooser: Chooser) -> Recorder | None:
    """Where turns of this search can be recorded: if the stepper works in place, and so does the chooser."""
    if not getattr(stepper, "in_place", False) or chooser.recorded_as() is None:
        return None
    if stepper.recorder is None:
        stepper.recorder = Recorder()
    recorder: Recorder = stepper.recorder
    return recorder


def fitting_rows(count: int) -> int:
    """A number of slots not much larger, of which there are few, so that recordings are used again."""
    step = 1 << max(0, count.bit_length() - 3)
    return -(-count // step) * step


@torch.inference_mode()
def search_recorded(
    recorder: Recorder, stepper: Any, state: Any, token: Tensor, chooser: Chooser
) -> list[list[Hypothesis]]:
    """What `search` finds, by recorded turns. The state already has a row for each of the chooser's.

    token: # (slots · width,)
    """
    turns = recorder.lend(stepper, state, chooser, token)
    for number in range(1, chooser.longest + 1):
        if turns.chooser.is_full:
            state, larger, token = turns.apart()
            larger.grow()
            turns = recorder.follow(turns, stepper, state, larger, token)
        turns.turn()
        if number % _TURNS == 0 and bool(turns.settled.all()):
            break
    results = _results(turns.chooser)
    recorder.take_back(turns)
    return results


def _results(chooser: Chooser) -> list[list[Hypothesis]]:
    if isinstance(chooser, Slotted):
        return chooser.all_results()
    return [chooser.results(slot) for slot in range(chooser.slots)]


def _left(tensor: Tensor, held: Sequence[Tensor], place: Tensor) -> Tensor:
    """Where a tensor's numbers stand after every turn: where the chooser always leaves them, or in a place of ours."""
    if any(tensor.data_ptr() == each.data_ptr() for each in held):
        return tensor
    return place.copy_(tensor)


def _shape(state: Any, chooser: Chooser) -> tuple[Any, ...]:
    tensors = tuple((tensor.shape, tensor.dtype) for tensor in chooser.held())
    return state.signature, chooser.recorded_as(), tensors
