"""A finished model on the test sets of its own recipe, whatever its task: the data is opened as for training, the
model is the one in the folder, and the task does what it does when a run is over."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from regard.errors import UserError
from regard.run import find, load, read_facts
from regard.task.job import Score
from regard.task.reading import read_recipe
from regard.task.recipe import Recipe
from regard.train.world import ALONE, World


def task_of(model: str | Path) -> str | None:
    """What a model was trained for; None where its folder does not say so, or it is no folder of a finished run."""
    place = find(model)
    origin = read_facts(place).get("origin") if (place / "run.json").is_file() else None
    return str(origin["task"]) if isinstance(origin, dict) and "task" in origin else None


def run_tests(
    model: str | Path,
    name: str | None = None,
    *,
    beams: int | None = None,
    device: torch.device | str = "cpu",
    world: World = ALONE,
) -> Mapping[str, Score]:
    """How a model does on the test sets of its recipe, or on the one of that name.

    `beams`: search with so many, for models that search.
    """
    place = find(model)
    read_facts(place)  # says so if there is no such model
    if not (place / "recipe.toml").is_file():
        raise UserError(f"{place} has no recipe in it, so it names no test sets of its own.")
    recipe = _only(read_recipe(place), name, place)
    if beams is not None:
        recipe = _with_beams(recipe, beams)
    job: Any = recipe.begin(place, lambda sentence: None, world)
    job.model = load(place).model.float().to(device)
    scores: Mapping[str, Score] = job.test(lambda sentence: None)
    return scores


def _only(recipe: Recipe, name: str | None, place: Path) -> Recipe:
    """The recipe with just this test set, and nothing to start from: its model is there already."""
    known = [one for one in recipe.places() if one != "train"]
    if not known:
        raise UserError(f"{place} was trained without test sets, so there is nothing to score it on.")
    if name is not None and name not in known:
        raise UserError(f"{place} has no test set {name!r}; it has {', '.join(known)}.")
    changes: dict[str, Any] = {"init_from": None}
    if name is not None:
        data: Any = vars(recipe)["data"]
        test = {one: part for one, part in data.test.items() if one == name}  # without any, it is the validation part
        changes["data"] = data.model_copy(update={"test": test})
    return recipe.model_copy(update=changes)


def _with_beams(recipe: Recipe, beams: int) -> Recipe:
    decode = vars(recipe).get("decode")
    if decode is None:
        raise UserError(f"--beams is for models that search for their output; one for {recipe.task} does not.")
    return recipe.model_copy(update={"decode": type(decode).read(decode.plain() | {"beams": beams})})
