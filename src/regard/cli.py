"""The commands: read the command line, call the library, print. No logic of its own lives here.

Whatever a person got wrong arrives as a `UserError` and leaves as one line on standard error and exit code 2.
"""

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

import regard
from regard.errors import UserError

app = typer.Typer(
    name="regard",
    help="Train, run, serve and look into Transformers, from plain files.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # usage errors as plain lines, which scripts and screen readers can take
)
data = typer.Typer(help="List, fetch and check the named data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data, name="data")


def main() -> None:
    """Where the `regard` command and `python -m regard` begin."""
    try:
        app()
    except UserError as error:
        print(f"regard: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _version(asked: bool) -> None:
    if asked:
        print(f"regard {regard.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command("import")
def import_(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with config.json and *.safetensors.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Run folder to write; must not exist.")],
) -> None:
    """Turn a Hugging Face model (Marian, BART, GPT-2, Llama) into a run folder."""
    from regard.interop import import_huggingface

    imported = import_huggingface(directory, out)
    print(f"{out}: {imported}")


@data.command("list")
def data_list(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List the data sets: name, where each was found, licence, description."""
    from regard.data.registry import locate, sets

    for location in (locate(one.name) for one in sets()):
        one = location.dataset
        if as_json:
            facts = {
                "name": one.name,
                "place": location.place,
                "folder": None if location.folder is None else str(location.folder),
                "licence": one.licence,
                "redistributable": one.redistributable,
                "description": one.description,
                "origins": one.origins,
                "size": one.size,
                "unit": one.unit,
                "counts": one.counts,
            }
            print(json.dumps(facts, ensure_ascii=False))
        else:
            print(f"{one.name:<16} {location.place:<24} {one.description} Licence: {one.licence}.")


@data.command("get")
def data_get(name: Annotated[str, typer.Argument(metavar="NAME", help="As `regard data list` shows it.")]) -> None:
    """Find a data set on this machine, or download it; print its folder."""
    from regard.data.registry import get

    with _download_progress() as progress:
        folder = get(name, progress=progress)
    print(folder)


@data.command("check")
def data_check(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Without it, every set at hand.")] = None,
) -> None:
    """Compare files with their checksums, a line for each; leave with code 1 if one is missing or differs."""
    from regard.data.registry import check, check_all

    good = True
    for checked in check_all() if name is None else [check(name)]:
        good = good and checked.good
        for file, state in checked.states.items():
            print(f"{state:<8} {checked.folder / file}")
    if not good:
        raise typer.Exit(1)


@contextlib.contextmanager
def _download_progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for each file on a terminal, a line for each elsewhere; both on standard error."""
    if not sys.stderr.isatty():
        seen: set[str] = set()

        def line(file: str, done: int, total: int | None) -> None:
            if file not in seen:
                seen.add(file)
                size = "" if total is None else f" ({total:,} bytes)"
                print(f"downloading {file}{size}", file=sys.stderr)

        yield line
        return

    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    with bars.Progress(*columns, console=Console(stderr=True)) as display:
        tasks: dict[str, bars.TaskID] = {}

        def bar(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = display.add_task(file, total=total)
            display.update(tasks[file], completed=done, total=total)

        yield bar
