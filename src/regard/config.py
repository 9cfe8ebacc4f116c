"""Typed configs with strict validation.

Each component (attention, a model, a whole recipe) is described by a small frozen `Config` defined next to its code.
Validation is strict: an unknown key is an error that suggests the nearest known one, a value out of range names its
key, and every error is one sentence (`UserError`), however deep the key is nested.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from regard.errors import UserError

_QUOTED_CHARACTERS = 200
"""The longest value that an error shows in full."""
_MAX_DEPTH = 100
"""How deep tables and lists of a file may be nested; no config comes near it."""
_DEEP_KEY = re.compile(rf"""(?<![\w-])(?:(?>[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*+\.[ \t]*+){{{_MAX_DEPTH}}}""")
"""A dotted key of TOML with more parts than that."""


class ConfigError(UserError):
    """A setting is invalid. `key` is its dotted name, `problem` the rest of the sentence."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


class Config(BaseModel):
    """A frozen group of settings that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, strict=True)

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explain(error, type(self)) from None

    @classmethod
    def read(cls, values: object, where: str = "") -> Self:
        """Build from plain data (parsed JSON or TOML). `where` names the file in errors."""
        prefix = f"{where}: " if where else ""
        if not isinstance(values, Mapping):
            raise UserError(f"{prefix}expected a table of settings, found {_describe(values)}.")
        try:
            return cls(**{str(key): value for key, value in values.items()})
        except UserError as error:
            raise UserError(f"{prefix}{error}") from None

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What `repr` shows: the settings that differ from their defaults."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if field.is_required() or value != field.get_default(call_default_factory=True, validated_data={}):
                yield name, value

    def __str__(self) -> str:
        return repr(self)

    def plain(self) -> dict[str, Any]:
        """The settings as plain data for JSON or TOML; the inverse of `read`."""
        return self.model_dump(mode="json")


def parse_json(text: str | bytes) -> Any:
    """The plain data in a JSON text. All that can be wrong with it is a `ValueError` that says what."""
    return _parse(json.loads, text)


def parse_toml(text: str) -> dict[str, Any]:
    """The plain data in a TOML text. All that can be wrong with it is a `ValueError` that says what."""
    if _DEEP_KEY.search(text):  # tomllib takes quadratic time for it
        raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")
    values: dict[str, Any] = _parse(tomllib.loads, text)
    return values


def _parse(loads: Callable[[Any], Any], text: str | bytes) -> Any:
    try:
        values = loads(text)
    except RecursionError:
        values = None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise
    except ValueError:  # Python's limit for integers, whose message is for programmers
        raise ValueError("it has a number of thousands of digits") from None
    else:
        level = [values]
        for _ in range(_MAX_DEPTH):
            if not (level := [item for each in level for item in _items(each)]):
                return values
    raise ValueError(f"it is nested more than {_MAX_DEPTH} levels deep")


def _items(value: object) -> list[Any]:
    """What is directly inside a table or list."""
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _explain(error: ValidationError, config: type[Config]) -> ConfigError:
    """The first problem, as one sentence."""
    # A misspelled key is reported before the missing key that it was meant to be.
    detail = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    context = detail.get("ctx", {})
    # A nested Config reports its own keys, so a field's name can only be followed by an index or the tag of a union.
    path = [str(part) for number, part in enumerate(detail["loc"]) if number == 0 or isinstance(part, int)]
    key = ".".join(path)
    inner = context.get("error")
    if isinstance(inner, ConfigError):
        return ConfigError(".".join([*path, inner.key] if inner.key else path), inner.problem)
    match detail["type"]:
        case "extra_forbidden":
            known = list(config.model_fields)
            near = difflib.get_close_matches(path[-1], known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the known keys are {', '.join(known)}."
            return ConfigError(key, f"unknown key; {hint}")
        case "missing":
            return ConfigError(key, "this key is required.")
        case "union_tag_invalid":
            return ConfigError(
                f"{key}.kind", f"found {_quote(context['tag'])}; expected one of {context['expected_tags']}."
            )
        case "union_tag_not_found":
            return ConfigError(f"{key}.kind", "this key is required; it selects one of several kinds.")
        case "value_error":
            return ConfigError(key, str(inner))
        case _:
            found = f"found {_quote(detail['input'])}; " if not isinstance(detail["input"], Mapping) else ""
            message = detail["msg"].removeprefix("Input should be ").rstrip(".")
            return ConfigError(key, f"{found}expected {message[0].lower()}{message[1:]}.")


def _quote(value: object) -> str:
    """A value as it was given, or its beginning if it is long."""
    try:
        quoted = repr(value)
    except ValueError:  # Python does not write out integers of thousands of digits
        return "a number of thousands of digits"
    return quoted if len(quoted) <= _QUOTED_CHARACTERS else f"{quoted[:_QUOTED_CHARACTERS]}…"


def _describe(value: object) -> str:
    return "nothing" if value is None else f"a value of type {type(value).__name__}"
