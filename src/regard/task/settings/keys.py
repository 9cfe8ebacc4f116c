"""Every key that a recipe can have, by its dotted name, and the search for a key.

A key is written as `--set` takes it: `train.schedule.lr`. Where a table is one of a list, N stands for its index
(`data.train.N.path`); where tables have names, NAME stands for one (`data.test.NAME.path`).
"""

import difflib
import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from regard.errors import UserError
from regard.model import MODELS
from regard.task.base import Recipe
from regard.task.registry import DEFAULT_TASK, TASKS, get_task
from regard.task.settings.fields import ConfigField, config_meaning, fixed_kind, table_fields, toml_text

_PLACEHOLDERS = ("N", "NAME")
_MAX_NEAREST = 6
"""The most keys that the error for an unknown one suggests."""


@dataclass(frozen=True)
class Setting:
    """A key of a recipe, or a table of keys."""

    key: str
    type: str
    """In words: "integer from 1 to 1,000"."""
    required: bool
    default: str
    """As TOML; "required" or "not set" if there is none."""
    meaning: str
    is_table: bool = False
    condition: str = ""
    """What the `kind` of its table must be for this key to exist: `model.encoder.attention.kind = "latent"`."""
    tasks: tuple[str, ...] = field(default=(), compare=False)
    """The tasks whose recipes have it."""

    @property
    def summary(self) -> str:
        """The first sentence of its meaning."""
        return re.split(r"(?<=[.])(?<!et al[.])(?<! eq[.]) ", self.meaning, maxsplit=1)[0]

    def without_place(self) -> "Setting":
        """The same without the keys of the tables that it is in, to compare settings of several tables."""
        name, kind = self.key.rpartition(".")[2], self.condition.rpartition(".")[2]
        return replace(self, key=name, condition=kind)


def get_task_settings(task: str) -> tuple[Setting, ...]:
    """The settings of a task that a user has named; an error if there is none."""
    return task_settings(get_task(task).name)


@functools.cache
def task_settings(task: str) -> tuple[Setting, ...]:
    """Every key of the recipes of a task, each table before its keys."""
    recipe = get_task(task).recipe_class()
    return tuple(replace(setting, tasks=(task,)) for setting in _walk("", recipe_table(recipe), recipe))


@functools.cache
def all_settings() -> tuple[Setting, ...]:
    """Every key of every task's recipes. A key whose type, default or meaning depends on the task occurs repeatedly."""
    merged: dict[Setting, tuple[str, ...]] = {}
    for task in sorted(TASKS, key=lambda name: name != DEFAULT_TASK):
        for setting in task_settings(task):
            merged[setting] = (*merged.get(setting, ()), task)
    ranks: dict[str, int] = {}
    for setting in merged:
        for prefix in _prefixes(setting.key):
            ranks.setdefault(prefix, len(ranks))
    ordered = sorted(merged, key=lambda setting: [ranks[prefix] for prefix in _prefixes(setting.key)])
    return tuple(replace(setting, tasks=merged[setting]) for setting in ordered)


def find_settings(query: str, settings: Sequence[Setting]) -> list[Setting]:
    """The settings that a query names: a key, a table with its keys, part of a key, or words of a meaning.

    An error with the nearest keys if there are none.
    """
    query = query.strip().strip("[]").lower()
    named = [one for one in settings if _names(one.key, query)]
    if named:
        tables = {one.key for one in named if one.is_table}
        return [one for one in settings if one in named or parent_table(one.key) in tables]
    found = [one for one in settings if query in one.key.lower() and not one.is_table]
    found = found or [one for one in settings if query in one.key.lower()]
    found = found or [one for one in settings if query in one.meaning.lower()]
    if not found:
        raise UserError(f"There is no setting {query!r}; {_nearest(query, settings)}")
    return found


def parent_table(key: str) -> str:
    """The key of the table that a key is in, without an index or name at its end; empty at the top."""
    parts = key.split(".")[:-1]
    while parts and parts[-1] in _PLACEHOLDERS:
        parts.pop()
    return ".".join(parts)


def _names(key: str, query: str) -> bool:
    """Whether a query is this key, with any index for N and any name for NAME."""
    parts, given = key.split("."), query.split(".")
    if len(parts) != len(given):
        return False
    return all(
        part.lower() == one or (part == "N" and one.isdigit()) or part == "NAME"
        for part, one in zip(parts, given, strict=True)
    )


def _nearest(query: str, settings: Sequence[Setting]) -> str:
    keys = list(dict.fromkeys(one.key for one in settings))
    last = query.rpartition(".")[2]
    names = list(dict.fromkeys(key.rpartition(".")[2] for key in keys))
    similar = [last] if last in names else difflib.get_close_matches(last, names, n=2)
    near = [key for name in similar for key in keys if key.rpartition(".")[2] == name]
    near = list(dict.fromkeys([*near, *difflib.get_close_matches(query, keys, n=3)]))[:_MAX_NEAREST]
    return f"the nearest are {', '.join(near)}." if near else "`regard settings` lists all tables."


def _prefixes(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[: number + 1]) for number in range(len(parts))]


def _walk(prefix: str, table: ConfigField, recipe: type[Recipe]) -> Iterator[Setting]:
    """The keys of a table and of the tables in it."""
    for one, kinds in table_fields(table):
        key = _join(prefix, one.name)
        if key in recipe_exclusions(recipe):
            continue
        one = adapt_field(key, one, recipe)
        names = " or ".join(map(toml_text, kinds))
        yield _setting(key, one, condition=f"{_join(prefix, 'kind')} = {names}" if kinds else "")
        if one.tables:
            yield from _walk(_join(key, one.placeholder), one, recipe)


def _setting(key: str, one: ConfigField, condition: str) -> Setting:
    meaning = one.meaning or config_meaning(one.tables[0]).partition("\n\n")[0]
    default = one.default_text
    if one.tables and default not in ("required", "not set"):
        default = ""  # its keys have defaults of their own
    return Setting(key, one.type, one.required, default, " ".join(meaning.split()), bool(one.tables), condition)


def recipe_table(recipe: type[Recipe]) -> ConfigField:
    """A whole recipe as a table."""
    return ConfigField("", "table", True, None, "", (recipe,))


def recipe_exclusions(recipe: type[Recipe]) -> frozenset[str]:
    """Keys of the config classes that cannot be given in the recipes of a task: they follow from the data."""
    unused = (f"train.{name}" for name in recipe.unused_train_keys)
    return frozenset((*unused, *(f"model.{name}" for name in recipe.model_keys_from_data)))


def adapt_field(key: str, one: ConfigField, recipe: type[Recipe]) -> ConfigField:
    """A field of a recipe with what its config class does not tell: which tasks, models and heads there are."""
    if key == "task":
        names = sorted(TASKS, key=lambda name: name != DEFAULT_TASK)
        return replace(one, type=f"one of {', '.join(map(toml_text, names))}", required=False, default=DEFAULT_TASK)
    if key == "model":
        kinds = recipe.known_kinds()
        return replace(one, tables=tuple(MODELS[kind] for kind in kinds), default={"kind": kinds[0]})
    if key == "model.head" and recipe.head:
        tables = tuple(config for config in one.tables if fixed_kind(config) == recipe.head["kind"])
        return replace(one, tables=tables, default=recipe.head, kind_required=False)
    return one


def _join(prefix: str, name: str) -> str:
    return ".".join(part for part in (prefix, name) if part)
