"""Ladders: the models that `regard compare` trains, and what all of them have in common.

A comparison is fair only if everything but the model is the same. So a ladder names one base recipe, and each of its
rungs either says what differs or names a recipe of its own, which must have the data and the metric of the base.
Settings of the ladder hold for all of them. Rungs are listed in the expected order, the simplest first, so that a
report can say where the order came out otherwise.
"""

import difflib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from regard.config import Config, ConfigError, parse_toml
from regard.errors import UserError
from regard.task.recipe_io import apply_override

BudgetKind = Literal["parameters", "tokens", "flops", "minutes", "steps"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._]*(-[a-z0-9._]+)*$", max_length=60)]
_FOLDER = "ladders"


class BudgetConfig(Config):
    """What every rung gets the same amount of."""

    kind: BudgetKind
    """steps: optimizer steps. tokens: target tokens to train on. flops: training FLOPs. minutes: time of training on
    this machine, from the speed of the first steps. parameters: the size of the model, by scaling `rungs.scale`; the
    steps are then those of the base recipe."""
    value: float = Field(gt=0, le=1e30)
    """How much of it."""
    value_of_parts: float | None = Field(default=None, gt=0, le=1e30)
    """How much of it runs on a part of the data get; as much as on all data if not given."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.value_of_parts is not None and self.kind == "parameters":
            raise ConfigError("value_of_parts", "a model is as large for a part of the data; leave this key out.")
        return self

    def of(self, size: float) -> float:
        """How much a run on this fraction of the data gets."""
        return self.value if size == 1 or self.value_of_parts is None else self.value_of_parts


class PublishedConfig(Config):
    """A number that others have published for a model of this kind."""

    score: float = Field(ge=-1e9, le=1e9)
    """The published score."""
    metric: str = "BLEU"
    """The metric of the score."""
    test: str = ""
    """The test set, if it is not that of the ladder."""
    source: str
    """Who published it, and where."""


class RungWordVectorsConfig(Config):
    """The word vectors that the token embeddings of a rung start from."""

    path: str | None = None
    """A file of vectors, relative to the ladder's file. If not given, vectors are counted: positive pointwise mutual
    information within a window of 2 words, and a truncated singular value decomposition (Levy and Goldberg 2014)."""
    text: tuple[str, ...] = Field(default=(), strict=False)
    """Text files to count in, relative to the ladder's file. By default the training data of the run, on both sides."""
    freeze: bool = False
    """Whether the embeddings stay as they are."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.path is not None and self.text:
            raise ConfigError("text", "vectors are counted in a text only if there is no path; leave one of them out.")
        return self


class RungConfig(Config):
    """One model of a ladder."""

    name: Name
    """A short name, for folders and `--rungs`."""
    label: str
    """The name in tables and charts."""
    recipe: str | None = None
    """The recipe of this rung: a name, or a path relative to the ladder's file. By default the ladder's base, or the
    recipe of the rung in `init_from` or `decodes`. Its task, data and score settings must be those of the base."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Settings of the recipe that differ, as tables: [rungs.overrides.model] and so on. A [model] with a `kind`
    replaces that of the recipe; all other tables are merged into it."""
    word_vectors: RungWordVectorsConfig | None = None
    """Word vectors that the token embeddings start from; random ones if not given. `word_vectors = {}` counts them in
    the training data."""
    init_from: Name | None = None
    """Another rung, listed before, whose trained model this one starts from, on the same data with the same seed. The
    budget is that rung's; `train.steps` in the overrides are the further steps."""
    decodes: Name | None = None
    """Another rung, listed before, whose models this one decodes with in another way: nothing is trained. The overrides
    say how, in [rungs.overrides.decode]."""
    ensemble: int = Field(default=1, ge=1, le=100)
    """With `decodes`: how many of that rung's models, those of the first seeds, decode together. With fewer seeds than
    that, the rung is left out."""
    scale: tuple[str, ...] = Field(default=("model.width",), strict=False)
    """The settings that a budget of parameters multiplies; none, to leave the model as it is."""
    reference: str = ""
    """The paper that describes the model."""
    published: tuple[PublishedConfig, ...] = Field(default=(), strict=False)
    """Published numbers to show beside ours."""
    note: str = ""
    """What a reader of the report should know about this rung, such as how its settings were chosen."""


class ContrastConfig(Config):
    """Two rungs that differ mainly in one idea: the report says what it buys."""

    idea: str
    """What the second rung has and the first has not, in a few words."""
    without: Name
    """The rung without it."""
    having: Name
    """The rung with it."""


class Ladder(Config):
    """Everything a comparison depends on."""

    name: Name
    """The name of the ladder. By default, that of its file."""
    description: str
    """One sentence: the question that the ladder answers."""
    base: str
    """The recipe of rungs that name no other, and the data of all: a name, or a path relative to the ladder's file."""
    overrides: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ from the recipes of all rungs."""
    rungs: tuple[RungConfig, ...] = Field(strict=False, min_length=1)
    """The models, in the order in which they are expected to do better."""
    budget: BudgetConfig
    seeds: int = Field(default=1, ge=1, le=1000)
    """How many times each rung is trained on all the data, with the seeds 1, 2 and so on."""
    seeds_of_parts: int = Field(default=1, ge=1, le=1000)
    """The same for training on a part of the data."""
    sizes: tuple[Annotated[float, Field(gt=0, le=1)], ...] = Field(default=(1.0,), strict=False, min_length=1)
    """The sizes of the training set, as fractions of all of it."""
    test: str = "test"
    """The test set that the report compares."""
    device: str = "auto"
    """The device to train on."""
    parallel: int = Field(default=1, ge=1, le=256)
    """How many runs are trained side by side."""
    max_minutes: float | None = Field(default=None, gt=0, le=1e6)
    """A run that takes longer is stopped, and reported as such; no limit if not given."""
    recall: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = Field(default=(1, 2, 4, 8, 16), strict=False)
    """The distances at which the recall of a planted word is measured; none, to leave it out. Parsers have none."""
    contrasts: tuple[ContrastConfig, ...] = Field(default=(), strict=False)
    """Pairs of rungs whose difference the report shows: in score, with less data, on long sentences, in cost."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [rung.name for rung in self.rungs]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise ConfigError(f"rungs.{number}.name", f"{name!r} is the name of another rung; choose another.")
        for number, rung in enumerate(self.rungs):
            self._check_dependency(number, rung)
        for number, contrast in enumerate(self.contrasts):
            for key, name in (("without", contrast.without), ("having", contrast.having)):
                if name not in names:
                    raise ConfigError(f"contrasts.{number}.{key}", f"there is no rung named {name!r}.")
        return self

    def _check_dependency(self, number: int, rung: RungConfig) -> None:
        where, earlier = f"rungs.{number}", {each.name: each for each in self.rungs[:number]}
        if rung.init_from is not None and rung.decodes is not None:
            raise ConfigError(f"{where}.decodes", "a rung that is trained has init_from; leave one of the two out.")
        for key, name in (("init_from", rung.init_from), ("decodes", rung.decodes)):
            if name is not None and name not in earlier:
                raise ConfigError(f"{where}.{key}", f"no rung before this one is named {name!r}.")
            if name is not None and earlier[name].decodes is not None:
                raise ConfigError(f"{where}.{key}", f"{name!r} trains nothing; name a rung that is trained.")
        if rung.word_vectors is not None and (rung.init_from or rung.decodes) is not None:
            problem = f"the embeddings are those of {rung.init_from or rung.decodes!r}; leave this key out."
            raise ConfigError(f"{where}.word_vectors", problem)
        if rung.recipe is not None and (rung.init_from or rung.decodes) is not None:
            problem = (
                f"the recipe is that of {rung.init_from or rung.decodes!r}, which comes before; leave this key out."
            )
            raise ConfigError(f"{where}.recipe", problem)
        if rung.ensemble > 1 and rung.decodes is None:
            problem = f"found {rung.ensemble}, but `decodes` does not say which models decode together."
            raise ConfigError(f"{where}.ensemble", problem)

    def rung(self, name: str) -> RungConfig:
        """A rung by its name."""
        for rung in self.rungs:
            if rung.name == name:
                return rung
        names = [rung.name for rung in self.rungs]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the rungs are {', '.join(names)}."
        raise UserError(f"{self.name} has no rung {name!r}; {hint}")

    def trained_rungs(self, rung: RungConfig) -> list[RungConfig]:
        """A rung behind those that it starts from or decodes with, the first of them first."""
        needed = rung.init_from or rung.decodes
        return [rung] if needed is None else [*self.trained_rungs(self.rung(needed)), rung]

    def recipe_of(self, rung: RungConfig) -> str:
        """The name or path of a rung's recipe."""
        return self.trained_rungs(rung)[0].recipe or self.base

    def only(self, names: Sequence[str]) -> "Ladder":
        """The ladder with some of its rungs, and those that they depend on, in its own order."""
        chosen: set[str] = set()
        waiting = [self.rung(name) for name in names]
        while waiting:
            rung = waiting.pop()
            chosen.add(rung.name)
            waiting += [self.rung(name) for name in (rung.init_from, rung.decodes) if name is not None]
        rungs = tuple(rung for rung in self.rungs if rung.name in chosen)
        contrasts = tuple(each for each in self.contrasts if {each.without, each.having} <= chosen)
        return self.model_copy(update={"rungs": rungs, "contrasts": contrasts})


def list_ladders() -> list[Ladder]:
    """The ladders that ship with the package, by name."""
    return [read_ladder(name)[0] for name in _shipped_names()]


def read_ladder(name: str | Path, overrides: Sequence[str] = ()) -> tuple[Ladder, list[str]]:
    """A ladder by its name or by the path of a .toml file, and the overrides that are for its recipes.

    Overrides of the form "seeds=1" or "budget.value=2" change the ladder; all others ("train.batch_tokens=512") are
    settings of every rung's recipe.
    """
    values, where, folder = _read_values(name)
    values = {"name": Path(name).name.removesuffix(".toml"), **values}
    own = {key for key in Ladder.model_fields if key not in ("name", "description", "overrides", "rungs")}
    rest = []
    for override in overrides:
        if override.partition("=")[0].split(".")[0].strip() in own:
            values = apply_override(values, override)
        else:
            rest.append(override)
    ladder = Ladder.read(_with_floats(values), where)
    return ladder if folder is None else _with_absolute_paths(ladder, folder), rest


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as values by their dotted keys. A model with a `kind` stays a table: it replaces another model."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        is_table = isinstance(value, Mapping) and value and not (name == "model" and "kind" in value)
        flat |= dotted(value, f"{name}.") if is_table else {name: value}
    return flat


def _with_absolute_paths(ladder: Ladder, folder: Path) -> Ladder:
    """The ladder with the paths of its recipes resolved against a folder."""

    def resolved(recipe: str) -> str:
        return str(folder / recipe) if recipe.endswith(".toml") or "/" in recipe else recipe

    def resolved_rung(rung: RungConfig) -> RungConfig:
        vectors = rung.word_vectors
        if vectors is not None:
            path = None if vectors.path is None else str(folder / vectors.path)
            vectors = vectors.model_copy(
                update={"path": path, "text": tuple(str(folder / each) for each in vectors.text)}
            )
        recipe = None if rung.recipe is None else resolved(rung.recipe)
        return rung.model_copy(update={"recipe": recipe, "word_vectors": vectors})

    rungs = tuple(map(resolved_rung, ladder.rungs))
    return ladder.model_copy(update={"base": resolved(ladder.base), "rungs": rungs})


def _with_floats(values: dict[str, Any]) -> dict[str, Any]:
    """TOML's integers where a ladder has real numbers: `sizes = [1]`, `value = 1000`."""
    values = dict(values)
    if isinstance(values.get("sizes"), list):
        values["sizes"] = [float(each) if type(each) is int else each for each in values["sizes"]]
    return values


def _read_values(name: str | Path) -> tuple[dict[str, Any], str, Path | None]:
    """The plain values of a ladder, its name for messages, and the folder that its paths are relative to."""
    path = Path(name)
    if path.suffix == ".toml" or "/" in str(name):
        try:
            text, where, folder = path.read_text(encoding="utf-8"), str(path), path.parent.absolute()
        except FileNotFoundError:
            raise UserError(
                f"{path}: there is no such ladder; `regard compare --list` lists those of regard."
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read as a ladder ({error}).") from None
    else:
        names = _shipped_names()
        if str(name) not in names:
            near = difflib.get_close_matches(str(name), names, n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "`regard compare --list` lists them."
            raise UserError(f"There is no ladder named {str(name)!r}; {hint} The path of a file ends in .toml.")
        file = resources.files("regard").joinpath(_FOLDER, f"{name}.toml")
        text, where, folder = file.read_text(encoding="utf-8"), f"ladder {name}", None
    try:
        return parse_toml(text), where, folder
    except ValueError as error:
        raise UserError(f"{where} is not TOML: {error}.") from None


def _shipped_names() -> list[str]:
    files = resources.files("regard").joinpath(_FOLDER).iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))
