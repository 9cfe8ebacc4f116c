"""Many requests at once: rows join and leave between steps, and the hardware stays busy.

A `Lane` holds the slots of requests that are searched in the same way. Whenever slots are free, waiting requests join:
their sources are read together and put into those slots, while the others go on where they are. A slot that is settled
hands out its result at once and is free again. So no request waits for another to end.

An `Engine` has a lane for every way of searching asked for (one for each of its threads), and takes a step in each of
them. It holds no more than `memory` bytes of cache: requests wait until there is room, and where one
outgrows everything it is cut. No output gets longer than `longest` tokens, whatever its request allows. What is wrong
with one request is told to whoever asked for it, and to no one else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol

import torch
from torch import Tensor

from regard.decode.replay import Turns, fitting_rows, recorder_of
from regard.decode.search import Chooser, Hypothesis, State, Stepper, move
from regard.decode.settings import DecodeConfig, Wish, make_chooser
from regard.decode.slots import ROOM
from regard.decode.threads import thread_pool
from regard.errors import UserError

_NO_WISH = Wish()
Listener = Callable[[tuple[int, ...]], bool | None]
"""Hears the tokens so far after every step; true means that is enough."""


class Worker(Stepper[State], Protocol[State]):
    """A stepper whose state can take in new rows while others are under way."""

    @property
    def device(self) -> torch.device: ...

    def begin(self, sources: Sequence[Sequence[int]], capacity: int) -> tuple[State, Tensor]:
        """Read sources; gives the state with room for so many tokens, a row each, and the first tokens.  # (rows,)"""
        ...

    def regroup(self, state: State, rows: Tensor, sources: Tensor | None) -> State: ...

    def put(self, state: State, sources: Tensor, other: State) -> State:
        """Let these groups of rows be those of another state; groups past the last are added."""
        ...

    def clear(self, state: State, sources: Tensor) -> None:
        """Let these groups of rows hold nothing."""
        ...

    def is_full(self, state: State) -> bool:
        """Whether another token needs more room."""
        ...

    def grow(self, state: State) -> None:
        """Twice the room."""
        ...

    def held(self, state: State) -> int:
        """Bytes in use, free room included."""
        ...

    def bytes_a_position(self) -> int:
        """What one token of one row takes."""
        ...


@dataclass(frozen=True)
class Request:
    """What to read, the most tokens to write (the end included), how to search, and what the output must be like."""

    source: tuple[int, ...]
    limit: int
    config: DecodeConfig
    wish: Wish = _NO_WISH
    alternatives: int = 0

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise UserError(f"The limit is {self.limit} tokens; an output has at least one, its end.")

    @property
    def lane(self) -> tuple[Any, ...]:
        """Requests that agree in this are searched side by side."""
        config = self.config.model_copy(update={"seed": 0})
        return repr(config), *self.wish.lane, self.alternatives


def filled_up(requests: Sequence[Request], slots: int) -> list[Request]:
    """Requests for so many slots: those asked for, and behind them some that end at once."""
    filler = replace(requests[-1], limit=1, wish=Wish(forbidden=requests[-1].wish.forbidden))
    return [*requests, *[filler] * (slots - len(requests))]


@dataclass(eq=False)
class Ticket:
    """A request under way. `cancel` may be called from any thread."""

    request: Request
    listener: Listener | None = None
    found: list[Hypothesis] | None = None
    error: Exception | None = None
    cancelled: bool = False
    _done: threading.Event = field(default_factory=threading.Event)

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def cancel(self) -> None:
        self.cancelled = True

    def result(self, timeout: float | None = None) -> list[Hypothesis]:
        """What was found, best first; waits for it. Nothing, where it was cancelled."""
        if not self._done.wait(timeout):
            raise TimeoutError("the output is not ready yet")
        if self.error is not None:
            raise self.error
        return self.found or []

    def close(self, found: list[Hypothesis] | None = None, error: Exception | None = None) -> None:
        self.found, self.error = found, error
        self._done.set()


class Engine(Generic[State]):
    """Takes requests at any time; `work` takes one step with all that are under way."""

    def __init__(
        self,
        worker: Worker[State],
        end: int,
        *,
        rows: int = 64,
        memory: int = 1 << 30,
        longest: int = 4096,
        threads: int = 1,
    ) -> None:
        if rows < 1:
            raise UserError(f"An engine needs at least one row; found {rows}.")
        self.longest, self.threads = longest, threads
        self.worker, self.end, self.rows, self.memory = worker, end, rows, memory
        self.waiting: deque[Ticket] = deque()
        self.lanes: dict[tuple[Any, ...], Lane[State]] = {}
        self._lock = threading.Lock()

    def submit(self, request: Request, listener: Listener | None = None) -> Ticket:
        ticket = Ticket(replace(request, limit=min(request.limit, self.longest)), listener)
        if request.config.beams > self.rows:
            ticket.close(
                error=UserError(f"{request.config.beams} beams were asked for and this engine has {self.rows} rows.")
            )
            return ticket
        with self._lock:
            self.waiting.append(ticket)
        return ticket

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or bool(self.lanes)

    @torch.inference_mode()
    def work(self) -> bool:
        """One round: waiting requests join, every lane takes a step, results are handed out. False if all is done."""
        joining = self._admitted()
        for lane in self.lanes.values():
            self._make_room(lane)
        tasks = [(lane, joining.get(key, [])) for key, lane in self.lanes.items()]
        if self.threads > 1 and len(tasks) > 1:
            list(thread_pool(self.threads).map(_round, tasks))
        else:
            for task in tasks:
                _round(task)
        for lane in self.lanes.values():
            if not lane.active:
                lane.close()
        self.lanes = {key: lane for key, lane in self.lanes.items() if lane.active}
        return self.busy

    def run(self) -> None:
        """Work until everything is done."""
        while self.work():
            pass

    def held(self) -> int:
        """Bytes of cache that are held now."""
        return sum(lane.bytes() for lane in self.lanes.values())

    def _admitted(self) -> dict[tuple[Any, ...], list[Ticket]]:
        """Waiting requests that may join now, in the order they came, by the lane they join.

        Where many wait they join in groups, once an eighth of the rows is free: reading sources together is cheaper.
        """
        joining: dict[tuple[Any, ...], list[Ticket]] = {}
        with self._lock:
            free = self.rows - sum(lane.width * len(lane.active) for lane in self.lanes.values())
            if free < min(len(self.waiting), self.rows // 8):
                return joining
            while self.waiting:
                ticket = self.waiting[0]
                if ticket.cancelled:
                    self.waiting.popleft().close()
                    continue
                if not self._has_room(ticket.request, joining):
                    break
                key = self._lane_for(ticket.request, joining)
                joining.setdefault(key, []).append(self.waiting.popleft())
        for key, tickets in joining.items():
            if key not in self.lanes:
                self.lanes[key] = Lane(self.worker, self.end, tickets[0].request)
        return joining

    def _lane_for(self, request: Request, joining: dict[tuple[Any, ...], list[Ticket]]) -> tuple[Any, ...]:
        """Of the lanes searched as the request wants, the emptiest."""

        def load(key: tuple[Any, ...]) -> int:
            lane = self.lanes.get(key)
            return len(joining.get(key, [])) + (0 if lane is None else len(lane.active))

        return min(((*request.lane, thread) for thread in range(self.threads)), key=load)

    def _has_room(self, request: Request, joining: dict[tuple[Any, ...], list[Ticket]]) -> bool:
        """Whether one more fits beside those under way and those about to join."""
        new = [ticket.request for tickets in joining.values() for ticket in tickets]
        used = sum(lane.width * len(lane.active) for lane in self.lanes.values())
        used += sum(each.config.beams for each in new)
        if used == 0:
            return True  # alone it may always try
        if used + request.config.beams > self.rows:
            return False
        return self.held() + sum(self._expected(each) for each in (request, *new)) <= self.memory

    def _expected(self, request: Request) -> int:
        """Bytes a request takes to begin with: as many as others in its lane, where there are others."""
        own = (len(request.source) + 1 + ROOM * request.config.beams) * self.worker.bytes_a_position()
        lanes = [self.lanes.get((*request.lane, thread)) for thread in range(self.threads)]
        return max([own, *(lane.bytes() // len(lane.tickets) for lane in lanes if lane is not None)])

    def _make_room(self, lane: Lane[State]) -> None:
        """Room for another token in a lane. Where that is more than there is, what is longest in it is cut."""
        while lane.active and self.worker.is_full(lane.state):
            if self.held() + lane.bytes() <= self.memory:
                self.worker.grow(lane.state)
            else:
                lane.cut_longest()


@torch.inference_mode()
def _round(task: tuple[Lane[Any], list[Ticket]]) -> None:
    lane, tickets = task
    if tickets:
        lane.join(tickets)
    lane.step()


class Lane(Generic[State]):
    """Requests searched in the same way, a slot each."""

    def __init__(self, worker: Worker[State], end: int, like: Request) -> None:
        self.worker, self.end, self.like = worker, end, like
        self.width = like.config.beams
        self.tickets: list[Ticket | None] = []
        self.lengths: list[int] = []
        self.state: State
        self.chooser: Chooser
        self.token: Tensor
        self.turns: Turns[Any] | None = None

    @property
    def active(self) -> list[int]:
        """Slots with a request in them."""
        return [slot for slot, ticket in enumerate(self.tickets) if ticket is not None]

    def bytes(self) -> int:
        return self.worker.held(self.state) if self.tickets else 0

    def join(self, tickets: list[Ticket]) -> None:
        """Read the sources of new requests and give each a slot. One that cannot be read spoils no other."""
        free = [slot for slot, ticket in enumerate(self.tickets) if ticket is None] if self.active else []
        before = len(self.tickets) if self.active else 0
        count = self._fitting(before + max(0, len(tickets) - len(free)))  # slots from now on
        numbers = [*free, *range(before, count)]
        if count == before:
            numbers = numbers[: len(tickets)]
        try:
            state, token, chooser = self._begin([ticket.request for ticket in tickets], len(numbers))
        except Exception as error:
            if len(tickets) == 1:
                tickets[0].close(error=error)
                return
            for ticket in tickets:
                self.join([ticket])
            return
        self.tickets = [*self.tickets[:before], *[None] * (count - before)]
        self.lengths = [*self.lengths[:before], *[0] * (count - before)]
        for slot, ticket in zip(numbers, tickets, strict=False):
            self.tickets[slot], self.lengths[slot] = ticket, 0
        if not before:
            self.state, self.token, self.chooser = state, token, chooser
            return
        slots = torch.tensor(numbers, device=token.device)
        self.state = self.worker.put(self.state, slots, state)
        self.chooser.put(slots, chooser)
        rows = (slots[:, None] * self.width + torch.arange(self.width, device=token.device)).flatten()
        self.token = torch.cat((self.token, token.new_zeros((count - before) * self.width)))
        self.token[rows] = token

    def step(self) -> None:
        """One token more in every slot; what is settled is handed out."""
        for slot in self.active:
            ticket = self.tickets[slot]
            if ticket is not None and ticket.cancelled:
                self._close(slot, [])
        if not self.active:
            return
        settled = self._turn().tolist()
        for slot in self.active:
            self.lengths[slot] += 1
            if not settled[slot]:
                settled[slot] = self._enough(slot)
            if settled[slot]:
                self._close(slot, self.chooser.results(slot))
        self._shrink()
        empty = [slot for slot, ticket in enumerate(self.tickets) if ticket is None]
        if empty:  # they take part in steps until they are taken again, and must not grow
            slots = torch.tensor(empty, device=self.token.device)
            self.worker.clear(self.state, slots)
            self.chooser.clear(slots)

    def close(self) -> None:
        """Give back what was lent."""
        recorder = recorder_of(self.worker, self.chooser) if self.turns is not None else None
        if recorder is not None and self.turns is not None:
            recorder.take_back(self.turns)
            self.turns = None

    def _turn(self) -> Tensor:
        """A step of the model and a choice, recorded where that can be; which slots are settled.  # (slots,)"""
        recorder = recorder_of(self.worker, self.chooser)
        if recorder is not None:
            if self.chooser.is_full:
                self.chooser.grow()
            self.turns = recorder.follow(self.turns, self.worker, self.state, self.chooser, self.token)
            self.turns.turn()
            self.state, self.chooser, self.token = self.turns.apart()
            return self.turns.settled
        logits, self.state = self.worker.step(self.token[:, None], self.state)
        choice = self.chooser.choose(logits[:, -1])
        self.token = choice.tokens
        if choice.rows is not None:
            self.state = move(self.worker, self.state, choice.rows, None)
        return self.chooser.settled()

    def _fitting(self, slots: int) -> int:
        """How many slots there are for so many requests: few different numbers, where turns are recorded."""
        return fitting_rows(slots) if getattr(self.worker, "in_place", False) else slots

    def cut_longest(self) -> None:
        slot = max(self.active, key=lambda slot: self.lengths[slot])
        self.chooser.stop(slot)
        self._close(slot, self.chooser.results(slot))
        self._shrink(always=True)

    def _begin(self, requests: list[Request], slots: int) -> tuple[State, Tensor, Chooser]:
        """A state and a chooser for so many slots: one a request, and some that end at once behind them."""
        requests = filled_up(requests, slots)
        longest = max(request.limit for request in requests)
        state, token = self.worker.begin([request.source for request in requests], min(longest, ROOM))
        seeded = [
            replace(each.wish, seed=each.config.seed if each.wish.seed is None else each.wish.seed) for each in requests
        ]
        chooser = make_chooser(
            self.like.config,
            [request.limit for request in requests],
            self.end,
            wishes=seeded,
            alternatives=self.like.alternatives,
            device=token.device,
        )
        if self.width > 1:
            rows = torch.arange(len(requests), device=token.device).repeat_interleave(self.width)
            state, token = move(self.worker, state, rows, None), token.repeat_interleave(self.width)
        return state, token, chooser

    def _enough(self, slot: int) -> bool:
        """Whether whoever listens has heard enough."""
        ticket = self.tickets[slot]
        if ticket is None or ticket.listener is None:
            return False
        if not ticket.listener(self.chooser.so_far(slot)):
            return False
        self.chooser.stop(slot)
        return True

    def _close(self, slot: int, found: list[Hypothesis]) -> None:
        ticket = self.tickets[slot]
        assert ticket is not None
        ticket.close(found)
        self.tickets[slot] = None

    def _shrink(self, always: bool = False) -> None:
        """Go on without empty slots, once they are half of all."""
        active, fitting = self.active, self._fitting(len(self.active))
        if active and (2 * fitting <= len(self.tickets) or (always and fitting < len(self.tickets))):
            empty = [slot for slot, ticket in enumerate(self.tickets) if ticket is None]
            kept = [*active, *empty[: fitting - len(active)]]
            slots = torch.tensor(kept, device=self.token.device)
            rows = (slots[:, None] * self.width + torch.arange(self.width, device=slots.device)).flatten()
            self.state = move(self.worker, self.state, rows, slots)
            self.chooser.keep(slots)
            self.token = self.token[rows]
            self.tickets = [self.tickets[slot] for slot in kept]
            self.lengths = [self.lengths[slot] for slot in kept]
