"""A run that tells of itself while it works: lines of JSON, each an event.

The model works in a thread of its own; what it has to say comes through a queue. Whoever goes away stops it: the next
step of the search is the last.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

from regard.errors import UserError
from regard.look.watching import StoppedError
from regard.look.wire import DoneEvent, FailedEvent, RunEvent, TokenEvent

Work = Callable[[Callable[[TokenEvent], None], Callable[[], bool]], str]
"""Does the work, given who hears of it and who says whether it is still wanted; gives the name of what was made."""


async def events_of(work: Work) -> AsyncIterator[bytes]:
    """What happens while some work is done, a line each, the last one `done` or `failed`."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[RunEvent | None] = asyncio.Queue()
    stopped = threading.Event()

    def tell(event: RunEvent | None) -> None:
        if not stopped.is_set():
            loop.call_soon_threadsafe(queue.put_nowait, event)

    def do() -> None:
        try:
            tell(DoneEvent(trace=work(tell, stopped.is_set)))
        except StoppedError:
            tell(FailedEvent(reason="It was stopped."))
        except UserError as error:
            tell(FailedEvent(reason=str(error)))
        except Exception as error:  # the line has begun: all that can be done is to say so
            tell(FailedEvent(reason=f"Something went wrong that should not have ({type(error).__name__}: {error})."))
        tell(None)

    thread = threading.Thread(target=do, name="regard-run", daemon=True)
    thread.start()
    try:
        while (event := await queue.get()) is not None:
            yield event.model_dump_json().encode() + b"\n"
    finally:
        stopped.set()
