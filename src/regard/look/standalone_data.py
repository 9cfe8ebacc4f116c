"""The data in a standalone file, compactly: JSON and the numbers in it apart, each compressed and base64-encoded.

Most of the data are vectors, and a number takes ten characters or more in JSON. So every array of numbers becomes
float32, which is what models compute in, and the JSON refers to it by where it starts and its shape. An array that
occurs several times, such as keys that heads share, is written once. `web/src/source/unpack.js` reverses this.
"""

import base64
import json
import zlib
from typing import Any

import numpy as np

_MIN_NUMBERS = 8
"""Smaller arrays remain in the JSON."""
_MAX_EXACT = 1 << 24
"""Up to here, float32 has all integers."""
_DIGITS = 6


class PackedData:
    """Data that is collected part by part, so that the size of each is known."""

    def __init__(self) -> None:
        self._parts: dict[str, list[str] | str] = {}
        self._numbers: list[bytes] = []
        self._starts: dict[tuple[bytes, tuple[int, ...]], dict[str, list[int]]] = {}
        self._length = 0

    def set(self, name: str, value: Any) -> None:
        """Set a part."""
        self._parts[name] = self._json(value)

    def start_list(self, name: str) -> None:
        """Begin a part that is a list."""
        self._parts[name] = []

    def append(self, name: str, value: Any, budget: int) -> int:
        """Add an item to a list unless it is larger than the budget; what is left of the budget, negative if it is."""
        numbers, starts, length = len(self._numbers), dict(self._starts), self._length
        text = self._json(value)
        left = budget - len(text) - 4 * (self._length - length)
        if left < 0:
            del self._numbers[numbers:]
            self._starts, self._length = starts, length
        else:
            items = self._parts[name]
            assert isinstance(items, list)
            items.append(text)
        return left

    def to_json(self) -> str:
        """What the file contains."""
        parts = (
            f'"{name}":{part if isinstance(part, str) else "[" + ",".join(part) + "]"}'
            for name, part in self._parts.items()
        )
        texts = {"json": f"{{{','.join(parts)}}}".encode(), "float32": b"".join(self._numbers)}
        return json.dumps({name: base64.b64encode(zlib.compress(text)).decode() for name, text in texts.items()})

    def _json(self, value: Any) -> str:
        return json.dumps(self._pack(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)

    def _pack(self, value: Any) -> Any:
        """The same data with references instead of arrays, and other floats rounded to a few significant digits."""
        if isinstance(value, float):
            return float(f"{value:.{_DIGITS}g}")
        if isinstance(value, dict):
            return {key: self._pack(each) for key, each in value.items()}
        if not isinstance(value, list):
            return value
        array = _as_array(value)
        return [self._pack(each) for each in value] if array is None else self._reference(array)

    def _reference(self, array: "np.ndarray[Any, Any]") -> dict[str, list[int]]:
        content = array.tobytes()
        known = self._starts.get((content, array.shape))
        if known is None:
            known = {"float32": [self._length, *array.shape]}
            self._starts[content, array.shape] = known
            self._numbers.append(content)
            self._length += array.size
        return known


def _as_array(value: list[Any]) -> "np.ndarray[Any, Any] | None":
    """The numbers of a list, or of lists of equal lengths, in float32; None if that is not what it is."""
    if not _has_only_numbers(value):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        return None
    if array.size < _MIN_NUMBERS or (array.dtype.kind == "i" and np.abs(array).max() > _MAX_EXACT):
        return None
    packed: np.ndarray[Any, Any] = array.astype("<f4")
    return packed if np.isfinite(packed).all() else None


def _has_only_numbers(value: list[Any]) -> bool:
    if value and isinstance(value[0], list):
        return all(isinstance(each, list) and _has_only_numbers(each) for each in value)
    return bool(value) and all(type(each) in (int, float) for each in value)
