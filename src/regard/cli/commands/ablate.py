"""`regard ablate`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import DeviceOption, OverridesOption
from regard.cli.standard_streams import print_error
from regard.errors import UserError
from regard.progress import phase


def ablate(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="The name of a recipe, or the path of a .toml file.")
    ] = None,
    overrides: OverridesOption = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Train these variations only, by family or name (--list shows them)."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Random seeds: how often the recipe and each variation are trained.")
    ] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder to write. Default: runs/ablate-RECIPE.")] = None,
    device: DeviceOption = "auto",
    jobs: Annotated[
        int, typer.Option(min=1, max=1000, help="The number of runs side by side, each in a process of its own.")
    ] = 1,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Train nothing; write the report of what is done so far.")
    ] = False,
    show: Annotated[bool, typer.Option("--list", help="List all variations, by group, with what is claimed.")] = False,
) -> None:
    """Train variations of a recipe, as in Table 3 of the paper.

    They are those of "Attention Is All You Need", and of other claims about the Transformer. Writes OUT/report.html and
    OUT/report.md. The same command continues a sweep that was interrupted.
    """
    with phase("Starting"):  # importing PyTorch takes a while
        from regard.lab.ablate.plan import plan_sweep, read_sweep
        from regard.lab.ablate.sections import write_ablation
        from regard.lab.ablate.sweep import run_sweep
        from regard.lab.ablate.variations import describe_variations, select_variations
        from regard.task.recipe_io import recipe_name

    if show:
        print(describe_variations())
        return
    variations = select_variations(None if only is None else [each.strip() for each in only.split(",") if each.strip()])
    if recipe is None:
        if not report_only or out is None:
            raise UserError("Name a recipe, or the path of a .toml file; `regard recipes` lists those of regard.")
        folder = out
    else:
        folder = out or Path("runs") / f"ablate-{recipe_name(recipe)}"
    if recipe is not None and not report_only:
        sweep = plan_sweep(recipe, overrides or [], variations, folder, seeds=seeds)
        for one in sweep.plans:
            if one.skipped is not None:
                _log(f"{one.name} is skipped, because {one.skipped}.")
        try:
            run_sweep(sweep, device=device, parallel=jobs, log=_log)
        except KeyboardInterrupt:
            write_ablation(read_sweep(folder))
            print_error("Interrupted. The report has what is done so far; the same command continues the sweep.")
            raise typer.Exit(130) from None
    html, _ = write_ablation(read_sweep(folder))
    print(html)


def _log(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
