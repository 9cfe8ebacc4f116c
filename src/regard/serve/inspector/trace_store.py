"""The traces of a server, in memory: when a limit is exceeded, the least recently used ones are evicted."""

import secrets
import threading
from collections import OrderedDict

from regard.errors import UserError
from regard.look.trace import Trace

MAX_BYTES = 2 << 30
"""Total size of the stored traces: their arrays, and an estimate for their headers."""
CANDIDATE_BYTES = 2500
"""Memory of a node of the search, or of an alternative of a token. A long search has more of it than arrays."""
MAX_TRACES = 200
MAX_EVICTED = 10_000
"""Ids of evicted traces that are remembered, to tell them from ids that never existed."""


class EvictedError(UserError):
    """The trace was evicted."""


class NotFoundError(UserError):
    """There is no such thing on this server."""


class TraceStore:
    """A thread-safe LRU store of traces."""

    def __init__(self, max_bytes: int = MAX_BYTES, max_traces: int = MAX_TRACES) -> None:
        self.max_bytes, self.max_traces = max_bytes, max_traces
        self._traces: OrderedDict[str, Trace] = OrderedDict()
        self._evicted: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, trace: Trace) -> str:
        """Store a trace under a new id, which is returned; old traces are evicted to make room."""
        trace_id = secrets.token_urlsafe(9)
        trace.header = trace.header.model_copy(update={"id": trace_id})
        with self._lock:
            self._traces[trace_id] = trace
            while len(self._traces) > 1 and (len(self._traces) > self.max_traces or self._nbytes() > self.max_bytes):
                evicted, _ = self._traces.popitem(last=False)
                self._evicted[evicted] = None
                while len(self._evicted) > MAX_EVICTED:
                    self._evicted.popitem(last=False)
        return trace_id

    def get(self, trace_id: str) -> Trace:
        with self._lock:
            if trace_id in self._traces:
                self._traces.move_to_end(trace_id)
                return self._traces[trace_id]
            if trace_id in self._evicted:
                raise EvictedError("This trace was evicted to make room for newer ones; run the text again.")
        raise NotFoundError("There is no such trace; the server may have been restarted since. Run the text again.")

    def _nbytes(self) -> int:
        return sum(trace.nbytes + _header_nbytes(trace) for trace in self._traces.values())


def _header_nbytes(trace: Trace) -> int:
    candidates = len(trace.header.nodes) + sum(len(token.alternatives) for token in trace.header.generated)
    return CANDIDATE_BYTES * candidates
