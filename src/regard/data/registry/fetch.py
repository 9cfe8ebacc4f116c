"""Getting a dataset: from this machine if it is there, or else downloaded into the cache.

Many datasets were prepared from their origins and have no public URL; for those the error says what to do.
"""

import gzip
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from regard.data.registry.cache import cache_folder, locked_folder
from regard.data.registry.datasets import DatasetFile, DatasetInfo, dataset_info
from regard.data.registry.download import DownloadError, download
from regard.data.registry.locate import find_dataset, missing_files
from regard.errors import UserError
from regard.progress import phase

FileProgress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes received so far and, where known, its size."""


def get_dataset(name: str, files: Iterable[str] | None = None, *, progress: FileProgress | None = None) -> Path:
    """The folder of a dataset: found on this machine, or downloaded into the cache. `files` are those needed."""
    dataset = dataset_info(name)
    needed = dataset.select(None if files is None else list(files))
    found = find_dataset(name, [file.name for file in needed])
    if found is not None:
        return found
    folder = cache_folder() / "data" / name
    if any(file.url for file in missing_files(folder, needed)):
        with locked_folder(folder):
            for file in missing_files(folder, needed):
                if file.url is not None:
                    _fetch(dataset, file, file.url, folder, progress)
    missing = missing_files(folder, needed)
    if missing:
        rest = f"; the other {len(needed) - len(missing)} are in {folder}" if len(needed) > len(missing) else ""
        raise UserError(_advice(dataset, missing, rest))
    return folder


def _fetch(dataset: DatasetInfo, file: DatasetFile, url: str, folder: Path, progress: FileProgress | None) -> None:
    """Download one file, and compress it if the URL serves it uncompressed."""

    def report(done: int, total: int | None) -> None:
        downloading.done, downloading.total = done, total
        if progress is not None:
            progress(file.name, done, total)

    target = folder / file.name
    try:
        with phase(f"Downloading {file.name}", "bytes") as downloading:
            if file.plain_sha256 is None:
                download(url, target, sha256=file.sha256, progress=report)
            else:
                plain = target.with_name(target.name + ".plain")
                download(url, plain, sha256=file.plain_sha256, progress=report)
                _compress(plain, target)
    except DownloadError as error:
        hint = f"You can also put a copy under $REGARD_DATA/{dataset.name}. {dataset.advice}".rstrip()
        raise DownloadError(f"{dataset.name}: {error} {hint}") from None


def _compress(plain: Path, target: Path) -> None:
    """Replace a plain file by its compressed form, without name and date, so that the bytes are reproducible."""
    temporary = target.with_name(target.name + ".new")
    try:
        with plain.open("rb") as source, temporary.open("wb") as sink, gzip.GzipFile("", "wb", 9, sink, 0) as packed:
            shutil.copyfileobj(source, packed)
        temporary.replace(target)
        plain.unlink()
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise DownloadError(f"{target} cannot be written: {error.strerror or error}.") from None


def _advice(dataset: DatasetInfo, missing: list[DatasetFile], rest: str) -> str:
    """The error for files that can be neither found nor downloaded, with advice."""
    given = os.environ.get("REGARD_DATA")
    folder = Path(given) / dataset.name if given else f"$REGARD_DATA/{dataset.name}"
    return (
        f"{dataset.name}: there is no public URL for {', '.join(file.name for file in missing)}{rest}. "
        f"Put a copy of the dataset under {folder}. {dataset.advice + ' ' if dataset.advice else ''}"
        f"It was prepared from {' and '.join(dataset.origins)} ({dataset.license})."
    )
