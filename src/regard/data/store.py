"""Tokenised items on disk: written once in a stream, then mapped into memory and read in any order.

An item has one or more sides (a translation: source and target; a text: one). A store is a folder:

    header.json        format, key, counts, vocabularies, sizes and checksums
    <side>.tokens      all ids of the side, one item after the other, little-endian uint16 or int32
    <side>.offsets     where each item begins, and where the last one ends, little-endian int64

Writing needs the memory of one chunk however large the corpus is; reading leaves the rest to the operating system's
page cache, which all processes of a machine share. A store is written beside its place and renamed, so that it is
whole or not there. `cached` finds a store by the content it was made from and makes it where there is none, or where
what is there is damaged.
"""

import hashlib
import json
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from regard.data.store_writer import SideWriter, id_type
from regard.errors import UserError

FORMAT = 1
DAY = 24 * 60 * 60

Item = Sequence[Sequence[int] | NDArray[Any]]


class DamagedStoreError(UserError):
    """A store is not there or cannot be trusted. It holds nothing that cannot be made again."""


class TokenStore:
    """Items of token ids in a folder, mapped into memory: `store[i]` gives one array for each side.

    Opening checks the header's checksum and the size of every file, which costs nothing and notices what was cut short;
    `verify` reads every byte. The arrays are read-only views of the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        header = _read_header(self.path)
        self.key: str = header["key"]
        self.vocabulary: dict[str, int] = header["vocabulary"]
        self.sides = tuple(self.vocabulary)
        self._items: int = header["items"]
        self._checksums: dict[str, int] = header["checksums"]
        self._tokens: dict[str, NDArray[Any]] = {}
        self._offsets: dict[str, NDArray[np.int64]] = {}
        for side, size in self.vocabulary.items():
            count = header["tokens"][side]
            self._tokens[side] = _map(self.path / f"{side}.tokens", id_type(size), count)
            self._offsets[side] = _map(self.path / f"{side}.offsets", np.dtype("<i8"), self._items + 1)
            if self._offsets[side][0] != 0 or self._offsets[side][-1] != count:
                raise DamagedStoreError(f"{self.path / side}.offsets does not fit its tokens; remove {self.path}.")

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
        """A worker process gets the path and maps the files itself, instead of a copy of all tokens."""
        return TokenStore, (self.path,)

    def lengths(self, side: str) -> NDArray[np.int64]:
        """How many ids each item has on a side, from the offsets alone."""
        return np.diff(self._offsets[side])

    def stream(self, side: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """All ids of a side one behind the other, and where each item begins and the last one ends."""
        return self._tokens[side], self._offsets[side]

    def padded(
        self, side: str, items: NDArray[np.int64], rows: int, length: int, padding: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The given items as the first of `rows` rows, the rest padding, and the real length of each row.

        One gather for the whole batch; no loop over items.
        """
        starts = self._offsets[side][items]
        real = np.zeros(rows, dtype=np.int64)
        real[: len(items)] = self._offsets[side][items + 1] - starts
        if real.max(initial=0) > length:
            raise ValueError(f"an item of {real.max()} tokens does not fit a row of {length}")
        columns = np.arange(length)
        taken = columns < real[: len(items), None]  # (items, length)
        ids = np.full((rows, length), padding, dtype=np.int64)
        ids[: len(items)][taken] = self._tokens[side][(starts[:, None] + columns)[taken]]
        return ids, real

    def verify(self) -> None:
        """Read every byte and compare it with the checksums made while writing."""
        for name, wanted in self._checksums.items():
            found = 0
            with open(self.path / name, "rb") as file:
                while part := file.read(1 << 20):
                    found = zlib.crc32(part, found)
            if found != wanted:
                raise DamagedStoreError(f"{self.path / name} is damaged (its checksum differs); remove {self.path}.")


def write(
    path: str | Path, items: Iterable[Item], sides: Sequence[str], key: str, vocabulary: int | Mapping[str, int]
) -> TokenStore:
    """Write items to a new store and open it. `vocabulary` is the number of ids, for all sides or for each.

    The items are taken one by one and held a chunk at a time. A store that exists is left alone.
    """
    place = Path(path)
    if place.exists():
        raise UserError(f"{place} exists already; choose another folder, or remove it first.")
    if not _write(place, items, _sizes(sides, vocabulary), key):
        raise UserError(f"{place} was written by another process in the meantime; nothing was changed.")
    return TokenStore(place)


def cached(
    folder: str | Path,
    key: str,
    make_items: Callable[[], Iterable[Item]],
    sides: Sequence[str],
    vocabulary: int | Mapping[str, int],
    say: Callable[[str], object] = lambda message: None,
) -> TokenStore:
    """The store made from the content that `key` names: opened if it is there and whole, else written.

    `key` must tell apart everything the ids depend on (checksums of the files, the tokenizer, filters). Any number of
    processes may ask at once: each writes beside, the first rename wins, and the others use the winner's store.
    `say` gets a sentence when a damaged store is made again.
    """
    sizes = _sizes(sides, vocabulary)
    identity = json.dumps([FORMAT, key, list(sizes.items())])
    place = Path(folder) / hashlib.sha256(identity.encode()).hexdigest()[:32]
    for _ in range(3):  # another process may move a damaged store away between two of our steps
        if not place.exists():
            _sweep(place)
            _write(place, make_items(), sizes, key)
        try:
            return TokenStore(place)
        except DamagedStoreError as error:
            say(f"{error} It is made again.")
            _remove(place)
    raise UserError(f"{place} is damaged each time it is written; check the disk, or choose another folder.")


def _write(place: Path, items: Iterable[Item], sizes: dict[str, int], key: str) -> bool:
    """Write beside and rename; False if a store stood there by then, which is left as it is."""
    beside = _beside(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
    except OSError as error:
        raise UserError(f"{place}: cannot write there ({error.strerror}); choose another folder.") from None
    try:
        header = _pour(place, beside, items, sizes) | {"format": FORMAT, "key": key, "vocabulary": sizes}
        header["checksum"] = _checksum(header)
        try:
            (beside / "header.json").write_text(json.dumps(header, indent=2) + "\n", encoding="utf-8")
            os.rename(beside, place)
        except OSError as error:
            if place.exists():
                return False
            raise _refused(place, error) from None
        return True
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _pour(place: Path, beside: Path, items: Iterable[Item], sizes: dict[str, int]) -> dict[str, Any]:
    """All items into files, and what the header says of them. An error of the items' own making passes unchanged."""
    count = 0
    with ExitStack() as stack:
        try:
            writers = [stack.enter_context(SideWriter(beside, side, size)) for side, size in sizes.items()]
        except OSError as error:
            raise _refused(place, error) from None
        for item in items:
            if len(item) != len(writers):
                raise UserError(f"Item {count} has {len(item)} sides; the store has {len(writers)}.")
            try:
                for writer, ids in zip(writers, item, strict=True):
                    writer.add(ids)
            except OSError as error:
                raise _refused(place, error) from None
            count += 1
        try:
            for writer in writers:
                writer.finish()
        except OSError as error:
            raise _refused(place, error) from None
    checksums = {name: value for writer in writers for name, value in writer.checksums.items()}
    return {"items": count, "tokens": {writer.side: writer.tokens for writer in writers}, "checksums": checksums}


def _refused(place: Path, error: OSError) -> UserError:
    return UserError(
        f"{place}: could not be written ({error.strerror}); nothing was changed. "
        "Make room there, or choose another folder."
    )


def _read_header(place: Path) -> dict[str, Any]:
    path = place / "header.json"
    if not place.is_dir():
        raise DamagedStoreError(f"{place}: there is no such folder.")
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        number, checksum = header["format"], header.pop("checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedStoreError(f"{path} cannot be read ({error}); remove {place}.") from None
    if checksum != _checksum(header):
        raise DamagedStoreError(f"{path} is damaged (its checksum differs); remove {place}.")
    if number != FORMAT:
        raise DamagedStoreError(f"{place} has format {number}; this version reads {FORMAT}: remove it.")
    return dict(header)


def _checksum(header: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()


def _map(path: Path, kind: np.dtype[Any], count: int) -> NDArray[Any]:
    """A file as a read-only array, if it has just the size it should have."""
    try:
        found = path.stat().st_size
        if found != count * kind.itemsize:
            raise DamagedStoreError(
                f"{path} is damaged: it has {found} bytes instead of {count * kind.itemsize}; remove {path.parent}."
            )
        if count == 0:
            return np.empty(0, dtype=kind)
        return np.asarray(np.memmap(path, dtype=kind, mode="r"))
    except OSError as error:
        raise DamagedStoreError(f"{path} cannot be read ({error.strerror}); remove {path.parent}.") from None


def _sizes(sides: Sequence[str], vocabulary: int | Mapping[str, int]) -> dict[str, int]:
    """The vocabulary of each side, in the order of the sides."""
    if not sides or len(set(sides)) != len(sides) or not all(re.fullmatch(r"[a-z][a-z0-9_]*", side) for side in sides):
        raise UserError(f"Sides need different names in small letters, such as 'source'; found {list(sides)}.")
    sizes = dict.fromkeys(sides, vocabulary) if isinstance(vocabulary, int) else {s: vocabulary[s] for s in sides}
    for side, size in sizes.items():
        if not 1 <= size <= 1 << 31:
            raise UserError(f"The vocabulary of {side} has {size} ids; expected 1 to {1 << 31}.")
    return sizes


def _remove(place: Path) -> None:
    """Move away first, so that nobody sees a store with half its files."""
    away = _beside(place)
    try:
        os.rename(place, away)
    except FileNotFoundError:
        return  # another process was faster
    except OSError as error:
        raise UserError(f"{place} is damaged and cannot be removed ({error.strerror}); remove it by hand.") from None
    shutil.rmtree(away, ignore_errors=True)


def _sweep(place: Path) -> None:
    """Remove what a writer that was killed left behind, once nothing in it has changed for a day."""
    for left in place.parent.glob(f".{place.name}.*"):
        try:
            newest = max(path.stat().st_mtime for path in [left, *left.iterdir()])
        except OSError:
            continue
        if time.time() - newest > DAY:
            shutil.rmtree(left, ignore_errors=True)


def _beside(place: Path) -> Path:
    """A name in the same folder, and so on the same disk, that nothing has yet."""
    return place.parent / f".{place.name}.{uuid4().hex}"
