"""Pictures that lie in one array: IDX files (MNIST's format), NumPy's, and the 8 × 8 digits of scikit-learn.

Nothing here is unpickled, and what a file says of itself is compared with its size before it is believed.
"""

import gzip
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.picture_file import Bytes, Frame, pixels_of, reframe
from regard.data.text import check_file, plain_name, read_lines
from regard.errors import UserError

AnyArray = NDArray[Any]

_BYTE = 0x08  # IDX's number for unsigned bytes
_CHUNK = 1 << 12
"""Pictures converted at once."""
_GREY_LEVELS = 16
"""How dark a pixel of the digits can be."""


def read_idx(path: Path) -> Bytes:
    """The array in an IDX file, plain or .gz: two zeros, the type, how many dimensions, how long each is, the bytes."""
    data = _content(path)
    if len(data) < 4 or data[:2] != b"\0\0" or not data[3]:
        raise UserError(
            f"{path} is not an IDX file: it begins with {data[:4].hex(' ') or 'nothing'}, expected 00 00 08 and the "
            "number of dimensions. Pictures are read from a folder, from .npz, .npy and .csv files, and from IDX."
        )
    if data[2] != _BYTE:
        raise UserError(f"{path} has numbers of the type 0x{data[2]:02x}; only bytes (0x08) can be read.")
    begin = 4 + 4 * data[3]
    shape = [int.from_bytes(data[place : place + 4], "big") for place in range(4, begin, 4)]
    wanted = begin + math.prod(shape)
    if len(data) != wanted:
        what = "is cut short" if len(data) < wanted else "has more in it than it says"
        raise UserError(
            f"{path} {what}: its header says {_times(shape)}, which makes {wanted:,} bytes, but there are "
            f"{len(data):,}. Please get it again."
        )
    return np.frombuffer(data, dtype=np.uint8, offset=begin).reshape(shape)


def read_npz(path: Path, keys: tuple[str, str]) -> tuple[AnyArray, AnyArray]:
    """Pictures and labels by their names in a .npz file."""
    check_file(path)
    with _explained(path), path.open("rb") as file:
        found = np.load(file, allow_pickle=False)
        if not isinstance(found, np.lib.npyio.NpzFile):
            raise UserError(f"{path} holds a single array; please name it .npy and give the labels as a second file.")
        for key in keys:
            if key not in found.files:
                raise UserError(
                    f"{path} has no array named {key!r}, but {', '.join(found.files) or 'none at all'}; "
                    "please say by `keys` which are the pictures and the labels."
                )
        return found[keys[0]], found[keys[1]]


def read_npy(path: Path, *, mapped: bool = False) -> AnyArray:
    """The array in a .npy file; `mapped`: left on the disk until it is looked at. Writing to it changes no file."""
    check_file(path)
    with _explained(path):
        if zipfile.is_zipfile(path):
            raise UserError(f"{path} holds several arrays; please name it .npz.")
        found: AnyArray = np.load(path, mmap_mode="c" if mapped else None, allow_pickle=False)
        return found


def read_digits(path: Path) -> tuple[Bytes, NDArray[np.int64]]:
    """Pictures and labels from lines of 64 numbers from 0 to 16, row by row, and the digit that they show."""
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            values = [int(value) for value in line.split(",")]
        except ValueError:
            raise UserError(f"{path}, line {number}: expected whole numbers between commas.") from None
        if len(values) != 65:
            raise UserError(f"{path}, line {number}: found {len(values)} numbers, expected 64 and the digit they show.")
        if not 0 <= min(values[:64]) <= max(values[:64]) <= _GREY_LEVELS:
            raise UserError(f"{path}, line {number}: pixels are from 0 to {_GREY_LEVELS}; found {values[:64]}.")
        rows.append(values)
    table = np.array(rows, dtype=np.int64).reshape(-1, 65)
    pixels = (table[:, :64] * 255 + _GREY_LEVELS // 2) // _GREY_LEVELS
    return pixels.astype(np.uint8).reshape(-1, 1, 8, 8), table[:, 64]


def as_bytes(values: AnyArray, place: object) -> Bytes:
    """Pictures as bytes, channels first.  values: # (count, height, width), or with 1 or 3 channels first or last

    Whole numbers run from 0 to 255, others from 0 to 1. No bytes are copied: it may be a view.
    """
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    if values.ndim != 4 or values.shape[1] not in (1, 3) or 0 in values.shape:
        raise UserError(
            f"{place}: an array of {_times(values.shape)} is no list of pictures; expected count × height × width, "
            "with 1 or 3 channels before or behind height and width if there are any."
        )
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return np.where(values, np.uint8(255), np.uint8(0))
    if values.dtype.kind not in "iuf":
        raise UserError(f"{place}: the pixels are of the type {values.dtype}; expected numbers.")
    whole = values.dtype.kind in "iu"
    most = 255 if whole else 1
    made = np.empty(values.shape, dtype=np.uint8)
    for first in range(0, len(values), _CHUNK):
        part = values[first : first + _CHUNK]
        low, high = part.min(), part.max()
        if not (low >= 0 and high <= most):
            kind = "whole numbers from 0 to 255" if whole else "fractions from 0 to 1, or whole numbers from 0 to 255"
            raise UserError(f"{place}: there are pixels from {low} to {high}; expected {kind}.")
        made[first : first + _CHUNK] = part if whole else np.rint(part.astype(np.float64) * 255)
    return made


def as_labels(values: AnyArray, place: object) -> NDArray[np.int64]:
    """Labels as whole numbers.  values: # (count,) or (count, 1)"""
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.ndim != 1 or flat.dtype.kind not in "iu":
        raise UserError(
            f"{place}: labels must be a row of whole numbers; found {_times(values.shape) or 'one'} of {values.dtype}."
        )
    return flat.astype(np.int64)


def reframed(pixels: Bytes, frame: Frame) -> Bytes:
    """Pictures in grey or colour and in the size asked for, just as those from files.  # (count, channels, …)"""
    from PIL import Image

    height, width = frame.size or pixels.shape[2:]
    channels = frame.channels or pixels.shape[1]
    if pixels.shape[1:] == (channels, height, width):
        return pixels
    if pixels.shape[1:] == (1, height, width):
        return np.repeat(pixels, channels, axis=1)
    made = np.empty((len(pixels), channels, height, width), dtype=np.uint8)
    for number, picture in enumerate(pixels):
        flat = picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)
        made[number] = pixels_of(reframe(Image.fromarray(np.ascontiguousarray(flat)), frame))
    return made


def _content(path: Path) -> bytes:
    check_file(path)
    packed = plain_name(path) != path.name
    if packed and path.suffix.lower() != ".gz":
        raise UserError(f"{path}: IDX files are read plain or compressed by gzip; please unpack it.")
    with _explained(path):
        return gzip.decompress(path.read_bytes()) if packed else path.read_bytes()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What can go wrong with a file, as one sentence."""
    try:
        yield
    except UserError:
        raise
    except (EOFError, ValueError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile) as error:
        if "pickle" in str(error) or "Python objects" in str(error):
            raise UserError(f"{path} holds Python objects or no array at all; please save numbers by NumPy.") from None
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(f"{path} is damaged or cut short ({reason}); please get or save it again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def _times(shape: tuple[int, ...] | list[int]) -> str:
    return " × ".join(f"{side:,}" for side in shape)
