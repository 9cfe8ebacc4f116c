"""Tokenized items on disk: written once as a stream, then memory-mapped and read in any order.

An item has one or more sides (a sentence pair: source and target; a text: one). A store is a folder:

    header.json        format version, key, counts, vocabulary sizes and checksums
    <side>.tokens      all ids of the side, one item after the other, little-endian uint16 or int32
    <side>.offsets     the offset of each item, and the end of the last one, little-endian int64

Writing needs the memory of one chunk however large the corpus is; reading relies on the operating system's page cache,
which all processes of a machine share. A store is written to a temporary folder and renamed, so that it is complete or
absent. `cached_store` finds a store by the key of its content, and writes it if it is missing or damaged.
"""

import hashlib
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from regard.config import parse_json
from regard.data.store.writer import SideWriter, id_type
from regard.errors import UserError
from regard.locks import file_lock, is_locked
from regard.progress import counted, phase

FORMAT = 1
MAX_AGE = 24 * 60 * 60
"""Seconds after which an abandoned temporary folder is removed."""

Item = Sequence[Sequence[int] | NDArray[Any]]


class DamagedStoreError(UserError):
    """A store is missing or damaged. It can always be written again."""


class TokenStore:
    """Memory-mapped items of token ids: `store[i]` gives one array per side.

    Opening checks the header's checksum and the size of every file, which costs nothing and detects truncation;
    `verify` reads every byte, at about 4 GB/s, as `cached_store` does. The arrays are read-only views of the files.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        header = _read_header(self.path)
        self.key: str = header["key"]
        self.vocab_sizes: dict[str, int] = header["vocab_sizes"]
        self.sides = tuple(self.vocab_sizes)
        self._items: int = header["items"]
        self._checksums: dict[str, int] = header["checksums"]
        self._tokens: dict[str, NDArray[Any]] = {}
        self._offsets: dict[str, NDArray[np.int64]] = {}
        for side, size in self.vocab_sizes.items():
            count = header["tokens"][side]
            self._tokens[side] = _map(self.path / f"{side}.tokens", id_type(size), count)
            self._offsets[side] = _map(self.path / f"{side}.offsets", np.dtype("<i8"), self._items + 1)
            if self._offsets[side][0] != 0 or self._offsets[side][-1] != count:
                raise DamagedStoreError(f"{self.path / side}.offsets does not match its tokens; remove {self.path}.")

    def __len__(self) -> int:
        return self._items

    def __getitem__(self, item: int) -> tuple[NDArray[Any], ...]:
        if not -self._items <= item < self._items:
            raise IndexError(f"item {item} of a store of {self._items}")
        item %= self._items
        return tuple(
            self._tokens[side][self._offsets[side][item] : self._offsets[side][item + 1]] for side in self.sides
        )

    def __iter__(self) -> Iterator[tuple[NDArray[Any], ...]]:
        return (self[item] for item in range(self._items))

    def __reduce__(self) -> tuple[type["TokenStore"], tuple[Path]]:
        """Pickle the path only: a worker process maps the files itself."""
        return TokenStore, (self.path,)

    def lengths(self, side: str) -> NDArray[np.int64]:
        """The number of ids of each item on a side."""
        return np.diff(self._offsets[side])

    def stream(self, side: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """All ids of a side concatenated, and the offsets of the items, with the end of the last one."""
        return self._tokens[side], self._offsets[side]

    def padded(
        self, side: str, items: NDArray[np.int64], rows: int, length: int, pad_id: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The given items as the first of `rows` padded rows, and the length of each row.

        This is one gather for the batch, without a loop over items.
        """
        starts = self._offsets[side][items]
        lengths = np.zeros(rows, dtype=np.int64)
        lengths[: len(items)] = self._offsets[side][items + 1] - starts
        if lengths.max(initial=0) > length:
            raise ValueError(f"an item of {lengths.max()} tokens does not fit into a row of {length}")
        columns = np.arange(length)
        real = columns < lengths[: len(items), None]  # (items, length)
        ids = np.full((rows, length), pad_id, dtype=np.int64)
        ids[: len(items)][real] = self._tokens[side][(starts[:, None] + columns)[real]]
        return ids, lengths

    def verify(self) -> None:
        """Read every byte and compare it with the checksums in the header."""
        for name, expected in self._checksums.items():
            found = 0
            try:
                with open(self.path / name, "rb") as file:
                    while chunk := file.read(1 << 20):
                        found = zlib.crc32(chunk, found)
            except OSError as error:
                raise DamagedStoreError(
                    f"{self.path / name} cannot be read ({error.strerror}); remove {self.path}."
                ) from None
            if found != expected:
                raise DamagedStoreError(f"{self.path / name} is damaged (its checksum differs); remove {self.path}.")


def write_store(
    path: str | Path, items: Iterable[Item], sides: Sequence[str], key: str, vocab_sizes: int | Mapping[str, int]
) -> TokenStore:
    """Write items to a new store and open it. `vocab_sizes` is one number for all sides, or one for each.

    The items are consumed one by one, with one chunk in memory. An existing store is an error.
    """
    path = Path(path)
    if path.exists():
        raise UserError(f"{path} exists already; choose another folder, or remove it first.")
    if not _write(path, items, _check_sizes(sides, vocab_sizes), key):
        raise UserError(f"{path} was written by another process in the meantime; nothing was changed.")
    return TokenStore(path)


def cached_store(
    folder: str | Path,
    key: str,
    make_items: Callable[[], Iterable[Item]],
    sides: Sequence[str],
    vocab_sizes: int | Mapping[str, int],
    log: Callable[[str], object] = lambda message: None,
) -> TokenStore:
    """The store of the content with this `key`: opened if it exists and is intact, otherwise written.

    `key` must identify everything that the ids depend on (checksums of the files, the tokenizer, filters). Any number
    of processes may call this at once: each writes to a temporary folder, the first rename wins, and the others use the
    winner's store. `log` is called with a message if a damaged store is written again.
    """
    sizes = _check_sizes(sides, vocab_sizes)
    identity = json.dumps([FORMAT, key, list(sizes.items())])
    path = Path(folder) / hashlib.sha256(identity.encode()).hexdigest()[:32]
    for _ in range(3):  # another process may move a damaged store away between two of our steps
        if not path.exists():
            _remove_abandoned(path.parent)
            _write(path, counted(make_items(), "Tokenizing", "examples"), sizes, key)
        try:
            with phase("Checking the cached tokens"):
                store = TokenStore(path)
                store.verify()
            return store
        except DamagedStoreError as error:
            log(f"{error} Writing it again.")
            _remove(path)
    raise UserError(f"{path} is damaged each time it is written; check the disk, or choose another folder.")


def _write(path: Path, items: Iterable[Item], sizes: dict[str, int], key: str) -> bool:
    """Write to a temporary folder and rename it; False if a store exists by then, which is left unchanged."""
    with _temporary_folder(path) as temporary:
        header = _write_items(path, temporary, items, sizes) | {"format": FORMAT, "key": key, "vocab_sizes": sizes}
        header["checksum"] = _checksum(header)
        try:
            (temporary / "header.json").write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")
            os.rename(temporary, path)
        except OSError as error:
            if path.exists():
                return False
            raise _write_error(path, error) from None
        return True


def _write_items(path: Path, temporary: Path, items: Iterable[Item], sizes: dict[str, int]) -> dict[str, Any]:
    """Write all items, and return their entries of the header. Errors raised by the items themselves pass through."""
    count = 0
    with ExitStack() as stack:
        try:
            writers = [stack.enter_context(SideWriter(temporary, side, size)) for side, size in sizes.items()]
        except OSError as error:
            raise _write_error(path, error) from None
        for item in items:
            if len(item) != len(writers):
                raise UserError(f"Item {count} has {len(item)} sides; the store has {len(writers)}.")
            try:
                for writer, ids in zip(writers, item, strict=True):
                    writer.add(ids)
            except OSError as error:
                raise _write_error(path, error) from None
            count += 1
        try:
            for writer in writers:
                writer.finish()
        except OSError as error:
            raise _write_error(path, error) from None
    checksums = {name: value for writer in writers for name, value in writer.checksums.items()}
    return {"items": count, "tokens": {writer.side: writer.tokens for writer in writers}, "checksums": checksums}


def _write_error(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path} could not be written ({error.strerror}); nothing was changed. Make room, or choose another folder."
    )


def _read_header(folder: Path) -> dict[str, Any]:
    path = folder / "header.json"
    if not folder.is_dir():
        raise DamagedStoreError(f"{folder}: there is no such folder.")
    try:
        header = parse_json(path.read_text(encoding="utf-8"))
        version, checksum = header["format"], header.pop("checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStoreError(f"{path} cannot be read ({error}); remove {folder}.") from None
    if checksum != _checksum(header):
        raise DamagedStoreError(f"{path} is damaged (its checksum differs); remove {folder}.")
    if version != FORMAT:
        raise DamagedStoreError(f"{folder} has format {version}; this version reads {FORMAT}: remove it.")
    return dict(header)


def _checksum(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _map(path: Path, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """A file as a read-only array, if it has the expected size."""
    try:
        found = path.stat().st_size
        if found != count * dtype.itemsize:
            raise DamagedStoreError(
                f"{path} is damaged: it has {found} bytes instead of {count * dtype.itemsize}; remove {path.parent}."
            )
        if count == 0:
            return np.empty(0, dtype=dtype)
        return np.asarray(np.memmap(path, dtype=dtype, mode="r"))
    except OSError as error:
        raise DamagedStoreError(f"{path} cannot be read ({error.strerror}); remove {path.parent}.") from None


def _check_sizes(sides: Sequence[str], vocab_sizes: int | Mapping[str, int]) -> dict[str, int]:
    """The vocabulary size of each side, in the order of the sides."""
    if not sides or len(set(sides)) != len(sides) or not all(re.fullmatch(r"[a-z][a-z0-9_]*", side) for side in sides):
        raise UserError(f"Sides need distinct lowercase names, such as 'source'; found {list(sides)}.")
    sizes = dict.fromkeys(sides, vocab_sizes) if isinstance(vocab_sizes, int) else {s: vocab_sizes[s] for s in sides}
    for side, size in sizes.items():
        if not 1 <= size <= 1 << 31:
            raise UserError(f"The vocabulary of {side} has {size} ids; expected 1 to {1 << 31}.")
    return sizes


def _remove(path: Path) -> None:
    """Rename first, so that no process sees a store with half of its files."""
    renamed = _temporary_path(path)
    try:
        os.rename(path, renamed)
    except FileNotFoundError:
        return  # another process was faster
    except OSError as error:
        raise UserError(f"{path} is damaged and cannot be removed ({error.strerror}); remove it by hand.") from None
    shutil.rmtree(renamed, ignore_errors=True)


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path`. While it is being filled, the lock of a file beside it says that it is in use."""
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = _temporary_path(path)
            with suppress(OSError):  # some network file systems have no locks
                while stack.enter_context(file_lock(_lock_of(temporary))) is None:
                    temporary = _temporary_path(path)  # another process is just looking whether it is in use
            temporary.mkdir()
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}); choose another folder.") from None
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove the temporary folders of killed writers: those that nobody has locked.

    Those that were never locked are removed once nothing in them has changed for a day.
    """
    found = [path for path in folder.glob(".*.*") if re.fullmatch(r"\.[0-9a-f]{32}\.\w+(\.lock)?", path.name)]
    for lock in found:
        if lock.suffix == ".lock" and not is_locked(lock):
            shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
            lock.unlink(missing_ok=True)
    for temporary in found:
        try:
            if temporary.suffix == ".lock" or _lock_of(temporary).exists():
                continue
            newest = max(one.stat().st_mtime for one in [temporary, *temporary.iterdir()])
        except OSError:
            continue
        if time.time() - newest > MAX_AGE:
            shutil.rmtree(temporary, ignore_errors=True)


def _temporary_path(path: Path) -> Path:
    """An unused name in the same folder, and so on the same disk."""
    return path.parent / f".{path.name}.{uuid4().hex}"


def _lock_of(temporary: Path) -> Path:
    return temporary.with_name(f"{temporary.name}.lock")
