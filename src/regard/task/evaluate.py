"""Evaluate a model on the test sets of its recipe, whatever its task.

If the data of the task are pairs of texts (translation), outputs are compared with references: those of the recipe, or
those in files; a file of outputs can take the place of a model. For any other task the data is prepared as for
training, and the task tests the model in the folder as it does at the end of a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from regard.data.text.corpus import Corpus, CorpusConfig
from regard.data.text.lines import read_lines
from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.run import find_model, is_unfinished, load_model, read_metadata, read_origin
from regard.score import TranslationScore, score_translations
from regard.task.base import Recipe
from regard.task.recipe_io import read_recipe
from regard.task.registry import DEFAULT_TASK, TASKS, TaskInfo, get_task
from regard.task.translation.recipe import ScoreConfig
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup
from regard.train.task import Score


def evaluate(
    model: str | Path,
    test: str | None = None,
    *,
    beam_size: int | None = None,
    decode: Mapping[str, Any] | None = None,
    device: torch.device | str = "cpu",
    process_group: ProcessGroup = SINGLE_PROCESS,
) -> dict[str, Score]:
    """The scores of a model on the test sets of its recipe, or on the one named `test`.

    `beam_size` replaces that of the recipe, for models that search for their output, as `decode` does other settings of
    its search.
    """
    changes = dict(decode or {}) | ({} if beam_size is None else {"beam_size": beam_size})
    if not compares_texts(model):
        return _test_task(model, test, changes, device, process_group)
    scores: dict[str, Score] = {}
    for test_set in recipe_test_sets(model, test):
        sources = process_group.shard(test_set.sources)
        mine = make_outputs(model, sources, lambda config: config.updated(changes), device=device)
        scores[test_set.name] = test_set.score_outputs(process_group.gather_interleaved(mine))
    return scores


def recorded_task(model: str | Path) -> TaskInfo | None:
    """The task that a model was trained for; None if its folder does not record one, or it is not a run."""
    folder = find_model(model)
    is_run = (folder / "run.json").is_file() or is_unfinished(folder)
    name = read_origin(folder).get("task") if is_run else None
    return get_task(name) if name in TASKS else None


def compares_texts(model: str | Path) -> bool:
    """Whether a model (or a file of outputs) is evaluated by comparing texts with references."""
    info = recorded_task(model)
    return info is None or info.text_pairs


@dataclass(frozen=True)
class TextTestSet:
    """Source sentences, their reference translations, and how outputs are compared with these."""

    name: str
    sources: list[str]
    references: list[str]
    score: ScoreConfig

    @classmethod
    def read(cls, corpus: CorpusConfig, score: ScoreConfig, name: str = "given") -> "TextTestSet":
        """Read a test set from files."""
        pairs = list(Corpus(name, (corpus,)).read())
        return cls(name, [pair.source for pair in pairs], [pair.target for pair in pairs], score)

    def score_outputs(self, outputs: Sequence[str]) -> TranslationScore:
        how = self.score
        return score_translations(outputs, self.references, tokenized=how.tokenized, lowercase=how.lowercase)


def recipe_test_sets(model: str | Path, test: str | None = None) -> list[TextTestSet]:
    """The test sets of the recipe that a model was trained with, or the one named `test`."""
    folder = find_model(model)
    if not is_output_file(folder):
        read_metadata(folder)  # raises an error that says so if there is no such model
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{model} has no test sets of its own; give --source and --reference, or --pairs.")
    recipe: Any = read_recipe(folder / "recipe.toml")
    if not get_task(recipe.task).text_pairs:
        raise UserError(f"{model}: this recipe is for {recipe.task}, whose outputs are not compared with references.")
    sets: Mapping[str, CorpusConfig] = recipe.test_sets(folder)
    held_out = [name for name in sets if name not in ("valid", *recipe.data.test)]
    names = (list(recipe.data.test) or held_out) if test is None else [test]
    if not names:
        raise UserError(f"{model} was trained without test sets; give --source and --reference, or --pairs.")
    for name in names:
        if name not in sets:
            raise UserError(f"{model} has no test set {name!r}; it has {', '.join(sets) or 'none'}.")
    return [TextTestSet.read(sets[name], recipe.score, name) for name in names]


def is_output_file(path: Path) -> bool:
    """Whether a path is a file of outputs (or a pipe that sends them), and not a model."""
    return path.exists() and not path.is_dir()


def make_outputs(
    model: str | Path,
    sources: Sequence[str],
    change: Callable[[DecodeConfig], DecodeConfig] | None = None,
    *,
    split: bool = False,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """A model's best output for each source line. If `model` is a file, its lines are the outputs.

    `change` changes the settings of the search. With `split`, lines are split into sentences as by `regard translate`.
    """
    path = Path(model)
    if is_output_file(path):
        lines = list(read_lines(path))
        if len(lines) != len(sources):
            raise UserError(f"{path} has {len(lines):,} lines, the test set {len(sources):,}; give one for each.")
        return lines
    info = recorded_task(model) or get_task(DEFAULT_TASK)
    translator: Any = info.pipeline_class().load(model, device)
    decode = (translator.decode if change is None else change(translator.decode)).only_best()
    if split:
        return [one.text for one in translator.translate_batch(sources, decode, progress)]
    return [best.text for best, *_ in translator.translate_sentences(sources, decode, progress)]


def _test_task(
    model: str | Path,
    test: str | None,
    changes: dict[str, Any],
    device: torch.device | str,
    process_group: ProcessGroup,
) -> dict[str, Score]:
    """Have the task test the model in the folder. Of the recipe's data, only the test sets are read."""
    folder = find_model(model)
    if not (folder / "recipe.toml").is_file():
        raise UserError(f"{folder} contains no recipe, so it names no test sets.")
    recipe = _with_test_set(read_recipe(folder), test, folder)
    if changes:
        recipe = _with_search(recipe, changes)
    loaded = load_model(model)
    loaded.model.to(device).float()
    task: Any = get_task(recipe.task).task_class().for_testing(recipe, loaded, process_group)
    scores: dict[str, Score] = task.test(_silent)
    return scores


def _with_test_set(recipe: Recipe, test: str | None, folder: Path) -> Recipe:
    """The recipe with only this test set."""
    held_out = recipe.held_out_source(folder)
    known = [name for name in recipe.data_sources() if name != "train"] + ([] if held_out is None else ["held-out"])
    if not known:
        raise UserError(f"{folder} was trained without test sets, so there is nothing to evaluate it on.")
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
