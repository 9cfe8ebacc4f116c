"""The keys of a recipe as `regard settings` names them."""

from collections.abc import Mapping
from typing import Any

NAMED_TABLES = ("data.test", "expect.scores")


def keys_of(values: Mapping[str, Any], prefix: str = "") -> set[str]:
    """The dotted keys of nested tables, with N for an index and NAME for a name that the user chooses."""
    found = set()
    for name, value in values.items():
        key = f"{prefix}NAME" if prefix.rstrip(".") in NAMED_TABLES else f"{prefix}{name}"
        if not key.endswith(".NAME") and value is not None:
            found.add(key)
        if isinstance(value, Mapping):
            found |= keys_of(value, f"{key}.")
        elif isinstance(value, list):
            for item in value:
                found |= keys_of(item, f"{key}.N.") if isinstance(item, Mapping) else set()
    return found
