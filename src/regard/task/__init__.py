"""What ties data, model, loss and measure together. So far: translation, and writing with a language model."""

from regard.task.generator import Generated, Generator, load_generator
from regard.task.recipe import Recipe, read_recipe, shipped_recipes
from regard.task.training import Trained, train
from regard.task.translator import Translated, Translator, load_translator, open_model

__all__ = [
    "Generated",
    "Generator",
    "Recipe",
    "Trained",
    "Translated",
    "Translator",
    "load_generator",
    "load_translator",
    "open_model",
    "read_recipe",
    "shipped_recipes",
    "train",
]
