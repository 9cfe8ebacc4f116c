"""What every request must pass, and what every answer carries.

The server is for one person, on their own machine. A page of somebody else, open in the same browser, could still send
requests to it. So a request must name this machine as its host (else a name that was pointed here, DNS rebinding, would
do), and must come from the page itself where a browser says where it comes from. Bodies are limited in size. Answers
forbid the page to load or run anything from elsewhere.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = ("127.0.0.1", "localhost", "[::1]")
LARGEST_BODY = 1 << 20
"""Bytes of a body where nothing else is said."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Around an app. `limits`: the bytes that bodies may have, by the end of their path; the first that fits counts."""

    def __init__(self, app: ASGIApp, limits: Mapping[str, int] | None = None) -> None:
        self.app, self.limits = app, dict(limits or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # nothing here talks over websockets
        headers = Headers(scope=scope)
        refused = _refused(headers, scope["path"])
        if refused is not None:
            await _answer(scope, receive, _with_headers(send), 403, refused)
            return
        limit = self._limit(scope["path"])
        stated = headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated) > limit:
            await _answer(scope, receive, _with_headers(send), 413, _too_large(limit))
            return
        counted = _Counted(receive, _with_headers(send), limit)
        with suppress(_TooLargeError):
            await self.app(scope, counted.receives, counted.sends)
        if counted.left < 0:
            await _answer(scope, receive, _with_headers(send), 413, _too_large(limit))

    def _limit(self, path: str) -> int:
        return next((limit for end, limit in self.limits.items() if path.endswith(end)), LARGEST_BODY)


class _TooLargeError(Exception):
    """More came than may come."""


class _Counted:
    """Hands a body on as long as it is not too large; what is answered to one that is, is not sent."""

    def __init__(self, receive: Receive, send: Send, limit: int) -> None:
        self.receive, self.send, self.left = receive, send, limit

    async def receives(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.request":
            self.left -= len(message.get("body", b""))
            if self.left < 0:
                raise _TooLargeError
        return message

    async def sends(self, message: Message) -> None:
        if self.left >= 0:
            await self.send(message)


def _refused(headers: Headers, path: str) -> str | None:
    """Why a request is not for us; None if it is."""
    host = headers.get("host", "")
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    if name.lower() not in LOCAL:
        return f"This server answers to {LOCAL[0]} and {LOCAL[1]} only, and was called {host or 'nothing'!r}."
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host}".lower():
        return f"This server answers its own page only, and was asked by {origin!r}."
    elsewhere = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    if elsewhere and path.startswith("/api/"):  # a link to the page itself may stand anywhere
        return "This server answers its own page only, and was asked by another."
    return None


def _too_large(limit: int) -> str:
    return f"The request is too large: at most {limit:,} bytes may be sent."


def _with_headers(send: Send) -> Send:
    async def sends(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message["headers"])
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sends


async def _answer(scope: Scope, receive: Receive, send: Send, status: int, sentence: str) -> None:
    answer: Any = JSONResponse({"detail": sentence}, status)
    await answer(scope, receive, send)
