"""The table of named datasets (datasets.toml): their files, checksums, licenses and origins."""

import difflib
import functools
import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any

from regard.errors import UserError


@dataclass(frozen=True)
class DatasetFile:
    """One file of a dataset."""

    name: str
    size: int
    """In bytes."""
    count: int
    """The number of examples, in the dataset's unit."""
    sha256: str
    url: str | None = None
    plain_sha256: str | None = None
    """The checksum of the file before compression, if the URL serves it uncompressed."""
    content_sha256: str | None = None
    """The checksum of a compressed file's content, if copies exist that were compressed differently."""


@dataclass(frozen=True)
class DatasetInfo:
    """The registry's entry for a dataset."""

    name: str
    description: str
    license: str
    redistributable: bool
    origins: tuple[str, ...]
    """The original sources, which are not always the URLs of the files."""
    unit: str
    """The unit of an example: "pair", "image" …"""
    files: tuple[DatasetFile, ...]
    system_folders: tuple[str, ...] = ()
    """Folders in which other packages install the files; "{sklearn}/data" is inside a Python package."""
    advice: str = ""
    """Further advice for the error if the dataset is missing."""
    classes: tuple[str, ...] = ()
    """The class names of labels, by number."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def counts(self) -> dict[str, int]:
        return {file.name: file.count for file in self.files}

    def select(self, names: list[str] | None) -> tuple[DatasetFile, ...]:
        """The files of these names, or all of them."""
        if names is None:
            return self.files
        known = {file.name: file for file in self.files}
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"its files are {', '.join(known)}."
                raise UserError(f"The dataset {self.name} has no file {name!r}; {hint}")
        return tuple(known[name] for name in names)


@functools.cache
def list_datasets() -> tuple[DatasetInfo, ...]:
    """All named datasets, in the order of the table."""
    table = tomllib.loads(resources.files("regard.data.registry").joinpath("datasets.toml").read_text(encoding="utf-8"))
    return tuple(_from_table(name, values) for name, values in table.items())


def dataset_info(name: str) -> DatasetInfo:
    """The dataset of that name."""
    known = {one.name: one for one in list_datasets()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the known datasets are {', '.join(known)}."
    raise UserError(f"There is no dataset named {name!r}; {hint}")


def _from_table(name: str, values: dict[str, Any]) -> DatasetInfo:
    base = values.get("base_url", "")
    files = tuple(
        DatasetFile(
            name=file["name"],
            size=file["size"],
            count=file["count"],
            sha256=file["sha256"],
            url=base + file["path"] if "path" in file else None,
            plain_sha256=file.get("plain_sha256"),
            content_sha256=file.get("content_sha256"),
        )
        for file in values["files"]
    )
    return DatasetInfo(
        name=name,
        description=values["description"],
        license=values["license"],
        redistributable=values["redistributable"],
        origins=tuple(values["origins"]),
        unit=values["unit"],
        files=files,
        system_folders=tuple(values.get("system_folders", ())),
        advice=values.get("advice", ""),
        classes=tuple(values.get("classes", ())),
    )
