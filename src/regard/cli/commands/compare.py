"""`regard compare`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.standard_streams import print_error
from regard.errors import UserError
from regard.progress import phase


def compare(
    ladder: Annotated[
        str | None, typer.Argument(metavar="LADDER", help="The name of a ladder (--list shows them), or a .toml file.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a setting of the ladder, such as sizes=[1.0], or of all recipes. Repeatable.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write. Default: runs/LADDER.")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Random seeds: how often each model is trained on all data.")
    ] = None,
    rungs: Annotated[
        str | None, typer.Option(metavar="A,B", help="Train these models of the ladder only, by their names.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device to train on: cpu, cuda, mps, or auto. Default: the ladder's.")
    ] = None,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Train nothing; write the report of what is done so far.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--list", help="List the ladders that ship with regard, and their models.")
    ] = False,
) -> None:
    """Compare models on the same data with the same budget.

    Writes OUT/report.html and OUT/report.md. The same command continues a comparison that was interrupted.
    """
    with phase("Starting"):  # importing PyTorch takes a while
        from regard.lab.compare.ladder import list_ladders, read_ladder
        from regard.lab.compare.report.sections import write_comparison
        from regard.lab.compare.runner import InterruptedComparisonError, read_results, read_saved_ladder, run_ladder

    if show:
        for one in list_ladders():
            print(f"{one.name}: {one.description}")
            for rung in one.rungs:
                print(f"  {rung.name}: {rung.label}")
        return
    if ladder is None:
        raise UserError("Name a ladder, or the path of a .toml file; `regard compare --list` lists those of regard.")
    chosen, rest = read_ladder(ladder, [*(overrides or []), *([] if seeds is None else [f"seeds={seeds}"])])
    if rungs is not None:
        chosen = chosen.only([name.strip() for name in rungs.split(",") if name.strip()])
    folder = out or Path("runs") / chosen.name
    if report_only:
        html, _ = write_comparison(read_saved_ladder(folder), read_results(folder), folder)
        print(html)
        return
    try:
        run_ladder(chosen, rest, folder, device=device, log=_log)
    except InterruptedComparisonError:
        write_comparison(read_saved_ladder(folder), read_results(folder), folder)
        print_error("Interrupted. The same command continues the comparison.")
        raise typer.Exit(130) from None
    html, _ = write_comparison(read_saved_ladder(folder), read_results(folder), folder)
    print(html)


def _log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
