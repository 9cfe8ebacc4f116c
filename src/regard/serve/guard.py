"""Security checks of every request, and security headers of every response.

The server is for one person on their own machine. A page of another site, open in the same browser, could still send
requests to it. So the Host header of a request must name this machine (which defeats DNS rebinding), and its Origin, if
the browser sends one, must be the page itself. Request bodies are limited in size and time. The response headers forbid
the page to load or run anything from other sites.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.worker import RETRY_SECONDS

LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY = 1 << 20
"""Bytes of a request body, unless `max_bodies` has another limit for its path."""
SPARE_BODIES = 256 << 20
"""Bytes of all request bodies together, besides one of the largest size."""
BODY_SECONDS = 120.0
"""How long a client may take to send a request body."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class LocalOnlyMiddleware:
    """ASGI middleware. `max_bodies` maps path suffixes to body limits; the first match counts."""

    def __init__(self, app: ASGIApp, max_bodies: Mapping[str, int] | None = None) -> None:
        self.app, self.max_bodies = app, dict(max_bodies or {})
        self.memory = _BodyMemory(max(MAX_BODY, *self.max_bodies.values()) + SPARE_BODIES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # there are no websockets
        headers = Headers(scope=scope)
        reason = _refusal(headers, scope["path"])
        if reason is not None:
            await _respond(scope, receive, _with_headers(send), 403, reason)
            return
        max_body = self._max_body(scope["path"])
        content_length = headers.get("content-length", "0")
        if not content_length.isdecimal() or len(content_length) > 15 or int(content_length) > max_body:
            await _respond(scope, receive, _with_headers(send), 413, _too_large(max_body))
            return
        limited = _LimitedBody(receive, _with_headers(send), max_body, self.memory)
        try:
            with suppress(_RefusedError, asyncio.CancelledError):  # the server cancels requests when it shuts down
                await self.app(scope, limited.receive, limited.send)
            if limited.refusal is not None:
                await _respond(scope, receive, _with_headers(send), *limited.refusal)
        finally:
            self.memory.used -= limited.received

    def _max_body(self, path: str) -> int:
        return next((limit for suffix, limit in self.max_bodies.items() if path.endswith(suffix)), MAX_BODY)


class _RefusedError(Exception):
    """The body exceeds a limit."""


@dataclass
class _BodyMemory:
    """The bytes that the bodies of all requests in progress take, and their limit."""

    limit: int
    used: int = 0


class _LimitedBody:
    """Passes a body on up to its limit. Once it is exceeded, the app's own response is discarded."""

    def __init__(self, receive: Receive, send: Send, max_body: int, memory: _BodyMemory) -> None:
        self._receive, self._send, self._max_body, self._memory = receive, send, max_body, memory
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS
        self._complete = False
        self.received = 0
        self.refusal: tuple[int, str] | None = None
        """The status and message of a request that was refused."""

    async def receive(self) -> Message:
        message = await self._next_message()
        if message["type"] == "http.request":
            self._complete = not message.get("more_body", False)
            size = len(message.get("body", b""))
            self.received += size
            self._memory.used += size
            if self.received > self._max_body:
                self.refusal = (413, _too_large(self._max_body))
            elif self._memory.used > self._memory.limit:
                self.refusal = (503, "The server is busy with other large requests; try again in a few seconds.")
            if self.refusal is not None:
                raise _RefusedError
        return message

    async def _next_message(self) -> Message:
        if self._complete:  # what is left to come is the client's departure
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._receive()
        except TimeoutError:
            self.refusal = (408, f"The request was not complete after {BODY_SECONDS:.0f} seconds; send it again.")
            raise _RefusedError from None

    async def send(self, message: Message) -> None:
        if self.refusal is None:
            await self._send(message)


def _refusal(headers: Headers, path: str) -> str | None:
    """Why a request is refused; None if it is allowed."""
    host = headers.get("host", "")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name.lower() not in LOCAL_HOSTS:
        return f"This server responds to {LOCAL_HOSTS[0]} and {LOCAL_HOSTS[1]} only; the host was {host!r}."
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host}".lower():
        return f"This server responds to its own page only; the request came from {origin!r}."
    cross_site = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    if cross_site and path.startswith("/api/"):  # other sites may link to the page itself
        return "This server responds to its own page only; the request came from another site."
    return None


def _too_large(max_body: int) -> str:
    return f"The request is too large: the limit is {max_body:,} bytes."


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers


async def _respond(scope: Scope, receive: Receive, send: Send, status: int, detail: str) -> None:
    headers = {"retry-after": str(RETRY_SECONDS)} if status == 503 else None
    response: Any = JSONResponse({"detail": detail}, status, headers)
    await response(scope, receive, send)
