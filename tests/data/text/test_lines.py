"""Reading lines: they round-trip with every compression, and errors name damaged files."""

import builtins
import gzip
import io
import lzma
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from regard import UserError
from regard.data.text.lines import read_lines, uncompressed_name, uncompressed_suffix

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": partial(lzma.compress, preset=0),  # other presets need more memory than these tests allow
    ".zst": zstandard.compress,
}
SUFFIXES = [suffix for suffix in COMPRESS if suffix]

# Any text that UTF-8 can encode, without line ends.
sentences = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(COMPRESS[path.suffix if path.suffix in COMPRESS else ""](content))
    return path


def read_back(content: bytes, suffix: str = "") -> list[str]:
    with TemporaryDirectory() as folder:
        return list(read_lines(write(Path(folder) / f"text{suffix}", content)))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("suffix", COMPRESS)
@given(lines=st.lists(sentences, max_size=5))
def test_lines_round_trip(suffix: str, end: str, lines: list[str]) -> None:
    # The first line is fixed, because U+FEFF at its start would be a byte-order mark.
    lines = ["first", *lines]
    assert read_back("".join(line + end for line in lines).encode(), suffix) == lines


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\r"])
def test_other_unicode_line_separators_do_not_split(separator: str) -> None:
    assert read_back(f"a{separator}b\nc".encode()) == [f"a{separator}b", "c"]


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"\r\n", [""]),
        (b"a\r\r\n", ["a\r"]),
        (b" a \t\n", [" a \t"]),
    ],
)
def test_only_line_ends_are_removed(content: bytes, lines: list[str]) -> None:
    assert read_back(content) == lines


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ("\ufeffa\nb\n", ["a", "b"]),
        ("\ufeff", []),
        ("\ufeff\n", [""]),
        ("a\n\ufeffb\n", ["a", "\ufeffb"]),
        ("\ufeff\ufeffa\n", ["\ufeffa"]),
    ],
)
def test_only_one_leading_byte_order_mark_is_removed(content: str, lines: list[str]) -> None:
    assert read_back(content.encode()) == lines


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_concatenated_compressed_files_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(COMPRESS[suffix](b"one\ntw") + COMPRESS[suffix](b"o\nthree\n"))
    assert list(read_lines(path)) == ["one", "two", "three"]


def test_skippable_zstd_frame_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "text.zst"
    path.write_bytes(b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc" + zstandard.compress(b"one\n"))
    assert list(read_lines(path)) == ["one"]


def test_uppercase_suffix_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "TEXT.GZ"
    path.write_bytes(gzip.compress(b"one\n"))
    assert list(read_lines(path)) == ["one"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_invalid_utf8_is_named_with_its_line(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"text{suffix}", b"one\ntwo\nth\xffree\n")
    with pytest.raises(UserError, match=rf"text{suffix}, line 3: byte 3 of the line \(0xff\) is not UTF-8"):
        list(read_lines(path))


def test_lines_before_an_invalid_one_are_yielded(tmp_path: Path) -> None:
    lines = read_lines(write(tmp_path / "text", b"one\n\xff\n"))
    assert next(lines) == "one"


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_truncated_compressed_file_is_named(tmp_path: Path, suffix: str, fraction: float) -> None:
    complete = COMPRESS[suffix]("".join(f"line {number * number}\n" for number in range(5000)).encode())
    path = tmp_path / f"text{suffix}"
    path.write_bytes(complete[: int(fraction * len(complete))])
    with pytest.raises(UserError, match=rf"text{suffix} is damaged or truncated after line \d+"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_wrong_compression_suffix_is_named(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(b"This is plain text, and nothing else than that.\n")
    with pytest.raises(UserError, match=rf"text{suffix} is damaged"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_corrupted_compressed_file_is_named(tmp_path: Path, suffix: str) -> None:
    content = bytearray(COMPRESS[suffix](b"".join(b"%d\n" % (number * number) for number in range(5000))))
    content[len(content) // 2] ^= 0xFF
    path = tmp_path / f"text{suffix}"
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"text{suffix}"):
        list(read_lines(path))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: there is no such file"):
        list(read_lines(tmp_path / "nowhere"))


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder; expected a text file"):
        list(read_lines(tmp_path))


def test_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "text", b"one\n")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match="text cannot be read: Permission denied"):
        list(read_lines(path))


def test_missing_zstandard_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def import_without_zstandard(name: str, *rest: Any) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return original(name, *rest)

    path = write(tmp_path / "text.zst", b"one\n")
    monkeypatch.setattr(builtins, "__import__", import_without_zstandard)
    with pytest.raises(UserError, match="pip install zstandard"):
        list(read_lines(path))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, suffix: str) -> None:
    line = b"The cat ate the mouse, and number %d was heard of no more.\n"
    content = b"".join(line % number for number in range(100_000))
    path = write(tmp_path / f"text{suffix}", content)
    assert len(content) > 5_000_000
    del content
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_lines(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 100_000
    assert peak < 1_500_000


def test_file_is_closed_when_reading_stops_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[io.BufferedReader] = []
    original = Path.open

    def recording_open(path: Path, *args: Any) -> Any:
        opened.append(original(path, *args))
        return opened[-1]

    path = write(tmp_path / "text.gz", b"one\ntwo\n")
    monkeypatch.setattr(Path, "open", recording_open)
    lines = read_lines(path)
    next(lines)
    del lines
    assert opened[-1].closed


@pytest.mark.parametrize(
    ("name", "plain", "suffix"),
    [("a.tsv", "a.tsv", ".tsv"), ("a.TSV.gz", "a.TSV", ".tsv"), ("a.en.xz", "a.en", ".en"), ("a.zst", "a", "")],
)
def test_uncompressed_name_and_suffix(name: str, plain: str, suffix: str) -> None:
    assert (uncompressed_name(Path(name)), uncompressed_suffix(Path(name))) == (plain, suffix)
