"""The registry of datasets: entries are complete, datasets are found or downloaded, errors say what to do."""

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
from regard.data.registry import (
    DatasetFile,
    DatasetInfo,
    cache_folder,
    check,
    check_all_datasets,
    check_dataset,
    dataset_info,
    datasets,
    find_dataset,
    get_dataset,
    list_datasets,
    locate_dataset,
)

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
    *("tinyshakespeare", "eltec-eng", "brown", "brown-genres", "gum", "ptb-sample", "wordsim"),
    *("fashion-mnist", "digits"),
]
REAL_DATA = os.environ.get("REGARD_DATA")
SERVED = {"/a.txt": b"first\nfile\n", "/sub/b.txt": b"second\n", "/plain.txt": b"text to be compressed\n" * 50}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    requests: list[str]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.requests.append(self.path)
        body = SERVED.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An empty REGARD_DATA and a cache that does not exist yet."""
    user, cache = tmp_path / "user", tmp_path / "cache"
    user.mkdir()
    monkeypatch.setenv("REGARD_DATA", str(user))
    monkeypatch.setenv("REGARD_CACHE", str(cache))
    monkeypatch.setenv("no_proxy", "*")
    return user, cache


def use_table(monkeypatch: pytest.MonkeyPatch, *table: DatasetInfo) -> None:
    for module in (datasets, check):
        monkeypatch.setattr(module, "list_datasets", lambda: table)


def one_file(name: str, content: bytes, url: str | None, plain: bytes | None = None) -> DatasetFile:
    return DatasetFile(name, len(content), 1, sha256(content), url, None if plain is None else sha256(plain))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serve small datasets locally; yields the list of requested paths."""
    requests: list[str] = []
    handler = type("ListHandler", (Handler,), {"requests": requests})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        base = f"http://127.0.0.1:{server.server_address[1]}"
        open_files = (
            one_file("a.txt", SERVED["/a.txt"], f"{base}/a.txt"),
            one_file("sub/b.txt", SERVED["/sub/b.txt"], f"{base}/sub/b.txt"),
        )
        # The registry's copy was compressed differently; the uncompressed text is the same.
        packed = one_file("plain.txt.gz", b"compressed elsewhere", f"{base}/plain.txt", SERVED["/plain.txt"])
        closed = one_file("closed.txt", b"closed", None)
        gone = one_file("gone.txt", b"gone", f"{base}/gone.txt")
        wrong = one_file("wrong.txt", b"not what is served", f"{base}/a.txt")
        small = tuple(
            DatasetInfo(name, f"The dataset {name}.", "CC0", True, ("https://example.org/origin",), "lines", files)
            for name, files in {
                "open": open_files,
                "packed": (packed,),
                "closed": (closed,),
                "mixed": (open_files[0], closed),
                "gone": (gone,),
                "wrong": (wrong,),
            }.items()
        )
        use_table(monkeypatch, *small)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield requests
        server.shutdown()
        thread.join()


def write_files(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def test_all_datasets_are_listed() -> None:
    assert [one.name for one in list_datasets()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_dataset_info_is_complete(name: str) -> None:
    one = dataset_info(name)
    assert one.description.endswith(".")
    assert one.license
    assert one.origins
    assert len({file.name for file in one.files}) == len(one.files) > 0
    assert one.size == sum(file.size for file in one.files)
    assert all(count > 0 for count in one.counts.values())
    for file in one.files:
        assert not Path(file.name).is_absolute()
        assert ".." not in Path(file.name).parts
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.plain_sha256 is None or (file.name.endswith(".gz") and file.url is not None)
        assert file.content_sha256 is None or (file.name.endswith(".gz") and file.plain_sha256 is None)
    for url in (*one.origins, *(file.url for file in one.files if file.url is not None)):
        assert url.startswith("https://")


def test_redistributable_datasets() -> None:
    free = {one.name for one in list_datasets() if one.redistributable}
    tatoeba = {name for name in NAMES if name.startswith("tatoeba")}
    assert free == tatoeba | {"tinyshakespeare", "eltec-eng", "brown", "brown-genres", "fashion-mnist", "digits"}


@pytest.mark.parametrize("name", NAMES)
def test_checksums_match_local_copies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not REAL_DATA or not (Path(REAL_DATA) / name).is_dir():
        pytest.skip("REGARD_DATA has no copy of this dataset")
    monkeypatch.setenv("REGARD_DATA", REAL_DATA)
    checked = check_dataset(name)
    assert checked.good, checked.states
    for file in checked.dataset.files:
        path = checked.folder / file.name
        assert path.stat().st_size == file.size or file.content_sha256 is not None
        if file.plain_sha256 is not None:
            assert sha256(gzip.decompress(path.read_bytes())) == file.plain_sha256


def test_misspelled_name_suggests_nearest() -> None:
    with pytest.raises(UserError, match=r"no dataset named 'multi30'; did you mean multi30k\?"):
        dataset_info("multi30")


def test_unknown_name_lists_all_datasets() -> None:
    with pytest.raises(UserError, match=r"the known datasets are tatoeba-en-tr, .*, digits\."):
        get_dataset("zzzz")


def test_user_copy_takes_precedence(requests: list[str], folders: tuple[Path, Path]) -> None:
    user, cache = folders
    write_files(cache / "data" / "open", a_txt=b"", sub__b_txt=b"")
    assert find_dataset("open") == cache / "data" / "open"
    write_files(user / "open", a_txt=b"", sub__b_txt=b"")
    assert find_dataset("open") == get_dataset("open") == user / "open"
    assert requests == []


def test_incomplete_user_copy_is_skipped_and_not_modified(requests: list[str], folders: tuple[Path, Path]) -> None:
    user, cache = folders
    write_files(user / "open", a_txt=b"mine")
    assert find_dataset("open") is None
    assert get_dataset("open") == cache / "data" / "open"
    assert (user / "open" / "a.txt").read_bytes() == b"mine"
    assert not (user / "open" / "sub").exists()


def test_only_needed_files_must_exist(requests: list[str], folders: tuple[Path, Path]) -> None:
    user, _ = folders
    write_files(user / "open", a_txt=b"mine")
    assert get_dataset("open", ["a.txt"]) == user / "open"
    assert requests == []


def test_unknown_file_is_an_error() -> None:
    with pytest.raises(UserError, match=r"brown has no file 'brown.txt'; did you mean brown\.txt\.gz\?"):
        find_dataset("brown", ["brown.txt"])


def with_system_folders(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    """Register one dataset that other packages may have installed in these folders."""
    files = (
        DatasetFile("a.txt", 3, 1, sha256(b"one"), "https://127.0.0.1:1/a.txt"),
        DatasetFile("b.gz", 9, 1, sha256(b"other"), None, content_sha256=sha256(b"two")),
    )
    origin = ("https://example.org",)
    one = DatasetInfo(
        "installed", "A dataset.", "CC0", True, origin, "lines", files, folders, "Please ask Ann.", ("x", "y")
    )
    use_table(monkeypatch, one)


def test_dataset_is_found_in_system_folder(
    tmp_path: Path, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = write_files(tmp_path / "elsewhere", a_txt=b"one", b_gz=gzip.compress(b"two"))
    with_system_folders(monkeypatch, str(tmp_path / "nowhere"), str(elsewhere))
    write_files(folders[1] / "data" / "installed", a_txt=b"one", b_gz=b"")
    assert get_dataset("installed") == find_dataset("installed") == elsewhere
    assert (locate_dataset("installed").availability, locate_dataset("installed").folder) == ("system", elsewhere)
    write_files(folders[0] / "installed", a_txt=b"one", b_gz=b"")
    assert find_dataset("installed") == folders[0] / "installed"


def test_dataset_is_found_in_python_package_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_files(tmp_path / "other_package" / "data", a_txt=b"one", b_gz=b"")
    (folder.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    with_system_folders(monkeypatch, "{no_such_package}/data", "{other_package}/data")
    assert find_dataset("installed") is None
    monkeypatch.syspath_prepend(tmp_path)
    assert find_dataset("installed") == folder


def test_recompressed_copy_is_good_and_other_content_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_system_folders(monkeypatch, str(tmp_path / "elsewhere"))
    write_files(tmp_path / "elsewhere", a_txt=b"one", b_gz=gzip.compress(b"two", mtime=5))
    assert check_dataset("installed").good
    write_files(tmp_path / "elsewhere", b_gz=gzip.compress(b"three"))
    assert check_dataset("installed").states == {"a.txt": "good", "b.gz": "differs"}


def test_missing_dataset_error_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    with_system_folders(monkeypatch)
    with pytest.raises(UserError, match=r"under \$REGARD_DATA/installed\. Please ask Ann\.$"):
        get_dataset("installed", ["a.txt"])
    with pytest.raises(UserError, match=r"Put a copy of the dataset under .*\. Please ask Ann\. It was prepared"):
        get_dataset("installed", ["b.gz"])


def test_locating_downloads_nothing(requests: list[str], folders: tuple[Path, Path]) -> None:
    assert find_dataset("open") is None
    assert locate_dataset("open").folder is None
    assert requests == []
    assert not folders[1].exists()


def test_dataset_is_downloaded_once(requests: list[str], folders: tuple[Path, Path]) -> None:
    folder = get_dataset("open")
    assert folder == folders[1] / "data" / "open"
    assert (folder / "a.txt").read_bytes() == SERVED["/a.txt"]
    assert (folder / "sub" / "b.txt").read_bytes() == SERVED["/sub/b.txt"]
    assert get_dataset("open") == folder
    assert requests == ["/a.txt", "/sub/b.txt"]


def test_only_missing_files_are_downloaded(requests: list[str], folders: tuple[Path, Path]) -> None:
    write_files(folders[1] / "data" / "open", a_txt=SERVED["/a.txt"])
    get_dataset("open")
    assert requests == ["/sub/b.txt"]


def test_concurrent_gets_download_once(requests: list[str]) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(get_dataset("open"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert requests == ["/a.txt", "/sub/b.txt"]


def test_plain_file_is_compressed_and_passes_check(requests: list[str]) -> None:
    folder = get_dataset("packed")
    assert gzip.decompress((folder / "plain.txt.gz").read_bytes()) == SERVED["/plain.txt"]
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "plain.txt.gz"]
    assert check_dataset("packed").states == {"plain.txt.gz": "good"}


def test_progress_names_the_file(requests: list[str]) -> None:
    reports: list[tuple[str, int, int | None]] = []
    get_dataset("open", progress=lambda *report: reports.append(report))
    assert reports == [("a.txt", 11, 11), ("sub/b.txt", 7, 7)]


def test_dataset_without_url_says_what_to_do(requests: list[str], folders: tuple[Path, Path]) -> None:
    user, cache = folders
    with pytest.raises(UserError, match=r"no public URL for closed\.txt\. Put a copy") as caught:
        get_dataset("closed")
    assert str(user / "closed") in str(caught.value)
    assert not cache.exists()


def test_partly_downloadable_dataset(requests: list[str]) -> None:
    with pytest.raises(UserError, match=r"URL for closed\.txt; the other 1 are in"):
        get_dataset("mixed")
    assert (get_dataset("mixed", ["a.txt"]) / "a.txt").is_file()
    assert requests == ["/a.txt"]


def test_dead_url_error_names_dataset(requests: list[str]) -> None:
    with pytest.raises(UserError, match=r"^gone: .*404.*REGARD_DATA/gone"):
        get_dataset("gone")


def test_file_with_wrong_checksum_is_discarded(requests: list[str], folders: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="it was removed"):
        get_dataset("wrong")
    assert [path.name for path in (folders[1] / "data" / "wrong").iterdir()] == [".lock"]


def test_unwritable_cache_error_names_variable(requests: list[str], folders: tuple[Path, Path]) -> None:
    folders[1].write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"cannot be written.*REGARD_CACHE"):
        get_dataset("open")


def test_missing_data_folder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"REGARD_DATA is set to .*nowhere, which is not a folder"):
        find_dataset("brown")


def test_check_reports_good_missing_and_different_files(requests: list[str], folders: tuple[Path, Path]) -> None:
    folder = write_files(folders[0] / "open", a_txt=SERVED["/a.txt"])
    assert check_dataset("open").states == {"a.txt": "good", "sub/b.txt": "missing"}
    write_files(folder, sub__b_txt=b"changed")
    checked = check_dataset("open")
    assert checked.states == {"a.txt": "good", "sub/b.txt": "differs"}
    assert not checked.good
    assert checked.folder == folder
    write_files(folder, sub__b_txt=SERVED["/sub/b.txt"])
    assert check_dataset("open").good


@pytest.mark.parametrize(
    "content",
    [b"no gzip at all", gzip.compress(b"other"), gzip.compress(b"cut" * 99)[:-9]],
    ids=["no gzip", "other content", "cut short"],  # compressed bytes contain the time
)
def test_damaged_compressed_file_differs(requests: list[str], folders: tuple[Path, Path], content: bytes) -> None:
    write_files(folders[0] / "packed", plain_txt_gz=content)
    assert check_dataset("packed").states == {"plain.txt.gz": "differs"}


def test_checking_missing_dataset_is_an_error() -> None:
    with pytest.raises(UserError, match="not on this machine; run `regard data get brown`"):
        check_dataset("brown")


def test_check_all_checks_local_datasets_only(requests: list[str], folders: tuple[Path, Path]) -> None:
    write_files(folders[0] / "mixed", a_txt=b"changed")
    (folders[0] / "closed").mkdir()
    get_dataset("open")
    assert [(checked.dataset.name, checked.good) for checked in check_all_datasets()] == [
        ("open", True),
        ("mixed", False),
    ]


def test_locate_reports_availability(requests: list[str], folders: tuple[Path, Path]) -> None:
    assert [locate_dataset(name).availability for name in ("open", "mixed", "closed")] == [
        *("downloadable", "partly downloadable", "not downloadable"),
    ]
    get_dataset("open")
    assert locate_dataset("open").availability == "cache"
    write_files(folders[0] / "open", a_txt=b"", sub__b_txt=b"")
    assert (locate_dataset("open").availability, locate_dataset("open").folder) == ("REGARD_DATA", folders[0] / "open")


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
def test_cache_folder_follows_platform(
    platform: str, variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("REGARD_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": str(tmp_path / "home")} | variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("regard.data.registry.cache.sys.platform", platform)
    assert cache_folder() == tmp_path / expected
