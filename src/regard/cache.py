"""What is in the cache folder, by kind, and clearing it.

Everything in the cache can be made again. Only what regard itself has written there is listed and removed: entries are
recognized by their names, so that a cache folder that has other files too (`REGARD_CACHE`) keeps them. A process that
is training meanwhile is not disturbed: it keeps the files that it has open, and writes again what it does not find.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from regard.data.registry import cache_folder, dataset_info, list_datasets
from regard.errors import UserError
from regard.kernels.cpu import jit_cache
from regard.locks import is_locked


@dataclass(frozen=True)
class CacheKind:
    """One kind of what is cached."""

    name: str
    description: str
    folder: Path
    entries: tuple[Path, ...]
    """Files and folders, each of which can be removed by itself."""

    @property
    def bytes(self) -> int:
        return sum(map(_size, self.entries))


@dataclass(frozen=True)
class Cleared:
    """What was removed of a kind, and what could not be."""

    kind: str
    entries: int
    bytes: int
    kept: tuple[Path, ...]
    """In use by another process, or protected."""


def cache_contents() -> list[CacheKind]:
    """What is in the cache, by kind; kinds of which there is nothing are included."""
    root = cache_folder()
    kernels = jit_cache.cache_folder()
    folders = {name: root / name for name in _KINDS if name != "kernels"}
    folders["kernels"] = root if kernels is None else kernels.parent
    return [
        CacheKind(name, description, folders[name], tuple(sorted(entries(folders[name]))))
        for name, (description, entries) in _KINDS.items()
    ]


def clear_cache(kinds: Sequence[str] = ()) -> list[Cleared]:
    """Remove what is in the cache: of these kinds, or everything."""
    unknown = [name for name in kinds if name not in _KINDS]
    if unknown:
        raise UserError(f"The cache has nothing of the kind {unknown[0]!r}; there are {', '.join(_KINDS)}.")
    return [_clear(kind) for kind in cache_contents() if not kinds or kind.name in kinds]


def _clear(kind: CacheKind) -> Cleared:
    removed = freed = 0
    kept = []
    for entry in kind.entries:
        size = _size(entry)
        if _remove(entry):
            removed, freed = removed + 1, freed + size
        else:
            kept.append(entry)
    return Cleared(kind.name, removed, freed, tuple(kept))


def _digest_folders(folder: Path) -> Iterator[Path]:
    """The folders that are named after a digest of their content or of what it depends on."""
    return (
        path for path in _children(folder) if re.fullmatch(r"[0-9a-f]{32}|[0-9a-f]{64}", path.name) and path.is_dir()
    )


def _downloads(folder: Path) -> Iterator[Path]:
    """The files of datasets that were downloaded, also in part. Those without a URL were put there by hand."""
    for dataset in list_datasets():
        names = [file.name for file in dataset_info(dataset.name).files if file.url is not None]
        if is_locked(folder / dataset.name / ".lock"):  # being downloaded
            continue
        for name in names:
            for suffix in ("", ".part", ".part.tag", ".plain", ".plain.part", ".plain.part.tag", ".new"):
                if (path := folder / dataset.name / f"{name}{suffix}").is_file():
                    yield path


def _kernels(folder: Path) -> Iterator[Path]:
    return (path for path in _children(folder) if re.fullmatch(r"kernels-[0-9a-f]{16}", path.name) and path.is_dir())


_KINDS: dict[str, tuple[str, Callable[[Path], Iterable[Path]]]] = {
    "tokens": ("tokenized training data", _digest_folders),
    "images": ("decoded images", _digest_folders),
    "cooccurrences": ("co-occurrence counts of words", _digest_folders),
    "data": ("downloaded datasets", _downloads),
    "vectors": ("word vectors converted for mapping into memory", _digest_folders),
    "ctranslate2": ("models exported for CTranslate2", _digest_folders),
    "kernels": ("compiled CPU kernels", _kernels),
}


def _children(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if not path.is_symlink()]
    except OSError:
        return []


def _size(entry: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    files = [entry] if entry.is_file() else [Path(root) / name for root, _, names in os.walk(entry) for name in names]
    total = 0
    for file in files:
        with contextlib.suppress(OSError):  # another process may have removed it
            total += file.lstat().st_size
    return total


def _remove(entry: Path) -> bool:
    """Remove a file or folder; renamed first, so that no process finds half of it."""
    removed = entry.with_name(f".{entry.name}.{uuid4().hex}")
    try:
        os.rename(entry, removed)
    except FileNotFoundError:
        return True  # another process was faster
    except OSError:
        return False
    if removed.is_dir():
        shutil.rmtree(removed, ignore_errors=True)
    else:
        removed.unlink(missing_ok=True)
    return True
