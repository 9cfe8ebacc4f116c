"""`regard train` and `regard recipes`."""

import json
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Changes, Device, Threads, given_pairs
from regard.cli.processes import Processes, one_voice, restarted, start_others, taking_part
from regard.cli.progress import TrainingDisplay
from regard.errors import UserError

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's name, a .toml file, or the folder of a run.")
]


class ParallelName(StrEnum):
    """How several processes keep the weights."""

    ddp = "ddp"
    fsdp = "fsdp"


def train(
    recipe: RecipeName,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/RECIPE if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    source: Annotated[Path | None, typer.Option(help="Your own sentences, one a line …")] = None,
    target: Annotated[Path | None, typer.Option(help="… and their translations, line by line.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Your own pairs: a .tsv or .jsonl file, or a folder.")] = None,
    own: Annotated[
        Path | None, typer.Option(help="Your own data of the recipe's kind: a text, a treebank, a folder …")
    ] = None,
    device: Device = "auto",
    threads: Threads = None,
    processes: Processes = None,
    parallel: Annotated[ParallelName | None, typer.Option(help="How several processes keep the weights.")] = None,
    shard: Annotated[int | None, typer.Option(min=2, help="fsdp: share weights out over so many processes.")] = None,
) -> None:
    """Train a model by a recipe, on its own data or on yours (--own; --source and --target for pairs of sentences)."""
    from regard.task import read_recipe
    from regard.task import train as train_recipe
    from regard.task.reading import recipe_name
    from regard.task.training import with_parallel
    from regard.train.surroundings import StoppedError

    with one_voice():
        given = given_pairs(pairs, source, target, "target")
        if given is not None and own is not None:
            raise UserError("--own and --pairs, --source or --target all name the data; give one of them.")
        chosen = read_recipe(recipe, changes or [], given, own)
        folder = out or (Path(recipe) if Path(recipe).is_dir() else Path("runs") / recipe_name(recipe))
        chosen = with_parallel(chosen, parallel, shard, processes)
        advice = f"regard train {shlex.quote(str(folder))} --resume"
        many = "" if processes is None or processes == 1 else f" --processes {processes}"
        start_others(processes, device, threads, f" Checkpoints are whole; go on with: {advice}{many}")
    with (
        taking_part(device, threads, chosen.train.parallel.timeout) as (world, place),
        TrainingDisplay(chosen.train.steps, chosen.counted) as display,
    ):
        try:
            trained = train_recipe(
                chosen, folder, resume=resume or restarted(), device=place, listener=display, world=world
            )
        except StoppedError as stopped:
            if world.first:
                display.say(f"{str(stopped).capitalize()}. Go on with: {advice}{many}")
            raise typer.Exit(130) from None
        if world.first:
            print(trained.folder)


def recipes(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List the recipes that ship: name, what to expect, description."""
    from regard.task import shipped_recipes

    known = shipped_recipes()
    width = max((len(one.name) for one in known), default=0)
    for one in known:
        expect = one.recipe.expect
        if as_json:
            facts = {
                "name": one.name,
                "task": one.recipe.task,
                "description": one.recipe.description,
                "expect": None if expect is None else expect.plain(),
            }
            print(json.dumps(facts, ensure_ascii=False))
            continue
        scores = "; ".join(f"{name}: {score}" for name, score in ({} if expect is None else expect.scores).items())
        if expect is not None and expect.measured:
            scores += f" in {expect.minutes:g} min on {expect.hardware}"
        elif expect is not None and expect.source:
            scores += f" (not measured here; {expect.source})"
        print(f"{one.name:<{width}} {scores or 'not measured yet'}\n{'':<{width}} {one.recipe.description}")
