"""Writing one side of a token store as a stream: ids and offsets, one chunk at a time, with a running checksum."""

import os
import zlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from regard.errors import UserError

CHUNK = 1 << 18  # ids of one side that are buffered before they are written


class SideWriter:
    """Writes the files of one side in chunks."""

    def __init__(self, folder: Path, side: str, size: int) -> None:
        self.side = side
        self.size = size
        self.items = 0
        self.tokens = 0
        self._ids = array("q")
        self._ends = array("q", [0])
        self._files: dict[str, IO[bytes]] = {}
        self.checksums = {f"{side}.tokens": 0, f"{side}.offsets": 0}
        for name in self.checksums:
            self._files[name] = open(folder / name, "wb")  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # `finish` has flushed the files; if it did not run, another error is already being raised.
        for file in self._files.values():
            with suppress(OSError):
                file.close()

    def add(self, ids: Sequence[int] | NDArray[Any]) -> None:
        try:
            self._ids.extend(ids.tolist() if isinstance(ids, np.ndarray) else ids)
        except (TypeError, OverflowError):
            raise UserError(f"Item {self.items}, {self.side}: ids must be one row of integers.") from None
        self.items += 1
        self._ends.append(self.tokens + len(self._ids))
        if len(self._ids) >= CHUNK or len(self._ends) >= CHUNK:
            self.flush()

    def flush(self) -> None:
        ids, ends = np.array(self._ids), np.array(self._ends)
        invalid = np.flatnonzero((ids < 0) | (ids >= self.size))
        if len(invalid):
            item = self.items - len(ends) + int(np.searchsorted(ends, self.tokens + invalid[0], side="right"))
            raise UserError(
                f"Item {item}, {self.side}: the id {ids[invalid[0]]} is outside the vocabulary of {self.size} tokens; "
                "use the tokenizer that the vocabulary belongs to."
            )
        self._write("tokens", ids.astype(id_type(self.size)).tobytes())
        self._write("offsets", ends.astype("<i8").tobytes())
        self.tokens += len(ids)
        self._ids, self._ends = array("q"), array("q")

    def finish(self) -> None:
        self.flush()
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def _write(self, kind: str, data: bytes) -> None:
        name = f"{self.side}.{kind}"
        self._files[name].write(data)
        self.checksums[name] = zlib.crc32(data, self.checksums[name])


def id_type(size: int) -> np.dtype[Any]:
    """The dtype of the ids of a vocabulary."""
    return np.dtype("<u2" if size <= 1 << 16 else "<i4")
