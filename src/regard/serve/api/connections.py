"""A connection of the server, which ends when its client keeps it open without using it.

uvicorn closes a connection that is idle after a response. It waits without end for a first request, for the rest of one
whose headers arrive byte by byte, and for a client that does not read its response. Here each of these has a time
limit, and the number of connections has one too, so that slow clients, meant or not, cannot take the server from
others.
"""

import json
import time
from asyncio import Transport
from collections.abc import Callable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serve.api.lingering import LingeringTransport
from regard.serve.limits import Limits
from regard.serve.worker import RETRY_SECONDS

_REFUSAL_SECONDS = 2.0
"""How long a connection that was refused may take to read why."""
_FIRST_SECONDS = 1.0
"""How long a server that shuts down waits for the first request of a new connection."""
_REFUSALS = 256
"""Connections that are told why they are refused, at most. Others are just closed."""


class LimitedConnection(H11Protocol):
    """A connection of a client, with time limits that `enforce_limits` checks now and then."""

    def __init__(self, limits: Limits, **settings: Any) -> None:
        super().__init__(**settings)
        self.limits = limits
        self._receiving_since: float | None = None
        """Since when the head of a request is due that has not arrived completely; None if none is."""
        self._received = False
        """Whether anything has arrived of the request that is due."""
        self._refused = False
        self._made = time.monotonic()
        self._unsent = 0
        """Bytes of responses that the client had not read at the last check, and since when it has been so many."""
        self._unsent_since = 0.0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(LingeringTransport(transport, self))  # type: ignore[arg-type]
        self._receiving_since = time.monotonic()
        excess = len(self.connections) - self.limits.connections
        if excess > _REFUSALS:
            self.abort()
        elif excess > 0:
            self._refuse(503, "The server has too many connections; try again in a few seconds.")

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        super().data_received(data)
        if not self._head_is_due():
            self._receiving_since, self._received = None, False
        else:
            self._received = True
            if self._receiving_since is None:
                self._receiving_since = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered or about to arrive, and the client has read all responses."""
        if self.cycle is None:
            return self._received or time.monotonic() - self._made > _FIRST_SECONDS
        return bool(self.cycle.response_complete) and not self.transport.get_write_buffer_size()

    def enforce_limits(self, now: float) -> None:
        """End the connection if the client takes too long to send a request, or to read a response."""
        unsent = self.transport.get_write_buffer_size()
        if unsent != self._unsent or not unsent:
            self._unsent, self._unsent_since = unsent, now
        elif now - self._unsent_since > self.limits.send_seconds:
            self.abort()
        if self._receiving_since is None or self.transport.is_closing():
            return
        waited = now - self._receiving_since
        if self._refused and waited > _REFUSAL_SECONDS:
            self.transport.close()
        elif waited > self.limits.header_seconds and not self._refused:
            if not self._received or self.conn.their_state is not h11.IDLE:
                self.transport.close()
            else:
                self._refuse(408, f"The request was not complete after {self.limits.header_seconds:g} seconds.")

    def close(self) -> None:
        """Close the connection once the client has read what was written."""
        self.transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _head_is_due(self) -> bool:
        """Whether the client is to send the head of a request next, or still sends one that was answered long ago."""
        answered = self.cycle is not None and self.cycle.response_complete
        return self.conn.their_state is h11.IDLE or (answered and self.conn.their_state is h11.SEND_BODY)

    def _refuse(self, status: int, message: str) -> None:
        """Send an error, and leave the connection open a moment: a client that still sends could not read it."""
        self._refused, self._receiving_since = True, time.monotonic()
        self.transport.write(_error_response(status, message))
        if self.transport.can_write_eof():
            self.transport.write_eof()


def connections_with(limits: Limits) -> Callable[..., LimitedConnection]:
    """What makes the connections of a server with these limits."""

    def make(**settings: Any) -> LimitedConnection:
        return LimitedConnection(limits, **settings)

    return make


def _error_response(status: int, message: str) -> bytes:
    reason = {408: "Request Timeout", 503: "Service Unavailable"}[status]
    body = json.dumps({"detail": message}).encode()
    head = (
        f"HTTP/1.1 {status} {reason}\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nretry-after: {RETRY_SECONDS}\r\n\r\n"
    )
    return head.encode() + body
