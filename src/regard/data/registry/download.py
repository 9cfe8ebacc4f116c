"""Downloading one file over HTTP: resumable, verified, and atomic.

Bytes are written to `<target>.part`, so an interrupted download can be resumed. The server's version of the file (its
ETag, or else its date) is kept in `<target>.part.tag` and sent with the next request (RFC 9110, §13.1.5): a file that
has changed in the meantime is downloaded from the start, never mixed. The target appears complete and verified, or not
at all; an existing target is never modified.
"""

import http.client
import os
import re
import time
from collections.abc import Callable
from email.message import Message
from pathlib import Path
from typing import IO
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from regard.errors import UserError
from regard.files import file_sha256

Progress = Callable[[int, int | None], None]
"""Called with the bytes received so far and, if the server says so, the total."""


class DownloadError(UserError):
    """A file could not be downloaded; the message says which, why and what to do."""


def download(
    url: str,
    target: Path | str,
    *,
    sha256: str | None = None,
    timeout: float = 30.0,
    attempts: int = 3,
    pause: float = 1.0,
    progress: Progress | None = None,
) -> Path:
    """Download `url` to `target`, resuming an earlier attempt, and return the target.

    If the connection breaks, or the server is busy or does not respond within `timeout` seconds, the download is
    attempted up to `attempts` times, with growing pauses of `pause` seconds and more. An existing target is not
    modified: it is returned, or refused if its SHA-256 differs. Two processes must not download to the same target at
    once.
    """
    target = Path(target)
    if not _is_web(url):
        raise DownloadError(f"{url!r} is not a URL that can be downloaded; expected http:// or https://.")
    try:
        if target.exists():
            if sha256 is not None and file_sha256(target) != sha256:
                raise DownloadError(f"{target} exists already and differs from {url}; move it away first.")
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        part = _Part(target, url)
        _fill(part, sha256, timeout, attempts, pause, progress)
        part.finish()
    except OSError as error:
        raise DownloadError(
            f"{target} cannot be written: {error.strerror or error}. "
            "Make room or choose another folder; the next attempt resumes."
        ) from None
    return target


class _UnfinishedError(Exception):
    """The file is incomplete, and another attempt may help."""


class _Part:
    """The part of a file that has been received, and its version."""

    def __init__(self, target: Path, url: str) -> None:
        self.target = target
        self.url = url
        self.path = target.with_name(target.name + ".part")
        self.tag_path = target.with_name(target.name + ".part.tag")

    def length(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def tag(self) -> str | None:
        """The server's name of this version, if it is known and the bytes are from this URL."""
        try:
            lines = self.tag_path.read_text(encoding="latin-1").splitlines()
        except FileNotFoundError:
            return None
        return lines[1] if len(lines) == 2 and lines[0] == self.url else None

    def open(self, start: int, tag: str | None) -> IO[bytes]:
        """Open for writing from `start`; a fresh start records the version."""
        if start:
            return self.path.open("ab")
        self.discard()
        if tag is not None:
            self.tag_path.write_text(f"{self.url}\n{tag}\n", encoding="latin-1")
        return self.path.open("wb")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.tag_path.unlink(missing_ok=True)

    def finish(self) -> None:
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())  # after a power failure, the file must not exist without its content
        self.path.replace(self.target)
        self.tag_path.unlink(missing_ok=True)


def _fill(
    part: _Part, sha256: str | None, timeout: float, attempts: int, pause: float, progress: Progress | None
) -> None:
    """Download until the file is complete and verified."""
    resumed = part.length() > 0
    failures = 0
    while True:
        try:
            _receive(part, sha256 is not None, timeout, progress)
        except _UnfinishedError as error:
            failures += 1
            if failures < attempts:
                time.sleep(pause * failures)
                continue
            kept = f"; {part.length():,} bytes are kept, and the next attempt resumes" if part.length() else ""
            raise DownloadError(f"{part.url}: {error} (tried {failures} times){kept}.") from None
        if sha256 is None:
            return
        found = file_sha256(part.path)
        if found == sha256:
            return
        part.discard()
        if not resumed:
            raise DownloadError(
                f"{part.url}: the download has SHA-256 {found}, expected {sha256}; it was removed. "
                "The public file may have changed, or it was altered in transit."
            )
        resumed = False  # the bytes of an earlier attempt may be the bad ones: try again from the start


def _receive(part: _Part, verified: bool, timeout: float, progress: Progress | None) -> None:
    """One request for the rest of the file."""
    start, tag = part.length(), part.tag()
    if tag is None and not verified:
        start = 0  # old and new bytes may be from different versions of the file
    headers = {"Accept-Encoding": "identity", "User-Agent": "regard"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if tag is not None:
            headers["If-Range"] = tag
    try:
        response = _request(part.url, headers, timeout)
    except HTTPError as error:
        with error:
            if error.code == 416 and start:
                if error.headers.get("Content-Range") == f"bytes */{start}":
                    return  # the file was already complete
                part.discard()  # the file is shorter now
                _receive(part, verified, timeout, progress)
                return
            raise _refusal(part.url, error.code, error.reason) from None
    with response:
        total = _length(response.headers.get("Content-Length"))
        if response.status == 206 and start:
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if found is None or int(found[1]) != start:
                part.discard()
                raise _UnfinishedError("the server sent a different part of the file than requested")
            total = _length(found[2])
        elif response.status == 200:
            start = 0  # the server does not support ranges, or the file has changed
        else:
            raise _refusal(part.url, response.status, response.reason)
        with part.open(start, _version(response.headers)) as sink:
            done = start
            while chunk := _read(response):
                sink.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
        if total is not None and done != total:
            raise _UnfinishedError(f"the connection ended after {done:,} of {total:,} bytes")


def _request(url: str, headers: dict[str, str], timeout: float) -> http.client.HTTPResponse:
    """Send the request. HTTPError passes through; other errors are retried or explained."""
    try:
        response = _opener().open(request.Request(url, headers=headers), timeout=timeout)
        assert isinstance(response, http.client.HTTPResponse)
        return response
    except HTTPError:
        raise
    except URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise _UnfinishedError("the server did not respond in time") from None
        raise DownloadError(f"{url} cannot be reached ({error.reason}); check the network.") from None
    except http.client.InvalidURL:
        raise DownloadError(f"{url!r} is not a valid URL.") from None
    except TimeoutError:
        raise _UnfinishedError("the server did not respond in time") from None
    except (http.client.HTTPException, OSError) as error:
        raise _UnfinishedError(f"the connection broke ({error})") from None


def _read(response: http.client.HTTPResponse) -> bytes:
    """The bytes that are available now, up to a buffer: those received before a timeout are not lost."""
    try:
        return response.read1(1 << 16)
    except TimeoutError:
        raise _UnfinishedError("the server stopped sending") from None
    except (http.client.HTTPException, OSError) as error:
        raise _UnfinishedError(f"the connection broke ({error})") from None


def _refusal(url: str, code: int, reason: str) -> Exception:
    if code in (429, 500, 502, 503, 504):
        return _UnfinishedError(f"the server is busy or broken ({code} {reason})")
    if 300 <= code < 400:
        return DownloadError(f"{url} redirects in a circle or to an unsafe URL, which was not followed.")
    if code in (404, 410):
        return DownloadError(f"{url} does not exist ({code} {reason}).")
    return DownloadError(f"{url}: the server refused the request ({code} {reason}).")


def _version(headers: Message) -> str | None:
    """The validator for If-Range: a strong ETag, or else the date of the last change."""
    tag = headers.get("ETag")
    chosen = tag if tag is not None and tag.startswith('"') else headers.get("Last-Modified")
    return None if chosen is None or "\n" in chosen else str(chosen)


def _length(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


class _Redirects(request.HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https to http."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> request.Request | None:
        if not _is_web(newurl) or (req.type == "https" and urlsplit(newurl).scheme != "https"):
            raise HTTPError(newurl, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> request.OpenerDirector:
    """Like urllib's default opener, but without file:, ftp: and data:."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener
