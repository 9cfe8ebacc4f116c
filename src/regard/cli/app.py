"""What all commands have in common: `--quiet`, and a display of their progress."""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from regard.cli.progress import ProgressDisplay
from regard.cli.standard_streams import silenced_messages
from regard.progress import listen_to_phases

Function = TypeVar("Function", bound=Callable[..., Any])

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print no progress and no messages on standard error, only errors.")
]


class App(typer.Typer):
    """A group of commands, each of which gets `--quiet` and shows its progress on a terminal."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        register = super().command(name, **settings)

        def decorate(function: Function) -> Function:
            register(_with_quiet(function))
            return function

        return decorate


def _with_quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with a parameter `quiet` after its own, from which Typer makes the option."""

    @functools.wraps(function)
    def command(*arguments: Any, quiet: bool = False, **options: Any) -> Any:
        is_rank0 = os.environ.get("RANK", "0") == "0"
        with (
            silenced_messages() if quiet else contextlib.nullcontext(),
            ProgressDisplay() as display,
            listen_to_phases(display if is_rank0 else None),
        ):
            return function(*arguments, **options)

    signature = inspect.signature(function)
    option = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=QuietOption)
    command.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    command.__annotations__ = {**function.__annotations__, "quiet": QuietOption}
    return command
