"""What ties data, model, loss and measure together. So far: translation."""

from regard.task.recipe import Recipe, read_recipe, shipped_recipes
from regard.task.training import Trained, train
from regard.task.translator import Translated, Translator, load_translator, open_model

__all__ = [
    "Recipe",
    "Trained",
    "Translated",
    "Translator",
    "load_translator",
    "open_model",
    "read_recipe",
    "shipped_recipes",
    "train",
]
