"""Traces kept in memory: so many bytes of them, and when more come the oldest go."""

import secrets
import threading
from collections import OrderedDict

from regard.errors import UserError
from regard.look.trace import Trace

ROOM = 2 << 30
"""Bytes of arrays that are kept in all."""
MOST = 200
"""Traces that are kept in all."""
REMEMBERED = 10_000
"""Names of traces that have gone, so that whoever asks for one is told so."""


class GoneError(UserError):
    """It was here, and was let go."""


class UnknownError(UserError):
    """It was never here."""


class Shelf:
    """A place for traces; may be used from several threads."""

    def __init__(self, room: int = ROOM, most: int = MOST) -> None:
        self.room, self.most = room, most
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, trace: Trace) -> str:
        """Keep a trace, and give it a name; the oldest make room for it."""
        name = secrets.token_urlsafe(9)
        trace.header = trace.header.model_copy(update={"id": name})
        with self._lock:
            self._traces[name] = trace
            while len(self._traces) > 1 and (len(self._traces) > self.most or self._held() > self.room):
                old, _ = self._traces.popitem(last=False)
                self._gone[old] = None
                while len(self._gone) > REMEMBERED:
                    self._gone.popitem(last=False)
        return name

    def get(self, name: str) -> Trace:
        with self._lock:
            if name in self._traces:
                self._traces.move_to_end(name)  # what is looked at stays
                return self._traces[name]
            if name in self._gone:
                raise GoneError("This trace was let go to make room for newer ones; run the text again.")
        raise UnknownError("There is no such trace: it may be from before the server was started. Run the text again.")

    def _held(self) -> int:
        return sum(trace.size for trace in self._traces.values())
