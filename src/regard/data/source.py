"""The source of a task's data: a path on this machine, or a path inside a named dataset.

Every recipe describes its training, validation and test data by configs that extend `DataSource` with the keys of their
file format (columns, keys, labels …), so all of them write, resolve and show paths in the same way.
"""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from regard.config import Config
from regard.data.registry import get_dataset, is_obtainable

NonEmpty = Annotated[str, Field(min_length=1)]
_Column = Annotated[int, Field(gt=0, le=10_000)]
TwoColumns = Annotated[tuple[_Column, _Column], Field(strict=False)]  # TOML and JSON have lists, not tuples
"""Two columns of a table, counted from 1."""


_PATH_KEYS = ("path", "source", "target", "labels")
"""The keys that may name a path, here and in subclasses."""


class DataSource(Config):
    """A file or folder to read. Subclasses that always need a path narrow `path` to a string."""

    dataset: NonEmpty | None = None
    """A named dataset (`regard data list`) that contains the paths; without it they are paths in the file system."""
    path: NonEmpty | None = None

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
