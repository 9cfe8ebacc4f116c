"""Comparing the files of datasets with the registry's checksums."""

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regard.data.registry.datasets import DatasetFile, DatasetInfo, dataset_info, list_datasets
from regard.data.registry.locate import find_dataset, find_partial_dataset
from regard.errors import UserError
from regard.files import file_sha256

FileState = Literal["good", "missing", "differs"]


@dataclass(frozen=True)
class DatasetCheck:
    """How the files of a dataset compare with the registry's checksums."""

    dataset: DatasetInfo
    folder: Path
    states: dict[str, FileState]

    @property
    def good(self) -> bool:
        return all(state == "good" for state in self.states.values())


def check_dataset(name: str) -> DatasetCheck:
    """Check the files that `get_dataset` would return, or else those of a partial copy."""
    dataset = dataset_info(name)
    folder = find_dataset(name) or find_partial_dataset(dataset)
    if folder is None:
        raise UserError(f"{name} is not on this machine; run `regard data get {name}`.")
    try:
        return DatasetCheck(dataset, folder, {file.name: _state(file, folder / file.name) for file in dataset.files})
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be read: {error.strerror or error}.") from None


def check_all_datasets() -> Iterator[DatasetCheck]:
    """Check every dataset of which this machine has at least one file."""
    return (check_dataset(one.name) for one in list_datasets() if find_partial_dataset(one) is not None)


def _state(file: DatasetFile, path: Path) -> FileState:
    if not path.is_file():
        return "missing"
    if file_sha256(path) == file.sha256:
        return "good"
    # The same content may have been compressed to different bytes.
    content = file.plain_sha256 or file.content_sha256
    return "good" if content is not None and _content_sha256(path) == content else "differs"


def _content_sha256(path: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with gzip.open(path) as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return None
    return digest.hexdigest()
