"""Reading labeled texts: from a table or other records, or from a folder with one subfolder per label."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from regard.data.source import DataSource, NonEmpty, TwoColumns, TwoKeys
from regard.data.text.documents import text_files
from regard.data.text.lines import check_file, read_lines, uncompressed_suffix
from regard.data.text.pairs import COLUMNS, read_table
from regard.data.text.records import (
    JSON_LINES,
    choose_columns,
    is_records,
    read_records,
    record_files,
    text_of,
)
from regard.errors import UserError
from regard.files import check_plain_file


class LabeledConfig(DataSource):
    """Labeled texts: a file, or a folder with one subfolder per label."""

    path: NonEmpty
    """A .tsv, .txt, .csv or .jsonl file, compressed or not, or a .parquet file; a folder of such files, or one written
    by `datasets.save_to_disk`; or a folder whose subfolders are named by their label and contain .txt files, each one
    text."""
    columns: TwoColumns | None = None
    """The columns of text and label in a table, by name or by number, counted from 1. By default the first two of a
    .tsv file; in a .csv or .parquet file those named text and label, or the only two."""
    header: bool = False
    """Whether the first line of a .tsv file has the names of the columns; that of a .csv file always has."""
    keys: TwoKeys | None = None
    """The keys of text and label in JSON lines; a label may be a string or a whole number. By default as the columns of
    a .csv file."""


class LabeledText(NamedTuple):
    """A text and its label."""

    text: str
    label: str


def read_labeled(config: LabeledConfig) -> Iterator[LabeledText]:
    """The texts and their labels, one by one."""
    (path,) = config.resolve(config.path)
    check_plain_file(path)
    found = False
    for where, text, label in _read(path, config):
        found = True
        if not text.strip():
            raise UserError(f"{where}: the label {label!r} has no text; remove it.")
        if not label.strip():
            raise UserError(f"{where}: the text has no label; add one.")
        yield LabeledText(text, label)
    if not found:
        raise UserError(f"{config.location}: there are no labeled texts in it; at least one is needed.")


_Example = tuple[str, str, str]  # where it was found, text, label


def _read(path: Path, config: LabeledConfig) -> Iterator[_Example]:
    if path.is_dir():
        files = record_files(path)
        return chain.from_iterable(_read_records(file, config) for file in files) if files else _read_folders(path)
    check_file(path)
    if is_records(path):
        return _read_records(path, config)
    if uncompressed_suffix(path) in (".tsv", ".txt"):
        return _read_table(path, config)
    raise UserError(
        f"{path}: the suffix is unknown; expected .tsv or .txt (columns separated by tabs), .csv or .jsonl (JSON "
        "lines), compressed or not, .parquet, or a folder with one subfolder per label."
    )


_ROLES = {"text": ("text", "sentence", "content"), "label": ("label", "labels", "class", "category")}


def _read_table(path: Path, config: LabeledConfig) -> Iterator[_Example]:
    columns = config.columns or COLUMNS
    named = any(isinstance(column, str) for column in columns)  # then the table has skipped its first line itself
    for number, pair in enumerate(read_table(path, columns), start=2 if named else 1):
        if number > 1 or not config.header:
            yield f"{path}, line {number}", pair.source, pair.target


def _read_records(path: Path, config: LabeledConfig) -> Iterator[_Example]:
    given = config.keys if uncompressed_suffix(path) in JSON_LINES else config.columns
    text_column, label_column = choose_columns(path, given, _ROLES)
    for where, (text, label) in read_records(path, (text_column, label_column)):
        if not isinstance(label, str) and type(label) is not int:
            raise UserError(
                f"{where}: expected a string or a whole number at the key {label_column!r}, found {label!r}."
            )
        yield where, text_of(text, text_column, where), str(label)


def _read_folders(folder: Path) -> Iterator[_Example]:
    try:
        subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None
    if not subfolders:
        raise UserError(f"{folder} has no subfolders; expected one per label, with .txt files in it.")
    for subfolder in subfolders:
        for path in text_files(subfolder):
            yield str(path), "\n".join(read_lines(path)), subfolder.name
