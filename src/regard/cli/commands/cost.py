"""`regard cost`."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from regard.cli.options import DeviceOption, OverridesOption, select_device
from regard.config import parse_json, parse_toml
from regard.errors import UserError

if TYPE_CHECKING:
    from regard.cost import Cost, Hardware, Workload
    from regard.model import AnyModelConfig
    from regard.task.base import Recipe

_CONTEXT_LENGTH, _SENTENCE_LENGTH = 1024, 25
"""Tokens of a text and of a sentence if there is no recipe."""

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE|MODEL|CONFIG",
        help="A recipe or .toml file, a run folder or pretrained model, or a model config (.json, .toml).",
    ),
]


def cost(
    name: NameArgument,
    overrides: OverridesOption = None,
    hardware: Annotated[
        str | None, typer.Option(help="The GPU or CPU to estimate for, such as h200. Default: this machine.")
    ] = None,
    price: Annotated[float | None, typer.Option(help="The price of one device per hour, in any currency.")] = None,
    processes: Annotated[int, typer.Option(help="The number of devices that share each step (data parallelism).")] = 1,
    length: Annotated[
        int | None, typer.Option(help="Sequence length: tokens of the source and of the target. Default: the recipe's.")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Batch size in target tokens. Default: the recipe's.")] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Target tokens to train on, such as 1e9. Default: those of the recipe's steps.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON output: print one object.")] = False,
    device: DeviceOption = "auto",
) -> None:
    """Estimate memory, time and price of training in advance.

    Also the number of parameters and FLOPs, and formulas that show how they grow. Nothing is downloaded or trained.
    """
    from regard.cost import HARDWARE, Report, detect_hardware

    if hardware is not None and hardware not in HARDWARE:
        raise UserError(f"--hardware {hardware}: expected one of {', '.join(HARDWARE)}; leave it out for this machine.")
    for option, value in (("processes", processes), ("length", length), ("batch", batch), ("tokens", tokens)):
        if value is not None and not 1 <= value < 1e18:
            raise UserError(f"--{option} {value:g}: expected a number of at least 1.")
    machine = HARDWARE[hardware] if hardware is not None else detect_hardware(select_device(device, None))
    shape = _Shape(length, batch, tokens)
    estimated, capture, trained = _estimate(name, overrides or [], shape, processes, machine)
    cuda_graphs = machine.supports_cuda_graphs and capture and estimated.supports_cuda_graphs
    report = Report(estimated, machine, price, cuda_graphs, trained)
    if as_json:
        print(json.dumps(report.to_dict(), ensure_ascii=False))
        return
    if trained:
        print(estimated.describe(machine, cuda_graphs=cuda_graphs))
    if estimated.parameters:
        print(report.table(), end="\n\n")
    print(report.growth.describe())
    if report.advice is not None:
        print(report.advice, file=sys.stderr)


class _Shape(NamedTuple):
    """The shape of the batches as the command line gives it."""

    length: int | None
    batch: int | None
    tokens: float | None


def _estimate(
    name: str, overrides: list[str], shape: _Shape, processes: int, machine: "Hardware"
) -> "tuple[Cost, bool, bool]":
    """The cost, whether training uses CUDA graphs, and whether its number of steps is known."""
    from regard.cost import TrainingSetup, estimate
    from regard.model import VisionTransformerConfig
    from regard.task.run import expected_cost

    config, recipe = _find(name, overrides)
    length, batch, tokens = shape
    if isinstance(config, VisionTransformerConfig) and length is not None:
        height, width = config.size
        raise UserError(f"--length is for texts; an image of {height} × {width} has {config.sequence_length:,} tokens.")
    if recipe is None:
        default = estimate(config, _default_workload(config), TrainingSetup("bfloat16"))
        batch = batch or max(4096, length or default.workload.target_length)
    else:
        default = expected_cost(recipe, machine.device)
        batch = batch or recipe.train.batch_tokens
    workload = default.workload
    long = min(batch, length or workload.target_length)
    if isinstance(config, VisionTransformerConfig) and long < config.sequence_length:
        raise UserError(f"--batch {batch}: a single image has {config.sequence_length:,} tokens.")
    predicted = workload.predicted_tokens
    workload = replace(
        workload,
        batch_size=batch // long,
        target_length=long,
        source_length=long if workload.source_length else 0,
        predicted_tokens=None if predicted is None else min(long, math.ceil(predicted * long / workload.target_length)),
    )
    if tokens is not None:
        workload = replace(
            workload, steps=max(1, round(tokens / (workload.batch_size * long * workload.grad_accumulation)))
        )
    parallel = None if recipe is None else recipe.train.parallel
    setup = TrainingSetup(
        default.setup.precision,
        default.setup.optimizer,
        processes=processes,
        shards=1 if parallel is None or parallel.kind == "ddp" else parallel.shard or processes,
        activation_checkpointing=default.setup.activation_checkpointing,
    )
    found = estimate(config, workload, setup)
    return found, recipe is None or recipe.train.cuda_graphs, recipe is not None or tokens is not None


def _default_workload(config: "AnyModelConfig") -> "Workload":
    """One sequence if there is no recipe: a full context, a sentence of usual length, or an image."""
    from regard.cost import Workload
    from regard.model import CAUSAL_MODELS, SEQ2SEQ_MODELS, VisionTransformerConfig

    if isinstance(config, VisionTransformerConfig):
        return Workload(1, config.sequence_length)
    if config.kind in CAUSAL_MODELS:
        return Workload(1, _CONTEXT_LENGTH)
    return Workload(1, _SENTENCE_LENGTH, _SENTENCE_LENGTH if config.kind in SEQ2SEQ_MODELS else 0)


def _find(name: str, overrides: list[str]) -> "tuple[AnyModelConfig, Recipe | None]":
    """The config of the named model and, if there is one, its recipe."""
    from regard.model import read_any_config
    from regard.run import find_model, read_metadata
    from regard.task.recipe_io import apply_override, read_recipe
    from regard.task.run import expected_cost

    path, folder = Path(name), find_model(name)
    values: Any
    if folder.is_dir():
        if (folder / "recipe.toml").is_file():
            recipe = read_recipe(folder, overrides)
            if (folder / "run.json").is_file() and not overrides:
                return read_any_config(read_metadata(folder).get("model"), str(folder)), recipe
            return expected_cost(recipe).config, recipe
        values, where = read_metadata(folder).get("model"), f"{folder / 'run.json'}: model"
    else:
        values, where = _read_config(path), str(path)
        if values is None:
            recipe = read_recipe(name, overrides)
            return expected_cost(recipe).config, recipe
    for override in overrides if isinstance(values, dict) else []:
        values = apply_override(values, override)
    return read_any_config(values, where), None


def _read_config(path: Path) -> Any:
    """The model config in a file; None if it is a recipe, or not a file."""
    if path.suffix not in (".json", ".toml") or (path.suffix == ".toml" and not path.is_file()):
        return None
    if not path.is_file():
        raise UserError(f"{path}: this model config does not exist.")
    try:
        text = path.read_text(encoding="utf-8")
        values = parse_json(text) if path.suffix == ".json" else parse_toml(text)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).") from None
    return None if path.suffix == ".toml" and "kind" not in values else values
