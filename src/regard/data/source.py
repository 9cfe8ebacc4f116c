"""The source of a task's data: a path on this machine, or a path inside a named dataset.

Every recipe describes its training, validation and test data by configs that extend `DataSource` with the keys of their
file format (columns, keys, labels …), so all of them write, resolve and show paths in the same way.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from regard.config import Config
from regard.data.registry import get_dataset, is_obtainable

NonEmpty = Annotated[str, Field(min_length=1)]
Column = Annotated[int, Field(gt=0, le=10_000)] | NonEmpty
"""A column of a table: its number, counted from 1, or its name."""
TwoColumns = Annotated[tuple[Column, Column], Field(strict=False)]  # TOML and JSON have lists, not tuples
TwoKeys = Annotated[tuple[NonEmpty, NonEmpty], Field(strict=False)]


_PATH_KEYS = ("path", "source", "target", "labels")
"""The keys that may name a path, here and in subclasses."""


class DataSource(Config):
    """A file or folder to read. Subclasses that always need a path narrow `path` to a string."""

    dataset: NonEmpty | None = None
    """A named dataset (`regard data list`) that contains the paths; without it they are paths in the file system."""
    path: NonEmpty | None = None
    """A file or folder: in the dataset, or in the file system, relative to the recipe's file."""

    file_keys: ClassVar[tuple[str, ...]] = ()
    """Keys that belong to these files only: which part of them is used, and how often. The others say how to read."""

    def for_file(self, path: str, settings: Mapping[str, Any]) -> Self:
        """Another file or folder, read in the same way except for some settings."""
        values = self.model_dump(mode="json", exclude={"dataset", "path", *self.file_keys}, exclude_unset=True)
        return type(self)(**{**values, "path": path, **settings})

    @property
    def location(self) -> str:
        """The dataset and the path, for messages."""
        return self.describe(self.path)

    def describe(self, path: str | None) -> str:
        """A path of this source, for messages."""
        return ": ".join(name for name in (self.dataset, path) if name is not None)

    def paths_given(self) -> list[str]:
        """All paths that this source names."""
        return [path for key in _PATH_KEYS if (path := getattr(self, key, None)) is not None]

    def is_obtainable(self) -> bool:
        """Whether all files of this source are on this machine, or can be downloaded."""
        paths = self.paths_given()
        if self.dataset is None:
            return all(Path(path).exists() for path in paths)
        return is_obtainable(self.dataset, paths or None)

    def resolve(self, *paths: str) -> tuple[Path, ...]:
        """Paths of this source on this machine. Files of a named dataset are downloaded if they are not there yet."""
        folder = Path() if self.dataset is None else get_dataset(self.dataset, list(paths))
        return tuple(folder / path for path in paths)
