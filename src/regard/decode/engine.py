"""Continuous batching: requests are added and removed between steps, so that the hardware stays busy.

A `BatchGroup` holds the slots of requests that are decoded with the same settings. Whenever slots are free, waiting
requests are admitted: their sources are processed together and put into these slots, while the others continue. A slot
that is finished returns its result at once and is free again. So no request waits for another one to end.

An `Engine` has a batch group for every combination of settings (one for each of its threads) and takes a step in each.
It allocates at most `max_cache_bytes` of KV cache: requests wait until there is room, and if a single group outgrows
the budget, its longest output is cut. No output is longer than the engine's `max_length`, whatever its request allows.
An error while requests are admitted is reported to the future of the request that caused it, and to no other. An error
in a step, such as running out of memory, ends the requests of its batch group; the other groups go on.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import Any, Generic

import torch
from torch import Tensor

from regard.decode.batch import (
    BatchDecoderModel,
    DecodeFuture,
    Request,
    State,
    StepCallback,
    TokenCallback,
    pad_requests,
    thread_pool,
)
from regard.decode.config import make_strategy
from regard.decode.cuda_graphs import GraphedStep, graph_batch_size, graph_pool_for
from regard.decode.search import take_step
from regard.decode.strategy import INITIAL_CAPACITY, Hypothesis, SearchStrategy, SlottedStrategy
from regard.errors import UserError

_GroupKey = tuple[Any, ...]


_Admitted = dict[_GroupKey, list[DecodeFuture]]


class Engine(Generic[State]):
    """Accepts requests at any time; `step` takes one step with all that are being decoded."""

    def __init__(
        self,
        model: BatchDecoderModel[State],
        eos: int,
        *,
        max_rows: int = 64,
        max_cache_bytes: int = 1 << 30,
        max_length: int = 4096,
        threads: int = 1,
    ) -> None:
        if max_rows < 1:
            raise UserError(f"An engine needs at least one row; found max_rows = {max_rows}.")
        self.model, self.eos, self.max_rows, self.max_cache_bytes = model, eos, max_rows, max_cache_bytes
        self.max_length, self.threads = max_length, threads
        self._kv_bytes_per_token = model.kv_bytes_per_token()
        self.waiting: deque[DecodeFuture] = deque()
        self.groups: dict[_GroupKey, BatchGroup[State]] = {}
        self.outputs = 0
        """Outputs that the last step has decoded a token of."""
        self._lock = threading.Lock()

    def submit(
        self, request: Request, on_tokens: TokenCallback | None = None, on_step: StepCallback | None = None
    ) -> DecodeFuture:
        """Queue a request. May be called from any thread."""
        capped = replace(request, max_length=min(request.max_length, self.max_length))
        future = DecodeFuture(capped, on_tokens, on_step)
        beam_size = request.config.beam_size
        if beam_size > 1 and on_step is not None:
            future.set_exception(
                UserError("Beam search knows its best output only at the end; a stream needs a beam_size of 1.")
            )
            return future
        if beam_size > self.max_rows:
            future.set_exception(UserError(f"The beam size is {beam_size}, but this engine has {self.max_rows} rows."))
            return future
        if request.config.coverage_penalty:
            future.set_exception(UserError("decode.coverage_penalty ranks whole batches, not requests; set it to 0."))
            return future
        with self._lock:
            self.waiting.append(future)
        return future

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or bool(self.groups)

    @torch.inference_mode()
    def step(self) -> bool:
        """Admit waiting requests, take a step in every group and return results. False if nothing is left to do."""
        admitted = self._admit()
        for group in self.groups.values():
            try:
                self._reserve(group)
            except Exception as error:
                group.fail(error)
        tasks = [(group, admitted.get(key, [])) for key, group in self.groups.items()]
        self.outputs = sum(len(group.active) + len(futures) for group, futures in tasks)
        if self.threads > 1 and len(tasks) > 1:
            list(thread_pool(self.threads).map(_step_group, tasks))
        else:
            for task in tasks:
                _step_group(task)
        for group in self.groups.values():
            if not group.active:
                group.release_graph()
        self.groups = {key: group for key, group in self.groups.items() if group.active}
        return self.busy

    def run(self) -> None:
        """Step until all requests are finished."""
        while self.step():
            pass

    def cache_bytes(self) -> int:
        """Bytes of KV cache allocated now."""
        return sum(group.cache_bytes() for group in self.groups.values())

    def fail(self, error: Exception) -> None:
        """End all requests with an error."""
        with self._lock:
            waiting = list(self.waiting)
            self.waiting.clear()
        for future in waiting:
            future.set_exception(error)
        for group in self.groups.values():
            group.fail(error)
        self.groups = {}

    def _admit(self) -> _Admitted:
        """Waiting requests that start now, in their order of arrival, by the group they are added to.

        If many wait, they are admitted together once an eighth of the rows is free: one large prefill is cheaper.
        """
        admitted: _Admitted = {}
        with self._lock:
            self._drop_canceled()
            if self.max_rows - self._active_rows() < min(len(self.waiting), self.max_rows // 8):
                return admitted
            while self.waiting:
                request = self.waiting[0].request
                if not self._fits(request, admitted):
                    break
                key = self._emptiest_group(request, admitted)
                admitted.setdefault(key, []).append(self.waiting.popleft())
        for key, futures in admitted.items():
            if key not in self.groups:
                self.groups[key] = BatchGroup(self.model, self.eos, futures[0].request)
        return admitted

    def _drop_canceled(self) -> None:
        """End canceled requests that still wait, wherever in the queue they are."""
        if any(future.canceled for future in self.waiting):
            for future in self.waiting:
                if future.canceled:
                    future.set_result([])
            self.waiting = deque(future for future in self.waiting if not future.canceled)

    def _active_rows(self) -> int:
        return sum(group.beam_size * len(group.active) for group in self.groups.values())

    def _emptiest_group(self, request: Request, admitted: _Admitted) -> _GroupKey:
        """Of the groups with the request's settings, one per thread, the one with the fewest requests."""

        def load(key: _GroupKey) -> int:
            group = self.groups.get(key)
            return len(admitted.get(key, [])) + (0 if group is None else len(group.active))

        return min(((*request.batch_key, thread) for thread in range(self.threads)), key=load)

    def _fits(self, request: Request, admitted: _Admitted) -> bool:
        """Whether one more request fits in addition to those being decoded and those just admitted."""
        new = [future.request for futures in admitted.values() for future in futures]
        rows = self._active_rows() + sum(each.config.beam_size for each in new)
        if rows == 0:
            return True  # a single request is always admitted
        if rows + request.config.beam_size > self.max_rows:
            return False
        return self.cache_bytes() + sum(self._initial_bytes(each) for each in (request, *new)) <= self.max_cache_bytes

    def _initial_bytes(self, request: Request) -> int:
        """Bytes of KV cache that a request needs to start: at least as many as others in its group use."""
        tokens = len(request.source) + 1 + INITIAL_CAPACITY * request.config.beam_size
        groups = [self.groups.get((*request.batch_key, thread)) for thread in range(self.threads)]
        used = (group.cache_bytes() // len(group.futures) for group in groups if group is not None)
        return max([tokens * self._kv_bytes_per_token, *used])

    def _reserve(self, group: BatchGroup[State]) -> None:
        """Make room for one more token in a group. If that exceeds the budget, the group's longest output is cut."""
        while group.active and group.state.is_full():
            if self.cache_bytes() + group.cache_bytes() <= self.max_cache_bytes:
                group.state.grow()
            else:
                group.cut_longest()


@torch.inference_mode()
def _step_group(task: tuple[BatchGroup[Any], list[DecodeFuture]]) -> None:
    group, admitted = task
    try:
        if admitted:
            group.add(admitted)
        group.step()
    except Exception as error:
        group.fail(error)
        for future in admitted:
            if not future.done:
                future.set_exception(error)


class BatchGroup(Generic[State]):
    """Requests that are decoded with the same settings, one per slot."""

    def __init__(self, model: BatchDecoderModel[State], eos: int, template: Request) -> None:
        self.model, self.eos, self.template = model, eos, template
        self.beam_size = template.config.beam_size
        self.futures: list[DecodeFuture | None] = []
        self.lengths: list[int] = []
        self.state: State
        self.strategy: SearchStrategy
        self.tokens: Tensor
        self._graphed_step: GraphedStep[Any] | None = None

    @property
    def active(self) -> list[int]:
        """Slots with a request in them."""
        return [slot for slot, future in enumerate(self.futures) if future is not None]

    def cache_bytes(self) -> int:
        return self.state.nbytes() if self.futures else 0

    def add(self, futures: list[DecodeFuture]) -> None:
        """Prefill new requests and give each a slot. One that fails does not affect the others."""
        free = [slot for slot, future in enumerate(self.futures) if future is None] if self.active else []
        old_count = len(self.futures) if self.active else 0
        count = graph_batch_size(self.model, old_count + max(0, len(futures) - len(free)))
        new_slots = [*free, *range(old_count, count)]
        if count == old_count:
            new_slots = new_slots[: len(futures)]
        try:
            state, tokens, strategy = self._prefill([future.request for future in futures], len(new_slots))
        except Exception as error:
            if len(futures) == 1:
                futures[0].set_exception(error)
                return
            for future in futures:
                self.add([future])
            return
        self.futures = [*self.futures[:old_count], *[None] * (count - old_count)]
        self.lengths = [*self.lengths[:old_count], *[0] * (count - old_count)]
        for slot, future in zip(new_slots, futures, strict=False):
            self.futures[slot], self.lengths[slot] = future, 0
        if not old_count:
            self.state, self.tokens, self.strategy = state, tokens, strategy
            return
        slots = torch.tensor(new_slots, device=tokens.device)
        self.state.scatter_rows(slots, state)
        self.strategy.scatter_slots(slots, strategy)
        self.tokens = torch.cat((self.tokens, tokens.new_zeros((count - old_count) * self.beam_size)))
        self.tokens[self._rows(slots)] = tokens

    def step(self) -> None:
        """Decode one token in every slot and return the results of those that are finished."""
        for slot in self.active:
            future = self.futures[slot]
            if future is not None and future.canceled:
                self._finish(slot, [])
        if not self.active:
            return
        finished = self._decode_token().tolist()
        active = self.active
        for slot in active:
            self.lengths[slot] += 1
        ended = [slot for slot in active if finished[slot] or self._stopped_by_callback(slot)]
        for slot, found in zip(ended, self.strategy.results_of(ended), strict=True):
            self._finish(slot, found)
        self._shrink()
        empty = [slot for slot, future in enumerate(self.futures) if future is None]
        if empty:  # they are decoded too until they are reused, and must not grow
            slots = torch.tensor(empty, device=self.tokens.device)
            self.state.clear_rows(slots)
            self.strategy.clear_slots(slots)

    def cut_longest(self) -> None:
        slot = max(self.active, key=lambda slot: self.lengths[slot])
        self.strategy.stop(slot)
        self._finish(slot, self.strategy.results(slot))
        self._shrink(always=True)

    def fail(self, error: Exception) -> None:
        """End all requests with an error."""
        for slot in self.active:
            future = self.futures[slot]
            assert future is not None
            future.set_exception(error)
        self.futures = []

    def release_graph(self) -> None:
        """Return the captured step to the model's graph pool."""
        pool = graph_pool_for(self.model, self.strategy) if self._graphed_step is not None else None
        if pool is not None and self._graphed_step is not None:
            pool.release(self._graphed_step)
            self._graphed_step = None

    def _decode_token(self) -> Tensor:
        """One step, by a CUDA graph if possible; returns which slots are finished.  # (slots,)"""
        pool = graph_pool_for(self.model, self.strategy)
        if pool is not None:
            assert isinstance(self.strategy, SlottedStrategy)
            if self.strategy.is_full:
                self.strategy.grow()
            step = pool.update(self._graphed_step, self.model, self.state, self.strategy, self.tokens)
            self._graphed_step = step
            step.run()
            self.state, self.strategy, self.tokens = step.detach()
            return step.finished
        choice, self.state = take_step(self.model, self.state, self.tokens, self.strategy)
        self.tokens = choice.tokens
        if choice.beam_indices is not None:
            self.state.reorder_beams(choice.beam_indices)
        return self.strategy.finished()

    def _prefill(self, requests: list[Request], slots: int) -> tuple[State, Tensor, SearchStrategy]:
        """State, tokens and strategy of `slots` slots: the requests, and fillers that end at once."""
        requests = pad_requests(requests, slots)
        longest = max(request.max_length for request in requests)
        state, tokens = self.model.prefill([request.source for request in requests], min(longest, INITIAL_CAPACITY))
        constraints = [
            replace(each.constraints, seed=each.config.seed) if each.constraints.seed is None else each.constraints
            for each in requests
        ]
        strategy = make_strategy(
            self.template.config,
            [request.max_length for request in requests],
            self.eos,
            constraints=constraints,
            alternatives=self.template.alternatives,
            device=tokens.device,
        )
        if self.beam_size > 1:
            rows = torch.arange(len(requests), device=tokens.device).repeat_interleave(self.beam_size)
            state.reorder_beams(rows)
            tokens = tokens.repeat_interleave(self.beam_size)
        return state, tokens, strategy

    def _stopped_by_callback(self, slot: int) -> bool:
        future = self.futures[slot]
        if future is not None and future.on_step is not None:
            future.on_step(self.strategy.results(slot)[0])
        if future is None or future.on_tokens is None:
            return False
        if not future.on_tokens(self.strategy.best_tokens(slot)):
            return False
        self.strategy.stop(slot)
        return True

    def _finish(self, slot: int, hypotheses: list[Hypothesis]) -> None:
        future = self.futures[slot]
        assert future is not None
        future.set_result(hypotheses)
        self.futures[slot] = None

    def _shrink(self, always: bool = False) -> None:
        """Drop empty slots once they are half of all slots."""
        active, count = self.active, graph_batch_size(self.model, len(self.active))
        if active and (2 * count <= len(self.futures) or (always and count < len(self.futures))):
            empty = [slot for slot, future in enumerate(self.futures) if future is None]
            remaining = [*active, *empty[: count - len(active)]]
            slots = torch.tensor(remaining, device=self.tokens.device)
            rows = self._rows(slots)
            self.state.reorder_beams(rows, slots)
            self.strategy.select_slots(slots)
            self.tokens = self.tokens[rows]
            self.futures = [self.futures[slot] for slot in remaining]
            self.lengths = [self.lengths[slot] for slot in remaining]

    def _rows(self, slots: Tensor) -> Tensor:
        """The rows of these slots.  # (slots · beam_size,)"""
        return (slots[:, None] * self.beam_size + torch.arange(self.beam_size, device=slots.device)).flatten()
