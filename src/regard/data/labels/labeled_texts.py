"""Reading labeled texts: from a table, from JSON lines, or from a folder with one subfolder per label."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from regard.data.source import DataSource, NonEmpty, TwoColumns
from regard.data.text.documents import text_files
from regard.data.text.lines import check_file, read_json_lines, read_lines, uncompressed_suffix
from regard.data.text.pairs import read_table
from regard.errors import UserError
from regard.files import check_plain_file


class LabeledConfig(DataSource):
    """Labeled texts: a .tsv, .txt or .jsonl file, compressed or not, or a folder with one subfolder per label."""

    path: NonEmpty
    """The file; or a folder whose subfolders are named by their label and contain .txt files, each one text."""
    columns: TwoColumns = (1, 2)
    """The columns of text and label in a table, counted from 1."""
    header: bool = False
    """Whether the first line of a table has the names of the columns."""
    keys: Annotated[tuple[NonEmpty, NonEmpty], Field(strict=False)] = ("text", "label")
    """The keys of text and label in JSON lines; a label may be a string or a whole number."""


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


def listed(names: Sequence[str], limit: int = 8) -> str:
    """The first names as a list for messages."""
    shown = ", ".join(repr(name) for name in names[:limit]) or "none"
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


_Example = tuple[str, str, str]  # where it was found, text, label


def _read(path: Path, config: LabeledConfig) -> Iterator[_Example]:
    if path.is_dir():
        return _read_folders(path)
    check_file(path)
    match uncompressed_suffix(path):
        case ".jsonl" | ".ndjson":
            return _read_json(path, config.keys)
        case ".tsv" | ".txt":
            return _read_table(path, config)
    raise UserError(
        f"{path}: the suffix is unknown; expected .tsv or .txt (columns separated by tabs) or .jsonl (JSON lines), "
        "compressed or not, or a folder with one subfolder per label."
    )


def _read_table(path: Path, config: LabeledConfig) -> Iterator[_Example]:
    for number, pair in enumerate(read_table(path, config.columns), start=1):
        if number > 1 or not config.header:
            yield f"{path}, line {number}", pair.source, pair.target


def _read_json(path: Path, keys: tuple[str, str]) -> Iterator[_Example]:
    for where, record in read_json_lines(path):
        text, label = (_value(record, key, where) for key in keys)
        if not isinstance(text, str):
            raise UserError(f"{where}: expected a string at the key {keys[0]!r}, found {text!r}.")
        if not isinstance(label, str) and type(label) is not int:
            raise UserError(f"{where}: expected a string or a whole number at the key {keys[1]!r}, found {label!r}.")
        yield where, text, str(label)


def _value(record: object, key: str, where: str) -> object:
    if not isinstance(record, dict):
        raise UserError(f"{where}: expected an object with the key {key!r}, found {record!r}.")
    if key not in record:
        raise UserError(f"{where}: there is no key {key!r}; the keys are {listed(list(record))}.")
    return record[key]


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
