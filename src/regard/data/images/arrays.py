"""Images stored as one array: IDX files (MNIST's format), NumPy files, and the 8 × 8 digits of scikit-learn.

Nothing is ever unpickled, and a file's header is checked against its size before it is trusted.
"""

import gzip
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.images.file import ImageFormat, Pixels, convert_image, to_pixels
from regard.data.text.lines import check_file, open_decompressed, read_lines, uncompressed_name
from regard.errors import UserError
from regard.files import check_plain_file

AnyArray = NDArray[Any]

_UINT8 = 0x08  # the type code of unsigned bytes in IDX files
_CHUNK = 1 << 12
"""Images converted at once."""
_GRAY_LEVELS = 16
"""The largest pixel value in the digits."""


def read_idx(path: Path) -> Pixels:
    """The array in an IDX file, plain or .gz: two zeros, the type, the number of dimensions, their sizes, the bytes."""
    data = _content(path)
    if len(data) < 4 or data[:2] != b"\0\0" or not data[3]:
        raise UserError(
            f"{path} is not an IDX file: it begins with {data[:4].hex(' ') or 'nothing'}, expected 00 00 08 and the "
            "number of dimensions. Images are read from folders, .npz, .npy, .csv and IDX files."
        )
    if data[2] != _UINT8:
        raise UserError(f"{path} has the element type 0x{data[2]:02x}; only unsigned bytes (0x08) can be read.")
    begin = 4 + 4 * data[3]
    shape = [int.from_bytes(data[offset : offset + 4], "big") for offset in range(4, begin, 4)]
    expected = begin + math.prod(shape)
    if len(data) != expected:
        problem = "is truncated" if len(data) < expected else "is too long"
        raise UserError(
            f"{path} {problem}: its header says {_times(shape)}, which makes {expected:,} bytes, but there are "
            f"{len(data):,}. Download it again."
        )
    return np.frombuffer(data, dtype=np.uint8, offset=begin).reshape(shape)


def read_npz(path: Path, keys: tuple[str, str]) -> tuple[AnyArray, AnyArray]:
    """The image and label arrays of these names in an .npz file."""
    check_file(path)
    check_plain_file(path)
    with _readable_errors(path), path.open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        if not isinstance(arrays, np.lib.npyio.NpzFile):
            raise UserError(f"{path} contains a single array; name it .npy and give the labels as a second file.")
        for key in keys:
            if key not in arrays.files:
                raise UserError(
                    f"{path} has no array named {key!r}; it has {', '.join(arrays.files) or 'none at all'}. "
                    "Give the names of the images and labels as `keys`."
                )
        return arrays[keys[0]], arrays[keys[1]]


def read_npy(path: Path, *, mapped: bool = False) -> AnyArray:
    """The array in an .npy file, memory-mapped (copy-on-write) if `mapped`."""
    check_file(path)
    check_plain_file(path)
    with _readable_errors(path):
        if zipfile.is_zipfile(path):
            raise UserError(f"{path} contains several arrays; name it .npz.")
        array: AnyArray = np.load(path, mmap_mode="c" if mapped else None, allow_pickle=False)
        return array


def read_digits(path: Path) -> tuple[Pixels, NDArray[np.int64]]:
    """Images and labels from lines of 64 pixel values from 0 to 16 and the digit they show."""
    rows = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            values = [int(value) for value in line.split(",")]
        except ValueError:
            raise UserError(f"{path}, line {number}: expected whole numbers separated by commas.") from None
        if len(values) != 65:
            raise UserError(f"{path}, line {number}: found {len(values)} numbers, expected 64 and the digit they show.")
        if not 0 <= min(values[:64]) <= max(values[:64]) <= _GRAY_LEVELS:
            raise UserError(f"{path}, line {number}: pixel values range from 0 to {_GRAY_LEVELS}; found {values[:64]}.")
        rows.append(values)
    table = np.array(rows, dtype=np.int64).reshape(-1, 65)
    pixels = (table[:, :64] * 255 + _GRAY_LEVELS // 2) // _GRAY_LEVELS
    return pixels.astype(np.uint8).reshape(-1, 1, 8, 8), table[:, 64]


def as_pixels(values: AnyArray, where: object) -> Pixels:
    """Images as uint8, channels first.  values: # (count, height, width), or with 1 or 3 channels first or last

    Integers must be from 0 to 255, other numbers from 0 to 1. uint8 is not copied: the result may be a view.
    """
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[3] in (1, 3):
        values = values.transpose(0, 3, 1, 2)
    if values.ndim != 4 or values.shape[1] not in (1, 3) or 0 in values.shape:
        raise UserError(
            f"{where}: an array of {_times(values.shape)} is not a list of images; expected count × height × width, "
            "optionally with 1 or 3 channels before or after height and width."
        )
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return np.where(values, np.uint8(255), np.uint8(0))
    if values.dtype.kind not in "iuf":
        raise UserError(f"{where}: the pixels have the type {values.dtype}; expected numbers.")
    integer = values.dtype.kind in "iu"
    largest = 255 if integer else 1
    pixels = np.empty(values.shape, dtype=np.uint8)
    for first in range(0, len(values), _CHUNK):
        chunk = values[first : first + _CHUNK]
        low, high = chunk.min(), chunk.max()
        if not (low >= 0 and high <= largest):
            expected = "integers from 0 to 255" if integer else "fractions from 0 to 1, or integers from 0 to 255"
            raise UserError(f"{where}: pixel values range from {low} to {high}; expected {expected}.")
        pixels[first : first + _CHUNK] = chunk if integer else np.rint(chunk.astype(np.float64) * 255)
    return pixels


def as_labels(values: AnyArray, where: object) -> NDArray[np.int64]:
    """Labels as int64.  values: # (count,) or (count, 1)"""
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.ndim != 1 or flat.dtype.kind not in "iu":
        raise UserError(
            f"{where}: labels must be a row of integers; found {_times(values.shape) or 'one'} of {values.dtype}."
        )
    return flat.astype(np.int64)


def convert_images(pixels: Pixels, format: ImageFormat) -> Pixels:
    """Images converted to a format, exactly like those from files.  # (count, channels, height, width)"""
    from PIL import Image

    height, width = format.size or pixels.shape[2:]
    channels = format.channels or pixels.shape[1]
    if pixels.shape[1:] == (channels, height, width):
        return pixels
    if pixels.shape[1:] == (1, height, width):
        return np.repeat(pixels, channels, axis=1)
    converted = np.empty((len(pixels), channels, height, width), dtype=np.uint8)
    for number, image in enumerate(pixels):
        values = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        converted[number] = to_pixels(convert_image(Image.fromarray(np.ascontiguousarray(values)), format))
    return converted


def _content(path: Path) -> bytes:
    check_file(path)
    check_plain_file(path)
    compressed = uncompressed_name(path) != path.name
    if compressed and path.suffix.lower() != ".gz":
        raise UserError(f"{path}: IDX files are read plain or compressed by gzip; decompress it.")
    with _readable_errors(path), ExitStack() as stack:
        return open_decompressed(path, stack).read()


@contextmanager
def _readable_errors(path: Path) -> Iterator[None]:
    """Report the errors of reading a file in one sentence."""
    try:
        yield
    except UserError:
        raise
    except (EOFError, ValueError, gzip.BadGzipFile, zlib.error, zipfile.BadZipFile) as error:
        if "pickle" in str(error) or "Python objects" in str(error):
            raise UserError(f"{path} contains Python objects or no array at all; save numbers with NumPy.") from None
        reason = str(error).rstrip(".") or type(error).__name__
        raise UserError(f"{path} is damaged or truncated ({reason}); download or save it again.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None


def _times(shape: tuple[int, ...] | list[int]) -> str:
    return " × ".join(f"{side:,}" for side in shape)
