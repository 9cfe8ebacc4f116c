"""Finding datasets on this machine.

A dataset is looked for in `$REGARD_DATA/<name>`, then among those that ship with the package, then in the folders of
other packages, then in the cache. Files under REGARD_DATA belong to the user: they are read, never written, and
compared with the registry's checksums by `check_dataset` only.
"""

import importlib.util
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Literal

from regard.data.registry.cache import cache_folder
from regard.data.registry.datasets import DatasetFile, DatasetInfo, dataset_info
from regard.errors import UserError

Availability = Literal[
    "REGARD_DATA", "package", "system", "cache", "downloadable", "partly downloadable", "not downloadable"
]


@dataclass(frozen=True)
class Location:
    """The location of a dataset, or, without a folder, whether it can be downloaded."""

    dataset: DatasetInfo
    availability: Availability
    folder: Path | None


def find_dataset(name: str, files: Iterable[str] | None = None) -> Path | None:
    """The folder on this machine that has all files of a dataset, or the named ones; None if there is none."""
    dataset = dataset_info(name)
    needed = dataset.select(None if files is None else list(files))
    return next((folder for _, folder in candidate_folders(dataset) if not missing_files(folder, needed)), None)


def locate_dataset(name: str) -> Location:
    """The location of a dataset, or whether it can be downloaded. Downloads nothing."""
    dataset = dataset_info(name)
    for availability, folder in candidate_folders(dataset):
        if not missing_files(folder, dataset.files):
            return Location(dataset, availability, folder)
    downloadable = [file.url is not None for file in dataset.files]
    if all(downloadable):
        return Location(dataset, "downloadable", None)
    return Location(dataset, "partly downloadable" if any(downloadable) else "not downloadable", None)


def is_obtainable(name: str, files: Iterable[str] | None = None) -> bool:
    """Whether a dataset, or the named files of it, are on this machine or can be downloaded."""
    needed = dataset_info(name).select(None if files is None else list(files))
    return all(file.url for file in needed) or find_dataset(name, [file.name for file in needed]) is not None


def candidate_folders(dataset: DatasetInfo) -> list[tuple[Availability, Path]]:
    """The folders in which a dataset may be, in the order in which they are searched."""
    name = dataset.name
    folders: list[tuple[Availability, Path]] = [
        ("package", Path(str(resources.files("regard.data") / "shipped" / name)))
    ]
    folders += [("system", folder) for text in dataset.system_folders if (folder := _system_folder(text)) is not None]
    folders.append(("cache", cache_folder() / "data" / name))
    given = os.environ.get("REGARD_DATA")
    if given:
        root = Path(given).expanduser()
        if not root.is_dir():
            raise UserError(f"REGARD_DATA is set to {given}, which is not a folder; correct or unset it.")
        folders.insert(0, ("REGARD_DATA", root / name))
    return folders


def missing_files(folder: Path, files: Iterable[DatasetFile]) -> list[DatasetFile]:
    """The files that are not in a folder."""
    try:
        return [file for file in files if not (folder / file.name).is_file()]
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None


def find_partial_dataset(dataset: DatasetInfo) -> Path | None:
    """The first folder that has at least one of a dataset's files."""
    folders = (folder for _, folder in candidate_folders(dataset))
    return next((folder for folder in folders if len(missing_files(folder, dataset.files)) < len(dataset.files)), None)


def _system_folder(text: str) -> Path | None:
    """A folder that another package fills; None if it is in a Python package that is not installed."""
    inside = re.fullmatch(r"\{(\w+)\}/(.+)", text)
    if inside is None:
        return Path(text)
    spec = importlib.util.find_spec(inside[1])  # which does not import it
    roots = (spec and spec.submodule_search_locations) or ()
    return next((Path(root) / inside[2] for root in roots), None)
