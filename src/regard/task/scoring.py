"""How good a model is on a test set: its own, or two files of sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from regard.data.corpus import Corpus, CorpusConfig
from regard.data.text import read_lines
from regard.errors import UserError
from regard.run import find, read_facts
from regard.task.reading import read_translation
from regard.task.translation_recipe import HELD_OUT, ScoreConfig
from regard.task.translator import load_translator


@dataclass(frozen=True)
class Test:
    """Sentences, what they should become, and how outputs are compared with that."""

    name: str
    sources: list[str]
    references: list[str]
    score: ScoreConfig


def own_test_sets(model: str | Path, name: str | None = None) -> list[Test]:
    """The test sets of the recipe a model was trained by, or the one of that name."""
    place = find(model)
    path = place / "recipe.toml"
    if not place.is_file():
        read_facts(place)  # says so if there is no such model
    if not path.is_file():
        raise UserError(f"{model} names no test sets of its own; give --source and --reference, or --pairs.")
    recipe = read_translation(path)
    known = dict(recipe.data.test)
    if recipe.data.valid is not None:
        known.setdefault("valid", recipe.data.valid)
    elif (place / HELD_OUT).is_file():
        known.setdefault("held-out", CorpusConfig(path=str(place / HELD_OUT)))
    fallback = [one for one in known if one == "held-out"]
    wanted = (list(recipe.data.test) or fallback) if name is None else [name]
    if not wanted:
        raise UserError(f"{model} was trained without test sets; give --source and --reference, or --pairs.")
    for one in wanted:
        if one not in known:
            raise UserError(f"{model} has no test set {one!r}; it has {', '.join(known) or 'none'}.")
    return [given_test_set(known[one], recipe.score, one) for one in wanted]


def given_test_set(corpus: CorpusConfig, score: ScoreConfig, name: str = "given") -> Test:
    """A test set from files."""
    pairs = list(Corpus(name, (corpus,)).read())
    return Test(name, [pair.source for pair in pairs], [pair.target for pair in pairs], score)


def outputs(
    model: str | Path,
    sources: Sequence[str],
    *,
    beams: int | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """What a model makes of sentences. A file counts as a model that has spoken already: a line for each source."""
    path = Path(model)
    if path.is_file():
        lines = list(read_lines(path))
        if len(lines) != len(sources):
            raise UserError(f"{path} has {len(lines):,} lines, the test set {len(sources):,}; give one for each.")
        return lines
    translator = load_translator(model, device)
    found = translator.translate_sentences(sources, translator.search(beams).only_best(), progress)
    return [best.text for best, *_ in found]
