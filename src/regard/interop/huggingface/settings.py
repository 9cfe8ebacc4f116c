"""The values of somebody else's config.json, each asked for by its name and kind.

Such a file is written by many programs over many years: keys are missing, null, or of another type than meant. Every
question here has an answer of the right type or ends in one sentence that names the file and the key. A key that is
null counts as left out, as it does for those who write these files.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from regard.errors import UserError

T = TypeVar("T")


class Settings:
    """Typed answers from a table of plain data. `where` names the file (and the table in it) in an error."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number; required where there is no default."""
        value = self._value(key, default, "a whole number")
        if type(value) is not int or value < least:
            raise self.wrong(key, f"a whole number of at least {least}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number; required where there is no default."""
        value = self._value(key, default, "a number")
        if type(value) not in (int, float):
            raise self.wrong(key, "a number")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers; required."""
        values = self._value(key, None, "a list of numbers")
        if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
            raise self.wrong(key, "a list of numbers")
        return tuple(float(value) for value in values)

    def sides(self, key: str, default: int | None = None) -> tuple[int, int]:
        """Height and width: a whole number for both, or a list of two; required where there is no default."""
        value = self._value(key, default, "a whole number or a list of two")
        pair = [value, value] if type(value) is int else value
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
            raise self.wrong(key, "a whole number of at least 1 or a list of two")
        return pair[0], pair[1]

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def choice(self, key: str, known: Mapping[str, T], default: str) -> T:
        """What a word stands for in the table `known`."""
        value = self._value(key, default, "a word")
        if not isinstance(value, str) or value not in known:
            raise self.wrong(key, f"one of {', '.join(known)}")
        return known[value]

    def ids(self, key: str) -> list[int]:
        """Token ids: none, one, or several."""
        value = self.values.get(key)
        given = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(number) is int for number in given):
            raise self.wrong(key, "a token id or a list of them")
        return list(given)

    def table(self, key: str) -> "Settings | None":
        """A table within the table, if it is there and not empty."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "a table")
        return Settings(value, f"{self.where}: {key}") if value else None

    def must_be(self, key: str, expected: bool | float | str, why: str) -> None:
        """Refuse an option that has another value than the only one there is a part for."""
        if self.has(key) and self.values[key] != expected:
            wanted = str(expected).lower() if isinstance(expected, bool) else expected
            raise UserError(
                f"{self.where}: {key} is {_spell(self.values[key])}, which regard cannot import "
                f"({why}); only {wanted} can be."
            )

    def wrong(self, key: str, expected: str) -> UserError:
        """The sentence for a value of the wrong kind."""
        return UserError(
            f"{self.where}: {key} is {_spell(self.values.get(key))}, but should be {expected}; "
            "fetch the file again from where the model came from."
        )

    def _value(self, key: str, default: Any, expected: str) -> Any:
        if self.has(key):
            return self.values[key]
        if default is None:
            raise UserError(
                f"{self.where}: {key} is missing and should be {expected}; "
                "fetch the file again from where the model came from."
            )
        return default


def _spell(value: object) -> str:
    text = "true" if value is True else "false" if value is False else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
