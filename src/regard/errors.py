"""The one error that is meant for the user.

Everything a user can get wrong (a file, a key, a shape, an id) ends in a `UserError` whose message is a full sentence:
what was found, where, and what to do. Commands print it and exit with code 2; the server answers with 4xx. It is a
`ValueError`, so that code which uses regard as a library catches what it would expect to catch.
"""

from collections.abc import Sequence


class UserError(ValueError):
    """Something given to regard is wrong; the message says what, where and what to do."""


def listed(names: Sequence[str], limit: int = 8) -> str:
    """The first names as a list for messages."""
    shown = ", ".join(repr(name) for name in names[:limit]) or "none"
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown
