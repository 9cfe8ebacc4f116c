"""`regard data`: list, download and verify datasets."""

import json
from typing import Annotated

import typer

from regard.cli.app import App
from regard.cli.progress import download_progress

app = App(help="List, download and verify datasets.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def data_list(
    as_json: Annotated[bool, typer.Option("--json", help="JSON output: print one object per line.")] = False,
) -> None:
    """List the datasets: name, location, license, description."""
    from regard.data.registry import list_datasets, locate_dataset

    for location in (locate_dataset(one.name) for one in list_datasets()):
        one = location.dataset
        if as_json:
            record = {
                "name": one.name,
                "availability": location.availability,
                "folder": None if location.folder is None else str(location.folder),
                "license": one.license,
                "redistributable": one.redistributable,
                "description": one.description,
                "origins": one.origins,
                "size": one.size,
                "unit": one.unit,
                "counts": one.counts,
            }
            print(json.dumps(record, ensure_ascii=False))
        else:
            print(f"{one.name:<20} {location.availability:<24} {one.description} License: {one.license}.")


@app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `regard data list` prints.")],
) -> None:
    """Find or download a dataset, and print its folder."""
    from regard.data.registry import get_dataset

    with download_progress() as progress:
        folder = get_dataset(name, progress=progress)
    print(folder)


@app.command("check")
def data_check(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A dataset. Default: every dataset on this machine.")
    ] = None,
) -> None:
    """Verify the checksums of datasets.

    Exits with code 1 if a file is missing or differs.
    """
    from regard.data.registry import check_all_datasets, check_dataset

    ok = True
    for checked in check_all_datasets() if name is None else [check_dataset(name)]:
        ok = ok and checked.good
        for file, state in checked.states.items():
            print(f"{state:<8} {checked.folder / file}")
    if not ok:
        raise typer.Exit(1)
