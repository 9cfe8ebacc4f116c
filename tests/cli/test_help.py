"""The help of every command is complete, and fits a terminal of 80 columns."""

from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from regard.cli import app
from regard.cli.command_groups import GROUPS

WIDTH = 80
FIELD_TERMS = {
    "--beam-size": "beam size",
    "--beam-groups": "diverse beam search",
    "--length-penalty": "length penalty",
    "--min-length": "minimum length",
    "--no-repeat-ngram": "n-gram",
    "--temperature": "temperature",
    "--top-k": "top-k",
    "--top-p": "nucleus sampling (top-p)",
    "--min-p": "min-p",
    "--repetition-penalty": "repetition penalty",
    "--nbest": "n-best",
    "--ensemble": "ensemble",
    "--shortlist": "lexical shortlist",
    "--stop": "stop sequence",
    "--dtype": "dtype",
    "--fused": "fused kernels",
    "--parallel": "data parallelism",
    "--quantization": "quantization",
}
"""Options whose help must name the term that the field has for them."""


def commands(group: TyperGroup, name: str = "regard") -> Iterator[tuple[str, TyperCommand | TyperGroup]]:
    """All commands with their names, subcommands included."""
    for sub, command in group.commands.items():
        yield f"{name} {sub}", command
        if isinstance(command, TyperGroup):
            yield from commands(command, f"{name} {sub}")


COMMANDS = dict(commands(typer.main.get_command(app)))


def help_lines(*args: str) -> list[str]:
    done = CliRunner().invoke(app, [*args, "--help"], terminal_width=WIDTH)
    assert done.exit_code == 0
    return done.output.splitlines()


@pytest.mark.parametrize("group", ["regard", *(name for name in COMMANDS if isinstance(COMMANDS[name], TyperGroup))])
def test_overview_shows_whole_summaries_in_80_columns(group: str) -> None:
    members = COMMANDS[group].commands if group in COMMANDS else typer.main.get_command(app).commands
    lines = help_lines(*group.split()[1:])
    width = max(map(len, members))
    for name, command in members.items():
        summary = command.get_short_help_str(limit=1000)
        assert f"  {name:<{width}}  {summary}" in lines
        assert summary.endswith(".")
        assert "..." not in summary
    assert max(map(len, lines)) <= WIDTH


def test_overview_lists_every_command_in_a_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(typer.main.get_command(app).commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_parameter_has_help(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        text = getattr(parameter, "help", None)
        assert text, f"{name}: {parameter.name}"
        assert text.endswith((".", "…")), f"{name}: {parameter.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_not_truncated(name: str) -> None:
    args = name.split()[1:]
    lines = help_lines(*args)
    shown = "".join("".join(lines).split())  # lines are also broken after a hyphen
    assert max(map(len, lines)) <= WIDTH
    for parameter in COMMANDS[name].params:
        assert "".join(parameter.help.split()) in shown


def test_options_name_the_term_of_the_field() -> None:
    found = {
        option: parameter.help
        for command in COMMANDS.values()
        for parameter in command.params
        for option in parameter.opts
    }
    for option, term in FIELD_TERMS.items():
        assert term in found[option].lower(), option
