"""The registered tasks. A new task is a package and one line in `TASKS`.

Nothing of a task is imported before it is used: the registry names a package, and the package's `TASK` names its recipe
and its pipeline as "module:attribute".
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.run import LoadedModel
    from regard.task.base import Recipe
    from regard.task.pipeline import Pipeline

TASKS = {
    "parsing": "regard.task.parsing:TASK",
    "translation": "regard.task.translation:TASK",
    "language-modeling": "regard.task.language_modeling:TASK",
    "image-classification": "regard.task.image_classification:TASK",
    "masked-lm": "regard.task.masked_lm:TASK",
    "text-classification": "regard.task.classification:TEXTS",
    "token-classification": "regard.task.classification:TOKENS",
    "word-vectors": "regard.task.word_vectors:TASK",
}
"""Where each task is, by its name in recipes. A model that does not record its task is opened as the first one that
supports it."""
DEFAULT_TASK = "translation"
"""The task of a recipe that names none."""


@dataclass(frozen=True)
class TaskInfo:
    """What a task's package tells the rest of the program."""

    name: str
    """The value of `task` in recipes."""
    recipe: str
    """The `Recipe` class, as "module:attribute"."""
    task: str
    """The class whose `prepare(recipe, folder, log, process_group)` makes the `regard.train.task.Task`, and whose
    `for_testing(recipe, loaded, process_group)` makes one that can only `test` a trained model."""
    pipeline: str
    """The `Pipeline` class, as "module:attribute"."""
    commands: tuple[str, ...] = ()
    """The `regard` commands that use its models."""
    head: str | None = None
    """The kind of head that its models have, if another task has the same pipeline."""
    text_pairs: bool = False
    """Its data are pairs of texts, so `train` takes --pairs, and `score` compares outputs with references."""

    def recipe_class(self) -> "type[Recipe]":
        found: type[Recipe] = _resolve(self.recipe)
        return found

    def task_class(self) -> Any:
        return _resolve(self.task)

    def pipeline_class(self) -> "type[Pipeline]":
        found: type[Pipeline] = _resolve(self.pipeline)
        return found


def get_task(name: object, where: str = "") -> TaskInfo:
    """A task by its name. `where` names the recipe in the error for an unknown one."""
    if name not in TASKS:
        near = difflib.get_close_matches(str(name), TASKS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known tasks: {', '.join(TASKS)}."
        raise UserError(f"{where + ': ' if where else ''}task: found {name!r}; {hint}")
    info: TaskInfo = _resolve(TASKS[str(name)])
    return info


def find_task(loaded: "LoadedModel") -> TaskInfo | None:
    """The task of a loaded model: the one it was trained for, else the first that supports it."""
    recorded = loaded.origin.get("task")
    for name in dict.fromkeys([recorded, *TASKS] if recorded in TASKS else TASKS):
        info = get_task(name)
        head = getattr(getattr(loaded.config, "head", None), "kind", None)
        if info.head in (None, head) and info.pipeline_class().unsupported_reason(loaded) is None:
            return info
    return None


def task_of(values: object) -> object:
    """The task's name in a recipe given as plain data."""
    return values.get("task", DEFAULT_TASK) if isinstance(values, Mapping) else DEFAULT_TASK


def read_values(values: object, where: str = "") -> "Recipe":
    """A recipe from plain data, of the class that its task uses."""
    return get_task(task_of(values), where).recipe_class().read(values, where)


def _resolve(path: str) -> Any:
    """The object at "module:attribute"."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)
