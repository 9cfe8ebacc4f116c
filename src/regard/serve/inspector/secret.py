"""The secret of a server that one person started for themselves, as Jupyter has one.

Every program of this machine can reach its address, those of other users too. So the address that `regard look` prints
has a secret in it. The first visit exchanges it for a cookie, which scripts cannot read and other sites cannot have
sent, and nobody is served without one of the two.
"""

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

PARAMETER = "token"
"""The query parameter that has the secret."""
REFUSAL = "This server needs the secret of the address that `regard look` has printed; open that address."


class SecretMiddleware:
    """ASGI middleware that serves only those who know the secret."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self.app, self.secret = app, secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_known(_cookie(scope)):
            await self.app(scope, receive, send)
            return
        response: Any
        if not self._is_known(_parameter(scope)):
            is_page = not scope["path"].startswith("/api/")
            response = PlainTextResponse(REFUSAL, 403) if is_page else JSONResponse({"detail": REFUSAL}, 403)
        elif scope["path"] != "/" or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        else:
            response = RedirectResponse("/", 303)  # the browser keeps what is behind the #
            response.set_cookie(_cookie_name(scope), self.secret, httponly=True, samesite="strict")
        await response(scope, receive, send)

    def _is_known(self, found: str) -> bool:
        return hmac.compare_digest(found.encode("utf-8", "replace"), self.secret.encode())


def _cookie_name(scope: Scope) -> str:
    """Cookies do not tell ports apart, and there may be a server on each."""
    return f"regard-{(scope.get('server') or ('', 0))[1]}"


def _cookie(scope: Scope) -> str:
    cookies: SimpleCookie = SimpleCookie()
    try:
        cookies.load(Headers(scope=scope).get("cookie", ""))
    except CookieError:
        return ""
    found = cookies.get(_cookie_name(scope))
    return "" if found is None else str(found.value)


def _parameter(scope: Scope) -> str:
    try:
        fields = parse_qs(str(scope["query_string"], "ascii", "replace"), max_num_fields=20)
        return fields.get(PARAMETER, [""])[0]
    except ValueError:
        return ""
