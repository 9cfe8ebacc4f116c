"""Evaluation of a model on the test sets of its recipe, or on a user's own file, whatever its task.

Outputs of tasks on text pairs are compared with references (`translation/evaluate.py`). For any other task, the task
tests the model as it does at the end of a run. A user's file is read as the recipe's own data is, so a test set of the
recipe gives the same score as a file. A model that has no recipe, such as an imported one, is tested with the settings
that it implies itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.data.text.corpus import CorpusConfig
from regard.data.tokenizers.tokenizer import read_tokenizer
from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.model import build_meta, read_any_config
from regard.run import LoadedModel, find_model, is_unfinished, load_model, read_metadata, read_origin
from regard.run.folder import TOKENIZERS
from regard.task.base import Recipe
from regard.task.pipeline import Pipeline
from regard.task.recipe_io import read_recipe
from regard.task.registry import TASKS, TaskInfo, find_task, get_task
from regard.task.translation.evaluate import TextTestSet, is_output_file, recipe_test_sets
from regard.task.translation.pipeline import Translator
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.task import Score

Model = str | Path | Pipeline
"""A run folder, a checkpoint or a pretrained model by its name, or one that is loaded."""


def evaluate(
    model: Model,
    test: str | None = None,
    *,
    data: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    beam_size: int | None = None,
    decode: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, Score]:
    """The scores of a model on the test sets of its recipe, on the one named `test`, or on a user's file.

    The score on a file or folder `data` is called "given"; `settings` say how it is read, as [data] does in a recipe.
    `beam_size` replaces that of the recipe, for models that search for their output, as `decode` does other settings of
    its search.
    """
    changes = dict(decode or {}) | ({} if beam_size is None else {"beam_size": beam_size})
    if not compares_texts(model):
        found = evaluate_task(
            model, test, data=data, settings=settings, decode=changes, device=device, process_group=process_group
        )
        return found.scores
    assert not isinstance(model, Pipeline) or isinstance(model, Translator)
    if data is not None:
        refuse_both(test)
        sets = [TextTestSet.given(CorpusConfig(path=str(data), **settings or {}))]
    else:
        sets = recipe_test_sets(_name_of(model), test)
    scores: dict[str, Score] = {}
    for one in sets:
        outputs = one.translate(
            model, lambda config: config.updated(changes), device=device, process_group=process_group
        )
        scores[one.name] = one.score_outputs(outputs)
    return scores


@dataclass(frozen=True)
class TaskEvaluation:
    """Scores by test set, and the recipe that says how they were made."""

    recipe: Recipe
    scores: dict[str, Score]

    def describe(self, name: str) -> str:
        """The score on a test set in words, with what was counted."""
        score = self.scores[name]
        counted = self.recipe.describe_score(score)
        return f"{name} ({counted}): {score}" if counted else f"{name}: {score}"

    def record(self, name: str) -> dict[str, Any]:
        """The same as plain data."""
        return {"test": name} | self.scores[name].rounded() | self.recipe.score_settings()


def evaluate_task(
    model: Model,
    test: str | None = None,
    *,
    data: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    decode: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> TaskEvaluation:
    """Have the task test a model. Of the recipe's data, only the test sets are read; with `data`, not even these."""
    if data is not None:
        refuse_both(test)
    folder = model.path if isinstance(model, Pipeline) else find_model(model)
    loaded = None
    if folder is not None and (folder / "recipe.toml").is_file():
        recipe = read_recipe(folder)
        if data is None:
            recipe = _with_test_set(recipe, test, folder)
    elif data is None:
        raise UserError(f"{folder} contains no recipe, so it names no test sets; give a file of your own with --data.")
    else:
        loaded = _loaded(model, device)
        recipe = _task_of(loaded).recipe_class().for_model(loaded, str(data))
    if data is not None:
        recipe = recipe.with_test_data(str(data), settings or {})
    if decode:
        recipe = _with_search(recipe, dict(decode))
    loaded = loaded or _loaded(model, device)
    task: Any = get_task(recipe.task).task_class().for_testing(recipe, loaded, process_group)
    return TaskEvaluation(recipe, task.test(_silent))


def recorded_task(model: str | Path) -> TaskInfo | None:
    """The task that a model was trained for; None if its folder does not record one, or it is not a run."""
    folder = find_model(model)
    is_run = (folder / "run.json").is_file() or is_unfinished(folder)
    name = read_origin(folder).get("task") if is_run else None
    return get_task(name) if name in TASKS else None


def task_of_model(model: Model) -> TaskInfo | None:
    """The task of a model: the one it was trained for, else the first that supports it. A file of outputs has none.

    The weights are not read.
    """
    if isinstance(model, Pipeline):
        return find_task(model.loaded)
    folder = find_model(model)
    info = recorded_task(model)
    if info is not None or not (folder / "run.json").is_file():
        return info
    metadata = read_metadata(folder)
    structure = build_meta(read_any_config(metadata.get("model"), f"{folder / 'run.json'}: model"))
    tokenizers = [read_tokenizer(folder / name) if (folder / name).is_file() else None for name in TOKENIZERS]
    return find_task(LoadedModel(structure, *tokenizers, path=folder, origin=read_origin(folder)))


def compares_texts(model: Model) -> bool:
    """Whether a model (or a file of outputs) is evaluated by comparing texts with references."""
    if not isinstance(model, Pipeline) and is_output_file(find_model(model)):
        return True
    info = task_of_model(model)
    return info is None or info.text_pairs


def refuse_both(test: str | None) -> None:
    """Refuse a test set of the recipe beside files."""
    if test is not None:
        raise UserError("--test names a test set of the recipe; leave it out, or the files.")


def _name_of(model: Model) -> str | Path:
    """The folder of a model, or its name."""
    if not isinstance(model, Pipeline):
        return model
    if model.path is None:
        raise UserError("This model is in no folder, so it has no test sets; give a file of your own as data.")
    return model.path


def _loaded(model: Model, device: torch.device | str) -> LoadedModel:
    if isinstance(model, Pipeline):
        return model.loaded
    loaded = load_model(model)
    loaded.model.to(device).float()
    return loaded


def _task_of(loaded: LoadedModel) -> TaskInfo:
    info = find_task(loaded)
    if info is None:
        raise UserError(f"{loaded.path}: this model belongs to no task that can be evaluated, or has no tokenizer.")
    return info


def _with_test_set(recipe: Recipe, test: str | None, folder: Path) -> Recipe:
    """The recipe with only this test set."""
    held_out = recipe.held_out_source(folder)
    known = [name for name in recipe.data_sources() if name != "train"] + ([] if held_out is None else ["held-out"])
    if not known:
        raise UserError(f"{folder} was trained without test sets; give a file of your own with --data.")
    if test is not None and test not in known:
        raise UserError(f"{folder} has no test set {test!r}; it has {', '.join(known)}.")
    data: Any = vars(recipe)["data"]
    if held_out is not None and (test == "held-out" or (test is None and not data.test)):
        chosen = {"held-out": held_out}
    elif test is None:
        return recipe
    else:
        chosen = {name: source for name, source in data.test.items() if name == test}  # if none, it is `valid`
    return recipe.model_copy(update={"data": data.model_copy(update={"test": chosen})})


def _with_search(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    decode = vars(recipe).get("decode")
    if not isinstance(decode, DecodeConfig):
        option = "--beam-size" if set(changes) == {"beam_size"} else f"decode.{next(iter(changes))}"
        raise UserError(f"{option} is for models that search for their output; one for {recipe.task} does not.")
    return recipe.model_copy(update={"decode": decode.updated(changes)})


def _silent(message: str) -> None:
    """Log nothing: the scores are returned."""
