"""The plan of a sweep: the recipe of every run, with every setting decided, before anything is trained.

    OUT/recipe.toml           the base recipe
    OUT/sweep.json            the variations of this folder, with their changed settings
    OUT/recipes/KEY.toml      the recipe of each run; KEY is the variation's name and the seed

A later sweep in the same folder may add variations and seeds, not change what is there.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.config import parse_json
from regard.errors import UserError
from regard.files import write_text
from regard.lab.ablate.long_sentences import short_words
from regard.lab.ablate.settings import Change, NotApplicableError, Settings
from regard.lab.ablate.variations import BASE, VARIATIONS, Variation
from regard.model import EncoderDecoderConfig, LanguageModelConfig
from regard.task.base import Recipe
from regard.task.recipe_io import read_recipe, write_recipe

_VALIDATIONS = 12
"""At least so many validations in every run: how soon a run reaches a loss can be read from no fewer."""


@dataclass(frozen=True)
class Planned:
    """A variation of the recipe, or why there is none."""

    variation: Variation | None
    """None for the base."""
    change: Change | None = None
    skipped: str | None = None
    """The end of the sentence "skipped, because …"."""

    @property
    def name(self) -> str:
        return BASE if self.variation is None else self.variation.name


@dataclass(frozen=True)
class Sweep:
    """A planned sweep in a folder."""

    recipe: Recipe
    out: Path
    plans: tuple[Planned, ...]
    seeds: int

    @property
    def planned(self) -> list[Planned]:
        """The base and the variations that apply."""
        return [one for one in self.plans if one.skipped is None]

    def folder(self, name: str, seed: int) -> Path:
        return self.out / "runs" / run_key(name, seed)

    def measured(self, name: str, seed: int) -> Path:
        """The file with what was measured on a finished run."""
        return self.out / "measured" / f"{run_key(name, seed)}.json"

    def failure(self, name: str, seed: int) -> str | None:
        """What went wrong with a run, without a full stop; None if nothing did."""
        path = failure_path(self.out, run_key(name, seed))
        return str(parse_json(path.read_text(encoding="utf-8"))["problem"]) if path.is_file() else None


def run_key(name: str, seed: int) -> str:
    """The name of a run's files."""
    return f"{name}-s{seed}"


def failure_path(out: Path, key: str) -> Path:
    return out / "failures" / f"{key}.json"


def plan_sweep(
    name: str | Path, overrides: Sequence[str], variations: Sequence[Variation], out: Path, *, seeds: int = 1
) -> Sweep:
    """Decide all recipes of a sweep and write them; nothing is trained. All that can be wrong with them is found here.

    A variation that does not apply to the recipe, or gives the same recipe as another, is skipped and says why.
    """
    recipe = _base_recipe(name, overrides)
    settings = Settings(recipe.resolved(), short_words(recipe))
    _write_same(out / "recipe.toml", write_recipe(recipe), out)
    known = {write_recipe(recipe): BASE}
    plans = [_plan(variation, settings, out / "recipe.toml", known) for variation in variations]
    sweep = Sweep(recipe, out, (Planned(None, Change({}, BASE)), *plans), seeds)
    first = recipe.train.seed
    for plan in sweep.planned:
        for seed in range(1, seeds + 1):
            changed = _varied(out / "recipe.toml", plan, {"train.seed": first + seed - 1})
            _write_same(out / "recipes" / f"{run_key(plan.name, seed)}.toml", write_recipe(changed), out)
    _save(sweep)
    return sweep


def read_sweep(out: Path) -> Sweep:
    """All that was planned in a folder, by one command or by several."""
    path = out / "sweep.json"
    if not path.is_file():
        raise UserError(f"{out} holds no sweep, so there is nothing to report on; leave out --report-only.")
    saved = parse_json(path.read_text(encoding="utf-8"))
    known = {one.name: one for one in VARIATIONS}
    plans = []
    for row in saved["plans"]:
        if row["name"] != BASE and row["name"] not in known:
            continue  # of another version
        change = None if row["change"] is None else Change(**row["change"])
        plans.append(Planned(known.get(row["name"]), change, row["skipped"]))
    return Sweep(read_recipe(out / "recipe.toml"), out, tuple(plans), saved["seeds"])


def _save(sweep: Sweep) -> None:
    """Write sweep.json: this plan and what was planned in the folder before, in the order of the variations."""
    plans, seeds = {one.name: one for one in sweep.plans}, sweep.seeds
    if (sweep.out / "sweep.json").is_file():
        before = read_sweep(sweep.out)
        plans = {one.name: one for one in before.plans} | plans
        seeds = max(seeds, before.seeds)
    order = [BASE, *(one.name for one in VARIATIONS)]
    rows = [
        {"name": name, "change": vars(one.change) if one.change else None, "skipped": one.skipped}
        for name, one in sorted(plans.items(), key=lambda item: order.index(item[0]))
    ]
    described = {"seeds": seeds, "plans": rows}
    write_text(sweep.out / "sweep.json", json.dumps(described, ensure_ascii=False, indent=1) + "\n")


def _base_recipe(name: str | Path, overrides: Sequence[str]) -> Recipe:
    """The base, with validations that are close enough together."""
    recipe = read_recipe(name, overrides)
    if recipe.task not in ("translation", "language-modeling"):
        raise UserError(f"{name} is for {recipe.task}; `regard ablate` varies translation and language modeling.")
    if not isinstance(recipe.expected_model_config, EncoderDecoderConfig | LanguageModelConfig):
        kind = recipe.expected_model_config.kind
        raise UserError(f"{name}: the model is of kind {kind!r}; `regard ablate` varies Transformers.")
    if recipe.init_from is not None:
        raise UserError(f"{name} starts from a trained model (init_from); `regard ablate` trains from scratch.")
    if any(each.partition("=")[0].strip() == "train.validate_every" for each in overrides):
        return recipe
    every = min(recipe.train.validate_every, math.ceil(recipe.train.steps / _VALIDATIONS))
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"validate_every": every})})


def _plan(variation: Variation, settings: Settings, base: Path, known: dict[str, str]) -> Planned:
    try:
        change = variation.change(settings)
        text = write_recipe(_varied(base, Planned(variation, change), {}))
    except NotApplicableError as error:
        return Planned(variation, skipped=str(error))
    except UserError as error:
        problem = str(error).removeprefix(f"{base}: ").rstrip(".")
        return Planned(variation, skipped=f"it gives no valid recipe ({problem})")
    if (other := known.setdefault(text, variation.name)) != variation.name:
        return Planned(variation, skipped=f"it is the same as {other}")
    return Planned(variation, change)


def _varied(base: Path, plan: Planned, more: dict[str, Any]) -> Recipe:
    assert plan.change is not None
    return read_recipe(base, plan.change.overrides | more)


def _write_same(path: Path, text: str, out: Path) -> None:
    """Write a file of the plan; refuse to replace one that says something else, for the runs of which it is true."""
    if path.is_file():
        if path.read_text(encoding="utf-8") != text:
            raise UserError(f"{out} holds a sweep with other settings ({path}); choose another folder with --out.")
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot write there ({error.strerror}); choose another folder with --out.") from None
    write_text(path, text)
