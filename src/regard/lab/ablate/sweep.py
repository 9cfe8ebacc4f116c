"""Run a sweep: a recipe and its variations, with several seeds, each run in a process of its own.

    OUT/recipe.toml           the base recipe, with every setting decided
    OUT/sweep.json            the variations of this folder, with their changed settings
    OUT/recipes/KEY.toml      the recipe of each run; KEY is the variation's name and the seed
    OUT/runs/KEY/             its run folder
    OUT/logs/KEY.log          what it printed
    OUT/failures/KEY.txt      what went wrong, if it did
    OUT/measured/KEY.json     what was measured on it after training
    OUT/table.md, OUT/report.html

A run folder says itself whether it has finished, so an interrupted sweep goes on where it was: finished runs are not
repeated, and others continue from their last checkpoint. Of runs that failed, those that would fail again in the same
way (a loss that diverged) are left alone, and all others are tried again.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.config import ConfigError, parse_json
from regard.errors import UserError
from regard.files import write_text
from regard.lab.ablate.changes import Change, NotApplicableError, Settings
from regard.lab.ablate.long_sentences import short_words
from regard.lab.ablate.variations import Variation
from regard.lab.processes import Finished, minutes, run_processes
from regard.model import EncoderDecoderConfig, LanguageModelConfig
from regard.progress import phase
from regard.task.base import Recipe
from regard.task.recipe_io import read_recipe, write_recipe

BASE = "base"
_VALIDATIONS = 12
"""At least so many validations in every run: how soon a run reaches a loss can be read from no fewer."""
_DIVERGED = "not finite"
"""Words of the trainer's message about a loss that diverged."""

Log = Callable[[str], None]


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

    def failure(self, name: str, seed: int) -> str | None:
        """What went wrong with a run, without a full stop; None if nothing did."""
        path = _failure_path(self.out, run_key(name, seed))
        return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def run_key(name: str, seed: int) -> str:
    """The name of a run's files."""
    return f"{name}-s{seed}"


def plan_sweep(
    name: str | Path, overrides: Sequence[str], variations: Sequence[Variation], out: Path, *, seeds: int = 1
) -> Sweep:
    """Decide all recipes of a sweep and write them; nothing is trained. All that can be wrong with them is found here.

    A variation that does not apply to the recipe, or gives the same recipe as another, is skipped and says why.
    """
    recipe = _base_recipe(name, overrides)
    settings = Settings(recipe.resolved(), short_words(recipe))
    _write_same(out / "recipe.toml", write_recipe(recipe), out)
    plans, known = [Planned(None, Change({}, "base"))], {write_recipe(recipe): BASE}
    for variation in variations:
        plan = _plan(variation, settings, out / "recipe.toml", known)
        plans.append(plan)
    sweep = Sweep(recipe, out, tuple(plans), seeds)
    first = recipe.train.seed
    for plan in sweep.planned:
        for seed in range(1, seeds + 1):
            changed = _varied(out / "recipe.toml", plan, {"train.seed": first + seed - 1})
            _write_same(out / "recipes" / f"{run_key(plan.name, seed)}.toml", write_recipe(changed), out)
    described = [
        {"name": one.name, "overrides": one.change.overrides if one.change else None, "skipped": one.skipped}
        for one in plans
    ]
    write_text(out / "sweep.json", json.dumps(described, ensure_ascii=False, indent=1) + "\n")
    return sweep


def run_sweep(sweep: Sweep, *, device: str = "auto", parallel: int = 1, log: Log = lambda message: None) -> None:
    """Train every run that has not finished. A run that fails is reported, and the others go on."""
    runs = [(plan, seed) for seed in range(1, sweep.seeds + 1) for plan in sweep.planned]
    commands: dict[str, list[str]] = {}
    for plan, seed in runs:
        key = run_key(plan.name, seed)
        if not _is_done(sweep, plan.name, seed):
            commands[key] = _command(sweep.out, key, device)
    done, total = len(runs) - len(commands), len(runs)
    if done:
        log(f"{done} of {total} runs are done already.")
    seconds: list[float] = []
    with phase("Training", "runs", total) as progress:
        progress.update(done)

        def on_finish(finished: Finished) -> None:
            seconds.append(finished.seconds)
            progress.update(done + len(seconds))
            left = (len(commands) - len(seconds)) * sum(seconds) / len(seconds) / parallel
            result = _record(sweep.out, finished)
            log(
                f"{done + len(seconds)} of {total}: {finished.key}: {result} in {minutes(finished.seconds)}"
                f"{f'; about {minutes(left)} left' if left else ''}."
            )

        run_processes(commands, sweep.out / "logs", parallel=parallel, on_finish=on_finish)


def _base_recipe(name: str | Path, overrides: Sequence[str]) -> Recipe:
    """The base, with validations that are close enough together."""
    recipe = read_recipe(name, overrides)
    if recipe.task not in ("translation", "language-modeling"):
        raise UserError(f"{name} is for {recipe.task}; `regard ablate` varies translation and language modeling.")
    if not isinstance(recipe.expected_model_config, EncoderDecoderConfig | LanguageModelConfig):
        kind = recipe.expected_model_config.kind
        raise UserError(f"{name}: the model is of kind {kind!r}; `regard ablate` varies Transformers.")
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
    except ConfigError as error:
        return Planned(variation, skipped=f"it gives no valid recipe ({str(error).rstrip('.')})")
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


def _command(out: Path, key: str, device: str) -> list[str]:
    folder = out / "runs" / key
    resume = ["--resume"] if (folder / "recipe.toml").is_file() else []
    recipe = str(out / "recipes" / f"{key}.toml")
    return [sys.executable, "-m", "regard", "train", recipe, "--out", str(folder), "--device", device, *resume]


def _is_done(sweep: Sweep, name: str, seed: int) -> bool:
    """Whether a run needs no more work; what is known of a failure that may not happen again is forgotten."""
    if (sweep.folder(name, seed) / "run.json").is_file():
        return True
    failure = sweep.failure(name, seed)
    if failure is not None and _DIVERGED in failure:
        return True
    _failure_path(sweep.out, run_key(name, seed)).unlink(missing_ok=True)
    return False


def _record(out: Path, finished: Finished) -> str:
    """Note how a run has ended; gives it in words."""
    problem = finished.problem()
    if problem is not None:
        path = _failure_path(out, finished.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, problem + "\n")
        return f"failed ({problem})"
    origin = parse_json((out / "runs" / finished.key / "run.json").read_text(encoding="utf-8"))["origin"]
    scores: dict[str, Any] = next(iter(origin["scores"].values()), {})
    return ", ".join(f"{name} {scores[name]:.2f}" for name in ("bleu", "perplexity") if name in scores) or "finished"


def _failure_path(out: Path, key: str) -> Path:
    return out / "failures" / f"{key}.txt"
