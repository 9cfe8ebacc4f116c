"""`regard settings`."""

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.options import JsonOption

if TYPE_CHECKING:
    from regard.task.settings import Setting

_MAX_WIDTH = 120
"""The most characters of a line of text."""
_KEY_WIDTH = 45
"""Descriptions are aligned to the right of keys up to this length."""


def settings(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="A key or table (train.schedule.lr, train.schedule), part of a key (warmup), or words of its "
            "description. Default: all tables, or with --task all keys.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="Only the settings of this task's recipes, such as translation.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explain the settings of recipes: type, default and meaning.

    A setting of the table [train.schedule] is addressed as train.schedule.lr, in --set too. In a key, N stands for the
    index of an entry of a list, counted from 0, and NAME for a name that you choose.
    """
    from regard.task.settings import all_settings, find_settings, get_task_settings

    known = all_settings() if task is None else get_task_settings(task)
    found = known if key is None else find_settings(key, known)
    if as_json:
        for one in found:
            print(json.dumps(asdict(one), ensure_ascii=False))
    elif key is None:
        overview = [one for one in found if one.is_table or "." not in one.key]
        _print_list(overview if task is None else found, show_tasks=task is None)
    else:
        _print_details(found, show_tasks=task is None)


def _print_list(found: "Iterable[Setting]", *, show_tasks: bool) -> None:
    """A line for each key: the first sentence of its description, and the tasks that have it."""
    variants: dict[str, list[Setting]] = {}
    for one in found:
        variants.setdefault(_shown_key(one), []).append(one)
    width = min(_KEY_WIDTH, max(map(len, variants)))
    for key, several in variants.items():
        note = " (differs by task)" if len(several) > 1 else f" ({_tasks(several[0])})"
        shown = show_tasks and _tasks(several[0]) != "all"
        print(f"{key:<{width}}  {several[0].summary}{note if shown else ''}")
    print("\n`regard settings TABLE` explains the keys of a table, `regard settings WORD` finds keys.", file=sys.stderr)


def _print_details(found: "Sequence[Setting]", *, show_tasks: bool) -> None:
    """Everything about some settings. Keys with the same description are printed together."""
    same: dict[tuple[Setting, tuple[str, ...]], list[str]] = {}
    for one in found:
        same.setdefault((one.without_place(), one.tasks), []).append(_shown_key(one))
    for number, ((one, _), keys) in enumerate(same.items()):
        if number:
            print()
        for name in dict.fromkeys(keys):
            print(name)
        default = f"; default: {one.default}" if one.default not in ("", "required") else ""
        _print_wrapped(f"{one.type}{'; required' if one.required else default}")
        _print_wrapped(f"{one.meaning}")
        if one.condition:
            print(f"  Only with {one.condition}.")
        if show_tasks:
            _print_wrapped(f"Tasks: {_tasks(one)}.")


def _shown_key(one: "Setting") -> str:
    return f"[{one.key}]" if one.is_table else one.key


def _tasks(one: "Setting") -> str:
    from regard.task.registry import TASKS

    return "all" if len(one.tasks) == len(TASKS) else ", ".join(one.tasks)


def _print_wrapped(line: str) -> None:
    width = min(_MAX_WIDTH, shutil.get_terminal_size().columns)
    print(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False))
