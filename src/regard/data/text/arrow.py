"""Parquet and Arrow files, read by pyarrow: their columns, and their rows some at a time.

Labels that Hugging Face `datasets` stores as numbers (ClassLabel) are given by their names, which are in the metadata
of the schema.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.errors import UserError, how_to_install, listed

ARROW = (".parquet", ".arrow")

_BATCH_ROWS = 1024
"""Rows of a Parquet file that are decoded at once."""


def arrow_columns(path: Path) -> list[str]:
    """The columns of a file; those with fields are given as "column.field"."""
    with _arrow_errors(path):
        return [leaf for field in _schema(path) for leaf in _leaves(field)]


def read_arrow(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file with their locations; of the columns only those that are needed."""
    with _arrow_errors(path):
        schema = _schema(path)
        names = list(dict.fromkeys(name if name in schema.names else name.partition(".")[0] for name in columns))
        for name in names:
            if name not in schema.names:
                raise UserError(f"{path}: there is no column {name!r}; the columns are {listed(schema.names)}.")
        labels = _class_names(schema)
        number = 0
        for batch in _batches(path, names):
            values = {name: batch.column(name).to_pylist() for name in names}
            for row in range(batch.num_rows):
                number += 1
                where = f"{path}, row {number}"
                yield (
                    where,
                    {name: _label_names(labels.get(name), values[name][row], name, where) for name in names},
                )


def _label_names(names: Sequence[str] | None, value: Any, column: str, where: str) -> Any:
    """The names of labels that are stored as numbers, if the column has such labels."""
    if names is None:
        return value
    if isinstance(value, list):
        return [_label_names(names, one, column, where) for one in value]
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise UserError(f"{where}: the column {column!r} has {value!r}, which is none of its {len(names)} labels.")
    return names[value]


def _class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """The names of the labels of each column that has some, from the metadata that `datasets` writes."""
    try:
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = metadata.get("info", {}).get("features") or {}
        found = {name: _names_in(feature) for name, feature in features.items()}
    except (ValueError, AttributeError, TypeError):
        return {}
    return {name: names for name, names in found.items() if names}


def _names_in(feature: Any) -> tuple[str, ...]:
    """The names of a ClassLabel, or of a list of them."""
    if isinstance(feature, list) and feature:
        return _names_in(feature[0])
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        return _names_in(feature.get("feature"))
    return tuple(feature["names"]) if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else ()


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{path}: Parquet and Arrow files are read by pyarrow, which is not installed; {how_to_install('parquet')}."
        ) from None
    return pyarrow


@contextmanager
def _arrow_errors(path: Path) -> Iterator[None]:
    """Turn errors of pyarrow into errors for the user."""
    pyarrow = _pyarrow(path)
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"{path} cannot be read: {reason}; it may be damaged or of another format.") from None


def _schema(path: Path) -> Any:
    pyarrow = _pyarrow(path)
    if path.suffix.lower() == ".parquet":
        return pyarrow.parquet.read_schema(path)
    with _open_ipc(path) as reader:
        return reader.schema


def _batches(path: Path, columns: Sequence[str]) -> Iterator[Any]:
    pyarrow = _pyarrow(path)
    if path.suffix.lower() == ".parquet":
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
        return
    with _open_ipc(path) as reader:
        if hasattr(reader, "num_record_batches"):
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            yield from reader


@contextmanager
def _open_ipc(path: Path) -> Iterator[Any]:
    """An Arrow file, which is a stream as `datasets` writes it, or has a table of contents at its end."""
    pyarrow = _pyarrow(path)
    with pyarrow.memory_map(str(path)) as source:
        try:
            reader = pyarrow.ipc.open_stream(source)
        except pyarrow.ArrowInvalid:
            source.seek(0)
            reader = pyarrow.ipc.open_file(source)
        with reader:
            yield reader


def _leaves(field: Any) -> list[str]:
    """The name of a column, or of each of its fields."""
    fields = [field.type.field(number).name for number in range(field.type.num_fields)] if _is_struct(field) else []
    return [f"{field.name}.{name}" for name in fields] or [field.name]


def _is_struct(field: Any) -> bool:
    return str(field.type).startswith("struct<")
