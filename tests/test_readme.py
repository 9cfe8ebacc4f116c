"""The code of the README and of a guide runs, and commands, recipes, make targets and links in the docs are valid."""

import re
import shlex
import textwrap
import tomllib
from itertools import takewhile
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from regard.cli import app
from regard.lab.compare.ladder import read_ladder
from regard.lab.compare.plan import validate
from regard.task.registry import read_values

ROOT = Path(__file__).parent.parent
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in this language, also those inside of lists."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, text in found]


MODELS = ROOT / "docs" / "guides" / "models.md"


@pytest.mark.parametrize("page", [ROOT / "README.md", MODELS], ids=lambda page: page.name)
def test_python_code_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "\n".join(blocks(page, "python"))
    assert code
    exec(compile(code, page.name, "exec"), {"__name__": "page"})
    if page == MODELS:
        assert (tmp_path / "my-model" / "run.json").is_file()
        assert re.fullmatch(r"\d+% of the pairs .*\n", capsys.readouterr().out)


def test_first_model_of_the_guide_has_at_most_ten_lines() -> None:
    first = blocks(MODELS, "python")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10


def test_readme_fits_on_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


def test_readme_links_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in DOCS:
        assert f"({page.relative_to(ROOT).as_posix()}" in readme


def regard_commands() -> list[tuple[str, str]]:
    lines = [(page.name, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    return [(name, line) for name, line in lines if line.startswith("regard ")]


def test_docs_contain_commands() -> None:
    assert regard_commands()


def parse(line: str) -> None:
    """Parse a command with its options, without running it."""
    args = list(takewhile(lambda part: part not in ("<", ">", "|"), shlex.split(line, comments=True)[1:]))
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="regard")
    while isinstance(command, TyperGroup) and (args or not command.invoke_without_command):
        _, subcommand, args = command.resolve_command(context, args)
        assert subcommand is not None
        command, context = subcommand, subcommand.make_context(subcommand.name, list(args), parent=context)
        if isinstance(command, TyperGroup):  # which may have arguments of its own before its commands
            args = [*context._protected_args, *context.args]
    assert context.parent is not None


@pytest.mark.parametrize(("page", "line"), regard_commands())
def test_every_command_in_the_docs_parses(page: str, line: str) -> None:
    parse(line)


@pytest.mark.parametrize("line", ["regard trian quick", "regard train quick --steps 5", "regard train"])
def test_a_wrong_command_does_not_parse(line: str) -> None:
    with pytest.raises(typer.TyperException):
        parse(line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_recipe_and_ladder_in_the_docs_is_valid(page: Path, tmp_path: Path) -> None:
    for text in blocks(page, "toml"):
        if "[[rungs]]" in text:
            (tmp_path / "own.toml").write_text(text, encoding="utf-8")
            assert validate(read_ladder(tmp_path / "own.toml")[0])
        else:
            read_values(tomllib.loads(text), page.name)


def test_docs_contain_a_recipe() -> None:
    assert blocks(ROOT / "docs" / "guides" / "training.md", "toml")


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
