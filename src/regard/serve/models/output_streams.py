"""Several outputs of one request while the engine decodes them, in the order in which they advance.

The engine must not wait for a reader. So it leaves the newest state of each output in a place of its own, where the
next one replaces it: a reader that is slow misses some steps, but no tokens, and memory does not grow.
"""

from collections.abc import Generator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple

from regard.decode import DecodeFuture, Hypothesis, Request
from regard.serve.models.cancellation import current_cancellation
from regard.serve.models.engine_thread import EnginePool, EngineThread

MAX_IN_FLIGHT = 32
"""Outputs that one request has in the engine at a time. The rest of a long text waits, so that others get a turn."""


class StreamedOutput(NamedTuple):
    """An output so far, or at its end."""

    number: int
    """The index of its request."""
    hypothesis: Hypothesis
    done: bool


class OutputStreams:
    """Iterates over the states of all outputs. Closing the iterator cancels what is not finished."""

    def __init__(self, engine: EngineThread | EnginePool, requests: Sequence[Request], *, logprobs: bool) -> None:
        """Without `logprobs`, the engine does not read log-probabilities while it decodes: they are in the results."""
        self._engine, self._logprobs = engine, logprobs
        self._cancellation = current_cancellation()
        self._requests = list(enumerate(requests))[::-1]
        """Those that have not begun, the next one last."""
        self._futures: dict[int, DecodeFuture] = {}
        self._newest: dict[int, Hypothesis] = {}
        self._changed: SimpleQueue[int] = SimpleQueue()
        self._stopped: set[int] = set()

    def __iter__(self) -> Generator[StreamedOutput, None, None]:
        try:
            while self._requests or self._futures:
                while self._requests and len(self._futures) < MAX_IN_FLIGHT:
                    self._submit(*self._requests.pop())
                number = self._changed.get()
                if (future := self._futures.get(number)) is None:
                    continue
                done = future.done  # before the newest state is taken, which may be the last but one
                newest = self._newest.pop(number, None)
                if done:
                    del self._futures[number]
                    self._cancellation.remove(future)
                    hypotheses = future.result()
                    self._cancellation.check()  # a canceled output has no hypotheses
                    if number not in self._stopped:
                        yield StreamedOutput(number, hypotheses[0], done=True)
                elif newest is not None and number not in self._stopped:
                    yield StreamedOutput(number, newest, done=False)
        finally:
            for future in self._futures.values():
                future.cancel()
                self._cancellation.remove(future)

    def stop(self, number: int) -> None:
        """End an output here. It does not come again, and its slot is free at the next step."""
        self._stopped.add(number)
        self._futures[number].cancel()

    def _submit(self, number: int, request: Request) -> None:
        if self._logprobs:
            future = self._engine.submit(request, on_step=partial(self._arrived, number))
        else:
            future = self._engine.submit(
                request, on_tokens=lambda tokens: self._arrived(number, _without_logprobs(tokens))
            )
        self._futures[number] = future
        self._cancellation.add(future)
        future.when_done(partial(self._changed.put, number))

    def _arrived(self, number: int, hypothesis: Hypothesis) -> None:
        """Called by the engine's thread."""
        self._newest[number] = hypothesis
        self._changed.put(number)


def _without_logprobs(tokens: tuple[int, ...]) -> Hypothesis:
    return Hypothesis(tokens, 0.0, 0.0, ended=False)
