"""regard: train, run, serve and look into Transformers, from plain files.

    translator = regard.load("en-tr")                   # a pretrained model, or a run folder
    translator.translate("The cat ate the mouse.")
    regard.trace(translator, "The cat ate the mouse.")  # attention, probabilities and search
    regard.train("quick", out="runs/quick")             # a recipe: by name, by path, or as an object
    regard.evaluate("runs/quick")                       # on the test sets of its recipe, or with data= on your own

Everything else is imported when it is first used, so that `import regard` is fast.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from regard.errors import UserError
from regard.task.pipeline import Pipeline

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from regard.attention import Causal, Dilated, Full, Global, Pattern, Sliding, attend
    from regard.decode import (
        BeamSearch,
        ConstrainedBeamSearch,
        Constraints,
        DecodeConfig,
        DiverseBeamSearch,
        Greedy,
        Sampler,
        SearchStrategy,
        beam_search,
        greedy_search,
    )
    from regard.look.trace import Trace
    from regard.model import EncoderConfig, EncoderDecoderConfig, LanguageModelConfig, VisionTransformerConfig
    from regard.run import save_model
    from regard.task.base import Recipe
    from regard.task.classification.pipeline import TextLabeler
    from regard.task.image_classification.pipeline import ImageClassifier
    from regard.task.language_modeling.pipeline import TextGenerator
    from regard.task.masked_lm.pipeline import FillMask
    from regard.task.parsing.pipeline import Parser
    from regard.task.recipe_io import read_recipe
    from regard.task.run import RunResult
    from regard.task.translation.pipeline import Translator
    from regard.train.callback import Callback
    from regard.train.config import TrainConfig
    from regard.train.task import Score

try:
    __version__ = version("regard")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.1.0"

_LAZY = {
    "regard.attention": ("Causal", "Dilated", "Full", "Global", "Pattern", "Sliding", "attend"),
    "regard.decode": (
        "BeamSearch",
        "ConstrainedBeamSearch",
        "Constraints",
        "DecodeConfig",
        "DiverseBeamSearch",
        "Greedy",
        "Sampler",
        "SearchStrategy",
        "beam_search",
        "greedy_search",
    ),
    "regard.model": ("EncoderConfig", "EncoderDecoderConfig", "LanguageModelConfig", "VisionTransformerConfig"),
    "regard.run": ("save_model",),
    "regard.task.base": ("Recipe",),
    "regard.task.classification.pipeline": ("TextLabeler",),
    "regard.task.image_classification.pipeline": ("ImageClassifier",),
    "regard.task.language_modeling.pipeline": ("TextGenerator",),
    "regard.task.masked_lm.pipeline": ("FillMask",),
    "regard.task.parsing.pipeline": ("Parser",),
    "regard.task.recipe_io": ("read_recipe",),
    "regard.task.translation.pipeline": ("Translator",),
    "regard.train.config": ("TrainConfig",),
    "regard.train.callback": ("Callback",),
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "BeamSearch",
    "Callback",
    "Causal",
    "ConstrainedBeamSearch",
    "Constraints",
    "DecodeConfig",
    "Dilated",
    "DiverseBeamSearch",
    "EncoderConfig",
    "EncoderDecoderConfig",
    "FillMask",
    "Full",
    "Global",
    "Greedy",
    "ImageClassifier",
    "LanguageModelConfig",
    "Parser",
    "Pattern",
    "Pipeline",
    "Recipe",
    "Sampler",
    "SearchStrategy",
    "Sliding",
    "TextGenerator",
    "TextLabeler",
    "TrainConfig",
    "Translator",
    "UserError",
    "VisionTransformerConfig",
    "__version__",
    "attend",
    "beam_search",
    "evaluate",
    "greedy_search",
    "load",
    "read_recipe",
    "save_model",
    "trace",
    "train",
]


def load(folder: "str | Path", device: "torch.device | str" = "cpu") -> Pipeline:
    """Load a run folder, or a pretrained model by its name, as the pipeline of its task.

    `regard.load("en-tr")` is a `Translator`. A model that belongs to no task is a plain `Pipeline`. A run that has not
    finished is loaded from its newest checkpoint; "runs/quick@best", "runs/quick@last" and "runs/quick@1500" name one.
    """
    from regard.task.auto import open_model

    return open_model(folder, device)


def train_recipe(
    recipe: "Recipe | str | Path",
    *,
    data: "str | Path | None" = None,
    out: "str | Path | None" = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    device: "torch.device | str" = "cpu",
    callbacks: "Sequence[Callback]" = (),
) -> "RunResult":
    """Train a recipe: `regard.train("quick", out="runs/quick")`.

    `recipe` is the name of a recipe that ships with regard, the path of a .toml file, or a `Recipe`. With `data`, it
    trains on your own file or folder instead of its own data. `overrides` are of the form "train.steps=1000". The run
    folder is `out`, or runs/NAME; with `resume` an interrupted run continues, or a finished one with more train.steps.
    `callbacks` receive messages and metrics.
    """
    from regard.task.run import train_recipe

    return train_recipe(
        recipe, data=data, out=out, overrides=overrides, resume=resume, device=device, callbacks=callbacks
    )


train = train_recipe
"""`regard.train` is also the name of a package, which calls `train_recipe` when it is called."""


def evaluate(
    model: "str | Path | Pipeline",
    test: str | None = None,
    *,
    data: "str | Path | None" = None,
    settings: "Mapping[str, Any] | None" = None,
    beam_size: int | None = None,
    device: "torch.device | str" = "cpu",
) -> "dict[str, Score]":
    """The scores of a model on the test sets of its recipe, on the one named `test`, or on a file of your own.

    `model` is a run folder, a pretrained model, or what `load` returned. `data` is a file or folder of the kind that
    the model is trained on; its score is called "given": `regard.evaluate("runs/quick", data="my.tsv")["given"]`.
    `settings` say how it is read, as [data] does in a recipe: `{"columns": [3, 1]}`. `beam_size` replaces that of the
    recipe, for models that search for their output.
    """
    from regard.task.evaluate import evaluate

    return evaluate(model, test, data=data, settings=settings, beam_size=beam_size, device=device)


def trace(model: Pipeline, text: Any, **settings: Any) -> "Trace":
    """Record a model at work on a text: `regard.trace(model, "Hello.")`, which is `model.trace("Hello.")`.

    `settings` are those of `regard.look.tracing.trace_pipeline`: decoding settings, and heads to ablate.
    """
    from regard.look.tracing import trace_pipeline

    return trace_pipeline(model, text, **settings)


Pipeline.tracer = trace


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
