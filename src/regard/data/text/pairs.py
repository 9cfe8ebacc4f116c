"""Reading sentence pairs from two aligned files, a table of columns, JSON lines, or a folder of these.

Everything is streamed. A pair with an empty side is kept, so that pairs stay aligned with their lines; dropping pairs
is up to filters. Two files of different length are never truncated to the shorter one: somewhere a line is missing or
surplus, and from there on every pair is wrong. The error estimates where.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from regard.data.text.lines import check_file, read_json_lines, read_lines, uncompressed_name, uncompressed_suffix
from regard.data.text.misalignment import explain_misalignment
from regard.errors import UserError

Columns = tuple[int, int]  # of source and target, counted from 1 like `cut -f`
Keys = tuple[str, str]  # of source and target; "translation.en" is the key "en" in the object at "translation"
Suffixes = tuple[str, str]  # of source and target: ("en", "de") for train.en.gz and train.de.gz

COLUMNS: Columns = (1, 2)
KEYS: Keys = ("source", "target")


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class PairFiles(NamedTuple):
    """One file of pairs, or two aligned ones."""

    path: Path
    target: Path | None = None


def read_pairs(
    path: str | Path,
    target: str | Path | None = None,
    *,
    columns: Columns = COLUMNS,
    keys: Keys = KEYS,
    suffixes: Suffixes | None = None,
) -> Iterator[Pair]:
    """The pairs of the files that `list_pair_files` finds, one file after the other."""
    for files in list_pair_files(path, target, suffixes=suffixes):
        if files.target is not None:
            yield from read_aligned(files.path, files.target)
        elif uncompressed_suffix(files.path) in _JSON_LINES:
            yield from read_json_pairs(files.path, keys)
        else:
            yield from read_table(files.path, columns)


def list_pair_files(
    path: str | Path, target: str | Path | None = None, *, suffixes: Suffixes | None = None
) -> list[PairFiles]:
    """The files to read, in order.

    With `target`, `path` and `target` are aligned files of any name. Otherwise `path` is a file (.tsv or .txt for
    columns, .jsonl or .ndjson for JSON lines, compressed or not), or a folder: its .tsv, .jsonl and .ndjson files and,
    if `suffixes` are given, its aligned files, sorted by name. Other files, hidden files and subfolders are skipped.
    """
    path = Path(path)
    if target is not None:
        check_file(path)
        check_file(Path(target))
        return [PairFiles(path, Path(target))]
    if path.is_dir():
        return _list_folder(path, suffixes)
    check_file(path)
    if uncompressed_suffix(path) not in (*_TABLES, ".txt", *_JSON_LINES):
        raise UserError(
            f"{path}: the suffix is unknown; expected .tsv or .txt (columns separated by tabs) or .jsonl (JSON lines), "
            "compressed or not, or two aligned files as source and target."
        )
    return [PairFiles(path)]


def read_aligned(source: str | Path, target: str | Path) -> Iterator[Pair]:
    """Line n of one file with line n of the other. Files of different length are an error, raised at the end."""
    sources, targets = read_lines(source), read_lines(target)
    count = 0
    while True:
        left, right = next(sources, None), next(targets, None)
        if left is None and right is None:
            return
        if left is None or right is None:
            rest = 1 + sum(1 for _ in (targets if left is None else sources))
            counts = (count, count + rest) if left is None else (count + rest, count)
            raise UserError(explain_misalignment(Path(source), Path(target), counts))
        count += 1
        yield Pair(left, right)


def read_table(path: str | Path, columns: Columns = COLUMNS) -> Iterator[Pair]:
    """Two columns of each line. Columns are separated by tabs; quotation marks have no special meaning."""
    first, second = columns
    if min(columns) < 1:
        raise UserError(f"Columns are counted from 1; found {first} and {second}.")
    needed = max(columns)
    for number, line in enumerate(read_lines(path), start=1):
        fields = line.split("\t", needed)
        if len(fields) < needed:
            noun = "column" if len(fields) == 1 else "columns"
            raise UserError(
                f"{path}, line {number}: found {len(fields):,} {noun} separated by tabs; columns {first} and {second} "
                "are needed."
            )
        yield Pair(fields[first - 1], fields[second - 1])


def read_json_pairs(path: str | Path, keys: Keys = KEYS) -> Iterator[Pair]:
    """Two keys of each line's JSON object. Blank lines are skipped."""
    for where, record in read_json_lines(path):
        yield Pair(_value(record, keys[0], where), _value(record, keys[1], where))


_TABLES = (".tsv",)
_JSON_LINES = (".jsonl", ".ndjson")


def _list_folder(folder: Path, suffixes: Suffixes | None) -> list[PairFiles]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    found = [PairFiles(path) for path in paths if uncompressed_suffix(path) in (*_TABLES, *_JSON_LINES)]
    if suffixes is not None:
        found += _list_aligned(paths, suffixes)
    if not found:
        aligned = f", nor files with the suffixes .{suffixes[0]} and .{suffixes[1]}" if suffixes else ""
        raise UserError(f"{folder} has no .tsv or .jsonl files{aligned} to read pairs from.")
    return sorted(found, key=lambda files: files.path)


def _list_aligned(paths: list[Path], suffixes: Suffixes) -> list[PairFiles]:
    """The files "name.source-suffix" and "name.target-suffix", each compressed or not."""
    source_suffix, target_suffix = (f".{suffix.removeprefix('.')}" for suffix in suffixes)
    found: dict[str, dict[str, Path]] = {source_suffix: {}, target_suffix: {}}
    for path in paths:
        for suffix, named in found.items():
            if (name := uncompressed_name(path)).endswith(suffix):
                stem = name.removesuffix(suffix)
                if stem in named:
                    raise UserError(f"{path} and {named[stem].name} are two versions of the same text; remove one.")
                named[stem] = path
    sources, targets = found[source_suffix], found[target_suffix]
    for stem in sorted(sources.keys() ^ targets.keys()):
        existing, missing = (sources, target_suffix) if stem in sources else (targets, source_suffix)
        raise UserError(f"{existing[stem]} has no partner {stem}{missing}.")
    return [PairFiles(path, targets[stem]) for stem, path in sources.items()]


def _value(record: object, key: str, where: str) -> str:
    """The string at a key; a key with dots is first looked up as it is, then step by step."""
    value = record
    for step in [key] if isinstance(record, dict) and key in record else key.split("."):
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected an object with the key {key!r}, found {_kind(value)}.")
        if step not in value:
            known = ", ".join(repr(name) for name in islice(value, 8)) or "none"
            raise UserError(f"{where}: there is no key {key!r}; the keys are {known}.")
        value = value[step]
    if not isinstance(value, str):
        raise UserError(f"{where}: expected a string at the key {key!r}, found {_kind(value)}.")
    if not value.isascii() and _SURROGATE.search(value):
        raise UserError(f"{where}: the text at the key {key!r} has half of a surrogate pair, which is not a character.")
    return value


_SURROGATE = re.compile("[\ud800-\udfff]")


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
