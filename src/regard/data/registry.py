"""The named data sets: what each is, under which licence, where it lies and whether it is what it should be.

The table is `sets.toml`. A set is looked for in `$REGARD_DATA/<name>`, then among those that ship with the package,
then where other packages put it, then in the cache, and is only then downloaded into the cache. Files under REGARD_DATA
are the user's own: they are read, never written, and not held against the checksums unless `check` is asked. Many sets
were prepared from their origins and have no public address of their own; for those `get` says what to do.
"""

import contextlib
import difflib
import functools
import gzip
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from regard.data.download import DownloadError, download
from regard.errors import UserError
from regard.files import file_sha256

FileProgress = Callable[[str, int, int | None], None]
"""Called with a file's name, the bytes there are so far and, where known, how many there will be."""

Place = Literal[
    "REGARD_DATA", "package", "system", "cache", "to be downloaded", "in part to be downloaded", "no public address"
]
State = Literal["good", "missing", "differs"]


@dataclass(frozen=True)
class DataFile:
    """One file of a set. `count` is in the set's unit; `plain_sha256`: the address gives it without compression.

    `content_sha256` is of what is in a compressed file, for those that others have compressed or labelled anew.
    """

    name: str
    size: int
    count: int
    sha256: str
    address: str | None = None
    plain_sha256: str | None = None
    content_sha256: str | None = None


@dataclass(frozen=True)
class DataSet:
    """What is known of a set. `origins` is where its material comes from, not always where its files can be had.

    `places` are folders that other packages put the files in; "{sklearn}/data" is one in a Python package. `advice` is
    what else can be done where the set is missing, `classes` are the names of what labels say by number.
    """

    name: str
    description: str
    licence: str
    redistributable: bool
    origins: tuple[str, ...]
    unit: str
    files: tuple[DataFile, ...]
    places: tuple[str, ...] = ()
    advice: str = ""
    classes: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def counts(self) -> dict[str, int]:
        return {file.name: file.count for file in self.files}


@dataclass(frozen=True)
class Location:
    """Where a set was found; without a folder, how it could be had."""

    dataset: DataSet
    place: Place
    folder: Path | None


@dataclass(frozen=True)
class Check:
    """How the files of a set compare with the registry's checksums."""

    dataset: DataSet
    folder: Path
    states: dict[str, State]

    @property
    def good(self) -> bool:
        return all(state == "good" for state in self.states.values())


@functools.cache
def sets() -> tuple[DataSet, ...]:
    """Every named set, in the order of the table."""
    table = tomllib.loads(resources.files("regard.data").joinpath("sets.toml").read_text(encoding="utf-8"))
    return tuple(_from_table(name, values) for name, values in table.items())


def dataset(name: str) -> DataSet:
    """The set of that name."""
    known = {one.name: one for one in sets()}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known sets: {', '.join(known)}."
    raise UserError(f"There is no data set named {name!r}; {hint}")


def find(name: str, files: Iterable[str] | None = None) -> Path | None:
    """The folder on this machine that has all files of a set, or the named ones; None where there is none."""
    chosen = dataset(name)
    wanted = _wanted(chosen, files)
    return next((folder for _, folder in _folders(chosen) if not _missing(folder, wanted)), None)


def get(name: str, files: Iterable[str] | None = None, *, progress: FileProgress | None = None) -> Path:
    """The folder of a set: found on this machine, or downloaded into the cache. `files` limits it to those needed."""
    chosen = dataset(name)
    wanted = _wanted(chosen, files)
    found = find(name, [file.name for file in wanted])
    if found is not None:
        return found
    folder = cache_folder() / "data" / name
    if any(file.address for file in _missing(folder, wanted)):
        with alone(folder):
            for file in _missing(folder, wanted):
                if file.address is not None:
                    _fetch(chosen, file, file.address, folder, progress)
    left = _missing(folder, wanted)
    if left:
        there = f"; the other {len(wanted) - len(left)} are in {folder}" if len(wanted) > len(left) else ""
        raise UserError(_advice(chosen, left, there))
    return folder


def locate(name: str) -> Location:
    """Where a set is, or how it could be had. Nothing is downloaded."""
    chosen = dataset(name)
    for place, folder in _folders(chosen):
        if not _missing(folder, chosen.files):
            return Location(chosen, place, folder)
    addresses = [file.address is not None for file in chosen.files]
    if all(addresses):
        return Location(chosen, "to be downloaded", None)
    return Location(chosen, "in part to be downloaded" if any(addresses) else "no public address", None)


def check(name: str) -> Check:
    """Compare the files of a set with their checksums: those that `get` would give, else those of a partial copy."""
    chosen = dataset(name)
    folder = find(name) or _partial(chosen)
    if folder is None:
        raise UserError(f"{name} is not on this machine; `regard data get {name}` fetches it or says what to do.")
    try:
        return Check(chosen, folder, {file.name: _state(file, folder / file.name) for file in chosen.files})
    except OSError as error:
        raise UserError(f"{error.filename or folder} cannot be read: {error.strerror or error}.") from None


def check_all() -> Iterator[Check]:
    """Check every set of which this machine has at least one file."""
    return (check(one.name) for one in sets() if _partial(one) is not None)


def cache_folder() -> Path:
    """Where regard keeps what can be had again: `$REGARD_CACHE`, else the platform's usual place for a cache."""
    own = os.environ.get("REGARD_CACHE")
    if own:
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or ""
        if not os.path.isabs(base):  # the specification says to ignore a relative one
            base = "~/.cache"
    return Path(base).expanduser() / "regard"


def _from_table(name: str, values: dict[str, Any]) -> DataSet:
    base = values.get("base", "")
    files = tuple(
        DataFile(
            name=file["name"],
            size=file["size"],
            count=file["count"],
            sha256=file["sha256"],
            address=base + file["source"] if "source" in file else None,
            plain_sha256=file.get("plain_sha256"),
            content_sha256=file.get("content_sha256"),
        )
        for file in values["files"]
    )
    return DataSet(
        name=name,
        description=values["description"],
        licence=values["licence"],
        redistributable=values["redistributable"],
        origins=tuple(values["origins"]),
        unit=values["unit"],
        files=files,
        places=tuple(values.get("places", ())),
        advice=values.get("advice", ""),
        classes=tuple(values.get("classes", ())),
    )


def _folders(chosen: DataSet) -> list[tuple[Place, Path]]:
    """Where a set may lie, in the order it is looked for."""
    name = chosen.name
    places: list[tuple[Place, Path]] = [("package", Path(str(resources.files("regard.data") / "shipped" / name)))]
    places += [("system", folder) for text in chosen.places if (folder := _place(text)) is not None]
    places.append(("cache", cache_folder() / "data" / name))
    own = os.environ.get("REGARD_DATA")
    if own:
        root = Path(own).expanduser()
        if not root.is_dir():
            raise UserError(f"REGARD_DATA is set to {own}, which is not a folder; please correct or unset it.")
        places.insert(0, ("REGARD_DATA", root / name))
    return places


def _place(text: str) -> Path | None:
    """A folder that another package fills; None if it lies in a Python package that is not installed."""
    inside = re.fullmatch(r"\{(\w+)\}/(.+)", text)
    if inside is None:
        return Path(text)
    found = importlib.util.find_spec(inside[1])  # which does not import it
    roots = (found and found.submodule_search_locations) or ()
    return next((Path(root) / inside[2] for root in roots), None)


def _wanted(chosen: DataSet, files: Iterable[str] | None) -> tuple[DataFile, ...]:
    if files is None:
        return chosen.files
    known = {file.name: file for file in chosen.files}
    names = list(files)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its files: {', '.join(known)}."
            raise UserError(f"{chosen.name} has no file {name!r}; {hint}")
    return tuple(known[name] for name in names)


def _missing(folder: Path, files: Iterable[DataFile]) -> list[DataFile]:
    try:
        return [file for file in files if not (folder / file.name).is_file()]
    except OSError as error:
        raise UserError(f"{folder} cannot be read: {error.strerror or error}.") from None


def _partial(chosen: DataSet) -> Path | None:
    """The first folder that has at least one of a set's files."""
    folders = (folder for _, folder in _folders(chosen))
    return next((folder for folder in folders if len(_missing(folder, chosen.files)) < len(chosen.files)), None)


def _state(file: DataFile, path: Path) -> State:
    if not path.is_file():
        return "missing"
    if file_sha256(path) == file.sha256:
        return "good"
    # Compressed again, the same text has other bytes.
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


def _fetch(chosen: DataSet, file: DataFile, address: str, folder: Path, progress: FileProgress | None) -> None:
    """Download one file, and compress it where the address gives it without compression."""

    def report(done: int, total: int | None) -> None:
        if progress is not None:
            progress(file.name, done, total)

    target = folder / file.name
    try:
        if file.plain_sha256 is None:
            download(address, target, sha256=file.sha256, progress=report)
        else:
            plain = target.with_name(target.name + ".plain")
            download(address, plain, sha256=file.plain_sha256, progress=report)
            _compress(plain, target)
    except DownloadError as error:
        hint = f"A copy under $REGARD_DATA/{chosen.name} would do as well. {chosen.advice}".rstrip()
        raise DownloadError(f"{chosen.name}: {error} {hint}") from None


def _compress(plain: Path, target: Path) -> None:
    """Replace a plain file by its compressed form. No name and no date go in: the same text gives the same file."""
    beside = target.with_name(target.name + ".new")
    try:
        with plain.open("rb") as source, beside.open("wb") as sink, gzip.GzipFile("", "wb", 9, sink, 0) as packed:
            shutil.copyfileobj(source, packed)
        beside.replace(target)
        plain.unlink()
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DownloadError(f"{target} cannot be written: {error.strerror or error}.") from None


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One process at a time fills a folder; the others wait and then find the files there."""
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context((folder / ".lock").open("a"))
        except OSError as error:
            raise UserError(
                f"{folder} cannot be written: {error.strerror or error}. Please set REGARD_CACHE to a folder that can."
            ) from None
        if sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):  # some network drives know no locks
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _advice(chosen: DataSet, left: list[DataFile], there: str) -> str:
    """What to do about files that can be neither found nor fetched."""
    own = os.environ.get("REGARD_DATA")
    place = Path(own) / chosen.name if own else f"$REGARD_DATA/{chosen.name}"
    return (
        f"{chosen.name}: no public address is known for {', '.join(file.name for file in left)}{there}. "
        f"Please put a copy of the set under {place}. {chosen.advice + ' ' if chosen.advice else ''}"
        f"It was prepared from {' and '.join(chosen.origins)} ({chosen.licence})."
    )
