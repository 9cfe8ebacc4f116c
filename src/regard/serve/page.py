"""The page's own files, as they were built.

The first page is asked for anew each time. It links the others by the hash of their content (`page.js?b1318b80016a`),
so a browser may keep those for ever and still never shows an old one.
"""

import hashlib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from regard.errors import UserError

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".map": "application/json",
    ".txt": "text/plain; charset=utf-8",
}


def static_folder() -> Path:
    """Where the built page is."""
    return Path(str(resources.files("regard") / "look" / "static"))


@dataclass(frozen=True)
class _File:
    content: bytes
    kind: str
    etag: str


class Page:
    """The files of a folder, read when they are asked for, so that a page built anew is seen."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = static_folder() if folder is None else folder

    def answer(self, name: str, request: Request) -> Response:
        """A file by its name, or no more than that the browser has it already."""
        file = self._read(name)
        if file is None:
            missing = "The page was not built; run `make page`." if name == "index.html" else f"There is no {name!r}."
            return Response(missing, 404, media_type="text/plain; charset=utf-8")
        named = request.url.query == file.etag[1:13]
        headers = {
            "etag": file.etag,
            "cache-control": "public, max-age=31536000, immutable" if named else "no-cache",
        }
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.kind)

    def _read(self, name: str) -> _File | None:
        """A file of the folder itself; nothing outside of it, whatever the name says."""
        path = self.folder / name
        kind = _TYPES.get(path.suffix)
        if kind is None or name != path.name or not path.is_file():
            return None
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{name} cannot be read ({error.strerror}).") from None
        return _File(content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
