"""Who may use the server: API keys, and which hosts and origins a browser may come from.

Without keys the server is meant for this machine: a page of another site, open in a browser here, must not use it, so
the Host header has to name this machine (which defeats DNS rebinding), and so has the Origin. With keys, or when it was
asked to do without, it answers to any host. Other origins are never allowed to read answers (CORS), unless they are
named.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers

from regard.serve.listening import is_local_host

OPEN_PATHS = ("/health", "/frontend/settings")
"""Paths that need no key."""


@dataclass(frozen=True)
class Access:
    """The keys of a server, and who may talk to it."""

    key_digests: tuple[bytes, ...] = ()
    """SHA-256 of each API key; none are needed if there is none."""
    local_only: bool = True
    """Whether only hosts and origins of this machine are answered."""
    origins: tuple[str, ...] = ()
    """Origins whose pages may use the API (CORS)."""

    @classmethod
    def with_keys(cls, keys: Sequence[str], *, local_only: bool, origins: Sequence[str] = ()) -> "Access":
        return cls(tuple(map(_digest, keys)), local_only, tuple(origins))

    @property
    def needs_key(self) -> bool:
        return bool(self.key_digests)

    def is_valid(self, key: str | None) -> bool:
        """Whether a key is one of the server's. Takes the same time for every wrong key."""
        if key is None:
            return False
        digest = _digest(key)
        return sum(hmac.compare_digest(digest, known) for known in self.key_digests) > 0  # compares with all

    def refusal(self, headers: Headers) -> str | None:
        """Why a request is refused for where it comes from; None if it may be answered."""
        origin = headers.get("origin")
        if not self.local_only:
            return None
        host = headers.get("host", "")
        if not is_local_host(host):
            return f"This server responds to 127.0.0.1 and localhost only; the host was {host[:100]!r}."
        if origin is not None and origin.lower() != f"http://{host}".lower() and origin not in self.origins:
            return f"This server responds to its own page only; the request came from {origin[:100]!r}."
        return None


def key_in_headers(headers: Headers) -> str | None:
    """The API key of a request: `Authorization: Bearer KEY`, as a password (Basic), DeepL-Auth-Key, or X-API-Key."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer" | "deepl-auth-key":
            return value.strip()
        case "basic":
            try:
                return base64.b64decode(value, validate=True).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return None
    return headers.get("x-api-key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
