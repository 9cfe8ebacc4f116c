"""Config classes are described in words, with the docstrings of their fields."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from regard.config import Config
from regard.model import EncoderDecoderConfig
from regard.task.registry import TASKS, get_task
from regard.task.settings import ConfigField, config_fields, config_meaning, fixed_kind, recipe_table, table_fields
from regard.task.settings.keys import adapt_field


class Left(Config):
    """One kind."""

    kind: Literal["left"] = "left"
    size: int = Field(default=1, ge=1, le=1000)
    """How large."""
    depth: float = Field(gt=0)
    """How deep."""


class Right(Left):
    """Another kind."""

    kind: Literal["right"] = "right"  # type: ignore[assignment]
    depth: float = Field(default=0.5, gt=0)


class Outer(Config):
    count: int = Field(default=3, gt=0, lt=10)
    """In a
    long docstring."""
    fraction: float | None = Field(default=None, ge=0, lt=1)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    name: Annotated[str, Field(min_length=1)] | None = None
    sides: tuple[int, int] = (1, 2)
    values: tuple[Annotated[float, Field(gt=0, le=2)], ...] = ()
    choice: Literal["a", 3] = "a"
    flag: bool = True
    one: Annotated[Left | Right, Field(discriminator="kind")] | None = None
    several: tuple[Left, ...] = Field(strict=False)
    named: dict[str, Left] = Field(default_factory=dict)
    size: int | tuple[int, int] = 4


FIELDS = {one.name: one for one in config_fields(Outer)}


@pytest.mark.parametrize(
    ("name", "described", "default"),
    [
        ("count", "integer from 1 to 9", "3"),
        ("fraction", "number from 0 to below 1", "not set"),
        ("seed", "integer of at least 0", "0"),
        ("name", "text", "not set"),
        ("sides", "list of two integers", "[1, 2]"),
        ("values", "list of numbers above 0, up to 2", "not set"),
        ("choice", 'one of "a", 3', '"a"'),
        ("flag", "true or false", "true"),
        ("one", "table", "not set"),
        ("several", "list of tables", "required"),
        ("named", "tables by name", "not set"),
        ("size", "integer, or list of two integers", "4"),
    ],
)
def test_types_and_defaults_are_described_in_words(name: str, described: str, default: str) -> None:
    assert (FIELDS[name].type, FIELDS[name].default_text) == (described, default)


def test_docstrings_are_found_also_in_base_classes() -> None:
    assert FIELDS["count"].meaning == "In a long docstring."
    assert {one.name: one.meaning for one in config_fields(Right)}["depth"] == "How deep."


def test_nested_tables() -> None:
    assert FIELDS["one"].tables == (Left, Right)
    assert FIELDS["one"].kind_required
    assert (FIELDS["several"].tables, FIELDS["several"].placeholder) == ((Left,), "N")
    assert (FIELDS["named"].tables, FIELDS["named"].placeholder) == ((Left,), "NAME")


def test_fields_of_several_kinds_name_the_kinds_that_differ() -> None:
    rows = [(one.name, one.default_text, kinds) for one, kinds in table_fields(FIELDS["one"])]
    assert rows == [
        ("kind", "required", ()),
        ("size", "1", ()),
        ("depth", "required", ("left",)),
        ("depth", "0.5", ("right",)),
    ]


def test_default_of_a_table_is_the_default_of_its_keys() -> None:
    table = ConfigField("left", "table", False, Left(size=7, depth=2.0), "", (Left,))
    assert [(one.name, one.default) for one, _ in table_fields(table)] == [
        ("kind", "left"),
        ("size", 7),
        ("depth", 2.0),
    ]


def reachable_classes() -> set[type[Config]]:
    """Every config class that a recipe of any task can contain."""
    found: set[type[Config]] = set()

    def walk(key: str, table: ConfigField, recipe: type) -> None:
        found.update(table.tables)
        for one, _ in table_fields(table):
            inner = adapt_field(f"{key}.{one.name}".strip("."), one, recipe)
            if inner.tables:
                walk(f"{key}.{one.name}".strip("."), inner, recipe)

    for task in TASKS:
        recipe = get_task(task).recipe_class()
        walk("", recipe_table(recipe), recipe)
    return found


def test_every_field_that_recipes_can_have_is_documented() -> None:
    """A table without a docstring of its own is described by its class, and a fixed kind by the class that it names."""
    classes = reachable_classes()
    assert len(classes) > 50
    assert EncoderDecoderConfig in classes
    undocumented = [config.__name__ for config in classes if not config_meaning(config)]
    for config in classes:
        for one in config_fields(config):
            described = len(one.tables) == 1 or (one.name == "kind" and fixed_kind(config))
            if not one.meaning and not described:
                undocumented.append(f"{config.__name__}.{one.name}")
    assert not undocumented
