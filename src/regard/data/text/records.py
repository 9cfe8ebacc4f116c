"""Records: the rows of CSV, Parquet and Arrow files and of JSON lines, as values of named columns.

Everything is streamed: CSV files row by row, Parquet and Arrow files some rows at a time, and of these only the columns
that are needed. A folder of shards, or one that `datasets.save_to_disk` has written, is read as its files, in order.
Labels that Hugging Face `datasets` stores as numbers (ClassLabel) are given by their names.

Columns may be chosen by name ("translation.en" is the field "en" of the column "translation"), by number counted from
1, or left to `choose_columns`, which knows the names that people use.
"""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from regard.data.text.arrow import ARROW, arrow_columns, read_arrow
from regard.data.text.lines import MAX_LINE_BYTES, check_file, read_json_lines, read_lines, uncompressed_suffix
from regard.errors import UserError, listed

Column = int | str
Roles = Mapping[str, Sequence[str]]
"""What is read from a record, and the column names that usually hold it, the most common first."""

JSON_LINES = (".jsonl", ".ndjson")
RECORDS = (*JSON_LINES, ".csv", *ARROW)
"""Suffixes of files with records; of these, CSV files and JSON lines may be compressed."""

_SAVED_DATASET = "state.json"
_SHARD = re.compile(r"(?P<split>.+)-\d{5}-of-\d{5}\.(parquet|arrow)")


def is_records(path: Path) -> bool:
    """Whether a file has records, by its suffix."""
    return record_suffix(path) in RECORDS


def record_suffix(path: Path) -> str:
    """The suffix in lower case, without one for compression, which Parquet and Arrow files do not have."""
    suffix = uncompressed_suffix(path)
    return path.suffix.lower() if suffix in ARROW else suffix


def record_files(folder: Path) -> list[Path]:
    """The files with records in a folder, in order: the shards of a saved dataset, or all by name. May be empty."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        if (folder / "dataset_dict.json").is_file():
            splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
            raise _several_splits(folder, splits, f"give one of its folders, such as {folder / splits[0]}")
        if folder / _SAVED_DATASET in paths:
            state = json.loads((folder / _SAVED_DATASET).read_text(encoding="utf-8"))
            return [folder / Path(file["filename"]).name for file in state["_data_files"]]
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, IndexError):
        raise UserError(f"{folder} is not a folder that datasets.save_to_disk has written; save it again.") from None
    found = [path for path in paths if is_records(path)]
    splits = sorted({match["split"] for path in found if (match := _SHARD.fullmatch(path.name))})
    if len(splits) > 1:
        raise _several_splits(folder, splits, "put the files of each into a folder of its own")
    return found


def choose_columns(path: Path, given: Sequence[Column] | None, roles: Roles) -> tuple[str, ...]:
    """The names of the columns to read: those given by name or number, or else those that the `roles` usually have.

    A column named "translation" with two fields has source and target; roles without a usual name get the columns that
    are left, in order, if there are as many.
    """
    if given is not None and uncompressed_suffix(path) in JSON_LINES:
        return tuple(map(str, given))  # each line may have other keys
    names = column_names(path)
    if given is not None:
        return tuple(_named(path, column, names) for column in given)
    for column in dict.fromkeys(name.partition(".")[0] for name in names):
        fields = [name for name in names if name.startswith(f"{column}.")]
        if column == "translation" and len(fields) == len(roles) == 2:
            return tuple(fields)
    found = {role: next((name for name in usual if name in names), None) for role, usual in roles.items()}
    left = [name for name in names if name not in found.values()]
    missing = [role for role, name in found.items() if name is None]
    if missing and len(missing) != len(left):
        if uncompressed_suffix(path) in JSON_LINES:  # reading them tells the line
            return tuple(usual[0] for usual in roles.values())
        names_needed = ", ".join(f'"{usual[0]}"' for usual in roles.values())
        setting = f"columns, such as [{names_needed}]" if len(roles) > 1 else f"column, such as {names_needed}"
        raise UserError(
            f"{path}: which of its columns has the {missing[0]}? They are {listed(names)}; name yours with the setting "
            f"{setting}."
        )
    rest = iter(left)
    return tuple(next(rest) if name is None else name for name in found.values())


def column_names(path: Path) -> list[str]:
    """The columns of a file; those with fields are given as "column.field". Of JSON lines, the keys of the first."""
    check_file(path)
    match record_suffix(path):
        case ".csv":
            return _header(path, _csv_rows(path))
        case ".jsonl" | ".ndjson":
            _, first = next(read_json_lines(path), ("", {}))
            items = first.items() if isinstance(first, dict) else ()
            fields = {name: value if isinstance(value, dict) else {} for name, value in items}
            return [leaf for name, keys in fields.items() for leaf in [f"{name}.{key}" for key in keys] or [name]]
    return arrow_columns(path)


def read_records(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    """The values of some columns in each row, with its location for messages. Blank lines are skipped."""
    check_file(path)
    match record_suffix(path):
        case ".csv":
            return _read_csv(path, columns)
        case ".jsonl" | ".ndjson":
            records: Iterator[tuple[str, Any]] = read_json_lines(path)
        case _:
            records = read_arrow(path, columns)
    return ((where, [value_at(record, column, where) for column in columns]) for where, record in records)


def value_at(record: object, key: str, where: str) -> Any:
    """The value at a key; a key with dots is first looked up as it is, then step by step."""
    value = record
    for step in [key] if isinstance(record, dict) and key in record else key.split("."):
        if not isinstance(value, dict):
            raise UserError(f"{where}: expected an object with the key {key!r}, found {kind_of(value)}.")
        if step not in value:
            raise UserError(f"{where}: there is no key {key!r}; the keys are {listed(list(islice(value, 9)))}.")
        value = value[step]
    return value


def text_of(value: Any, key: str, where: str) -> str:
    """The value if it is a text; otherwise an error."""
    if not isinstance(value, str):
        raise UserError(f"{where}: expected a string at the key {key!r}, found {kind_of(value)}.")
    if not value.isascii() and _SURROGATE.search(value):
        raise UserError(f"{where}: the text at the key {key!r} has half of a surrogate pair, which is not a character.")
    return value


def kind_of(value: object) -> str:
    """What a value is, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


_SURROGATE = re.compile("[\ud800-\udfff]")


def _several_splits(folder: Path, splits: Sequence[str], advice: str) -> UserError:
    return UserError(f"{folder} has several splits ({', '.join(splits)}); {advice}.")


def _named(path: Path, column: Column, names: Sequence[str]) -> str:
    """The name of a column given by its name or number."""
    if isinstance(column, str):
        if column not in names:
            raise UserError(f"{path}: there is no column {column!r}; the columns are {listed(names)}.")
        return column
    if not 1 <= column <= len(names):
        noun = "column" if len(names) == 1 else "columns"
        raise UserError(f"{path}: there is no column {column}; it has {len(names):,} {noun}, {listed(names)}.")
    return names[column - 1]


_Rows = Iterator[tuple[str, list[str]]]


def _csv_rows(path: Path) -> _Rows:
    """The rows of a CSV file with their locations; the first has the names of the columns (RFC 4180)."""
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(read_lines(path, keepends=True), strict=True)
    while True:
        where = f"{path}, line {reader.line_num + 1}"
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{where}: not a row of a CSV file ({error}); a text with commas or quotation marks is quoted, and "
                'a quotation mark in it is written twice, as in "say ""hello""".'
            ) from None
        if row is None:
            return
        if row:
            yield where, row


def _header(path: Path, rows: _Rows) -> list[str]:
    _, names = next(rows, ("", []))
    names = [name.strip() for name in names]
    if len(names) == 1 and ";" in names[0]:
        raise UserError(f"{path}, line 1: the columns are separated by semicolons; save the file with commas.")
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path}, line 1: two columns have the name {name!r}; rename one.")
    return names


def _read_csv(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    rows = _csv_rows(path)
    names = _header(path, rows)
    numbers = [names.index(_named(path, column, names)) for column in columns]
    for where, row in rows:
        if len(row) != len(names):
            raise UserError(f"{where}: found {len(row):,} columns; the first line names {len(names):,}.")
        yield where, [row[number] for number in numbers]
