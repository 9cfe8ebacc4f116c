"""Read recipes by name or path, with overrides, and write them back.

Recipes are TOML, read strictly. One that ships with the package is known by its name, any other by its path; relative
paths in a file are relative to that file. `--set a.b=c` overrides a value before anything is validated.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w

from regard.config import parse_toml
from regard.data.registry import Availability, locate_dataset
from regard.data.text.corpus import CorpusConfig
from regard.errors import UserError
from regard.run import find_model
from regard.task.base import Recipe
from regard.task.registry import get_task, read_values, task_of

_HARMLESS = (
    "expect.",
    "description",
    "limitations",
    "data_needed",
    "train.seed",
    "train.activation_checkpointing",
    "train.log_every",
    "train.validate_every",
    "train.save_dtype",
    "train.parallel",
)
"""Overrides after which a recipe still reaches the scores in its [expect] table."""
_WITH_PATHS = ("data", "init_from", "word_vectors")
"""The tables and keys of a recipe that have paths."""
_MAX_KEYS = 50
"""The most parts that the key of an override may have."""

Overrides = Mapping[str, Any] | Sequence[str]
"""Changed settings: values by their dotted keys, or strings of the form "train.steps=1000"."""
_MAX_CHARACTERS = 1 << 20
"""A recipe is never longer, but a device may be endless."""

DataAvailability = Literal["bring", "download", "here", "included"]
"""Where the data of a recipe comes from: from the user, from the internet, from this machine, or with regard."""
_AVAILABILITY: dict[Availability, DataAvailability] = {
    "package": "included",
    "REGARD_DATA": "here",
    "system": "here",
    "cache": "here",
    "downloadable": "download",
    "partly downloadable": "bring",
    "not downloadable": "bring",
}


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that ships with the package."""

    name: str
    recipe: Recipe

    def data_availability(self) -> DataAvailability:
        """Where its data comes from: the source that takes most effort counts. Nothing is downloaded."""
        if self.recipe.describe_needed_data():
            return "bring"
        datasets = {source.dataset for sources in self.recipe.data_sources().values() for source in sources}
        found = {"bring" if name is None else _AVAILABILITY[locate_dataset(name).availability] for name in datasets}
        return next(one for one in get_args(DataAvailability) if one in found)


def shipped_recipes() -> list[ShippedRecipe]:
    """All recipes that ship with the package, by name."""
    return [ShippedRecipe(name, read_recipe(name)) for name in _shipped_names()]


def read_recipe(
    name: str | Path, overrides: Overrides = (), pairs: CorpusConfig | None = None, data: str | Path | None = None
) -> Recipe:
    """A recipe by its name, by the path of a .toml file, or that of a run folder.

        recipe = regard.read_recipe("quick", {"train.steps": 500, "model.width": 192})
        regard.train(recipe, out="runs/wider")

    `overrides` change settings: a mapping from dotted keys to values, or strings of the form "train.steps=500". With
    `pairs`, or with a file or folder as `data`, it trains on these instead of its own data; if possible, some of it is
    used for validation. The [expect] table is then dropped, as it is after any override that changes the result. If
    `train.steps` becomes so small that the warmup does not fit, it is shortened in proportion.
    """
    values, where = _read_values(name)
    if Path(name).is_dir():
        values = _with_following_schedule(values, overrides)
    return _read_changed({"name": recipe_name(name), **values}, where, overrides, pairs, data)


def read_recipe_file(name: str, overrides: Overrides = ()) -> Recipe:
    """The recipe in a .toml file, or the one that ships under a name, even if there is a folder of that name here."""
    if name in _shipped_names():
        values, where = _with_absolute_paths(_parse(_shipped_text(name), name), Path.cwd()), f"recipe {name}"
        return _read_changed({"name": name, **values}, where, overrides)
    return read_recipe(name, overrides)


def _read_changed(
    values: dict[str, Any],
    where: str,
    overrides: Overrides,
    pairs: CorpusConfig | None = None,
    data: str | Path | None = None,
) -> Recipe:
    """A recipe from its plain values, with other settings and other data."""
    changes = _parsed_overrides(overrides)
    if pairs is not None:
        if not get_task(task_of(values), where).text_pairs:
            raise UserError(f"{where} is for {task_of(values)}, so it cannot be trained on pairs of sentences.")
        values = _with_data(values, {"train": [pairs.plain()]}, pairs.location)
    if data is not None:
        recipe_class = get_task(task_of(values), where).recipe_class()
        config = recipe_class.user_data_config(str(Path(data).absolute()), values.get("data", {}))
        values = _with_data(values, config, str(data))
    before = values
    for key, value in changes:
        values = _with_setting(values, key, value)
        if not key.startswith(_HARMLESS):
            values.pop("expect", None)
    changed = {key for key, _ in changes}
    if "train.steps" in changed and not any(key.startswith("train.schedule") for key in changed):
        values = _with_fitting_warmup(values, before)
    return read_values(values, where)


def write_recipe(recipe: Recipe) -> str:
    """The recipe as TOML, with every default filled in."""
    text = tomli_w.dumps(_without_none(recipe.resolved()))
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        line = text[text.rfind("\n", 0, error.start) + 1 :].partition("\n")[0]
        raise UserError(f"The recipe contains a name that is not UTF-8: {line!a}; rename that file.") from None
    return text


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe with other steps; a schedule that ends with the run follows, and so does a warmup that is too long."""
    values, overrides = tomllib.loads(write_recipe(recipe)), {"train.steps": steps}
    return _read_changed(_with_following_schedule(values, overrides), f"recipe {recipe.name}", overrides)


def recipe_name(name: str | Path) -> str:
    """The name of a recipe: that of its file, without the suffix."""
    return Path(name).name.removesuffix(".toml")


def apply_override(values: dict[str, Any], override: str) -> dict[str, Any]:
    """The values with one override, `a.b=c`: c is read as TOML (a number, true, a list …), else as a string."""
    return _with_setting(values, *_parsed_override(override))


def _parsed_overrides(overrides: Overrides) -> list[tuple[str, Any]]:
    """Keys and values of overrides in either form."""
    if isinstance(overrides, Mapping):
        return [(str(key).strip(), _plain(value)) for key, value in overrides.items()]
    return [_parsed_override(override) for override in overrides]


def _parsed_override(override: str) -> tuple[str, Any]:
    key, sign, text = override.partition("=")
    if not sign:
        raise UserError(f"--set {override}: expected a key and a value, such as train.steps=1000.")
    try:
        return key.strip(), parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text
    except ValueError as error:
        raise UserError(f"--set {key}: the value cannot be read: {error}.") from None


def _with_setting(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """The values with the setting of a dotted key."""
    path = key.split(".")
    if len(path) > _MAX_KEYS:
        raise UserError(f"--set {key[:_MAX_KEYS]}…: the key has {len(path):,} parts; no setting is nested that deep.")
    if not all(path):
        raise UserError(f"--set {key}={value}: expected a key and a value, such as train.steps=1000.")
    if path[0] in _WITH_PATHS and not _table_at(values, path[:-1]).get("dataset"):
        value = _absolute(value, path[-1], Path.cwd())
    changed: dict[str, Any] = _replaced(values, path, value, f"{key}={value}")
    return changed


def _plain(value: Any) -> Any:
    """A value as a file would give it: paths are strings, and tuples lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _with_following_schedule(values: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """The values of a run, whose recipe has every default filled in; if its steps are overridden, without a schedule's
    steps that are the run's."""
    if all(key != "train.steps" for key, _ in _parsed_overrides(overrides)):
        return values
    train = values.get("train")
    schedule = train.get("schedule") if isinstance(train, dict) else None
    if not isinstance(train, dict) or not isinstance(schedule, dict) or schedule.get("steps") != train.get("steps"):
        return values
    schedule = {key: value for key, value in schedule.items() if key != "steps"}
    return {**values, "train": {**train, "schedule": schedule}}


def _with_fitting_warmup(values: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The values with a warmup that is shortened as the number of steps was, if it is no shorter than that."""
    schedule: dict[str, Any] = _table_at(values, ["train", "schedule"])
    old: Any = _table_at(before, ["train"]).get("steps")
    new: Any = _table_at(values, ["train"]).get("steps")
    warmup: Any = schedule.get("warmup_steps")
    if not all(type(number) is int and number > 0 for number in (old, new, warmup)) or warmup < new:
        return values
    return {**values, "train": {**values["train"], "schedule": {**schedule, "warmup_steps": warmup * new // old}}}


def _with_data(values: dict[str, Any], data: dict[str, Any], location: str) -> dict[str, Any]:
    """The values with other data sources; the other data settings stay as they are."""
    rest = {key: value for key, value in values.get("data", {}).items() if key not in ("train", "valid", "test")}
    values = {key: value for key, value in values.items() if key not in ("expect", "score", "data_needed")}
    return values | {"data": rest | data, "description": f"{values['name']}, on {location}.", "limitations": ""}


def _replaced(values: Any, path: list[str], value: Any, override: str) -> Any:
    """A copy of nested tables and lists with one value replaced. Missing tables are created."""
    if not path:
        return value
    if isinstance(values, list):
        if not path[0].isdigit() or int(path[0]) >= len(values):
            raise UserError(
                f"--set {override}: {path[0]!r} is none of the {len(values)} entries there; they count from 0."
            )
        index = int(path[0])
        return [*values[:index], _replaced(values[index], path[1:], value, override), *values[index + 1 :]]
    if not isinstance(values, dict):
        raise UserError(f"--set {override}: there is no {path[0]!r} inside a single value.")
    return {**values, path[0]: _replaced(values.get(path[0], {}), path[1:], value, override)}


def _table_at(values: Any, path: list[str]) -> dict[str, Any]:
    """The table at a dotted key; empty if there is none."""
    for part in path:
        if isinstance(values, dict):
            values = values.get(part)
        elif isinstance(values, list) and part.isdigit() and int(part) < len(values):
            values = values[int(part)]
    return values if isinstance(values, dict) else {}


def recipe_text(name: str | Path) -> str:
    """The text of a recipe by its name or path, comments included."""
    return _find_text(name)[0]


def _read_values(name: str | Path) -> tuple[dict[str, Any], str]:
    """The plain values of a recipe, and its name for messages."""
    text, where, folder = _find_text(name)
    return _with_absolute_paths(_parse(text, where), folder), where


def _find_text(name: str | Path) -> tuple[str, str, Path]:
    """The text of a recipe, its name for messages, and the folder that its paths are relative to."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_dir() or "/" in str(name):
        path = path / "recipe.toml" if path.is_dir() else path
        try:
            return _read_text(path), str(path), path.parent
        except FileNotFoundError:
            if Path(name).is_dir():
                raise UserError(
                    f"{name} has no recipe.toml: no run was started there. Give the recipe, with --out {name}."
                ) from None
            raise UserError(
                f"{path}: there is no such recipe; `regard recipes` lists those that ship with regard."
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path} cannot be read as a recipe ({error}).") from None
    names = _shipped_names()
    if str(name) not in names:
        near = difflib.get_close_matches(str(name), names, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "`regard recipes` lists them."
        raise UserError(f"There is no recipe named {str(name)!r}; {hint} The path of a file ends in .toml.")
    return _shipped_text(str(name)), f"recipe {name}", Path.cwd()


def _shipped_text(name: str) -> str:
    return (resources.files("regard") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")


def _read_text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        text = file.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise UserError(f"{path} has more than {_MAX_CHARACTERS:,} characters, so it is not a recipe.")
    return text


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return parse_toml(text)
    except ValueError as error:
        raise UserError(f"{where} is not TOML: {error}.") from None


def _shipped_names() -> list[str]:
    files = (resources.files("regard") / "recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def _with_absolute_paths(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values of a recipe, with its paths resolved against a folder."""
    return {key: _absolute(value, key, folder) if key in _WITH_PATHS else value for key, value in values.items()}


def _absolute(value: Any, key: str, folder: Path) -> Any:
    """A path resolved against a folder; in tables and lists all paths, except inside a named dataset."""
    if isinstance(value, list):
        return [_absolute(item, key, folder) for item in value]
    if isinstance(value, dict):
        return value if "dataset" in value else {name: _absolute(item, name, folder) for name, item in value.items()}
    names_path = key in ("path", "source", "target", "labels") or (key == "init_from" and "/" in str(value).rstrip("/"))
    # In init_from, a name without a slash may be a folder here (or one of its checkpoints), or a pretrained model.
    folder = folder.absolute()  # "./en-tr" would be the name of a pretrained model again
    if isinstance(value, str) and (names_path or (key == "init_from" and find_model(folder / value).exists())):
        return str(folder / value)
    return value


def _without_none(values: Any) -> Any:
    """TOML has no null: leave these keys out."""
    if isinstance(values, dict):
        return {key: _without_none(value) for key, value in values.items() if value is not None}
    if isinstance(values, list):
        return [_without_none(value) for value in values]
    return values
