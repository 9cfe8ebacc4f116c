"""Reading sentence pairs from two aligned files, a table of columns, other records, or a folder of these.

Everything is streamed. A pair with an empty side is kept, so that pairs stay aligned with their lines; dropping pairs
is up to filters. Two files of different length are never truncated to the shorter one: somewhere a line is missing or
surplus, and from there on every pair is wrong. The error estimates where.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.text.lines import check_file, read_lines, uncompressed_name, uncompressed_suffix
from regard.data.text.misalignment import explain_misalignment
from regard.data.text.records import (
    JSON_LINES,
    Column,
    choose_columns,
    is_records,
    read_records,
    record_files,
    text_of,
)
from regard.errors import UserError, listed

Columns = tuple[Column, Column]  # of source and target: names, or numbers counted from 1 like `cut -f`
Keys = tuple[str, str]  # of source and target; "translation.en" is the key "en" in the object at "translation"
Suffixes = tuple[str, str]  # of source and target: ("en", "de") for train.en.gz and train.de.gz

COLUMNS: Columns = (1, 2)
KEYS: Keys = ("source", "target")
_ROLES = {"source": ("source", "src"), "target": ("target", "tgt")}


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
    columns: Columns | None = None,
    keys: Keys | None = None,
    suffixes: Suffixes | None = None,
) -> Iterator[Pair]:
    """The pairs of the files that `list_pair_files` finds, one file after the other.

    By default, tables without names have the pairs in their first two columns; for others, see `choose_columns`.
    """
    for files in list_pair_files(path, target, suffixes=suffixes):
        if files.target is not None:
            yield from read_aligned(files.path, files.target)
        elif is_records(files.path):
            yield from read_record_pairs(files.path, keys if uncompressed_suffix(files.path) in JSON_LINES else columns)
        else:
            yield from read_table(files.path, columns or COLUMNS)


def list_pair_files(
    path: str | Path, target: str | Path | None = None, *, suffixes: Suffixes | None = None
) -> list[PairFiles]:
    """The files to read, in order.

    With `target`, `path` and `target` are aligned files of any name. Otherwise `path` is a file (.tsv or .txt for
    columns, compressed or not, or a file of records, such as .csv), or a folder: its .tsv files, its files of records
    and, if `suffixes` are given, its aligned files, sorted by name, or the shards of a saved dataset. Other files,
    hidden files and subfolders are skipped.
    """
    path = Path(path)
    if target is not None:
        check_file(path)
        check_file(Path(target))
        return [PairFiles(path, Path(target))]
    if path.is_dir():
        return _list_folder(path, suffixes)
    check_file(path)
    if uncompressed_suffix(path) not in (*_TABLES, ".txt") and not is_records(path):
        raise UserError(
            f"{path}: the suffix is unknown; expected .tsv or .txt (columns separated by tabs), .csv or .jsonl (JSON "
            "lines), compressed or not, .parquet, or two aligned files as source and target."
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
    """Two columns of each line of a table; see `read_columns`."""
    return (Pair(*fields) for fields in read_columns(path, columns))


def read_columns(path: str | Path, columns: Sequence[Column]) -> Iterator[list[str]]:
    """Some columns of each line. Columns are separated by tabs; quotation marks have no special meaning.

    If a column is given by its name, the first line has the names.
    """
    lines = enumerate(read_lines(path), start=1)
    names = next(lines, (0, ""))[1].split("\t") if any(isinstance(column, str) for column in columns) else []
    numbers = [_column_number(Path(path), column, names) for column in columns]
    shown, needed = " and ".join(map(str, numbers)), max(numbers)
    if min(numbers) < 1:
        raise UserError(f"Columns are counted from 1; found {shown}.")
    for number, line in lines:
        fields = line.split("\t", needed)
        if len(fields) < needed:
            noun = "column" if len(fields) == 1 else "columns"
            missing = f"columns {shown} are" if len(numbers) > 1 else f"column {shown} is"
            raise UserError(f"{path}, line {number}: found {len(fields):,} {noun} separated by tabs; {missing} needed.")
        yield [fields[each - 1] for each in numbers]


def read_record_pairs(path: Path, columns: Columns | None = None) -> Iterator[Pair]:
    """Two columns of each record, or the values of two keys in each line of a .jsonl file."""
    source, target = choose_columns(path, columns, _ROLES)
    for where, (left, right) in read_records(path, (source, target)):
        yield Pair(text_of(left, source, where), text_of(right, target, where))


_TABLES = (".tsv",)


def _column_number(path: Path, column: Column, names: list[str]) -> int:
    """The number of a column of a table."""
    if isinstance(column, int):
        return column
    if column not in names:
        raise UserError(f"{path}, line 1: there is no column {column!r}; the columns are {listed(names)}.")
    return names.index(column) + 1


def _list_folder(folder: Path, suffixes: Suffixes | None) -> list[PairFiles]:
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    found = [PairFiles(path) for path in paths if uncompressed_suffix(path) in _TABLES]
    records = [PairFiles(path) for path in record_files(folder)]
    if records and not found and suffixes is None:
        return records  # in the order of their dataset
    found += records
    if suffixes is not None:
        found += _list_aligned(paths, suffixes)
    if not found:
        aligned = f", nor files with the suffixes .{suffixes[0]} and .{suffixes[1]}" if suffixes else ""
        raise UserError(f"{folder} has no .tsv, .csv, .jsonl or .parquet files{aligned} to read pairs from.")
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
