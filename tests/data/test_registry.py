"""The registry: the table is sound, a set is found where it lies, and what is missing is said."""

import gzip
import hashlib
import http.server
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from regard import UserError
from regard.data import registry
from regard.data.registry import DataFile, DataSet, cache_folder, check, check_all, dataset, find, get, locate, sets

NAMES = [
    *(
        "tatoeba-en-tr",
        "tatoeba-en-tr-small",
        "tatoeba-en-de",
        "tatoeba-en-fr",
        "multi30k",
        "europarl-en-de",
        "wmt-newstest",
    ),
    *("tinyshakespeare", "brown", "gum", "ptb-sample", "wordsim"),
    *("fashion-mnist", "digits"),
]
REAL_DATA = os.environ.get("REGARD_DATA")
SERVED = {"/a.txt": b"first\nfile\n", "/sub/b.txt": b"second\n", "/plain.txt": b"text to be compressed\n" * 50}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    asked: list[str]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = SERVED.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An empty REGARD_DATA and a cache that does not exist yet."""
    own, cache = tmp_path / "own", tmp_path / "cache"
    own.mkdir()
    monkeypatch.setenv("REGARD_DATA", str(own))
    monkeypatch.setenv("REGARD_CACHE", str(cache))
    monkeypatch.setenv("no_proxy", "*")
    return own, cache


def one_file(name: str, content: bytes, address: str | None, plain: bytes | None = None) -> DataFile:
    return DataFile(name, len(content), 1, sha256(content), address, None if plain is None else sha256(plain))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Small sets on a server of our own; gives the paths it was asked for."""
    asked: list[str] = []
    handler = type("ListHandler", (Handler,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        base = f"http://127.0.0.1:{server.server_address[1]}"
        open_files = (
            one_file("a.txt", SERVED["/a.txt"], f"{base}/a.txt"),
            one_file("sub/b.txt", SERVED["/sub/b.txt"], f"{base}/sub/b.txt"),
        )
        # The registry's own compressed copy has other bytes than those made here; the text is the same.
        packed = one_file("plain.txt.gz", b"compressed elsewhere", f"{base}/plain.txt", SERVED["/plain.txt"])
        closed = one_file("closed.txt", b"closed", None)
        gone = one_file("gone.txt", b"gone", f"{base}/gone.txt")
        wrong = one_file("wrong.txt", b"not what is served", f"{base}/a.txt")
        small = tuple(
            DataSet(name, f"The set {name}.", "CC0", True, ("https://example.org/origin",), "lines", files)
            for name, files in {
                "open": open_files,
                "packed": (packed,),
                "closed": (closed,),
                "mixed": (open_files[0], closed),
                "gone": (gone,),
                "wrong": (wrong,),
            }.items()
        )
        monkeypatch.setattr(registry, "sets", lambda: small)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield asked
        server.shutdown()
        thread.join()


def put(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def test_every_set_is_there() -> None:
    assert [one.name for one in sets()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_set_is_complete(name: str) -> None:
    one = dataset(name)
    assert one.description.endswith(".")
    assert one.licence
    assert one.origins
    assert len({file.name for file in one.files}) == len(one.files) > 0
    assert one.size == sum(file.size for file in one.files)
    assert all(count > 0 for count in one.counts.values())
    for file in one.files:
        assert not Path(file.name).is_absolute()
        assert ".." not in Path(file.name).parts
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.plain_sha256 is None or (file.name.endswith(".gz") and file.address is not None)
        assert file.content_sha256 is None or (file.name.endswith(".gz") and file.plain_sha256 is None)
    for address in (*one.origins, *(file.address for file in one.files if file.address is not None)):
        assert address.startswith("https://")


def test_only_free_sets_may_be_passed_on() -> None:
    free = {one.name for one in sets() if one.redistributable}
    tatoeba = {name for name in NAMES if name.startswith("tatoeba")}
    assert free == tatoeba | {"tinyshakespeare", "brown", "fashion-mnist", "digits"}


@pytest.mark.parametrize("name", NAMES)
def test_the_checksums_are_those_of_the_copies_at_hand(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL_DATA or not (Path(REAL_DATA) / name).is_dir():
        pytest.skip("REGARD_DATA has no copy of this set")
    monkeypatch.setenv("REGARD_DATA", REAL_DATA)
    checked = check(name)
    assert checked.good, checked.states
    for file in checked.dataset.files:
        path = checked.folder / file.name
        assert path.stat().st_size == file.size or file.content_sha256 is not None
        if file.plain_sha256 is not None:
            assert sha256(gzip.decompress(path.read_bytes())) == file.plain_sha256


def test_a_misspelt_name_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no data set named 'multi30'; did you mean multi30k\?"):
        dataset("multi30")


def test_a_name_like_none_lists_them_all() -> None:
    with pytest.raises(UserError, match=r"known sets: tatoeba-en-tr, .*, digits\."):
        get("zzzz")


def test_a_copy_of_the_users_comes_first(asked: list[str], places: tuple[Path, Path]) -> None:
    own, cache = places
    put(cache / "data" / "open", a_txt=b"", sub__b_txt=b"")
    assert find("open") == cache / "data" / "open"
    put(own / "open", a_txt=b"", sub__b_txt=b"")
    assert find("open") == get("open") == own / "open"
    assert asked == []


def test_an_incomplete_copy_of_the_users_is_passed_over_and_left_alone(
    asked: list[str], places: tuple[Path, Path]
) -> None:
    own, cache = places
    put(own / "open", a_txt=b"mine")
    assert find("open") is None
    assert get("open") == cache / "data" / "open"
    assert (own / "open" / "a.txt").read_bytes() == b"mine"
    assert not (own / "open" / "sub").exists()


def test_only_the_files_that_are_needed_have_to_be_there(asked: list[str], places: tuple[Path, Path]) -> None:
    own, _ = places
    put(own / "open", a_txt=b"mine")
    assert get("open", ["a.txt"]) == own / "open"
    assert asked == []


def test_a_file_that_a_set_does_not_have_is_named() -> None:
    with pytest.raises(UserError, match=r"brown has no file 'brown.txt'; did you mean brown\.txt\.gz\?"):
        find("brown", ["brown.txt"])


def placed(monkeypatch: pytest.MonkeyPatch, *places: str) -> None:
    """One set, which other packages may have put somewhere."""
    files = (
        DataFile("a.txt", 3, 1, sha256(b"one"), "https://127.0.0.1:1/a.txt"),
        DataFile("b.gz", 9, 1, sha256(b"other"), None, content_sha256=sha256(b"two")),
    )
    origin = ("https://example.org",)
    one = DataSet("put", "A set.", "CC0", True, origin, "lines", files, places, "Please ask Ann.", ("x", "y"))
    monkeypatch.setattr(registry, "sets", lambda: (one,))


def test_a_set_is_found_where_another_package_puts_it(
    tmp_path: Path, places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = put(tmp_path / "elsewhere", a_txt=b"one", b_gz=gzip.compress(b"two"))
    placed(monkeypatch, str(tmp_path / "nowhere"), str(elsewhere))
    put(places[1] / "data" / "put", a_txt=b"one", b_gz=b"")
    assert get("put") == find("put") == elsewhere
    assert (locate("put").place, locate("put").folder) == ("system", elsewhere)
    put(places[0] / "put", a_txt=b"one", b_gz=b"")
    assert find("put") == places[0] / "put"


def test_a_set_is_found_in_a_python_package_that_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "other_package" / "data", a_txt=b"one", b_gz=b"")
    (folder.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    placed(monkeypatch, "{no_such_package}/data", "{other_package}/data")
    assert find("put") is None
    monkeypatch.syspath_prepend(tmp_path)
    assert find("put") == folder


def test_a_copy_that_others_compressed_is_good_and_another_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed(monkeypatch, str(tmp_path / "elsewhere"))
    put(tmp_path / "elsewhere", a_txt=b"one", b_gz=gzip.compress(b"two", mtime=5))
    assert check("put").good
    put(tmp_path / "elsewhere", b_gz=gzip.compress(b"three"))
    assert check("put").states == {"a.txt": "good", "b.gz": "differs"}


def test_a_set_that_is_nowhere_says_who_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    placed(monkeypatch)
    with pytest.raises(UserError, match=r"would do as well\. Please ask Ann\.$"):
        get("put", ["a.txt"])
    with pytest.raises(UserError, match=r"put a copy of the set under .*\. Please ask Ann\. It was prepared"):
        get("put", ["b.gz"])


def test_nothing_is_downloaded_by_looking(asked: list[str], places: tuple[Path, Path]) -> None:
    assert find("open") is None
    assert locate("open").folder is None
    assert asked == []
    assert not places[1].exists()


def test_a_set_is_downloaded_once(asked: list[str], places: tuple[Path, Path]) -> None:
    folder = get("open")
    assert folder == places[1] / "data" / "open"
    assert (folder / "a.txt").read_bytes() == SERVED["/a.txt"]
    assert (folder / "sub" / "b.txt").read_bytes() == SERVED["/sub/b.txt"]
    assert get("open") == folder
    assert asked == ["/a.txt", "/sub/b.txt"]


def test_only_what_is_missing_is_downloaded(asked: list[str], places: tuple[Path, Path]) -> None:
    put(places[1] / "data" / "open", a_txt=SERVED["/a.txt"])
    get("open")
    assert asked == ["/sub/b.txt"]


def test_several_at_once_download_once(asked: list[str]) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(get("open"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert asked == ["/a.txt", "/sub/b.txt"]


def test_plain_text_is_compressed_on_arrival_and_passes_the_check(asked: list[str]) -> None:
    folder = get("packed")
    assert gzip.decompress((folder / "plain.txt.gz").read_bytes()) == SERVED["/plain.txt"]
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "plain.txt.gz"]
    assert check("packed").states == {"plain.txt.gz": "good"}


def test_progress_names_the_file(asked: list[str]) -> None:
    seen: list[tuple[str, int, int | None]] = []
    get("open", progress=lambda *report: seen.append(report))
    assert seen == [("a.txt", 11, 11), ("sub/b.txt", 7, 7)]


def test_a_set_without_an_address_says_what_to_do(asked: list[str], places: tuple[Path, Path]) -> None:
    own, cache = places
    with pytest.raises(UserError, match=r"no public address is known for closed\.txt\. Please put a copy") as caught:
        get("closed")
    assert str(own / "closed") in str(caught.value)
    assert not cache.exists()


def test_a_set_that_can_be_had_in_part_is_fetched_in_part_and_says_so(asked: list[str]) -> None:
    with pytest.raises(UserError, match=r"known for closed\.txt; the other 1 are in"):
        get("mixed")
    assert (get("mixed", ["a.txt"]) / "a.txt").is_file()
    assert asked == ["/a.txt"]


def test_an_address_that_is_gone_names_the_set_and_the_way_out(asked: list[str]) -> None:
    with pytest.raises(UserError, match=r"^gone: .*404.*REGARD_DATA/gone would do"):
        get("gone")


def test_a_file_with_another_checksum_is_not_put_in_place(asked: list[str], places: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="it was removed"):
        get("wrong")
    assert [path.name for path in (places[1] / "data" / "wrong").iterdir()] == [".lock"]


def test_a_cache_that_cannot_be_written_names_the_variable(asked: list[str], places: tuple[Path, Path]) -> None:
    places[1].write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"cannot be written.*REGARD_CACHE"):
        get("open")


def test_a_data_folder_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"REGARD_DATA is set to .*nowhere, which is not a folder"):
        find("brown")


def test_check_says_what_is_good_what_differs_and_what_is_missing(asked: list[str], places: tuple[Path, Path]) -> None:
    folder = put(places[0] / "open", a_txt=SERVED["/a.txt"])
    assert check("open").states == {"a.txt": "good", "sub/b.txt": "missing"}
    put(folder, sub__b_txt=b"changed")
    checked = check("open")
    assert checked.states == {"a.txt": "good", "sub/b.txt": "differs"}
    assert not checked.good
    assert checked.folder == folder
    put(folder, sub__b_txt=SERVED["/sub/b.txt"])
    assert check("open").good


@pytest.mark.parametrize(
    "content",
    [b"no gzip at all", gzip.compress(b"other"), gzip.compress(b"cut" * 99)[:-9]],
    ids=["no gzip", "other content", "cut short"],  # the bytes themselves hold the time of day
)
def test_a_compressed_file_that_is_damaged_differs(asked: list[str], places: tuple[Path, Path], content: bytes) -> None:
    put(places[0] / "packed", plain_txt_gz=content)
    assert check("packed").states == {"plain.txt.gz": "differs"}


def test_a_check_of_what_is_nowhere_says_how_to_get_it() -> None:
    with pytest.raises(UserError, match="not on this machine; `regard data get brown`"):
        check("brown")


def test_everything_at_hand_is_checked_and_nothing_else(asked: list[str], places: tuple[Path, Path]) -> None:
    put(places[0] / "mixed", a_txt=b"changed")
    (places[0] / "closed").mkdir()
    get("open")
    assert [(checked.dataset.name, checked.good) for checked in check_all()] == [("open", True), ("mixed", False)]


def test_a_set_is_located_or_how_it_could_be_had(asked: list[str], places: tuple[Path, Path]) -> None:
    assert [locate(name).place for name in ("open", "mixed", "closed")] == [
        *("to be downloaded", "in part to be downloaded", "no public address"),
    ]
    get("open")
    assert locate("open").place == "cache"
    put(places[0] / "open", a_txt=b"", sub__b_txt=b"")
    assert (locate("open").place, locate("open").folder) == ("REGARD_DATA", places[0] / "open")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {}, "home/.cache/regard"),
        ("linux", {"XDG_CACHE_HOME": "/elsewhere"}, "/elsewhere/regard"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "home/.cache/regard"),
        ("darwin", {}, "home/Library/Caches/regard"),
        ("win32", {}, "home/AppData/Local/regard"),
        ("linux", {"REGARD_CACHE": "/mine"}, "/mine"),
        ("linux", {"REGARD_CACHE": "~/mine"}, "home/mine"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(
    platform: str, variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REGARD_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": str(tmp_path / "home")} | variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("regard.data.registry.sys.platform", platform)
    assert cache_folder() == tmp_path / expected
