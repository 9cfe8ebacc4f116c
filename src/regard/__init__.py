"""regard: train, run, serve and look into Transformers, from plain files.

    translator = regard.load("en-tr")                   # a pretrained model, or a run folder
    translator.translate("The cat ate the mouse.")
    regard.trace(translator, "The cat ate the mouse.")  # attention, probabilities and search
    regard.train("quick", source="my.en", target="my.de", out="runs/mine")
    regard.evaluate("runs/mine")                        # on the test sets of its recipe, or with data= on your own

Everything else is imported when it is first used, so that `import regard` is fast.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from regard.errors import UserError, suggest_keywords
from regard.task.pipeline import Pipeline

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from regard.attention import Causal, Dilated, Full, Global, Pattern, Sliding, attend
    from regard.data.trees.tree import Tree
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
    from regard.task.backend import Precision
    from regard.task.base import Recipe
    from regard.task.classification.pipeline import TaggedWords, TextLabeler
    from regard.task.image_classification.pipeline import ImageClassifier
    from regard.task.language_modeling.pipeline import GeneratedText, TextGenerator
    from regard.task.masked_lm.pipeline import FillMask, Guess
    from regard.task.parsing.pipeline import ParsedSentence, Parser
    from regard.task.recipe_io import read_recipe
    from regard.task.run import RunResult
    from regard.task.translation.pipeline import Translator
    from regard.task.translation.result import TranslatedText, Translation
    from regard.train.callback import Callback, PrinterCallback
    from regard.train.config import TrainConfig
    from regard.train.task import Score

try:
    __version__ = version("regard")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0.1.0"

_LAZY = {
    "regard.attention": ("Causal", "Dilated", "Full", "Global", "Pattern", "Sliding", "attend"),
    "regard.data.trees.tree": ("Tree",),
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
    "regard.look.trace": ("Trace",),
    "regard.model": ("EncoderConfig", "EncoderDecoderConfig", "LanguageModelConfig", "VisionTransformerConfig"),
    "regard.run": ("save_model",),
    "regard.task.base": ("Recipe",),
    "regard.task.classification.pipeline": ("TaggedWords", "TextLabeler"),
    "regard.task.image_classification.pipeline": ("ImageClassifier",),
    "regard.task.language_modeling.pipeline": ("GeneratedText", "TextGenerator"),
    "regard.task.masked_lm.pipeline": ("FillMask", "Guess"),
    "regard.task.parsing.pipeline": ("ParsedSentence", "Parser"),
    "regard.task.recipe_io": ("read_recipe",),
    "regard.task.run": ("RunResult",),
    "regard.task.translation.pipeline": ("Translator",),
    "regard.task.translation.result": ("TranslatedText", "Translation"),
    "regard.train.config": ("TrainConfig",),
    "regard.train.callback": ("Callback", "PrinterCallback"),
    "regard.train.task": ("Score",),
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
    "GeneratedText",
    "Global",
    "Greedy",
    "Guess",
    "ImageClassifier",
    "LanguageModelConfig",
    "ParsedSentence",
    "Parser",
    "Pattern",
    "Pipeline",
    "PrinterCallback",
    "Recipe",
    "RunResult",
    "Sampler",
    "Score",
    "SearchStrategy",
    "Sliding",
    "TaggedWords",
    "TextGenerator",
    "TextLabeler",
    "Trace",
    "TrainConfig",
    "TranslatedText",
    "Translation",
    "Translator",
    "Tree",
    "UserError",
    "VisionTransformerConfig",
    "__version__",
    "attend",
    "beam_search",
    "evaluate",
    "greedy_search",
    "load",
    "read_recipe",
    "recipes",
    "save_model",
    "trace",
    "train",
]


@suggest_keywords
def load(
    folder: "str | Path",
    device: "torch.device | str" = "cpu",
    *,
    dtype: "Precision" = "float32",
    fused: bool | None = None,
) -> Any:
    """Load a run folder, or a pretrained model by its name, as the pipeline of its task.

        translator = regard.load("en-tr")                   # a model that ships with regard
        generator = regard.load("runs/bard", device="auto") # on a GPU if there is one
        regard.load("runs/quick@best")                      # a checkpoint: @best, @last, or a step such as @1500
        regard.load("glove.txt")["house"]                   # a file of word vectors

    The result is a `Translator`, `TextGenerator`, `Parser`, `FillMask`, `TextLabeler` or `ImageClassifier`. A model
    that belongs to no task is a plain `Pipeline`, and a file of word vectors is `KeyedVectors`, which have no device. A
    run that has not finished is loaded from its newest checkpoint. `device` is "cpu", "cuda", "cuda:1", "mps", or
    "auto".

    Models that decode compute faster and slightly less precisely with the `dtype` "int8" on a CPU, or "bfloat16" on a
    GPU. `fused` chooses fused kernels or avoids them; by default they are used where they are worth compiling.
    """
    from regard.task.auto import open_model_or_vectors

    return open_model_or_vectors(folder, device, dtype=dtype, fused=fused)


@suggest_keywords
def train_recipe(
    recipe: "Recipe | str | Path",
    *,
    source: "str | Path | None" = None,
    target: "str | Path | None" = None,
    pairs: "str | Path | None" = None,
    data: "str | Path | None" = None,
    out: "str | Path | None" = None,
    overrides: "Mapping[str, Any] | Sequence[str]" = (),
    resume: bool = False,
    device: "torch.device | str" = "auto",
    callbacks: "Sequence[Callback]" = (),
) -> "RunResult":
    """Train a recipe, on its own data or on yours.

        result = regard.train("quick", source="my.en", target="my.de", out="my-translator")
        result.load().translate("Good morning.")
        regard.train("brown", data="my-text.txt", overrides={"train.steps": 500, "model.width": 128})
        regard.train("my-translator", resume=True)          # go on after an interruption

    `recipe` is the name of a recipe that ships with regard (`regard.recipes()`), the path of a .toml file or of a run
    folder, or a `Recipe`. Your own data are two files of sentences (`source` and `target`), a file or folder of
    sentence `pairs`, or, for other tasks, the file or folder `data`. `overrides` change settings of the recipe: values
    by their dotted keys, or strings of the form "train.steps=500".

    The run folder is `out`, by default runs/NAME. With `resume` an interrupted run continues, or a finished one with
    more train.steps. `device` is "cpu", "cuda", "mps", or "auto": a GPU if there is one. `callbacks` receive messages
    and metrics; `PrinterCallback` prints them. The result has the folder and the scores on the test sets.
    """
    from regard.data.text.corpus import corpus_of_files
    from regard.task.run import train_recipe

    return train_recipe(
        recipe,
        pairs=corpus_of_files(pairs, source, target),
        data=data,
        out=out,
        overrides=overrides,
        resume=resume,
        device=device,
        callbacks=callbacks,
    )


train = train_recipe
"""`regard.train` is also the name of a package, which calls `train_recipe` when it is called."""


def recipes() -> "list[Recipe]":
    """The recipes that ship with regard.

        for recipe in regard.recipes():
            print(recipe.name, recipe.task, recipe.description)

    `recipe.expect` has the scores and the time that a recipe is expected to need; it is None if nobody measured them.
    """
    from regard.task.recipe_io import shipped_recipes

    return [each.recipe for each in shipped_recipes()]


@suggest_keywords
def evaluate(
    model: "str | Path | Pipeline",
    test: str | None = None,
    *,
    data: "str | Path | None" = None,
    settings: "Mapping[str, Any] | None" = None,
    beam_size: int | None = None,
    device: "torch.device | str" = "auto",
) -> "dict[str, Score]":
    """The scores of a model on the test sets of its recipe, on the one named `test`, or on a file of your own.

    `model` is a run folder, a pretrained model, or what `load` returned. `data` is a file or folder of the kind that
    the model is trained on; its score is called "given": `regard.evaluate("runs/quick", data="my.tsv")["given"]`.
    `settings` say how it is read, as [data] does in a recipe: `{"columns": [3, 1]}`. `beam_size` replaces that of the
    recipe, for models that search for their output.
    """
    from regard.kernels.dispatch import select_device
    from regard.task.evaluate import evaluate

    return evaluate(model, test, data=data, settings=settings, beam_size=beam_size, device=select_device(device))


def trace(model: Pipeline, text: Any, **settings: Any) -> "Trace":
    """Record a model at work on a text or an image: `regard.trace(model, "Hello.")`, which is `model.trace("Hello.")`.

        trace = regard.trace(translator, "The cat ate the mouse.", beam_size=4)
        trace.attention("cross", layer=0, head=2)           # a tensor: target tokens × source tokens
        trace.save("cat.trace")
        trace                                               # in a notebook: the interactive page

    `settings` are decoding settings (method, beam_size, max_new_tokens, temperature, top_k, top_p, seed),
    `ablated_heads` such as [("cross", 0, 2)], an attention type with a layer and a head, both counted from 0, and
    `ablation`: "zero" or "mean".
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
