"""`regard train` and `regard recipes`."""

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import DeviceOption, JsonOption, OverridesOption, ThreadsOption, parallel_corpus
from regard.cli.processes import (
    ProcessesOption,
    join_process_group,
    launch_processes,
    report_errors_once,
    was_restarted,
)
from regard.errors import UserError

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
        bool, typer.Option("--resume", help="Continue the run in this folder; --set train.steps=N extends it.")
    ] = False,
    source: Annotated[Path | None, typer.Option(help="Your own source sentences, one per line.")] = None,
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None,
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
        Parallel | None, typer.Option(help="ddp: every process holds all weights; fsdp: weights are sharded.")
    ] = None,
    shard: Annotated[
        int | None, typer.Option(min=2, max=100_000, help="fsdp: shard the weights over this many processes.")
    ] = None,
) -> None:
    """Train a model with a recipe, on its data or on yours (--data; --source and --target for parallel text)."""
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
                display.log(f"{str(stopped).capitalize()}. Continue with: {resume_command}")
            raise typer.Exit(130) from None
        if process_group.is_rank0:
            print(trained.folder)


def recipes(as_json: JsonOption = False) -> None:
    """List the included recipes: name, expected scores, description."""
    from regard.task.recipe_io import shipped_recipes

    included = shipped_recipes()
    width = max((len(one.name) for one in included), default=0)
    for one in included:
        expect = one.recipe.expect
        if as_json:
            record = {
                "name": one.name,
                "task": one.recipe.task,
                "description": one.recipe.description,
                "data_needed": one.recipe.describe_needed_data() or None,
                "expect": None if expect is None else expect.plain(),
            }
            print(json.dumps(record, ensure_ascii=False))
            continue
        scores = "; ".join(f"{name}: {score}" for name, score in ({} if expect is None else expect.scores).items())
        if expect is not None and expect.measured:
            scores += f" in {expect.minutes:g} min on {expect.hardware}"
        elif expect is not None and expect.source:
            scores += f" (published: {expect.source})"
        print(f"{one.name:<{width}} {scores or 'not measured yet'}\n{'':<{width}} {one.recipe.description}")
        if needed := one.recipe.describe_needed_data():
            print(f"{'':<{width}} Bring your own data: {needed}")
