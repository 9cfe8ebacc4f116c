"""Closing a connection whose client still sends.

A connection that is closed while something arrives on it is reset, so that the client may never read why its request
was refused. Here the server's side is closed at once, and what still arrives is read and discarded for a moment.
"""

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LINGER_SECONDS = 2.0
"""How long a client may go on sending what is not read anymore."""


class LingeringTransport:
    """A transport that is closed when the client has closed its side, if the client may still be sending."""

    def __init__(self, transport: Any, protocol: H11Protocol) -> None:
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
