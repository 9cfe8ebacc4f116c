"""The built page's static files.

The browser revalidates index.html on each visit. The other files are linked with a hash of their content
(`page.js?b1318b80016a`), so a browser may cache them forever and never shows an outdated one.
"""

import hashlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from regard.errors import UserError
from regard.serve.inspector.guard import HEADERS

_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".map": "application/json",
    ".txt": "text/plain; charset=utf-8",
}


def static_folder() -> Path:
    """The folder of the built page."""
    return Path(str(resources.files("regard") / "look" / "static"))


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    etag: str


class StaticPage:
    """The files of a folder. They are read for each request, so that a rebuilt page shows up without a restart."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = static_folder() if folder is None else folder

    def respond(self, name: str, request: Request) -> Response:
        """The response with a file, or 304 if the browser already has it."""
        file = self._read(name)
        if file is None:
            missing = "The page is not built; run `make page`." if name == "index.html" else "There is no such file."
            return Response(missing, 404, media_type="text/plain; charset=utf-8")
        is_hashed = request.url.query == file.etag[1:13]
        headers = {
            **HEADERS,
            "etag": file.etag,
            "cache-control": "public, max-age=31536000, immutable" if is_hashed else "no-cache",
        }
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)

    def _read(self, name: str) -> _File | None:
        """A file directly in the folder; None for any other name, so that nothing outside can be read."""
        path = self.folder / name
        media_type = _MEDIA_TYPES.get(path.suffix)
        if media_type is None or name != path.name or not os.path.isfile(path):
            return None
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{name} cannot be read ({error.strerror}).") from None
        return _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
