"""The fields of one config class: name, type and default in words, and the docstring below the field.

Python drops the docstrings of fields, so they are read from the source file of the class.
"""

import ast
import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from regard.config import Config

_NO_LIMIT = 10**9
"""Bounds from here on only keep numbers within what a machine can count, so they are not shown."""
_COUNTS = {2: "two", 3: "three"}

ConfigClass = type[Config]


@dataclass(frozen=True)
class ConfigField:
    """A field of a config class."""

    name: str
    type: str
    """In words: "integer from 1 to 1,000"."""
    required: bool
    default: Any
    """None if the field is required, or not set by default."""
    meaning: str
    """Its docstring; empty if it has none."""
    tables: tuple[ConfigClass, ...] = ()
    """The config classes of a nested table; if there are several, `kind` selects one."""
    placeholder: str = ""
    """What follows the field's name in the keys of its tables: N in a list, NAME if they have names."""
    kind_required: bool = False
    """Whether a table that is given must name its `kind`."""

    @property
    def default_text(self) -> str:
        """The default as TOML; "required" or "not set" if there is none."""
        if self.required:
            return "required"
        return "not set" if self.default is None or self.default in ({}, ()) else toml_text(self.default)


@functools.cache
def config_fields(config: type[Config]) -> tuple[ConfigField, ...]:
    """The fields of a config class, those of its base classes first."""
    return tuple(_describe(config, name, field) for name, field in config.model_fields.items())


@functools.cache
def config_meaning(config: type[Config]) -> str:
    """The docstring of a config class."""
    return inspect.cleandoc(config.__doc__ or "")


def table_fields(table: ConfigField) -> list[tuple[ConfigField, tuple[str, ...]]]:
    """The fields of a nested table, each with the kinds of the table that have it; none if all have it.

    Their defaults are those of the table's default, which is a config or plain data.
    """
    tables = table.tables
    kinds = {config: fixed_kind(config) for config in tables}
    tagged = all(kind is not None for kind in kinds.values())
    rows: list[tuple[ConfigField, tuple[str, ...]]] = [(_kind_field(table), ())] if tagged else []
    variants: dict[tuple[Any, ...], tuple[ConfigField, list[str]]] = {}
    for config in tables:
        for one in config_fields(config):
            if not (tagged and one.name == "kind"):
                one = _with_default(one, config, table.default)
                same = (one.name, one.type, one.required, one.default_text, one.meaning, one.tables)
                variants.setdefault(same, (one, []))[1].append(str(kinds[config]))
    return rows + [
        (one, tuple(names) if tagged and len(names) < len(tables) else ()) for one, names in variants.values()
    ]


def fixed_kind(config: type[Config]) -> str | None:
    """The kind of a config class that is one of several kinds; None if its `kind` is a choice, or if it has none."""
    found = next((one for one in config_fields(config) if one.name == "kind"), None)
    return str(found.default) if found is not None and found.type.startswith("always ") else None


def toml_text(value: Any) -> str:
    """A value as it is written in TOML. Of a config, only its kind and what was given to it."""
    match value:
        case Config():
            kind = fixed_kind(type(value))
            given = value.model_dump(mode="json", exclude_unset=True)
            return toml_text(given if kind is None else {"kind": kind} | given)
        case Mapping():
            return f"{{ {', '.join(f'{key} = {toml_text(one)}' for key, one in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(map(toml_text, value))}]"
        case float():
            return f"{value:.0f}.0" if value.is_integer() and 1e4 <= abs(value) < 1e16 else repr(value)
    return json.dumps(value, ensure_ascii=False)


def _describe(config: type[Config], name: str, field: FieldInfo) -> ConfigField:
    annotation: Any = field.annotation
    members = [part for part in _union_members(annotation) if part is not NoneType]
    tables, placeholder = _tables(members)
    described = _type(Annotated[annotation, *field.metadata] if field.metadata else annotation)
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    return ConfigField(
        name,
        described,
        field.is_required(),
        default,
        _docstring(config, name),
        tables,
        placeholder,
        kind_required=isinstance(field.discriminator, str) or _has_discriminator(annotation),
    )


def _has_discriminator(annotation: Any) -> bool:
    """Whether the kind of a union inside an optional type is read from the key `kind`."""
    found = [one for part in get_args(annotation) if get_origin(part) is Annotated for one in get_args(part)[1:]]
    return any(isinstance(one, FieldInfo) and isinstance(one.discriminator, str) for one in found)


def _kind_field(table: ConfigField) -> ConfigField:
    """The field `kind` of a table with several kinds: its meaning is what each of them is."""
    names = [str(fixed_kind(config)) for config in table.tables]
    default = table.default
    chosen = default.get("kind") if isinstance(default, Mapping) else getattr(default, "kind", names[0])
    first_paragraphs = [config_meaning(config).partition("\n\n")[0] for config in table.tables]
    meanings = [f"{kind}: {text}" for kind, text in zip(names, first_paragraphs, strict=True)]
    meaning = f"The kind of {table.name.replace('_', '-')}. {' '.join(meanings)}"
    required = table.kind_required
    return ConfigField("kind", _choice(names), required, None if required else chosen, " ".join(meaning.split()))


def _with_default(one: ConfigField, config: type[Config], table: Any) -> ConfigField:
    """A field with the default that its table has in this place."""
    if isinstance(table, config):
        return replace(one, required=False, default=getattr(table, one.name))
    if isinstance(table, Mapping) and one.name in table:
        return replace(one, required=False, default=table[one.name])
    return one


def _docstring(config: type[Config], name: str) -> str:
    """The docstring below a field, in the class that declares it last, else in a base class."""
    for base in config.__mro__:
        if issubclass(base, Config) and (text := _field_docstrings(base).get(name)):
            return " ".join(text.split())
    return ""


@functools.cache
def _field_docstrings(config: type[Config]) -> dict[str, str]:
    path = inspect.getsourcefile(config)
    assert path is not None
    node = next(node for node in _module(path).body if isinstance(node, ast.ClassDef) and node.name == config.__name__)
    found = {}
    for item, after in zip(node.body, node.body[1:], strict=False):
        match item, after:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = text
    return found


@functools.cache
def _module(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def _union_members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    plain = _without_metadata(annotation)
    if get_origin(plain) not in (Union, UnionType):
        return (annotation,)
    return tuple(member for part in get_args(plain) for member in _union_members(part))


def _without_metadata(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _tables(members: list[Any]) -> tuple[tuple[type[Config], ...], str]:
    """The config classes that a type holds, and the placeholder for what selects one of several tables."""
    found = [_without_metadata(member) for member in members]
    if all(inspect.isclass(member) and issubclass(member, Config) for member in found):
        return tuple(found), ""
    if len(found) == 1 and (origin := get_origin(found[0])) in (tuple, dict):
        item = get_args(found[0])[0 if origin is tuple else 1]
        tables, inner = _tables([one for one in _union_members(item) if one is not NoneType])
        if tables and not inner:
            return tables, "N" if origin is tuple else "NAME"
    return (), ""


def _type(annotation: Any) -> str:
    """A type in words. That a key may be left out is said by its default."""
    metadata = _metadata(annotation)
    annotation = _without_metadata(annotation)
    members = [part for part in _union_members(annotation) if part is not NoneType]
    tables, placeholder = _tables(members)
    if tables:
        return {"": "table", "N": "list of tables", "NAME": "tables by name"}[placeholder]
    if len(members) > 1:
        return ", or ".join(map(_type, members))
    (only,) = members
    if only is not annotation:  # without None
        return _type(Annotated[only, *metadata] if metadata else only)
    origin, arguments = get_origin(only), get_args(only)
    if origin is Literal:
        return _choice(arguments)
    if origin is tuple:
        return _list(arguments)
    if only is bool:
        return "true or false"
    if only in (int, float):
        return ("integer" if only is int else "number") + _bounds(metadata, whole=only is int)
    return "text" if only is str else "table"


def _metadata(annotation: Any) -> list[Any]:
    """The constraints of an annotated type; a `Field` holds its own."""
    if get_origin(annotation) is not Annotated:
        return []
    found = []
    for one in get_args(annotation)[1:]:
        found += one.metadata if isinstance(one, FieldInfo) else [one]
    return found + _metadata(get_args(annotation)[0])


def _choice(values: Sequence[Any]) -> str:
    texts = [toml_text(value) for value in values]
    return f"always {texts[0]}" if len(texts) == 1 else f"one of {', '.join(texts)}"


def _list(items: tuple[Any, ...]) -> str:
    noun, _, bounds = _type(items[0]).partition(" ")
    count = "" if items[-1] is Ellipsis else f"{_COUNTS[len(items)]} "
    return f"list of {count}{noun}s {bounds}".rstrip()


def _bounds(metadata: list[Any], *, whole: bool) -> str:
    """The bounds of a number, such as " from 0 to 1"."""
    low: str | None = None
    high: str | None = None
    for one in metadata:
        bound: Any = getattr(one, type(one).__name__.lower(), None)  # Ge has `ge`, and so on
        if bound is None or abs(bound) >= _NO_LIMIT:
            continue
        match one:
            case Ge():
                low = f"from {_number(bound)}"
            case Gt():
                low = f"from {_number(bound + 1)}" if whole else f"above {_number(bound)}"
            case Le():
                high = f"to {_number(bound)}"
            case Lt():
                high = f"to {_number(bound - 1)}" if whole else f"to below {_number(bound)}"
    if low is not None and high is not None:
        return f" {low}, up {high}" if low.startswith("above") else f" {low} {high}"
    if low is not None:
        return f" {low}" if low.startswith("above") else f" of at least {low.removeprefix('from ')}"
    return "" if high is None else f" up {high}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"
