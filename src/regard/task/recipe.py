"""A recipe is a file: all that a run depends on, and what to expect of it.

TOML, read strictly. A recipe that ships with the package is known by its name, any other by its path; paths inside a
file are meant from where the file lies. `--set a.b=c` changes a value before anything is checked.
"""

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import Field, model_validator

from regard.config import Config, ConfigError
from regard.data.corpus import CorpusConfig
from regard.data.filter import FilterConfig
from regard.data.tokenizer_training import SUBWORDS, TokenizerConfig
from regard.decode import DecodeConfig
from regard.errors import UserError
from regard.model import EncoderDecoderConfig
from regard.train.settings import TrainConfig

_HARMLESS = (
    "expect.",
    "description",
    "train.seed",
    "train.recompute",
    "train.log_every",
    "train.validate_every",
    "train.store",
)
"""Changes after which a recipe still gives what it says to expect."""

_FROM_TOKENIZER = ("vocabulary", "source_vocabulary", "tokens")


class DataConfig(Config):
    """Which pairs a run learns from, watches and is judged by."""

    train: tuple[CorpusConfig, ...] = Field(strict=False, min_length=1)
    valid: CorpusConfig | None = None
    """Without it, some pairs are taken out of the training part."""
    test: dict[str, CorpusConfig] = Field(default_factory=dict)
    """Test sets by name. They are looked at once, when training is over."""
    hold_out: int = Field(default=1000, ge=0)
    """How many pairs at most are taken out of the training part to watch the run, where `valid` is not given."""
    filter: FilterConfig = FilterConfig()
    longest: int = Field(default=256, ge=1)
    """Pairs with a side of more tokens are left out of training."""


class SharedTokenizerConfig(TokenizerConfig):
    """How text becomes tokens, on both sides."""

    shared: bool = True
    """One vocabulary for both languages."""
    sample: int | None = Field(default=None, ge=1)
    """Learn from the first so many pairs only."""


class ScoreConfig(Config):
    """How outputs are compared with references."""

    tokenised: bool = False
    """The text is tokenised already and is taken as it stands."""
    lowercase: bool = False
    """Case does not count."""


class ExpectedScore(Config):
    """What a test set should give: the mean over seeds, and the standard deviation where there are several."""

    bleu: float = Field(ge=0, le=100)
    chrf: float | None = Field(default=None, ge=0, le=100)
    spread: float | None = Field(default=None, ge=0)


class ExpectConfig(Config):
    """What number should I get? Measured by this recipe, or taken from where `source` says."""

    measured: bool
    scores: dict[str, ExpectedScore] = Field(default_factory=dict)
    """By the name of the test set."""
    seeds: int | None = Field(default=None, ge=1)
    minutes: float | None = Field(default=None, gt=0)
    hardware: str | None = None
    source: str | None = None

    @model_validator(mode="after")
    def _says_where_from(self) -> Self:
        if self.measured and not (self.scores and self.hardware and self.minutes and self.seeds):
            raise ConfigError("measured", "a measured recipe gives scores, seeds, minutes and hardware.")
        if not self.measured and self.scores and self.source is None:
            raise ConfigError("source", "scores that were not measured need their source.")
        return self


class Recipe(Config):
    """Everything a translation run depends on."""

    name: str = ""
    """What the recipe is called; its file's name if it does not say."""
    description: str
    task: Literal["translation"] = "translation"
    init_from: str | None = None
    """A run folder or model whose weights (and tokenizers) this run starts from."""
    data: DataConfig
    tokenizer: SharedTokenizerConfig = SharedTokenizerConfig()
    model: dict[str, Any] = Field(default_factory=dict)
    """The settings of an encoder–decoder; its vocabulary and special tokens come from the tokenizer."""
    train: TrainConfig
    decode: DecodeConfig = DecodeConfig()
    score: ScoreConfig = ScoreConfig()
    expect: ExpectConfig | None = None

    @model_validator(mode="after")
    def _model_can_be_built(self) -> Self:
        _ = self.settings
        return self

    @property
    def settings(self) -> EncoderDecoderConfig:
        """The model's config, with the vocabulary that was asked for, or is likely."""
        size = self.tokenizer.vocabulary or (self.tokenizer.smallest if self.tokenizer.kind == "byte" else SUBWORDS)
        return self.model_settings(size, None if self.tokenizer.shared else size)

    def model_settings(self, vocabulary: int, source_vocabulary: int | None = None) -> EncoderDecoderConfig:
        """The model's config for a vocabulary. Errors name their key in the recipe."""
        for key in _FROM_TOKENIZER:
            if key in self.model:
                raise ConfigError(f"model.{key}", "this follows from the tokenizer; leave this key out.")
        tokens = {"padding": 0, "start": 1, "end": 2}  # the ids that our tokenizers give
        sizes: list[Any] = [vocabulary, source_vocabulary, tokens]
        try:
            return EncoderDecoderConfig(**self.model, **dict(zip(_FROM_TOKENIZER, sizes, strict=True)))
        except ConfigError as error:
            raise ConfigError(f"model.{error.key}", error.problem) from None


@dataclass(frozen=True)
class Shipped:
    """A recipe that comes with the package."""

    name: str
    recipe: Recipe


def shipped_recipes() -> list[Shipped]:
    """All recipes that come with the package, by name."""
    return [Shipped(name, read_recipe(name)) for name in _shipped_names()]


def read_recipe(name: str | Path, changes: Sequence[str] = (), pairs: CorpusConfig | None = None) -> Recipe:
    """A recipe by its name or path, with `changes` of the form a.b=c.

    With `pairs` it is trained on these instead of its own data: some of them are held out to watch the run. What the
    recipe expects no longer holds then, nor after a change of anything that matters.
    """
    values, where = _values(name)
    values = {"name": recipe_name(name), **values}
    if pairs is not None:
        rest = {key: value for key, value in values.get("data", {}).items() if key not in ("train", "valid", "test")}
        values = {key: value for key, value in values.items() if key not in ("expect", "score")}
        values["data"] = {**rest, "train": [pairs.plain()]}
        values["description"] = f"{recipe_name(name)}, on {pairs.place}."
    for change in changes:
        values = changed(values, change)
        if not change.startswith(_HARMLESS):
            values.pop("expect", None)
    return Recipe.read(values, where)


def write_recipe(recipe: Recipe) -> str:
    """The recipe as TOML, everything left out filled in."""
    values = recipe.plain()
    values["model"] = {key: value for key, value in recipe.settings.plain().items() if key not in _FROM_TOKENIZER}
    return tomli_w.dumps(_without_none(values))


def recipe_name(name: str | Path) -> str:
    """What a recipe is called: its file's name without the ending."""
    return Path(name).name.removesuffix(".toml")


def changed(values: dict[str, Any], change: str) -> dict[str, Any]:
    """The values with one change, `a.b=c`: c is read as TOML (a number, true, a list …), else as text."""
    key, sign, text = change.partition("=")
    path = key.strip().split(".")
    if not sign or not all(path):
        raise UserError(f"--set {change}: expected a key and a value, such as train.steps=1000.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    if path[0] in ("data", "init_from") and not _value_at(values, path[:-1]).get("set"):
        value = _absolute(value, path[-1], Path.cwd())
    changed: dict[str, Any] = _put(values, path, value, change)
    return changed


def _put(values: Any, path: list[str], value: Any, change: str) -> Any:
    """A copy of nested tables and lists with one value replaced. Tables that are missing are made."""
    if not path:
        return value
    if isinstance(values, list):
        if not path[0].isdigit() or int(path[0]) >= len(values):
            raise UserError(
                f"--set {change}: {path[0]!r} is none of the {len(values)} entries there; they count from 0."
            )
        number = int(path[0])
        return [*values[:number], _put(values[number], path[1:], value, change), *values[number + 1 :]]
    if not isinstance(values, dict):
        raise UserError(f"--set {change}: there is no {path[0]!r} inside a single value.")
    return {**values, path[0]: _put(values.get(path[0], {}), path[1:], value, change)}


def _value_at(values: Any, path: list[str]) -> dict[str, Any]:
    for part in path:
        if isinstance(values, dict):
            values = values.get(part)
        elif isinstance(values, list) and part.isdigit() and int(part) < len(values):
            values = values[int(part)]
    return values if isinstance(values, dict) else {}


def _values(name: str | Path) -> tuple[dict[str, Any], str]:
    """The plain values of a recipe and how to call it in messages."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_dir() or "/" in str(name):
        path = path / "recipe.toml" if path.is_dir() else path
        try:
            return _from_here(_parse(path.read_text(encoding="utf-8"), str(path)), path.parent), str(path)
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such recipe; `regard recipes` lists those that ship.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read as a recipe ({error}).") from None
    known = _shipped_names()
    if str(name) not in known:
        near = difflib.get_close_matches(str(name), known, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "`regard recipes` lists them."
        raise UserError(f"There is no recipe named {str(name)!r}; {hint} A file of your own ends in .toml.")
    text = (resources.files("regard") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    return _from_here(_parse(text, f"recipe {name}"), Path.cwd()), f"recipe {name}"


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where} is not TOML: {error}.") from None


def _shipped_names() -> list[str]:
    files = (resources.files("regard") / "recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _from_here(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values of a recipe, with paths as seen from a folder."""
    return {
        key: _absolute(value, key, folder) if key in ("data", "init_from") else value for key, value in values.items()
    }


def _absolute(value: Any, key: str, folder: Path) -> Any:
    """A path made absolute as seen from a folder, and so all paths in tables and lists that name no data set."""
    if isinstance(value, list):
        return [_absolute(one, key, folder) for one in value]
    if isinstance(value, dict):
        return value if "set" in value else {name: _absolute(one, name, folder) for name, one in value.items()}
    names_path = key in ("path", "source", "target") or (key == "init_from" and "/" in str(value).rstrip("/"))
    # What init_from names without a path may be a folder here, or else a model that ships.
    if isinstance(value, str) and (names_path or (key == "init_from" and (folder / value).exists())):
        return str((folder / value).absolute())
    return value


def _without_none(values: Any) -> Any:
    """TOML has no word for nothing; a key left out says it."""
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items() if value is not None}
    if isinstance(values, list):
        return [_without_none(value) for value in values]
    return values
