"""`regard data`: list, fetch and check the named data sets."""

import json
from typing import Annotated

import typer

from regard.cli.progress import download_progress

app = typer.Typer(help="List, fetch and check the named data sets.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
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
            print(f"{one.name:<20} {location.place:<24} {one.description} Licence: {one.licence}.")


@app.command("get")
def data_get(name: Annotated[str, typer.Argument(metavar="NAME", help="As `regard data list` shows it.")]) -> None:
    """Find a data set on this machine, or download it; print its folder."""
    from regard.data.registry import get

    with download_progress() as progress:
        folder = get(name, progress=progress)
    print(folder)


@app.command("check")
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
