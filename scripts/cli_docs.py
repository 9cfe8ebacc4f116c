"""Generate docs/cli.md, the reference of all commands, from the help of the command line.

python scripts/cli_docs.py            write the page
python scripts/cli_docs.py --check    change nothing; exit with code 1 if the page is out of date
"""

import argparse
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from regard.cli import app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
INTRODUCTION = """# Command line

Every command of `regard`, with all its arguments and options. `regard COMMAND --help` prints the same in the terminal.
This page is generated from that help by `python scripts/cli_docs.py`; a test checks that it is up to date.

A command ends with exit code 0 if all went well and with 2 if something in its input, files or options has to be
corrected: one line on standard error says what. Ctrl-C ends it with 130. Results go to standard output, messages to
standard error.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate docs/cli.md from the help of the command line.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is out of date")
    check, text = parser.parse_args().check, render()
    outdated = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text
    if check and outdated:
        print("docs/cli.md is out of date. Run `python scripts/cli_docs.py`.", file=sys.stderr)
        return 1
    if outdated:
        PAGE.write_text(text, encoding="utf-8")
    return 0


def render() -> str:
    """The complete page."""
    root = typer.main.get_command(app)
    commands = list(_commands(root, typer.Context(root, info_name="regard")))
    summary = [
        (f"[`{name}`](#{name.lower().replace(' ', '-')})", _paragraphs(command)[0]) for name, command, _ in commands
    ]
    parts = [INTRODUCTION, _table(("command", "what it does"), summary)]
    parts += [_section(name, command, context) for name, command, context in commands]
    return "\n".join(parts)


def _commands(command: Any, context: typer.Context) -> Iterator[tuple[str, Any, typer.Context]]:
    """Every command that can be run, in the order of `regard --help`, with its full name."""
    if not isinstance(command, TyperGroup) or command.invoke_without_command:
        yield re.sub(r"[{}]", "", context.command_path), command, context
    for name in command.list_commands(context) if isinstance(command, TyperGroup) else ():
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            yield from _commands(child, typer.Context(child, info_name=name, parent=context))


def _section(name: str, command: Any, context: typer.Context) -> str:
    params = _params(command, context)
    arguments = [param for param in params if param.param_type_name == "argument"]
    usage = " ".join([name, "[OPTIONS]" if len(params) > len(arguments) else "", *map(_metavar, arguments)])
    if context.parent is not None and context.parent.parent is not None:  # a group, whose own come before the command
        inherited = _params(context.parent.command, context.parent)
        params = inherited + params
        arguments = [param for param in params if param.param_type_name == "argument"]
    lines = [
        f"## `{name}`\n",
        *(f"{text}\n" for text in _paragraphs(command)),
        f"```text\n{' '.join(usage.split())}\n```\n",
    ]
    options = [param for param in params if param not in arguments]
    if arguments:
        rows = [(f"`{_metavar(param)}`", _meaning(param, context)) for param in arguments]
        lines.append(_table(("argument", "meaning"), rows))
    if options:
        rows = [(f"`{_option(param, context)}`", _meaning(param, context)) for param in options]
        lines.append(_table(("option", "meaning"), rows))
    return "\n".join(lines)


def _params(command: Any, context: Any) -> list[Any]:
    return [param for param in command.get_params(context) if param.name != "help" and not param.hidden]


def _paragraphs(command: Any) -> list[str]:
    """The paragraphs of a command's help, each in one line."""
    return [" ".join(text.split()) for text in inspect.cleandoc(command.help or "").split("\n\n")]


def _metavar(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _option(param: Any, context: typer.Context) -> str:
    """The names of an option and the type of its value; for a list, of each."""
    names = str(param.get_help_record(context)[0])
    names = re.sub(r"<list\[(\w+)\]>", lambda found: f"<{found[1].lower()}>", names)
    return names.replace(" range>", ">")


def _meaning(param: Any, context: typer.Context) -> str:
    """The help of a parameter. Its default and range, which end it in brackets, become sentences."""
    text, _, details = str(param.get_help_record(context)[1]).removesuffix("]").partition("  [")
    for detail in details.split("; ") if details not in ("", "required") else ():
        name, _, value = detail.partition(": ")
        low, _, high = detail.replace("x>=", "").partition("<=x<=")
        text += f" Default: {value}." if name == "default" else f" {low} to {high}." if high else f" At least {low}."
    return text


def _table(head: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    cells = [head, ("---", "---"), *((left, " ".join(right.split())) for left, right in rows)]
    return "".join("| {} | {} |\n".format(*(cell.replace("|", r"\|") for cell in line)) for line in cells)


if __name__ == "__main__":
    sys.exit(main())
