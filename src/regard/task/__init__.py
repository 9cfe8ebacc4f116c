"""What ties data, model, loss and measure together: translation, language modelling, parsing …"""

from regard.task.classifier import Classifier, load_classifier
from regard.task.filler import Filler, Guess, load_filler
from regard.task.generator import Generated, Generator, load_generator
from regard.task.labeller import Labeller, load_labeller
from regard.task.opening import open_model
from regard.task.parser import Parsed, Parser, load_parser
from regard.task.reading import read_recipe, shipped_recipes
from regard.task.recipe import Recipe
from regard.task.training import Trained, train
from regard.task.translator import Translated, Translator, load_translator

__all__ = [
    "Classifier",
    "Filler",
    "Generated",
    "Generator",
    "Guess",
    "Labeller",
    "Parsed",
    "Parser",
    "Recipe",
    "Trained",
    "Translated",
    "Translator",
    "load_classifier",
    "load_filler",
    "load_generator",
    "load_labeller",
    "load_parser",
    "load_translator",
    "open_model",
    "read_recipe",
    "shipped_recipes",
    "train",
]
