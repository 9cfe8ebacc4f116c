"""The one error that is meant for the user.

Everything a user can get wrong (a file, a key, a shape, an id) ends in a `UserError` whose message is a full sentence:
what was found, where, and what to do. Commands print it and exit with code 2; the server answers with 4xx. It is a
`ValueError`, so that code which uses regard as a library catches what it would expect to catch. A misspelled keyword
argument is a `TypeError`, as everywhere in Python.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast


class UserError(ValueError):
    """Something given to regard is wrong; the message says what, where and what to do."""


def listed(names: Sequence[str], limit: int = 8) -> str:
    """The first names as a list for messages."""
    shown = ", ".join(repr(name) for name in names[:limit]) or "none"
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def how_to_install(extra: str = "") -> str:
    """For messages: how to install regard, with one of its extras (pyproject.toml), as part of a sentence.

    regard is not on PyPI, so it is installed from a checkout of its source.
    """
    return f"run `{install_command(extra)}` in your checkout of regard"


def how_to_upgrade() -> str:
    """For messages: how to get the newest version, as part of a sentence."""
    return f"upgrade regard: run `git pull` and `{install_command()}` in your checkout"


def install_command(extra: str = "") -> str:
    """The command that installs regard from the current folder, with an extra if one is named."""
    return f"pip install -c constraints.txt '.[{extra}]'" if extra else "pip install -c constraints.txt ."


Function = TypeVar("Function", bound=Callable[..., Any])


def suggest_keywords(function: Function) -> Function:
    """Have the error for an unknown keyword argument name the nearest known one, as Python does from 3.13 on."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*args: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in known:
                raise unexpected_keyword(function, name, known)
        return function(*args, **keywords)

    return cast(Function, checked)


def unexpected_keyword(function: Callable[..., Any], name: str, known: Iterable[str]) -> TypeError:
    """The error for a keyword argument that a function does not know."""
    near = difflib.get_close_matches(name, [each for each in known if each != "self"], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"`help({function.__qualname__})` lists them."
    return TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}; {hint}")
