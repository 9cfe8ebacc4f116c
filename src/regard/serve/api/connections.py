"""Connections of clients that do not keep to the protocol: they send half a request, or more than is read.

uvicorn waits forever for the rest of a request's headers; here there is a limit. (That of the body is in
`serve/body_limits.py`.) And uvicorn closes a connection at once after it has refused a request that the client is still
sending, which resets it, so that the client may never read why; here the rest is read and discarded for a moment.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 30.0
"""How long a client may take to send a request's line and headers."""
LINGER_SECONDS = 2.0
"""How long a client may go on sending what is not read anymore."""


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a limit on the time that a request takes to arrive, and with a lingering close."""

    _timer: asyncio.TimerHandle | None = None
    _begun = False
    """Whether something has arrived of the request that is waited for."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(_LingeringTransport(transport, self))  # type: ignore[arg-type]
        self._watch()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self._begun = True
            super().data_received(data)
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start to wait for a request, or stop once it is there. Between two requests uvicorn's keep-alive counts."""
        if self.conn.their_state is not h11.IDLE:
            self._stop()
            self._begun = False
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            return
        if self._begun:
            self.send_400_response(f"The request was not complete after {HEADER_SECONDS:g} seconds; send it again.")
        else:
            self.transport.close()


class _LingeringTransport:
    """A transport that is closed when the client has closed its side, if the client may still be sending."""

    def __init__(self, transport: Any, protocol: PatientProtocol) -> None:
        self._transport, self._protocol = transport, protocol
        self._lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._lingering or bool(self._transport.is_closing())

    def close(self) -> None:
        state = self._protocol.conn.their_state
        if state not in (h11.SEND_BODY, h11.ERROR) or self.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._lingering = True
        self._transport.resume_reading()
        self._transport.write_eof()
        self._protocol.loop.call_later(LINGER_SECONDS, self._transport.close)
