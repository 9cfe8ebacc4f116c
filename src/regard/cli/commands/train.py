"""`regard train`."""

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import DeviceOption, OverridesOption, ThreadsOption, parallel_corpus
from regard.cli.processes import (
    ProcessesOption,
    join_process_group,
    launch_processes,
    report_errors_once,
    was_restarted,
)
from regard.cli.standard_streams import print_error
from regard.errors import UserError
from regard.progress import phase

RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="The name of a recipe, a .toml file, or a run folder.")
]


class Parallel(StrEnum):
    """How the weights are distributed over processes."""

    ddp = "ddp"
    fsdp = "fsdp"


def train(
    recipe: RecipeArgument,
    overrides: OverridesOption = None,
    out: Annotated[Path | None, typer.Option(help="Run folder to write. Default: runs/RECIPE.")] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Continue the run in its folder from the last checkpoint; --set train.steps=N extends it."
        ),
    ] = False,
    source: Annotated[
        Path | None, typer.Option(help="Your own source sentences, one per line; needs --target.")
    ] = None,
    target: Annotated[Path | None, typer.Option(help="The translations of --source, line by line.")] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Your own sentence pairs: a .tsv or .jsonl file, or a folder.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Your own data for the recipe's task: a text, a treebank, a folder of images …")
    ] = None,
    device: DeviceOption = "auto",
    threads: ThreadsOption = None,
    processes: ProcessesOption = None,
    parallel: Annotated[
        Parallel | None,
        typer.Option(help="Data parallelism: ddp, every process holds all weights; fsdp, weights are sharded."),
    ] = None,
    shard: Annotated[
        int | None,
        typer.Option(
            min=2, max=100_000, help="FSDP: the number of processes that weights are sharded over. Default: all."
        ),
    ] = None,
) -> None:
    """Train a model with a recipe, on its data or on your own.

    Name your own data by --data; parallel text by --source and --target, or by --pairs.
    """
    with phase("Starting"):  # importing PyTorch takes a while
        from regard.cli.training_display import TrainingDisplay
        from regard.task.recipe_io import read_recipe, recipe_name
        from regard.task.run import train as train_recipe
        from regard.task.run import with_parallel
        from regard.train.runtime import StoppedError

    with report_errors_once():
        given = parallel_corpus(pairs, source, target, "target")
        if given is not None and data is not None:
            raise UserError("--data and --pairs, --source or --target all name the data; give one of them.")
        chosen = read_recipe(recipe, overrides or [], given, data)
        folder = out or (Path(recipe) if Path(recipe).is_dir() else Path("runs") / recipe_name(recipe))
        chosen = with_parallel(chosen, parallel, shard, processes)
        resume_command = f"regard train {shlex.quote(str(folder))} --resume"
        if processes is not None and processes > 1:
            resume_command += f" --processes {processes}"

        def advice() -> str:
            if not (folder / "recipe.toml").is_file():
                return " The run had not begun; start it again with the same command."
            return f" Checkpoints are complete; continue with: {resume_command}"

        launch_processes(processes, device, threads, advice)
    with (
        join_process_group(device, threads, chosen.train.parallel.timeout) as (process_group, own_device),
        TrainingDisplay(chosen.train.steps, chosen.counted_unit) as display,
    ):
        try:
            trained = train_recipe(
                chosen,
                folder,
                resume=resume or was_restarted(),
                device=own_device,
                callback=display,
                process_group=process_group,
            )
        except StoppedError as stopped:
            if process_group.is_rank0:
                display.close()
                print_error(f"{str(stopped).capitalize()}. Continue with: {resume_command}")
            raise typer.Exit(130) from None
        display.close()
        if process_group.is_rank0:
            print(trained.folder)
