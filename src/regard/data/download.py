"""Fetching one file over HTTP: it goes on where it stopped, verifies, and only then puts the file in its place.

Bytes arrive in `<target>.part`, beside the target, so an interrupted download costs only what was still to come. What
the server calls that version of the file (its ETag, else its date) is kept in `<target>.part.tag` and sent along with
the next request (RFC 9110, §13.1.5): a file that has changed meanwhile comes whole, never as half old, half new. The
target appears complete and verified, or not at all; one that was there before is never touched.
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
"""Called with the bytes there are so far and, where the server says it, how many there will be."""


class DownloadError(UserError):
    """A file could not be fetched; the message says which, why and what to do."""


def download(
    address: str,
    target: Path | str,
    *,
    sha256: str | None = None,
    timeout: float = 30.0,
    attempts: int = 3,
    pause: float = 1.0,
    progress: Progress | None = None,
) -> Path:
    """Fetch `address` into `target`, going on from an earlier try, and return the target.

    A broken connection, a silent server (`timeout` seconds) or a busy one is tried `attempts` times, with a growing
    `pause` in seconds between. A target that exists stays as it is: it is returned, or refused if its SHA-256 is known
    to be another. Two processes must not fetch into the same target at once.
    """
    target = Path(target)
    if not _is_web(address):
        raise DownloadError(f"{address!r} is not an address that can be fetched; expected http:// or https://.")
    try:
        if target.exists():
            if sha256 is not None and file_sha256(target) != sha256:
                raise DownloadError(f"{target} is there already and differs from {address}; please move it away first.")
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        part = _Part(target, address)
        _fill(part, sha256, timeout, attempts, pause, progress)
        part.finish()
    except OSError as error:
        raise DownloadError(
            f"{target} cannot be written: {error.strerror or error}. "
            "Please make room or choose another folder; a new try goes on from what has arrived."
        ) from None
    return target


class _UnfinishedError(Exception):
    """The file is not complete, and another try may help."""


class _Part:
    """What has arrived of a file, and which version of it that is."""

    def __init__(self, target: Path, address: str) -> None:
        self.target = target
        self.address = address
        self.path = target.with_name(target.name + ".part")
        self.tag_path = target.with_name(target.name + ".part.tag")

    def length(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def tag(self) -> str | None:
        """What the server called this version, if the bytes are from this address and it said so."""
        try:
            lines = self.tag_path.read_text(encoding="latin-1").splitlines()
        except FileNotFoundError:
            return None
        return lines[1] if len(lines) == 2 and lines[0] == self.address else None

    def open(self, start: int, tag: str | None) -> IO[bytes]:
        """Open for writing from `start`; a fresh start notes the version that is about to arrive."""
        if start:
            return self.path.open("ab")
        self.discard()
        if tag is not None:
            self.tag_path.write_text(f"{self.address}\n{tag}\n", encoding="latin-1")
        return self.path.open("wb")

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self.tag_path.unlink(missing_ok=True)

    def finish(self) -> None:
        with self.path.open("rb+") as file:
            os.fsync(file.fileno())  # a name must not outlive a power cut that its bytes did not
        self.path.replace(self.target)
        self.tag_path.unlink(missing_ok=True)


def _fill(
    part: _Part, sha256: str | None, timeout: float, attempts: int, pause: float, progress: Progress | None
) -> None:
    """Receive until the file is whole and verified."""
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
            kept = f"; {part.length():,} bytes are kept and a new try goes on from there" if part.length() else ""
            raise DownloadError(f"{part.address}: {error} (tried {failures} times){kept}.") from None
        if sha256 is None:
            return
        found = file_sha256(part.path)
        if found == sha256:
            return
        part.discard()
        if not resumed:
            raise DownloadError(
                f"{part.address}: what arrived has SHA-256 {found}, expected {sha256}; it was removed. "
                "The public file may have changed, or something on the way altered it."
            )
        resumed = False  # the bytes of an earlier try may have been the bad ones: once more, from the start


def _receive(part: _Part, verified: bool, timeout: float, progress: Progress | None) -> None:
    """One request and its answer, from where the part ends."""
    start, tag = part.length(), part.tag()
    if tag is None and not verified:
        start = 0  # nothing could tell whether old and new bytes belong together
    headers = {"Accept-Encoding": "identity", "User-Agent": "regard"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if tag is not None:
            headers["If-Range"] = tag
    try:
        response = _ask(part.address, headers, timeout)
    except HTTPError as error:
        with error:
            if error.code == 416 and start:
                if error.headers.get("Content-Range") == f"bytes */{start}":
                    return  # nothing is left to send: it had all arrived
                part.discard()  # the file is shorter now
                _receive(part, verified, timeout, progress)
                return
            raise _refusal(part.address, error.code, error.reason) from None
    with response:
        total = _length(response.headers.get("Content-Length"))
        if response.status == 206 and start:
            found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
            if found is None or int(found[1]) != start:
                part.discard()
                raise _UnfinishedError("the server sent another part of the file than the one asked for")
            total = _length(found[2])
        elif response.status == 200:
            start = 0  # the server knows no ranges, or the file has changed
        else:
            raise _refusal(part.address, response.status, response.reason)
        with part.open(start, _version(response.headers)) as sink:
            done = start
            while chunk := _read(response):
                sink.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
        if total is not None and done != total:
            raise _UnfinishedError(f"the connection ended after {done:,} of {total:,} bytes")


def _ask(address: str, headers: dict[str, str], timeout: float) -> http.client.HTTPResponse:
    """Send the request. HTTPError passes; the rest is worth another try or is a sentence."""
    try:
        response = _opener().open(request.Request(address, headers=headers), timeout=timeout)
        assert isinstance(response, http.client.HTTPResponse)
        return response
    except HTTPError:
        raise
    except URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise _UnfinishedError("no answer came in time") from None
        raise DownloadError(f"{address} cannot be reached ({error.reason}); please check the network.") from None
    except http.client.InvalidURL:
        raise DownloadError(f"{address!r} is not a valid address.") from None
    except TimeoutError:
        raise _UnfinishedError("no answer came in time") from None
    except (http.client.HTTPException, OSError) as error:
        raise _UnfinishedError(f"the connection broke ({error})") from None


def _read(response: http.client.HTTPResponse) -> bytes:
    """What is there now, up to a buffer full: bytes that arrived before a silence are not lost."""
    try:
        return response.read1(1 << 16)
    except TimeoutError:
        raise _UnfinishedError("the server fell silent") from None
    except (http.client.HTTPException, OSError) as error:
        raise _UnfinishedError(f"the connection broke ({error})") from None


def _refusal(address: str, code: int, reason: str) -> Exception:
    if code in (429, 500, 502, 503, 504):
        return _UnfinishedError(f"the server is busy or broken ({code} {reason})")
    if 300 <= code < 400:
        return DownloadError(f"{address} redirects in a circle or to an unsafe address; this was not followed.")
    if code in (404, 410):
        return DownloadError(f"{address} is not there any more, or never was ({code} {reason}).")
    return DownloadError(f"{address}: the server refuses ({code} {reason}).")


def _version(headers: Message) -> str | None:
    """What If-Range may name: a strong ETag, else the date of the last change."""
    tag = headers.get("ETag")
    chosen = tag if tag is not None and tag.startswith('"') else headers.get("Last-Modified")
    return None if chosen is None or "\n" in chosen else str(chosen)


def _length(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _is_web(address: str) -> bool:
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


class _Redirects(request.HTTPRedirectHandler):
    """Follows to the web only, and never from https back to http."""

    def redirect_request(
        self, req: request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> request.Request | None:
        if not _is_web(newurl) or (req.type == "https" and urlsplit(newurl).scheme != "https"):
            raise HTTPError(newurl, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener() -> request.OpenerDirector:
    """Like urllib's usual opener, but one that knows no file:, ftp: or data:."""
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
