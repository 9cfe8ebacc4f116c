"""scripts/prepare_wmt14.py on small archives from a local server."""

import functools
import gzip
import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts.prepare_wmt14 import Archive, prepare

from regard import UserError

ENGLISH = "A cat.\n\nTwo\u2028 dogs .\nNo German.\n"
GERMAN = "Eine Katze.\nKein Englisch.\nZwei  Hunde .\n\n"
SGML = '<refset>\n<doc docid="1">\n<p>\n<seg id="1">Cats &amp; dogs</seg>\n<seg id="2"> Two. </seg>\n</p>\n</doc>\n'


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server's URL and the folder that it serves."""
    (tmp_path / "site").mkdir()
    handler = functools.partial(QuietHandler, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", tmp_path / "site"
        server.shutdown()


def publish(site: tuple[str, Path], name: str, files: dict[str, str]) -> Archive:
    """Serve an archive of an English and a German file."""
    url, folder = site
    with tarfile.open(folder / name, "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return Archive(f"{url}/{name}", digest, *files)


def test_training_and_test_files_are_written_line_by_line(site: tuple[str, Path], tmp_path: Path) -> None:
    first = publish(site, "first.tgz", {"training/one.en": ENGLISH, "training/one.de": GERMAN})
    second = publish(site, "second.tgz", {"two.en": "End.\n", "two.de": "Ende.\n"})
    test = publish(site, "dev.tgz", {"dev/ref.en.sgm": SGML, "dev/src.de.sgm": SGML.replace("dogs", "Hunde")})
    folder = tmp_path / "wmt14"
    assert prepare(folder, [first, second], {"newstest2014": test}) == 3
    assert (folder / "train.en").read_text(encoding="utf-8").split("\n") == ["A cat.", "Two dogs .", "End.", ""]
    assert (folder / "train.de").read_text(encoding="utf-8").split("\n") == ["Eine Katze.", "Zwei Hunde .", "Ende.", ""]
    compressed = (folder / "wmt-newstest" / "newstest2014.en-de.de.gz").read_bytes()
    assert gzip.decompress(compressed).decode() == "Cats & Hunde\nTwo.\n"


def test_sides_of_different_lengths_leave_no_training_files(site: tuple[str, Path], tmp_path: Path) -> None:
    archive = publish(site, "first.tgz", {"one.en": ENGLISH, "one.de": "Eine Katze.\n"})
    with pytest.raises(UserError, match=r"one\.en and one\.de have different numbers of lines"):
        prepare(tmp_path / "wmt14", [archive], {})
    assert not list((tmp_path / "wmt14").glob("train*"))


def test_damaged_archive_is_refused(site: tuple[str, Path], tmp_path: Path) -> None:
    archive = publish(site, "first.tgz", {"one.en": ENGLISH, "one.de": GERMAN})
    (site[1] / "first.tgz").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"first\.tgz"):
        prepare(tmp_path / "wmt14", [archive], {})
    assert not (tmp_path / "wmt14" / "train.en").exists()
