"""Limits on request bodies: their size, the memory that all of them take together, and the time they take to arrive."""

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SPARE_BODIES = 256 << 20
"""Bytes of all request bodies together, besides one of the largest size."""
BODY_SECONDS = 120.0
"""How long a client may take to send a request body."""
DISCARD_BYTES, DISCARD_SECONDS = 4 << 20, 1.0
"""How much of a body is read, and how long, when its request is refused already."""


class BodyRefusedError(Exception):
    """The body exceeds a limit. The message says which."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class BodyLimiter:
    """Runs an app on requests whose bodies are limited."""

    def __init__(self, largest: int) -> None:
        """`largest` is the size of the largest body that is allowed anywhere."""
        self.limit = largest + SPARE_BODIES
        self.used = 0
        """Bytes of the bodies of all requests in progress."""

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, max_body: int) -> None:
        """Run the app. A body that exceeds a limit is an error, and the app's own response is discarded."""
        content_length = Headers(scope=scope).get("content-length", "0")
        if not content_length.isdecimal() or len(content_length) > 15 or int(content_length) > max_body:
            raise BodyRefusedError(413, _too_large(max_body))
        body = _LimitedBody(receive, send, max_body, self)
        try:
            with suppress(BodyRefusedError, asyncio.CancelledError):  # the server cancels requests when it shuts down
                await app(scope, body.receive, body.send)
            if body.refusal is not None:
                raise body.refusal
        finally:
            self.used -= body.received


async def discard_body(scope: Scope, receive: Receive) -> None:
    """Read what a client still sends of a request that is refused, within limits.

    If the connection were closed before, the client would find it reset and could not read why.
    """
    headers = Headers(scope=scope)
    if headers.get("expect", "").lower() == "100-continue" or headers.get("content-length") == "0":
        return
    if "content-length" not in headers and "transfer-encoding" not in headers:
        return
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while size <= DISCARD_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


class _LimitedBody:
    """Passes a body on up to its limit."""

    def __init__(self, receive: Receive, send: Send, max_body: int, limiter: BodyLimiter) -> None:
        self._receive, self._send, self._max_body, self._limiter = receive, send, max_body, limiter
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        self._complete = False
        self.received = 0
        self.refusal: BodyRefusedError | None = None

    async def receive(self) -> Message:
        message = await self._next_message()
        if message["type"] == "http.request":
            self._complete = not message.get("more_body", False)
            size = len(message.get("body", b""))
            self.received += size
            self._limiter.used += size
            if self.received > self._max_body:
                self._refuse(413, _too_large(self._max_body))
            elif self._limiter.used > self._limiter.limit:
                self._refuse(503, "The server is busy with other large requests; try again in a few seconds.")
        return message

    async def send(self, message: Message) -> None:
        if self.refusal is None:
            await self._send(message)

    async def _next_message(self) -> Message:
        if self._complete:  # what is left to come is the client's departure
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            self._refuse(408, f"The request was not complete after {BODY_SECONDS:.0f} seconds; send it again.")
            raise AssertionError from None

    def _refuse(self, status: int, message: str) -> None:
        self.refusal = BodyRefusedError(status, message)
        raise self.refusal


def _too_large(max_body: int) -> str:
    return f"The request is too large: the limit is {max_body:,} bytes."
