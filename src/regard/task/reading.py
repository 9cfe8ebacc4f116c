"""Recipes by name or path, with changes, and back into files.

TOML, read strictly. A recipe that ships with the package is known by its name, any other by its path; paths inside a
file are meant from where the file lies. `--set a.b=c` changes a value before anything is checked.
"""

import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from regard.data.corpus import CorpusConfig
from regard.errors import UserError
from regard.task.kinds import RECIPES, read_values
from regard.task.recipe import Recipe
from regard.task.translation_recipe import TranslationRecipe

_HARMLESS = (
    "expect.",
    "description",
    "train.seed",
    "train.recompute",
    "train.log_every",
    "train.validate_every",
    "train.store",
    "train.parallel",
)
"""Changes after which a recipe still gives what it says to expect."""


@dataclass(frozen=True)
class Shipped:
    """A recipe that comes with the package."""

    name: str
    recipe: Recipe


def shipped_recipes() -> list[Shipped]:
    """All recipes that come with the package, by name."""
    return [Shipped(name, read_recipe(name)) for name in _shipped_names()]


def read_recipe(
    name: str | Path, changes: Sequence[str] = (), pairs: CorpusConfig | None = None, own: Path | None = None
) -> Recipe:
    """A recipe by its name or path, with `changes` of the form a.b=c.

    With `pairs`, or a file or folder of one's `own`, it is trained on these instead of its own data: some of it is kept
    aside to watch the run, where that can be done. What the recipe expects no longer holds then, nor after a change of
    anything that matters.
    """
    values, where = _values(name)
    values = {"name": recipe_name(name), **values}
    task = values.get("task", "translation")
    if pairs is not None:
        if task != "translation":
            raise UserError(f"{where} is no recipe for translation, so it cannot be trained on pairs of sentences.")
        values = _on(values, {"train": [pairs.plain()]}, pairs.place)
    if own is not None and task in RECIPES:
        values = _on(values, RECIPES[task].own_data(str(own.absolute()), values.get("data", {})), str(own))
    for change in changes:
        values = changed(values, change)
        if not change.startswith(_HARMLESS):
            values.pop("expect", None)
    return read_values(values, where)


def _on(values: dict[str, Any], data: dict[str, Any], place: str) -> dict[str, Any]:
    """The values with other data; of the recipe's own data only how it is read stays."""
    rest = {key: value for key, value in values.get("data", {}).items() if key not in ("train", "valid", "test")}
    values = {key: value for key, value in values.items() if key not in ("expect", "score")}
    return values | {"data": rest | data, "description": f"{values['name']}, on {place}."}


def read_translation(
    name: str | Path, changes: Sequence[str] = (), pairs: CorpusConfig | None = None
) -> TranslationRecipe:
    """A recipe by its name or path, refused if it is not one for translation."""
    recipe = read_recipe(name, changes, pairs)
    if not isinstance(recipe, TranslationRecipe):
        raise UserError(f"{name}: this recipe is for {recipe.task}, not for translation.")
    return recipe


def write_recipe(recipe: Recipe) -> str:
    """The recipe as TOML, everything left out filled in."""
    return tomli_w.dumps(_without_none(recipe.resolved()))


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
    names_path = key in ("path", "source", "target", "labels") or (key == "init_from" and "/" in str(value).rstrip("/"))
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
