"""Security checks of every request, and security headers of every response.

The server is for one person on their own machine. A page of another site, open in the same browser, could still send
requests to it. So the Host header of a request must name this machine (which defeats DNS rebinding), and its Origin, if
the browser sends one, must be the page itself. Request bodies are limited in size and time. The response headers forbid
the page to load or run anything from other sites.
"""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.body_limits import BodyLimiter, BodyRefusedError
from regard.serve.listening import is_local_host
from regard.serve.worker import RETRY_SECONDS

MAX_BODY = 1 << 20
"""Bytes of a request body, unless `max_bodies` has another limit for its path."""
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
        self.bodies = BodyLimiter(max(MAX_BODY, *self.max_bodies.values()))

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
        try:
            await self.bodies.run(self.app, scope, receive, _with_headers(send), self._max_body(scope["path"]))
        except BodyRefusedError as refused:
            await _respond(scope, receive, _with_headers(send), refused.status, str(refused))

    def _max_body(self, path: str) -> int:
        return next((limit for suffix, limit in self.max_bodies.items() if path.endswith(suffix)), MAX_BODY)


def _refusal(headers: Headers, path: str) -> str | None:
    """Why a request is refused; None if it is allowed."""
    host = headers.get("host", "")
    if not is_local_host(host):
        return f"This server responds to 127.0.0.1 and localhost only; the host was {host[:100]!r}."
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host}".lower():
        return f"This server responds to its own page only; the request came from {origin!r}."
    cross_site = headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    if cross_site and path.startswith("/api/"):  # other sites may link to the page itself
        return "This server responds to its own page only; the request came from another site."
    return None


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
