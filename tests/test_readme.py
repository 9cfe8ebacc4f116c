"""The README's code runs, and commands, recipes, make targets and links in the docs are valid."""

import re
import shlex
import tomllib
from itertools import takewhile
from pathlib import Path

import click
import pytest
import typer

from regard.cli import app
from regard.task.registry import read_values

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_readme_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(ROOT / "README.md", "python"))
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "my-model" / "run.json").is_file()
    assert re.fullmatch(r"\d+% of the pairs .*\n", capsys.readouterr().out)


def test_readme_model_has_at_most_ten_lines() -> None:
    first = blocks(ROOT / "README.md", "python")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10


def regard_commands() -> list[tuple[str, str]]:
    lines = [(page.name, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [(name, line) for name, line in lines if line.startswith("regard ")]


def test_docs_contain_commands() -> None:
    assert regard_commands()


@pytest.mark.parametrize(("page", "line"), regard_commands())
def test_every_command_in_the_docs_parses(page: str, line: str) -> None:
    """Commands are parsed with their options, but not run."""
    args = list(takewhile(lambda part: part not in ("<", ">", "|"), shlex.split(line, comments=True)[1:]))
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command, info_name="regard")
    while isinstance(command, click.Group):
        _, subcommand, args = command.resolve_command(context, args)
        assert subcommand is not None
        command = subcommand
        context = command.make_context(command.name, list(args), parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_recipe_in_the_docs_is_valid(page: Path) -> None:
    for text in blocks(page, "toml"):
        read_values(tomllib.loads(text), page.name)


def test_docs_contain_a_recipe() -> None:
    assert blocks(ROOT / "docs" / "training.md", "toml")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_in_the_docs_exists(page: Path) -> None:
    targets = re.findall(r"^make ([a-z]+)", "\n".join(blocks(page, "sh")), re.MULTILINE)
    assert set(targets) <= make_targets()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_between_pages_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
