"""How a model that was trained on short sequences does on sequences up to twice as long.

For translation, training leaves out pairs with more than so many words on either side, and the test pairs are split
there: as short as in training, or up to twice as long. A language model is trained on half of the recipe's context and
tested on the same text in windows of that length and of twice that length, where a model that extrapolates gains from
the longer context, and one that does not loses.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from regard.data.text.corpus import Corpus
from regard.data.text.pairs import Pair
from regard.errors import UserError
from regard.run import load_model
from regard.task.auto import open_model
from regard.task.base import Recipe
from regard.task.recipe_io import read_recipe
from regard.task.registry import get_task
from regard.train.distributed.process_group import SINGLE_PROCESS

_SAMPLED_PAIRS = 10_000
_FEWEST_PAIRS = 20
"""Fewer test pairs of a length have no score."""


def short_words(recipe: Recipe) -> int | None:
    """The words of a short sentence: the median over the training pairs, of the longer side; None if too few pairs
    are longer than that."""
    if recipe.task != "translation":
        return None
    try:
        pairs = islice(Corpus("train", recipe.data.train).read(), _SAMPLED_PAIRS)
        lengths = sorted(map(_words, pairs))
    except (UserError, OSError):  # the runs will say what is wrong with the data
        return None
    median = statistics.median_low(lengths) if lengths else 0
    longer = sum(median < length <= 2 * median for length in lengths)
    return median if median and longer >= _FEWEST_PAIRS else None


def scores_by_length(folder: Path, device: torch.device | str = "cpu") -> dict[str, dict[str, float]]:
    """The scores of a finished run on sequences as short as in training ("short") and up to twice as long ("long")."""
    recipe = read_recipe(folder)
    if recipe.task == "translation":
        return _of_translation(recipe, folder, device)
    return _of_language(recipe, folder, device)


def _of_translation(recipe: Any, folder: Path, device: torch.device | str) -> dict[str, dict[str, float]]:
    limit = recipe.data.filter.max_words
    if limit is None:
        raise UserError(f"{folder} was trained on sentences of all lengths: data.filter.max_words is not set.")
    translator: Any = open_model(folder, device)
    pairs = list(_test_pairs(recipe, folder))
    parts = {
        "short": [pair for pair in pairs if _words(pair) <= limit],
        "long": [pair for pair in pairs if limit < _words(pair) <= 2 * limit],
    }
    return {name: _score_pairs(recipe, translator, part) for name, part in parts.items() if len(part) >= _FEWEST_PAIRS}


def _score_pairs(recipe: Any, translator: Any, pairs: Sequence[Pair]) -> dict[str, float]:
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    logprobs = translator.score(sources, targets)
    tokens = sum(map(len, logprobs))
    score = translator._line_translator(len(pairs), translator.decode).score_pairs(
        pairs, translator.decode, recipe.score
    )
    ppl = math.exp(min(700.0, -sum(map(sum, logprobs)) / max(1, tokens)))
    return {"ppl": ppl, "bleu": score.bleu, "pairs": len(pairs)}


def _test_pairs(recipe: Any, folder: Path) -> Iterator[Pair]:
    sets = {"valid": recipe.data.valid, **recipe.data.test}
    for name, source in sets.items():
        if source is not None:
            yield from Corpus(name, (source,)).read()
    if sets == {"valid": None} and (held_out := recipe.held_out_source(folder)) is not None:
        yield from Corpus("held-out", (held_out,)).read()


def _of_language(recipe: Any, folder: Path, device: torch.device | str) -> dict[str, dict[str, float]]:
    loaded = load_model(folder)
    loaded.model.to(device).float()
    data, found = recipe.data, {}
    if data.valid is None and not data.test:
        data = data.model_copy(update={"test": {"held-out": recipe.held_out_source(folder)}})
    for name, factor in (("short", 1), ("long", 2)):
        length = data.context_length * factor
        changed = recipe.model_copy(update={"data": data.model_copy(update={"context_length": length})})
        task: Any = get_task(recipe.task).task_class().for_testing(changed, loaded, SINGLE_PROCESS)
        score: Any = next(iter(task.test(lambda message: None).values()))
        found[name] = {"ppl": score.perplexity, "bits_per_byte": score.bits_per_byte, "context": length}
    return found


def _words(pair: Pair) -> int:
    """The words of the longer side."""
    return max(len(pair.source.split()), len(pair.target.split()))
