"""Streaming a run: JSON lines, each an event, while the model works.

The model runs in its own thread and reports through a queue. If the client disconnects, the run stops after the current
step of the search.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

from regard.errors import UserError
from regard.look.analysis.search_recorder import StoppedError
from regard.look.schema import DoneEvent, FailedEvent, RunEvent, TokenEvent

TraceFn = Callable[[Callable[[TokenEvent], None], Callable[[], bool]], str]
"""Records a trace and returns its id. Called with a callback for tokens and one that tells whether to stop."""


async def stream_events(record: TraceFn) -> AsyncIterator[bytes]:
    """The events of a run, one line each; the last is `done` or `failed`."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[RunEvent | None] = asyncio.Queue()
    stopped = threading.Event()

    def send(event: RunEvent | None) -> None:
        if not stopped.is_set():
            loop.call_soon_threadsafe(queue.put_nowait, event)

    def run() -> None:
        try:
            send(DoneEvent(trace=record(send, stopped.is_set)))
        except StoppedError:
            send(FailedEvent(error="The run was stopped."))
        except UserError as error:
            send(FailedEvent(error=str(error)))
        except Exception as error:  # the response has started, so an event is the only way to report it
            send(FailedEvent(error=f"Internal error ({type(error).__name__}: {error})."))
        send(None)

    thread = threading.Thread(target=run, name="regard-run", daemon=True)
    thread.start()
    try:
        while (event := await queue.get()) is not None:
            yield event.model_dump_json().encode() + b"\n"
    finally:
        stopped.set()
