"""Downloading: nothing is asked for twice, nothing unverified is put in place, every failure is a sentence."""

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
from regard.data.download import DownloadError, download
from regard.files import file_sha256

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Site:
    """What the server has, how it behaves, and what it was asked."""

    address: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    etag: str | None = '"one"'
    modified: str | None = None
    status: int | None = None  # answer with this and nothing else
    location: str | None = None  # where a redirect leads
    cut: list[int] = field(default_factory=list)  # answers that end early, after so many bytes
    stall: bool = False  # whether an answer that ends early keeps the connection open
    silences: int = 0  # answers that never come
    shift: int = 0  # a range that starts elsewhere than asked
    asked: list[dict[str, str]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def ranges_asked(self) -> list[str | None]:
        return [headers.get("Range") for headers in self.asked]


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        site = self.site
        site.asked.append(dict(self.headers.items()))
        if site.silences:
            site.silences -= 1
            site.over.wait(10)
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
            site.over.wait(10)

    def start(self) -> int:
        """Where the asked range begins; 0 for the whole file, as where If-Range names another version."""
        asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
        if not self.site.ranges or asked is None or condition not in (None, self.site.etag, self.site.modified):
            return 0
        return int(asked.removeprefix("bytes=").removesuffix("-"))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    site = Site()
    handler = type("SiteHandler", (Handler,), {"site": site})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.address = f"http://127.0.0.1:{server.server_address[1]}/file"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        site.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file"


def fetch(site: Site, target: Path, sha256: str | None = SHA256, **options: Any) -> Path:
    return download(site.address, target, sha256=sha256, **({"timeout": 5.0, "pause": 0.0} | options))


def names(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def leave_part(target: Path, content: bytes, address: str | None = None, tag: str = '"one"') -> None:
    """What an earlier try would have left."""
    target.parent.mkdir()
    target.with_name("file.part").write_bytes(content)
    if address is not None:
        target.with_name("file.part.tag").write_text(f"{address}\n{tag}\n")


def test_a_file_arrives_whole_and_nothing_is_left_beside_it(site: Site, target: Path) -> None:
    assert fetch(site, target) == target
    assert target.read_bytes() == CONTENT
    assert names(target) == ["file"]


def test_progress_ends_at_the_total(site: Site, target: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    fetch(site, target, progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_a_broken_connection_goes_on_where_it_broke(site: Site, target: Path) -> None:
    site.cut = [1000, 500]
    fetch(site, target)
    assert site.ranges_asked == [None, "bytes=1000-", "bytes=1500-"]
    assert target.read_bytes() == CONTENT


def test_a_later_call_goes_on_where_the_first_stopped(site: Site, target: Path) -> None:
    site.cut = [1000]
    with pytest.raises(DownloadError, match=r"ended after 1,000 of 256,000 bytes.*1,000 bytes are kept"):
        fetch(site, target, attempts=1)
    assert names(target) == ["file.part", "file.part.tag"]
    fetch(site, target)
    assert site.ranges_asked == [None, "bytes=1000-"]
    assert target.read_bytes() == CONTENT
    assert names(target) == ["file"]


@pytest.mark.parametrize(("etag", "modified"), [('"one"', None), ('W/"weak"', "Sat, 01 Jan 2000 00:00:00 GMT")])
def test_going_on_names_the_version_it_began_with(
    site: Site, target: Path, etag: str | None, modified: str | None
) -> None:
    site.etag, site.modified, site.cut = etag, modified, [1000]
    fetch(site, target)
    assert site.asked[1]["If-Range"] == (modified or etag)


def test_a_file_that_has_changed_is_taken_from_the_start(site: Site, target: Path) -> None:
    leave_part(target, b"old" * 10, site.address, '"older"')
    fetch(site, target)
    assert site.ranges_asked == ["bytes=30-"]
    assert target.read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_is_taken_from_the_start(site: Site, target: Path) -> None:
    site.ranges, site.cut = False, [1000]
    fetch(site, target)
    assert site.ranges_asked == [None, "bytes=1000-"]
    assert target.read_bytes() == CONTENT


def test_without_a_version_the_checksum_allows_going_on(site: Site, target: Path) -> None:
    site.etag, site.cut = None, [1000]
    fetch(site, target)
    assert site.ranges_asked == [None, "bytes=1000-"]


def test_without_version_and_checksum_it_starts_again(site: Site, target: Path) -> None:
    site.etag, site.cut = None, [1000]
    fetch(site, target, sha256=None)
    assert site.ranges_asked == [None, None]
    assert target.read_bytes() == CONTENT


def test_bytes_from_another_address_are_not_gone_on_from(site: Site, target: Path) -> None:
    leave_part(target, b"other", "http://127.0.0.1/other")
    fetch(site, target, sha256=None)
    assert site.ranges_asked == [None]
    assert target.read_bytes() == CONTENT


def test_bad_bytes_of_an_earlier_try_are_replaced(site: Site, target: Path) -> None:
    leave_part(target, b"bad" * 10, site.address)
    fetch(site, target)
    assert site.ranges_asked == ["bytes=30-", None]
    assert target.read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_only_verified(site: Site, target: Path) -> None:
    leave_part(target, CONTENT, site.address)
    fetch(site, target, attempts=1)
    assert site.ranges_asked == ["bytes=256000-"]
    assert names(target) == ["file"]


def test_a_part_longer_than_the_file_is_started_again(site: Site, target: Path) -> None:
    leave_part(target, CONTENT + b"more", site.address)
    fetch(site, target, attempts=1)
    assert site.ranges_asked == ["bytes=256004-", None]
    assert target.read_bytes() == CONTENT


def test_a_range_that_was_not_asked_for_is_not_used(site: Site, target: Path) -> None:
    site.shift = 7
    leave_part(target, CONTENT[:100], site.address)
    fetch(site, target)
    assert target.read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(site: Site, target: Path) -> None:
    site.content = b"something else"
    with pytest.raises(DownloadError, match=f"expected {SHA256}; it was removed"):
        fetch(site, target)
    assert names(target) == []


def test_an_existing_target_stays_and_nothing_is_asked(site: Site, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(b"mine")
    assert fetch(site, target, sha256=None) == target
    with pytest.raises(DownloadError, match="is there already and differs"):
        fetch(site, target)
    assert target.read_bytes() == b"mine"
    assert site.asked == []


@pytest.mark.parametrize(
    ("status", "words"), [(404, "not there"), (403, "refuses"), (416, "refuses"), (204, "refuses")]
)
def test_a_refusal_is_a_sentence_after_one_request(site: Site, target: Path, status: int, words: str) -> None:
    site.status = status
    with pytest.raises(DownloadError, match=rf"{words}.*\({status} "):
        fetch(site, target)
    assert len(site.asked) == 1
    assert names(target) == []


def test_a_busy_server_is_tried_again(site: Site, target: Path) -> None:
    site.status = 503
    with pytest.raises(DownloadError, match=r"busy or broken \(503 .*tried 3 times"):
        fetch(site, target)
    assert len(site.asked) == 3


def test_a_silent_server_is_tried_again(site: Site, target: Path) -> None:
    site.silences = 1
    fetch(site, target, timeout=0.3)
    assert len(site.asked) == 2


def test_bytes_that_came_before_a_silence_are_kept(site: Site, target: Path) -> None:
    site.cut, site.stall = [1000], True
    fetch(site, target, timeout=0.3)
    assert site.ranges_asked == [None, "bytes=1000-"]
    assert target.read_bytes() == CONTENT


def test_a_server_that_stays_silent_is_named(site: Site, target: Path) -> None:
    site.silences = 2
    with pytest.raises(DownloadError, match="no answer came in time"):
        fetch(site, target, timeout=0.2, attempts=2)


def test_no_server_is_a_sentence(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(DownloadError, match=r"cannot be reached .*check the network"):
            download(address, target)


@pytest.mark.parametrize("address", ["file:///etc/hosts", "ftp://127.0.0.1/file", "data:,text", "file", "http://", ""])
def test_only_the_web_is_fetched(target: Path, address: str) -> None:
    with pytest.raises(DownloadError, match="expected http"):
        download(address, target)


@pytest.mark.parametrize("place", ["file:///etc/hosts", "ftp://127.0.0.1/file", "data:,text", "/file"])
def test_a_redirect_that_leaves_the_web_or_goes_round_is_not_followed(site: Site, target: Path, place: str) -> None:
    site.location = place
    with pytest.raises(DownloadError, match="not followed"):
        fetch(site, target)
    assert names(target) == []


def test_a_redirect_on_the_web_is_followed(site: Site, target: Path) -> None:
    site.location = "/elsewhere"
    assert fetch(site, target).read_bytes() == CONTENT


def test_a_file_that_finds_no_room_is_a_sentence_and_goes_on_later(site: Site, target: Path) -> None:
    resource = pytest.importorskip("resource", reason="only Unix limits the size of files")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(DownloadError, match=r"cannot be written: .*make room"):
            fetch(site, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(target) == ["file.part", "file.part.tag"]
    fetch(site, target)
    assert site.ranges_asked == [None, "bytes=100000-"]
    assert target.read_bytes() == CONTENT


def test_a_disk_that_may_not_be_written_is_a_sentence_and_nothing_is_in_place(
    site: Site, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("regard.data.download.os.fsync", read_only)
    with pytest.raises(DownloadError, match=r"cannot be written: Read-only file system"):
        fetch(site, target)
    assert not target.exists()


def test_a_folder_that_cannot_be_made_is_a_sentence(site: Site, target: Path) -> None:
    target.parent.write_text("a file where the folder should be")
    with pytest.raises(UserError, match="cannot be written"):
        fetch(site, target)


def test_the_checksum_of_a_file_is_the_known_one(tmp_path: Path) -> None:
    path = tmp_path / "abc"
    path.write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert file_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
