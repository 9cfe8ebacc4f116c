"""The runs of a ladder: which recipes are trained, with every setting decided, before anything is trained.

All that can be wrong with a ladder is found here, so that a comparison of hours does not fail at its last rung: an
unknown kind of model, a misspelled setting, a budget that a rung cannot meet.
"""

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from regard.data.text.corpus import Corpus
from regard.errors import UserError, listed
from regard.files import write_text
from regard.interop.word_vectors import word_vector_dimension
from regard.lab.compare.ladder import Ladder, RungConfig, RungWordVectorsConfig, dotted
from regard.lab.compare.word_vectors import write_ppmi_vectors
from regard.model import build_meta, count_embedding_parameters, count_parameters
from regard.task.base import Recipe
from regard.task.recipe_io import apply_override, read_recipe_file
from regard.task.translation.recipe import TranslationRecipe

TASKS = ("translation", "language-modeling", "parsing")
"""The tasks whose models can be compared."""
_TOLERANCE = 0.1
"""How far the size of a model may be from a budget of parameters."""
_STEP = 8
"""Scaled sizes are multiples of this, or of the number of heads."""


@dataclass(frozen=True)
class PlannedRun:
    """A rung on a part of the data with a seed."""

    rung: RungConfig
    size: float
    seed: int
    recipe: Recipe

    @property
    def key(self) -> str:
        """The name of its folder."""
        return run_key(self.rung.name, self.size, self.seed)

    @property
    def init_from(self) -> str | None:
        """The key of the run whose model this one starts from."""
        return None if self.rung.init_from is None else run_key(self.rung.init_from, self.size, self.seed)

    @property
    def decodes(self) -> list[str]:
        """The keys of the runs whose models decode together, if nothing is trained."""
        if self.rung.decodes is None:
            return []
        seeds = range(1, self.rung.ensemble + 1) if self.rung.ensemble > 1 else (self.seed,)
        return [run_key(self.rung.decodes, self.size, seed) for seed in seeds]

    @property
    def needs(self) -> list[str]:
        """The keys of the runs that must have finished before."""
        return self.decodes or [key for key in (self.init_from,) if key is not None]


def run_key(rung: str, size: float, seed: int) -> str:
    return f"{rung}-{size_name(size)}-{seed}"


def size_name(size: float) -> str:
    return "full" if size == 1 else f"{size:g}"


def plan_runs(ladder: Ladder, overrides: Sequence[str], folder: Path) -> list[PlannedRun]:
    """All runs, those on all data first; subsets of the training data are written into `folder`.

    The order lets a comparison that is stopped early say most.
    """
    recipes = validate(ladder, overrides)
    runs = []
    for size in sorted(ladder.sizes, reverse=True):
        seeds = ladder.seeds if size == 1 else ladder.seeds_of_parts
        for seed in range(1, seeds + 1):
            for rung in ladder.rungs:
                if rung.ensemble > 1 and (size != 1 or seed > 1 or rung.ensemble > ladder.seeds):
                    continue  # there is one: of all seeds together
                rung_recipe = recipes[rung.name]
                changes = _subset(rung_recipe.recipe, size, folder) | {"train.seed": seed}
                if ladder.budget.kind == "steps" and rung.init_from is None:
                    changes["train.steps"] = max(1, round(ladder.budget.of(size)))
                if rung.word_vectors is not None:
                    changes |= _counted_vectors(rung.word_vectors, rung_recipe.read(changes), size, folder)
                runs.append(PlannedRun(rung, size, seed, rung_recipe.read(changes)))
    return runs


@dataclass(frozen=True)
class RungRecipe:
    """The recipe of a rung on all data: that of a name or path, with changed settings by their dotted keys."""

    name: str
    changes: dict[str, Any]
    recipe: Recipe

    @classmethod
    def of(cls, name: str, changes: dict[str, Any]) -> Self:
        return cls(name, changes, read_recipe_file(name, changes))

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """The same with further changes."""
        return self.of(self.name, {**self.changes, **changes})

    def read(self, changes: Mapping[str, Any]) -> Recipe:
        """The recipe with further changes."""
        return read_recipe_file(self.name, {**self.changes, **changes})


def validate(ladder: Ladder, overrides: Sequence[str] = ()) -> dict[str, RungRecipe]:
    """Check every rung of a ladder; errors name the rung. Gives the recipe of each by its name."""
    shared = {key: value for key, value in _changes(ladder, (), overrides).items() if key.partition(".")[0] != "model"}
    try:
        base = _with_one_test_set(RungRecipe.of(ladder.base, shared), ladder.test)
    except UserError as error:
        raise UserError(f"{ladder.name}: base: {error}") from None
    if base.recipe.task not in TASKS:
        raise UserError(
            f"{ladder.name}: base: {base.name} is for {base.recipe.task}; models are compared in {listed(TASKS)}."
        )
    recipes = {}
    for rung in ladder.rungs:
        try:
            recipes[rung.name] = _rung_recipe(ladder, rung, overrides, base)
        except UserError as error:
            raise UserError(f"{ladder.name}: rung {rung.name!r}: {error}") from None
    return recipes


def _rung_recipe(ladder: Ladder, rung: RungConfig, overrides: Sequence[str], base: RungRecipe) -> RungRecipe:
    trained = ladder.trained_rungs(rung)  # an override of a rung that this one starts from holds here too
    found = RungRecipe.of(ladder.recipe_of(rung), _changes(ladder, trained, overrides))
    found = _with_one_test_set(found, ladder.test)
    if ladder.budget.kind == "steps" and rung.init_from is None:
        found = found.changed({"train.steps": max(1, round(ladder.budget.value))})
    elif ladder.budget.kind == "parameters" and rung.init_from is None:
        found = found.changed({"train.steps": base.recipe.train.steps})
    _check_same_data(found, base)
    if rung.decodes is not None and base.recipe.task != "translation":
        raise UserError(
            f"decodes: only translations can be decoded in another way, and {base.name} is for {base.recipe.task}; "
            "leave this rung out."
        )
    if rung.word_vectors is not None:
        found = found.changed(_vectors_of(rung.word_vectors, rung.word_vectors.path or "counted.txt", found.recipe))
    if ladder.budget.kind == "parameters":
        found = found.changed(_scaled(ladder, trained[0], found))
    if rung.word_vectors is not None and rung.word_vectors.path is not None:
        _check_dimension(rung.word_vectors.path, found.recipe)
    return found


def _changes(ladder: Ladder, rungs: Sequence[RungConfig], overrides: Sequence[str]) -> dict[str, Any]:
    """The overrides of the ladder, of some of its rungs, and of the command line, by their dotted keys."""
    changes = dotted(ladder.overrides)
    for each in rungs:
        changes |= dotted(each.overrides)
    if isinstance(changes.get("model"), dict):  # settings of another model would not be known to this one
        changes = {key: value for key, value in changes.items() if not key.startswith("model.")}
        changes = {"model": changes.pop("model"), **changes}
    for override in overrides:
        changes |= _parsed(override)
    return changes


def _with_one_test_set(found: RungRecipe, test: str) -> RungRecipe:
    """The recipe without the test sets that the report has no use for."""
    known = found.recipe.test_sources()
    if test not in known:
        raise UserError(f"test: the recipe {found.name} has no test set {test!r}; it has {', '.join(known)}.")
    if len(known) == 1:
        return found
    changes = {key: value for key, value in found.changes.items() if not key.startswith("data.test.")}
    return RungRecipe.of(found.name, {**changes, "data.test": {test: known[test].plain()}})


def _check_same_data(found: RungRecipe, base: RungRecipe) -> None:
    """Refuse a rung whose scores could not be compared with those of the base recipe."""
    ours, theirs = found.recipe, base.recipe
    if ours.task != theirs.task:
        raise UserError(
            f"recipe: {found.name} is for {ours.task}, and {base.name} (base) for {theirs.task}; name a recipe for "
            f"{theirs.task}."
        )
    for part in sorted({*ours.data_sources(), *theirs.data_sources()}):
        if ours.data_sources().get(part) != theirs.data_sources().get(part):
            key = f"data.{part}" if part in ("train", "valid") else f"data.test.{part}"
            raise UserError(
                f"{key}: {found.name} has other data than {base.name} (base), so the two cannot be compared; use the "
                "same data, or make this key an override of the ladder."
            )
    if getattr(ours, "score", None) != getattr(theirs, "score", None):
        raise UserError(
            f"score: {found.name} scores its outputs in another way than {base.name} (base), so the two cannot be "
            "compared; use the same settings, or make this table an override of the ladder."
        )


def _vectors_of(config: RungWordVectorsConfig, path: str, recipe: Recipe) -> dict[str, Any]:
    """The settings that start the embeddings of all sides from a file of word vectors."""
    if recipe.task == "parsing":
        raise UserError("word_vectors: a parser cannot start from them; leave this key out.")
    vectors = {"path": str(Path(path).absolute()), "freeze": config.freeze}
    if recipe.task == "language-modeling":
        return {"word_vectors": vectors}
    own_source = isinstance(recipe, TranslationRecipe) and not recipe.tokenizer.shared
    return {"word_vectors": {"target": vectors, **({"source": vectors} if own_source else {})}}


def _check_dimension(path: str, recipe: Recipe) -> None:
    width, dimension = _embedding_width(recipe), word_vector_dimension(path)
    if width != dimension:
        raise UserError(
            f"word_vectors: {path} has vectors of {dimension} numbers, but the model's embeddings have {width}; set "
            "model.width, or use other vectors."
        )


def _embedding_width(recipe: Recipe) -> int:
    model: Any = build_meta(recipe.expected_model_config)
    width: int = model.embed_tokens.weight.shape[1]
    return width


def _counted_vectors(config: RungWordVectorsConfig, recipe: Recipe, size: float, folder: Path) -> dict[str, Any]:
    """The same for vectors that are counted, which are written into `folder`."""
    if config.path is not None:
        return {}
    width = _embedding_width(recipe)
    texts = hashlib.sha256(json.dumps(config.text).encode()).hexdigest()[:8] if config.text else size_name(size)
    path = folder / f"vectors-{texts}-{width}.txt"
    write_ppmi_vectors(recipe, config.text, width, path)
    return _vectors_of(config, str(path), recipe)


def _parsed(override: str) -> dict[str, Any]:
    """The dotted key and the value of a string of the form "a.b=c"."""
    key = override.partition("=")[0].strip()
    values: Any = apply_override({}, override)
    for part in key.split("."):
        values = values[part]
    return {key: values}


def _scaled(ladder: Ladder, rung: RungConfig, found: RungRecipe) -> dict[str, Any]:
    """The settings that bring a rung to the budget of parameters."""
    if not rung.scale:
        return {}
    budget, sizes = ladder.budget.value, {key: _setting(found.recipe, key) for key in rung.scale}
    tried: dict[int, dict[str, Any]] = {}
    smallest: tuple[int, int] | None = None
    for candidate in _candidates(sizes):
        try:
            config = found.read(candidate).expected_model_config
        except UserError:  # a width that heads do not divide, for example
            continue
        model = build_meta(config)
        count = count_parameters(model)
        if smallest is None:
            smallest = count, count_embedding_parameters(model)
        tried[count] = candidate
        if count > 1.5 * budget:
            break
    if smallest is None or not tried:
        raise UserError(f"no multiple of {', '.join(sizes)} gives a model that can be built; change rungs.scale.")
    best = min(tried, key=lambda count: abs(count - budget))
    if abs(best - budget) <= _TOLERANCE * budget:
        return tried[best]
    if best == smallest[0] and best > budget:
        raise UserError(
            f"the budget of {budget:,.0f} parameters is impossible: even at {_shown(tried[best])} the model has "
            f"{best:,}, {smallest[1]:,} of them embeddings; raise budget.value, or lower tokenizer.vocab_size."
        )
    raise UserError(
        f"the budget of {budget:,.0f} parameters is impossible: the nearest model, {_shown(tried[best])}, has {best:,}."
    )


def _candidates(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    """Settings from small to large, in proportion."""
    (_, first), *_ = sizes.items()
    for multiple in range(_STEP, 4097, _STEP):
        yield {key: max(_STEP, round(size * multiple / first / _STEP) * _STEP) for key, size in sizes.items()}


def _setting(recipe: Recipe, key: str) -> int:
    """A setting of a rung by its dotted key."""
    values: Any = recipe.plain() | {"model": recipe.expected_model_config.plain()}
    for part in key.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    if type(values) is not int or values < 1:
        raise UserError(f"scale: {key} is no number that can be scaled; found {values!r}.")
    return values


def _shown(settings: dict[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def _subset(recipe: Recipe, size: float, folder: Path) -> dict[str, Any]:
    """The settings that train on a part of the data. Smaller parts are contained in larger ones.

    A text is cut at its end; sentence pairs and trees are sampled and written into a file.
    """
    if size == 1:
        return {}
    train = recipe.data.train
    if recipe.task == "language-modeling":
        ranges = [source.plain() | {"end": source.begin + (source.end - source.begin) * size} for source in train]
        return {"data.train": [{key: value for key, value in each.items() if value is not None} for each in ranges]}
    if any(source.weight != 1 for source in train):
        raise UserError("sizes: the sources of data.train have weights, so parts of them cannot be compared.")
    suffix = "jsonl" if recipe.task == "translation" else "mrg"
    path = (folder / f"train-{size_name(size)}.{suffix}").absolute()
    if not path.is_file():
        lines = list(_lines(recipe))
        random.Random(1).shuffle(lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(f"{line}\n" for line in lines[: max(1, round(len(lines) * size))]))
    return {"data.train": [{"path": str(path)}]}


def _lines(recipe: Recipe) -> Iterator[str]:
    """The training data, one sentence pair or tree per line."""
    if recipe.task == "translation":
        for pair in Corpus("train", recipe.data.train).read():
            yield json.dumps(pair._asdict(), ensure_ascii=False)
    else:
        for source in recipe.data.train:
            yield from map(str, source.trees())
