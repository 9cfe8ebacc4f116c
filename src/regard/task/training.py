"""From a recipe to a finished run folder.

    recipe.toml         the recipe, everything filled in
    held-out.jsonl      the pairs taken out to watch the run, where the recipe names none
    tokenizer.json      what makes ids of text (target_tokenizer.json too, where the two languages differ)
    metrics.jsonl       how training went, a line of numbers at a time; tensorboard/ the same for TensorBoard
    checkpoints/        what a stopped run goes on from
    run.json, model.safetensors, README.md   the model, once it is finished, and its card

Nothing is done twice that is there already, and nothing that is there is lost.
"""

import contextlib
import platform
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from regard.config import ConfigError
from regard.cost import Cost, advice_for_memory, estimate, this_hardware
from regard.errors import UserError
from regard.files import sweep, write_text
from regard.model import count_parameters, count_table_parameters
from regard.run import finish, read_facts
from regard.task.card import model_card
from regard.task.job import Job, Score
from regard.task.kinds import read_values
from regard.task.reading import read_recipe, write_recipe
from regard.task.recipe import Recipe
from regard.train.layout import check_division
from regard.train.loop import Listener, Loop, Outcome, Silent
from regard.train.settings import TrainConfig
from regard.train.world import ALONE, World


@dataclass(frozen=True)
class Trained:
    """A finished run: where it is and how it did on each of its test sets."""

    folder: Path
    scores: Mapping[str, Any]
    """Of each test set what its task gives, such as a `TranslationScore`."""
    seconds: float


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    device: torch.device | str = "cpu",
    listener: Listener | None = None,
    world: World = ALONE,
) -> Trained:
    """Train a recipe in a folder: from its beginning, or where it was left if `resume` is given.

    Called in each process of a `world`; the folder must be one they all see. Only the first speaks and writes.
    """
    listener = listener if listener is not None and world.first else Silent()
    place = torch.device(device)
    check_division(recipe.train.parallel, world.size)
    fresh = world.first and not (folder / "recipe.toml").exists()
    if world.from_first(lambda: _claim(recipe, folder, resume)):
        listener.say(f"{folder}: this run is finished already.")
        return _finished(recipe, folder)
    try:
        job = recipe.begin(folder, listener.say, world)
        loop = Loop(job, recipe.train, folder, device=place, listener=listener, world=world)
    except UserError:
        if fresh:
            _give_up(recipe, folder)
        raise
    listener.say(f"Training on {job.report}")
    unheard = [] if recipe.watched else _needs_watching(recipe.train)
    if unheard:
        listener.say(f"Nothing is kept aside to watch the run (data.valid), so {' and '.join(unheard)}.")
    cost = _preflight(recipe, job, place, listener)
    listener.say(loop.how())
    outcome = loop.run(resume=resume)
    half, model = recipe.train.store == "float16", job.model
    if half:  # what is scored is what is stored
        model.load_state_dict({key: value.half().float() for key, value in model.state_dict().items()})
    scores = job.test(listener.say)
    if world.first:
        origin = _origin(recipe, job, outcome, cost, scores, place)
        write_text(folder / "README.md", model_card(recipe, origin))
        finish(model, folder, origin=origin, half=half)
    return Trained(folder, scores, outcome.progress.seconds)


def with_parallel(recipe: Recipe, kind: str | None, shard: int | None, processes: int | None = None) -> Recipe:
    """The recipe, computed by several processes in the way asked for; what it gives is the same."""
    before = recipe.train.parallel
    kind = kind or before.kind
    given = {"kind": kind, "shard": shard or (before.shard if kind == before.kind else None)}
    try:
        train = TrainConfig(**(recipe.train.plain() | {"parallel": before.plain() | given}))
    except ConfigError as error:
        raise ConfigError(f"train.{error.key}", error.problem) from None
    check_division(train.parallel, processes or 1)
    return recipe.model_copy(update={"train": train})


def _claim(recipe: Recipe, folder: Path, resume: bool) -> bool:
    """Make the folder this recipe's, or see that it is; whether its run is finished already."""
    path = folder / "recipe.toml"
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose another folder by --out.")
    if folder.exists() and not resume and (path.exists() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; go on with it by --resume, or choose another folder by --out.")
    if path.is_file():
        before = read_recipe(path)
        difference = _difference(before.plain(), read_values(tomllib.loads(write_recipe(recipe))).plain())
        if difference is not None:
            raise UserError(
                f"{folder} was started with another recipe: {difference}. Go on without changes, or start a new run "
                f"from its weights with --set init_from={folder}."
            )
        sweep(folder)
        return (folder / "run.json").is_file()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot write there ({error.strerror}); choose another folder by --out.") from None
    write_text(path, write_recipe(recipe))
    return False


def _needs_watching(config: TrainConfig) -> list[str]:
    """What becomes of settings that cannot be followed without a validation part."""
    found = []
    if config.final == "best":
        found.append('train.final = "best" ends with the last weights')
    if config.patience:
        found.append(f"train.patience = {config.patience} never stops it early")
    return found


def _give_up(recipe: Recipe, folder: Path) -> None:
    """Take back what a run wrote that found no data to begin with: nothing is to be in the next attempt's way."""
    for name in (*recipe.written, "recipe.toml"):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _difference(before: Any, after: Any, key: str = "") -> str | None:
    """The first setting two recipes differ in, that has to do with how a run goes."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            if not key and name in ("name", "description", "expect"):
                continue
            if (key, name) == ("train", "parallel"):  # any number of processes takes the same steps
                continue
            found = _difference(before.get(name), after.get(name), f"{key}.{name}" if key else name)
            if found is not None:
                return found
        return None
    return None if before == after else f"{key} was {before!r} and is {after!r} now"


def likely_cost(recipe: Recipe) -> Cost:
    """What a run will take, guessed from the recipe alone."""
    config = recipe.train
    return estimate(
        recipe.settings,
        recipe.likely_work(),
        precision=config.precision,
        optimiser=config.optimiser.kind,
        recompute=config.recompute,
    )


def _preflight(recipe: Recipe, job: Job[Any], device: torch.device, listener: Listener) -> Cost:
    """What the run will take, of all processes together, said before it begins."""
    config, size = recipe.train, job.world.size
    shared_out = size > 1 and config.parallel.kind == "fsdp"
    cost = estimate(
        job.model.config,
        job.work(),
        precision=config.precision,
        optimiser=config.optimiser.kind,
        processes=size,
        shards=(config.parallel.shard or size) if shared_out else 1,
        recompute=config.recompute,
    )
    hardware = this_hardware(device)
    captured = device.type == "cuda" and config.capture and cost.recordable  # as the loop decides it
    listener.say(f"Before it begins: {cost.describe(hardware, captured=captured)}.")
    advice = advice_for_memory(cost, hardware, captured=captured)
    if advice is not None:
        listener.say(advice)
    return cost


def _origin(
    recipe: Recipe,
    job: Job[Any],
    outcome: Outcome,
    cost: Cost,
    scores: Mapping[str, Score],
    device: torch.device,
) -> dict[str, Any]:
    """Where a model comes from, as plain data for run.json and the card."""
    import regard

    progress, processes = outcome.progress, job.world.size
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "recipe": recipe.name,
        "task": recipe.task,
        "seed": recipe.train.seed,
        "steps": progress.step,
        "stopped_early": outcome.stopped_early,
        "weights": outcome.weights,
        "words": progress.words,
        "parts": progress.parts,
        "seconds": round(progress.seconds, 1),
        "flops": cost.flops_per_step * progress.step,
        "parameters": count_parameters(job.model),
        "non_embedding": count_parameters(job.model) - count_table_parameters(job.model),
        "device": name if processes == 1 else f"{processes} × {name}",
        "versions": {"regard": regard.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "finished": time.strftime("%Y-%m-%d", time.gmtime()),
        **job.facts(),
        "scores": {name: score.rounded() for name, score in scores.items()},
    }


def _finished(recipe: Recipe, folder: Path) -> Trained:
    origin = read_facts(folder)["origin"]
    names = [field.name for field in fields(recipe.score_type)]
    scores = {
        test: recipe.score_type(**{name: values[name] for name in names}) for test, values in origin["scores"].items()
    }
    return Trained(folder, scores, origin["seconds"])
