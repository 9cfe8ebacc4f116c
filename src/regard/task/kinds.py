"""The recipes of all tasks, by the task's name. A new task joins here."""

import difflib
from collections.abc import Mapping

from regard.errors import UserError
from regard.task.filling_recipe import FillingRecipe
from regard.task.labelling_recipe import ClassificationRecipe, TaggingRecipe
from regard.task.language_recipe import LanguageRecipe
from regard.task.parsing_recipe import ParsingRecipe
from regard.task.pictures_recipe import PicturesRecipe
from regard.task.recipe import Recipe
from regard.task.translation_recipe import TranslationRecipe

RECIPES: dict[str, type[Recipe]] = {
    "translation": TranslationRecipe,
    "language": LanguageRecipe,
    "parsing": ParsingRecipe,
    "pictures": PicturesRecipe,
    "filling": FillingRecipe,
    "classification": ClassificationRecipe,
    "tagging": TaggingRecipe,
}


def read_values(values: object, where: str = "") -> Recipe:
    """A recipe from plain data, of whichever task it says it is for; translation, if it says nothing."""
    task = values.get("task", "translation") if isinstance(values, Mapping) else "translation"
    if task not in RECIPES:
        near = difflib.get_close_matches(str(task), RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known tasks: {', '.join(RECIPES)}."
        raise UserError(f"{where + ': ' if where else ''}task: found {task!r}; {hint}")
    return RECIPES[task].read(values, where)
