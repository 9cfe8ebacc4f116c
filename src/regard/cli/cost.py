"""`regard cost`: what a recipe, a model or a config takes, before anything is read or trained."""

import json
import math
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import Changes, Device, chosen_device
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.cost import Cost, Work
    from regard.model import AnyModelConfig
    from regard.task import Recipe

_CONTEXT, _ORDINARY = 1024, 25
"""Tokens of a text, and of a sentence, where nothing is known of them."""

Name = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE|MODEL|CONFIG",
        help="A recipe's name or .toml file, a run folder or a model that ships, or a model's settings (.json, .toml).",
    ),
]


def cost(
    name: Name,
    changes: Changes = None,
    hardware: Annotated[
        str | None, typer.Option("--hardware", "--on", help="Named hardware; this machine if not given.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="What an hour of one device costs, in any currency.")] = None,
    processes: Annotated[int, typer.Option(help="How many devices share each step.")] = 1,
    length: Annotated[int | None, typer.Option(help="Tokens a row, on both sides.")] = None,
    batch: Annotated[int | None, typer.Option(help="Tokens a side of a batch; a recipe has its own.")] = None,
    tokens: Annotated[float | None, typer.Option(help="Target tokens to train on, such as 1e9.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    device: Device = "auto",
) -> None:
    """Say what training takes: parameters, FLOPs, memory, minutes, money. Nothing is read or trained."""
    from regard.cost import HARDWARE, Report, this_hardware

    if hardware is not None and hardware not in HARDWARE:
        raise UserError(
            f"--hardware {hardware}: known hardware is {', '.join(HARDWARE)}; leave it out for this machine."
        )
    for option, value in (("processes", processes), ("length", length), ("batch", batch), ("tokens", tokens)):
        if value is not None and not 1 <= value < 1e18:
            raise UserError(f"--{option} {value:g}: expected a number of at least 1.")
    estimated, capture, trained = _asked(name, changes or [], length, batch, tokens, processes)
    machine = HARDWARE[hardware] if hardware is not None else this_hardware(chosen_device(device, None))
    captured = machine.captures and capture and estimated.recordable
    report = Report(estimated, machine, price, captured, trained)
    if as_json:
        print(json.dumps(report.plain(), ensure_ascii=False))
        return
    if trained:
        print(estimated.describe(machine, captured=captured))
    print(report.table())
    if report.advice is not None:
        print(report.advice, file=sys.stderr)


def _asked(
    name: str, changes: list[str], length: int | None, batch: int | None, tokens: float | None, processes: int
) -> "tuple[Cost, bool, bool]":
    """The cost that is asked for, whether passes are recorded, and whether the length of training is known."""
    from regard.cost import estimate
    from regard.model import VisionTransformerConfig
    from regard.task.training import likely_cost

    config, recipe = _found(name, changes)
    if isinstance(config, VisionTransformerConfig) and length is not None:
        height, width = config.size
        raise UserError(f"--length is for texts; a picture of {height} × {width} has {config.tokens:,} tokens.")
    if recipe is None:
        likely = estimate(config, _one_row(config), precision="bf16")
        batch = batch or max(4096, length or likely.work.target)
    else:
        likely = likely_cost(recipe)
        batch = batch or recipe.train.tokens
    work = likely.work
    long = min(batch, length or work.target)
    if isinstance(config, VisionTransformerConfig) and long < config.tokens:
        raise UserError(f"--batch {batch}: one picture alone has {config.tokens:,} tokens.")
    asked = None if work.asked is None else min(long, math.ceil(work.asked * long / work.target))
    work = replace(work, rows=batch // long, target=long, source=long if work.source else 0, asked=asked)
    if tokens is not None:
        work = replace(work, steps=max(1, round(tokens / (work.rows * long * work.accumulate))))
    found = estimate(
        config,
        work,
        precision=likely.precision,
        optimiser=likely.optimiser,
        processes=processes,
        shards=1 if recipe is None or recipe.train.parallel.kind == "ddp" else recipe.train.parallel.shard or processes,
        recompute=likely.recompute,
    )
    return found, recipe is None or recipe.train.capture, recipe is not None or tokens is not None


def _one_row(config: "AnyModelConfig") -> "Work":
    """What is likely where there is no recipe: a full context, an ordinary sentence, or a picture."""
    from regard.cost import Work
    from regard.model import EncoderDecoderConfig, LanguageModelConfig, VisionTransformerConfig

    if isinstance(config, VisionTransformerConfig):
        return Work(1, config.tokens)
    if isinstance(config, LanguageModelConfig):
        return Work(1, _CONTEXT)
    return Work(1, _ORDINARY, _ORDINARY if isinstance(config, EncoderDecoderConfig) else 0)


def _found(name: str, changes: list[str]) -> "tuple[AnyModelConfig, Recipe | None]":
    """The model that is meant and, where there is one, the recipe it is trained by."""
    from regard.model import read_any_config
    from regard.run import find, read_facts
    from regard.task import read_recipe
    from regard.task.reading import changed
    from regard.task.training import likely_cost

    path, place = Path(name), find(name)
    values: Any
    if place.is_dir():
        if (place / "recipe.toml").is_file():
            recipe = read_recipe(place, changes)
            known = (place / "run.json").is_file() and not changes
            if known:
                return read_any_config(read_facts(place).get("model"), str(place)), recipe
            return likely_cost(recipe).config, recipe
        values, where = read_facts(place).get("model"), f"{place / 'run.json'}: model"
    else:
        values, where = _settings(path), str(path)
        if values is None:
            recipe = read_recipe(name, changes)
            return likely_cost(recipe).config, recipe
    for change in changes if isinstance(values, dict) else []:
        values = changed(values, change)
    return read_any_config(values, where), None


def _settings(path: Path) -> Any:
    """The settings of a model in a file; None where it is a recipe, or there is no such file."""
    if path.suffix not in (".json", ".toml") or (path.suffix == ".toml" and not path.is_file()):
        return None
    if not path.is_file():
        raise UserError(f"{path}: there is no such file with a model's settings.")
    try:
        text = path.read_text(encoding="utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).") from None
    return None if path.suffix == ".toml" and "kind" not in values else values
