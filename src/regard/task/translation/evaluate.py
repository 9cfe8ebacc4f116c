"""Test sets of sentence pairs: outputs are compared with reference translations.

The outputs are those of a model, or the lines of a file. Lines of a recipe's test sets are translated as they are;
those of a user's files are split into sentences, as `regard translate` does it, unless told otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.data.text.corpus import Corpus, CorpusConfig
from regard.data.text.lines import read_lines
from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.run import find_model, read_metadata
from regard.score import TranslationScore, score_translations
from regard.task.base import GIVEN
from regard.task.recipe_io import read_recipe
from regard.task.registry import get_task
from regard.task.translation.pipeline import Translator
from regard.task.translation.recipe import ScoreConfig
from regard.train.distributed.process_group import SINGLE_PROCESS, ProcessGroup

ChangeDecode = Callable[[DecodeConfig], DecodeConfig]


@dataclass(frozen=True)
class TextTestSet:
    """Source sentences, their reference translations, and how outputs are compared with these."""

    name: str
    sources: list[str]
    references: list[str]
    score: ScoreConfig
    split: bool = False
    """Whether lines are split into sentences before they are translated."""

    @classmethod
    def read(cls, corpus: CorpusConfig, score: ScoreConfig | None = None, name: str = GIVEN) -> "TextTestSet":
        """Read a test set from files: a user's own, unless it is one of a recipe, with another name."""
        pairs = list(Corpus(name, (corpus,)).read())
        sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
        return cls(name, sources, references, score or ScoreConfig(), split=name == GIVEN)

    def updated(self, split: bool | None, *, tokenized: bool, lowercase: bool) -> "TextTestSet":
        """With another choice of splitting, if there is one, and compared as tokenized or lowercased text if asked."""
        score = ScoreConfig(tokenized=self.score.tokenized or tokenized, lowercase=self.score.lowercase or lowercase)
        return replace(self, score=score, split=self.split if split is None else split)

    def score_outputs(self, outputs: Sequence[str]) -> TranslationScore:
        return score_translations(outputs, self.references, **self.score.plain())

    def check_processes(self, processes: int) -> None:
        """Refuse more processes than there are sentences."""
        if 1 < processes > len(self.sources):
            raise UserError(f"{self.name} has {len(self.sources)} sentences, too few for {processes} processes.")

    def translate(
        self,
        model: str | Path | Translator,
        change: ChangeDecode | None = None,
        *,
        device: torch.device | str = "cpu",
        process_group: ProcessGroup = SINGLE_PROCESS,
        progress: Callable[[int], None] | None = None,
    ) -> list[str]:
        """A model's best output for each source line; several processes share the work. See `make_outputs`."""
        is_file = not isinstance(model, Translator) and is_output_file(Path(model))
        group = SINGLE_PROCESS if is_file else process_group  # a file already has all its lines
        outputs = make_outputs(
            model, group.shard(self.sources), change, split=self.split, device=device, progress=progress
        )
        return group.gather_interleaved(outputs)


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
    model: str | Path | Translator,
    sources: Sequence[str],
    change: ChangeDecode | None = None,
    *,
    split: bool = False,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """A model's best output for each source line. If `model` is a file, its lines are the outputs.

    `change` changes the settings of the search. With `split`, lines are split into sentences as by `regard translate`.
    """
    if not isinstance(model, Translator):
        path = Path(model)
        if is_output_file(path):
            lines = list(read_lines(path))
            if len(lines) != len(sources):
                raise UserError(f"{path} has {len(lines):,} lines, the test set {len(sources):,}; give one for each.")
            return lines
        model = Translator.load(model, device)
    decode = (model.decode if change is None else change(model.decode)).only_best()
    if split:
        return [one.text for one in model.translate_batch(sources, decode, progress)]
    return [best.text for best, *_ in model.translate_sentences(sources, decode, progress)]
