"""What happens to every request before and after its route: access, limits, the log, metrics, security headers."""

import itertools
import secrets
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.api.access import OPEN_PATHS, key_in_headers
from regard.serve.api.errors import RefusedError, status_and_message
from regard.serve.api.service import Service
from regard.serve.body_limits import BodyLimiter, BodyRefusedError, discard_body

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
IMAGE_PATHS = ("/v1/classify", "/api/")
"""Paths whose bodies may contain images, or traces."""
_PREFIX, _numbers = secrets.token_hex(4), itertools.count()
"""The ids of requests begin with a random number for each process."""
LogRequest = Callable[[dict[str, Any]], None]
"""Writes what is known about an answered request to the log: never its texts."""


class ServiceMiddleware:
    """ASGI middleware around all routes of the public API."""

    def __init__(self, app: ASGIApp, service: Service, log: LogRequest, own_keys: tuple[str, ...] = ()) -> None:
        """`own_keys` begin the paths of protocols that may have the key in the body, and check it themselves."""
        self.app, self.service, self.log, self.own_keys = app, service, log, own_keys
        limits = service.limits
        self.bodies = BodyLimiter(max(limits.body_bytes, limits.image_body_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # there are no websockets
        exchange = _Exchange(scope, receive, send, self.service)
        self.service.in_progress += 1
        try:
            await self._answer(scope, exchange)
        finally:
            self.service.in_progress -= 1
            self.log(exchange.record())

    async def _answer(self, scope: Scope, exchange: "_Exchange") -> None:
        try:
            self._check(scope)
            limits = self.service.limits
            max_body = limits.image_body_bytes if scope["path"].startswith(IMAGE_PATHS) else limits.body_bytes
            await self.bodies.run(self.app, scope, exchange.receive, exchange.send, max_body)
            if exchange.status is None and self.service.draining:  # it was canceled
                raise RefusedError(503, "The server is shutting down; send the request to another one.")
        except BodyRefusedError as refused:
            await self._refuse(scope, exchange, refused.status, str(refused))
        except RefusedError as refused:
            await self._refuse(scope, exchange, refused.status, str(refused))
        except Exception as error:  # the app has answered with its status, and raises it again for the log
            exchange.error = error
            if exchange.status is None:
                await self._refuse(scope, exchange, *status_and_message(error, exchange.id))

    def _check(self, scope: Scope) -> None:
        """Refuse a request for where it comes from, or without a key."""
        access, headers, path = self.service.access, Headers(scope=scope), scope["path"]
        if (reason := access.refusal(headers)) is not None:
            raise RefusedError(403, reason)
        if self.service.draining and not path.startswith("/health"):
            raise RefusedError(503, "The server is shutting down; send the request to another one.")
        if not access.needs_key or path.startswith((*OPEN_PATHS, *self.own_keys)):
            return
        if not access.is_valid(key_in_headers(headers)):
            raise RefusedError(401, "This server needs an API key; send it as `Authorization: Bearer KEY`.")

    async def _refuse(self, scope: Scope, exchange: "_Exchange", status: int, message: str) -> None:
        headers = {"www-authenticate": 'Basic realm="API key as the password"'} if status == 401 else {}
        if not exchange.body_complete:
            await discard_body(scope, exchange.receive)
        response: Response = self.service.error_shapes.response(scope["path"], status, message, headers)
        await response(scope, exchange.receive, exchange.send)


class _Exchange:
    """A request and what is known about its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, service: Service) -> None:
        self.scope, self._receive, self._send, self._service = scope, receive, send, service
        self.id = f"{_PREFIX}{next(_numbers):08x}"
        self.start = time.perf_counter()
        self.status: int | None = None
        self.error: BaseException | None = None
        self.body_complete = False
        scope.setdefault("state", {})["id"] = self.id

    async def receive(self) -> Message:
        message = await self._receive()
        self.body_complete |= not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message["headers"])
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            headers["x-request-id"] = self.id
            if self._service.draining:
                headers["connection"] = "close"
        await self._send(message)

    def record(self) -> dict[str, Any]:
        """For the log."""
        state = self.scope["state"]
        error = self.error or state.get("error")
        failed = (self.status or 500) == 500 or (self.status == 200 and "error" in state)  # also within a stream
        route = self.scope.get("route")
        return {
            "id": self.id,
            "method": self.scope["method"],
            "route": getattr(route, "path", None) or "unknown",
            "status": self.status or 499,
            "seconds": round(time.perf_counter() - self.start, 4),
            **{key: state[key] for key in ("model", "items", "tokens") if key in state},
            **({"error": error} if error is not None and failed else {}),
        }


def note(request: Request, **facts: Any) -> None:
    """Have the log and the metrics tell something about a request: its `model`, the number of `items` or `tokens`."""
    for name, value in facts.items():
        setattr(request.state, name, value)
