"""Streaming a run: JSON lines, each an event, while the model works.

The model runs in its worker's thread and reports through a queue. If the client disconnects, a run that waits for its
turn is canceled, and one in progress stops after the current step of the search.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from regard.look.schema import DoneEvent, FailedEvent, RunEvent, TokenEvent
from regard.serve.inspector.errors import error_message, error_status
from regard.serve.worker import Worker

TraceFn = Callable[[Callable[[TokenEvent], None], Callable[[], bool]], str]
"""Records a trace and returns its id. Called with a callback for tokens and one that tells whether to stop."""


class EventStream(StreamingResponse):
    """The response of a run: its events, one line each; the last is `done` or `failed`.

    The run is submitted to the worker at once, so that a full queue is an error before the response has begun.
    """

    def __init__(self, worker: Worker, record: TraceFn) -> None:
        self._record, self._worker = record, worker
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[RunEvent | None] = asyncio.Queue()
        self._stopped = threading.Event()
        self._future = worker.submit(self._run)
        self._future.add_done_callback(lambda _: self._send(None))
        super().__init__(self._lines(), media_type="application/x-ndjson")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.stop()

    def stop(self) -> None:
        """Cancel the run, or stop it after its current step."""
        self._stopped.set()
        self._future.cancel()

    async def _lines(self) -> AsyncIterator[bytes]:
        while (event := await self._events.get()) is not None:
            yield event.model_dump_json().encode() + b"\n"

    def _run(self) -> None:
        try:
            self._send(DoneEvent(trace=self._record(self._send, self._should_stop)))
        except Exception as error:  # the response has started, so an event is the only way to report it
            self._send(FailedEvent(error=error_message(error), status=error_status(error)))

    def _should_stop(self) -> bool:
        return self._stopped.is_set() or self._worker.closed

    def _send(self, event: RunEvent | None) -> None:
        with suppress(RuntimeError):  # the server has ended
            if not self._stopped.is_set():
                self._loop.call_soon_threadsafe(self._events.put_nowait, event)
