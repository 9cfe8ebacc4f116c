"""`regard train`, `regard recipes` and `regard cost`."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import Changes, Device, Threads, chosen_device, given_pairs
from regard.cli.progress import TrainingDisplay

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe's name, a .toml file, or the folder of a run.")
]


def train(
    recipe: RecipeName,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/RECIPE if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    source: Annotated[Path | None, typer.Option(help="Your own sentences, one a line …")] = None,
    target: Annotated[Path | None, typer.Option(help="… and their translations, line by line.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Your own pairs: a .tsv or .jsonl file, or a folder.")] = None,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a model by a recipe; with --source and --target, on your own pairs of sentences."""
    from regard.task import read_recipe
    from regard.task import train as train_recipe
    from regard.task.recipe import recipe_name
    from regard.train.surroundings import StoppedError

    chosen = read_recipe(recipe, changes or [], given_pairs(pairs, source, target, "target"))
    folder = out or (Path(recipe) if Path(recipe).is_dir() else Path("runs") / recipe_name(recipe))
    place = chosen_device(device, threads)
    with TrainingDisplay(chosen.train.steps) as display:
        try:
            trained = train_recipe(chosen, folder, resume=resume, device=place, listener=display)
        except StoppedError as stopped:
            display.say(f"{str(stopped).capitalize()}. Go on with: regard train {shlex.quote(str(folder))} --resume")
            raise typer.Exit(130) from None
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
        scores = "; ".join(
            f"{name}: BLEU {score.bleu:.1f}" + ("" if score.chrf is None else f", chrF {score.chrf:.1f}")
            for name, score in ({} if expect is None else expect.scores).items()
        )
        if expect is not None and expect.measured:
            scores += f" in {expect.minutes:g} min on {expect.hardware}"
        elif expect is not None and expect.source:
            scores += f" (not measured here; {expect.source})"
        print(f"{one.name:<{width}} {scores or 'not measured yet'}\n{'':<{width}} {one.recipe.description}")


def cost(
    recipe: RecipeName,
    changes: Changes = None,
    on: Annotated[str | None, typer.Option("--on", help="Named hardware; this machine if not given.")] = None,
    device: Device = "auto",
) -> None:
    """Say what training a recipe takes: parameters, FLOPs, memory, minutes. Nothing is read or trained."""
    from regard.cost import HARDWARE, advice_for_memory, this_hardware
    from regard.errors import UserError
    from regard.task import read_recipe
    from regard.task.training import likely_cost

    chosen = read_recipe(recipe, changes or [])
    if on is not None and on not in HARDWARE:
        raise UserError(f"--on {on}: known hardware is {', '.join(HARDWARE)}; leave it out for this machine.")
    hardware = HARDWARE[on] if on is not None else this_hardware(chosen_device(device, None))
    estimated = likely_cost(chosen)
    print(estimated.describe(hardware, captured=hardware.captures and chosen.train.capture))
    advice = advice_for_memory(estimated, hardware)
    if advice is not None:
        print(advice, file=sys.stderr)
