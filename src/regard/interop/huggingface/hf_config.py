"""Typed access to a Hugging Face config.json.

Many programs have written such files over many years: keys are missing, null, or of an unexpected type. Every method
here returns a value of the right type or raises one sentence that names the file and the key. A key that is null counts
as missing, as it does for transformers.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from regard.errors import UserError

T = TypeVar("T")


class HFConfig:
    """Typed values of a JSON object. `location` names the file (and the object in it) in errors."""

    def __init__(self, values: Mapping[str, Any], location: str) -> None:
        self.values = values
        self.location = location

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """An integer; required if there is no default."""
        value = self._value(key, default, "an integer")
        if type(value) is not int or value < minimum:
            raise self.invalid(key, f"an integer of at least {minimum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number; required if there is no default."""
        value = self._value(key, default, "a number")
        if type(value) not in (int, float):
            raise self.invalid(key, "a number")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers; required."""
        values = self._value(key, None, "a list of numbers")
        if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
            raise self.invalid(key, "a list of numbers")
        return tuple(float(value) for value in values)

    def height_and_width(self, key: str, default: int | None = None) -> tuple[int, int]:
        """Height and width: one integer for both, or a list of two; required if there is no default."""
        value = self._value(key, default, "an integer or a list of two")
        pair = [value, value] if type(value) is int else value
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
            raise self.invalid(key, "an integer of at least 1 or a list of two")
        return pair[0], pair[1]

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.invalid(key, "true or false")
        return value

    def choice(self, key: str, known: Mapping[str, T], default: str) -> T:
        """The value that a name has in `known`."""
        value = self._value(key, default, "a string")
        if not isinstance(value, str) or value not in known:
            raise self.invalid(key, f"one of {', '.join(known)}")
        return known[value]

    def ids(self, key: str) -> list[int]:
        """Token ids: none, one, or several."""
        value = self.values.get(key)
        given = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(number) is int for number in given):
            raise self.invalid(key, "a token id or a list of them")
        return list(given)

    def table(self, key: str) -> "HFConfig | None":
        """An object within the object; None if it is missing or empty."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.invalid(key, "an object")
        return HFConfig(value, f"{self.location}: {key}") if value else None

    def require(self, key: str, expected: bool | float | str, why: str) -> None:
        """Refuse an option with another value than the only supported one."""
        if self.has(key) and self.values[key] != expected:
            supported = str(expected).lower() if isinstance(expected, bool) else expected
            raise UserError(
                f"{self.location}: {key} is {_formatted(self.values[key])}, which regard cannot import "
                f"({why}); only {supported} is supported."
            )

    def invalid(self, key: str, expected: str) -> UserError:
        """The error for a value of the wrong type."""
        return UserError(
            f"{self.location}: {key} is {_formatted(self.values.get(key))}, but should be {expected}; "
            "download the file again."
        )

    def _value(self, key: str, default: Any, expected: str) -> Any:
        if self.has(key):
            return self.values[key]
        if default is None:
            raise UserError(f"{self.location}: {key} is missing and should be {expected}; download the file again.")
        return default


def _formatted(value: object) -> str:
    text = "true" if value is True else "false" if value is False else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
