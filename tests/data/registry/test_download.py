"""Downloads: resumable, verified, atomic; every failure is an error message."""

import errno
import hashlib
import http.server
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from regard import UserError
from regard.data.registry.download import DownloadError, download
from regard.files import file_sha256

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Site:
    """The server's content and behavior, and the requests it received."""

    url: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    etag: str | None = '"one"'
    modified: str | None = None
    status: int | None = None  # respond with this status and nothing else
    location: str | None = None  # the target of a redirect
    cut: list[int] = field(default_factory=list)  # responses that end early, after this many bytes
    stall: bool = False  # whether a response that ends early keeps the connection open
    silent_requests: int = 0  # requests that get no response
    shift: int = 0  # start of the returned range, relative to the requested one
    requests: list[dict[str, str]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def requested_ranges(self) -> list[str | None]:
        return [headers.get("Range") for headers in self.requests]


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        site = self.site
        site.requests.append(dict(self.headers.items()))
        if site.silent_requests:
            site.silent_requests -= 1
            site.closing.wait(10)
            return
        if site.location is not None and self.path == "/file":
            self.send_response(302)
            self.send_header("Location", site.location)
            self.end_headers()
            return
        if site.status is not None:
            self.send_response(site.status)
            self.end_headers()
            return
        start = self.start()
        if start >= len(site.content) and start:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(site.content)}")
            self.end_headers()
            return
        body = site.content[start + site.shift if start else 0 :]
        self.send_response(206 if start else 200)
        if start:
            last = len(site.content) - 1
            self.send_header("Content-Range", f"bytes {start + site.shift}-{last}/{len(site.content)}")
        self.send_header("Content-Length", str(len(body)))
        if site.etag is not None:
            self.send_header("ETag", site.etag)
        if site.modified is not None:
            self.send_header("Last-Modified", site.modified)
        self.end_headers()
        if not site.cut:
            self.wfile.write(body)
            return
        self.wfile.write(body[: site.cut.pop(0)])
        if site.stall:
            site.closing.wait(10)

    def start(self) -> int:
        """Start of the requested range; 0 for the complete file, also if If-Range names another version."""
        requested, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if not self.site.ranges or requested is None or condition not in (None, self.site.etag, self.site.modified):
            return 0
        return int(requested.removeprefix("bytes=").removesuffix("-"))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    site = Site()
    handler = type("SiteHandler", (Handler,), {"site": site})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.url = f"http://127.0.0.1:{server.server_address[1]}/file"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        site.closing.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file"


def fetch(site: Site, target: Path, sha256: str | None = SHA256, **options: Any) -> Path:
    return download(site.url, target, sha256=sha256, **({"timeout": 5.0, "pause": 0.0} | options))


def names(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def leave_part(target: Path, content: bytes, url: str | None = None, tag: str = '"one"') -> None:
    """Write a partial file, as an earlier attempt would have left it."""
    target.parent.mkdir()
    target.with_name("file.part").write_bytes(content)
    if url is not None:
        target.with_name("file.part.tag").write_text(f"{url}\n{tag}\n")


def test_download_leaves_no_temporary_files(site: Site, target: Path) -> None:
    assert fetch(site, target) == target
    assert target.read_bytes() == CONTENT
    assert names(target) == ["file"]


def test_progress_ends_at_the_total(site: Site, target: Path) -> None:
    reports: list[tuple[int, int | None]] = []
    fetch(site, target, progress=lambda done, total: reports.append((done, total)))
    assert reports == sorted(reports)
    assert reports[-1] == (len(CONTENT), len(CONTENT))


def test_broken_connection_is_resumed(site: Site, target: Path) -> None:
    site.cut = [1000, 500]
    fetch(site, target)
    assert site.requested_ranges == [None, "bytes=1000-", "bytes=1500-"]
    assert target.read_bytes() == CONTENT


def test_later_call_resumes(site: Site, target: Path) -> None:
    site.cut = [1000]
    with pytest.raises(DownloadError, match=r"ended after 1,000 of 256,000 bytes.*1,000 bytes are kept"):
        fetch(site, target, attempts=1)
    assert names(target) == ["file.part", "file.part.tag"]
    fetch(site, target)
    assert site.requested_ranges == [None, "bytes=1000-"]
    assert target.read_bytes() == CONTENT
    assert names(target) == ["file"]


@pytest.mark.parametrize(("etag", "modified"), [('"one"', None), ('W/"weak"', "Sat, 01 Jan 2000 00:00:00 GMT")])
def test_resuming_sends_if_range(site: Site, target: Path, etag: str | None, modified: str | None) -> None:
    site.etag, site.modified, site.cut = etag, modified, [1000]
    fetch(site, target)
    assert site.requests[1]["If-Range"] == (modified or etag)


def test_changed_file_is_downloaded_from_the_start(site: Site, target: Path) -> None:
    leave_part(target, b"old" * 10, site.url, '"older"')
    fetch(site, target)
    assert site.requested_ranges == ["bytes=30-"]
    assert target.read_bytes() == CONTENT


def test_server_without_ranges_restarts(site: Site, target: Path) -> None:
    site.ranges, site.cut = False, [1000]
    fetch(site, target)
    assert site.requested_ranges == [None, "bytes=1000-"]
    assert target.read_bytes() == CONTENT


def test_checksum_allows_resuming_without_an_etag(site: Site, target: Path) -> None:
    site.etag, site.cut = None, [1000]
    fetch(site, target)
    assert site.requested_ranges == [None, "bytes=1000-"]


def test_download_without_etag_and_checksum_restarts(site: Site, target: Path) -> None:
    site.etag, site.cut = None, [1000]
    fetch(site, target, sha256=None)
    assert site.requested_ranges == [None, None]
    assert target.read_bytes() == CONTENT


def test_part_of_another_url_is_not_resumed(site: Site, target: Path) -> None:
    leave_part(target, b"other", "http://127.0.0.1/other")
    fetch(site, target, sha256=None)
    assert site.requested_ranges == [None]
    assert target.read_bytes() == CONTENT


def test_bad_bytes_of_an_earlier_attempt_are_replaced(site: Site, target: Path) -> None:
    leave_part(target, b"bad" * 10, site.url)
    fetch(site, target)
    assert site.requested_ranges == ["bytes=30-", None]
    assert target.read_bytes() == CONTENT


def test_complete_part_is_only_verified(site: Site, target: Path) -> None:
    leave_part(target, CONTENT, site.url)
    fetch(site, target, attempts=1)
    assert site.requested_ranges == ["bytes=256000-"]
    assert names(target) == ["file"]


def test_too_long_part_restarts(site: Site, target: Path) -> None:
    leave_part(target, CONTENT + b"more", site.url)
    fetch(site, target, attempts=1)
    assert site.requested_ranges == ["bytes=256004-", None]
    assert target.read_bytes() == CONTENT


def test_wrong_range_is_not_used(site: Site, target: Path) -> None:
    site.shift = 7
    leave_part(target, CONTENT[:100], site.url)
    fetch(site, target)
    assert target.read_bytes() == CONTENT


def test_wrong_checksum_leaves_nothing(site: Site, target: Path) -> None:
    site.content = b"something else"
    with pytest.raises(DownloadError, match=f"expected {SHA256}; it was removed"):
        fetch(site, target)
    assert names(target) == []


def test_existing_target_is_not_modified(site: Site, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"mine")
    assert fetch(site, target, sha256=None) == target
    with pytest.raises(DownloadError, match="exists already and differs"):
        fetch(site, target)
    assert target.read_bytes() == b"mine"
    assert site.requests == []


@pytest.mark.parametrize(
    ("status", "message"), [(404, "does not exist"), (403, "refused"), (416, "refused"), (204, "refused")]
)
def test_refusal_is_not_retried(site: Site, target: Path, status: int, message: str) -> None:
    site.status = status
    with pytest.raises(DownloadError, match=rf"{message}.*\({status} "):
        fetch(site, target)
    assert len(site.requests) == 1
    assert names(target) == []


def test_busy_server_is_retried(site: Site, target: Path) -> None:
    site.status = 503
    with pytest.raises(DownloadError, match=r"busy or broken \(503 .*tried 3 times"):
        fetch(site, target)
    assert len(site.requests) == 3


def test_request_without_response_is_retried(site: Site, target: Path) -> None:
    site.silent_requests = 1
    fetch(site, target, timeout=0.3)
    assert len(site.requests) == 2


def test_bytes_before_a_timeout_are_kept(site: Site, target: Path) -> None:
    site.cut, site.stall = [1000], True
    fetch(site, target, timeout=0.3)
    assert site.requested_ranges == [None, "bytes=1000-"]
    assert target.read_bytes() == CONTENT


def test_timeout_is_an_error(site: Site, target: Path) -> None:
    site.silent_requests = 2
    with pytest.raises(DownloadError, match="did not respond in time"):
        fetch(site, target, timeout=0.2, attempts=2)


def test_unreachable_server_is_an_error(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(DownloadError, match=r"cannot be reached .*check the network"):
            download(url, target)


@pytest.mark.parametrize("url", ["file:///etc/hosts", "ftp://127.0.0.1/file", "data:,text", "file", "http://", ""])
def test_only_http_urls_are_downloaded(target: Path, url: str) -> None:
    with pytest.raises(DownloadError, match="expected http"):
        download(url, target)


@pytest.mark.parametrize("location", ["file:///etc/hosts", "ftp://127.0.0.1/file", "data:,text", "/file"])
def test_unsafe_or_circular_redirects_are_not_followed(site: Site, target: Path, location: str) -> None:
    site.location = location
    with pytest.raises(DownloadError, match="not followed"):
        fetch(site, target)
    assert names(target) == []


def test_redirect_is_followed(site: Site, target: Path) -> None:
    site.location = "/elsewhere"
    assert fetch(site, target).read_bytes() == CONTENT


def test_full_disk_is_an_error_and_can_be_resumed(site: Site, target: Path) -> None:
    resource = pytest.importorskip("resource", reason="only Unix limits the size of files")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(DownloadError, match=r"cannot be written: .*Make room"):
            fetch(site, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(target) == ["file.part", "file.part.tag"]
    fetch(site, target)
    assert site.requested_ranges == [None, "bytes=100000-"]
    assert target.read_bytes() == CONTENT


def test_read_only_disk_is_an_error(site: Site, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("regard.data.registry.download.os.fsync", read_only)
    with pytest.raises(DownloadError, match=r"cannot be written: Read-only file system"):
        fetch(site, target)
    assert not target.exists()


def test_folder_that_cannot_be_created_is_an_error(site: Site, target: Path) -> None:
    target.parent.write_text("a file where the folder should be")
    with pytest.raises(UserError, match="cannot be written"):
        fetch(site, target)


def test_file_checksum(tmp_path: Path) -> None:
    path = tmp_path / "abc"
    path.write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert file_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
