"""The shapes in Python and those in the page's contract are the same, field by field."""

import re
import typing
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from regard.look import wire

CONTRACT = Path(__file__).parents[2] / "web" / "src" / "contract.d.ts"
PAGE_ONLY = "// Between the page and its views."


def contract() -> str:
    """The part of the contract that is about Python, without comments."""
    text = CONTRACT.read_text(encoding="utf-8").split(PAGE_ONLY)[0]
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def closing(text: str, at: int) -> int:
    """Where the bracket that opens at a place closes."""
    depth = 0
    for place in range(at, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise AssertionError("a bracket does not close")


def fields(body: str) -> dict[str, Any]:
    """The fields of an object: whether each may be missing, its type, and the fields of that if it is an object."""
    found: dict[str, Any] = {}
    at = 0
    while match := re.compile(r"\s*(\w+)(\??):\s*").match(body, at):
        at = match.end()
        begin = at
        while at < len(body) and body[at] != ";":
            at = closing(body, at) + 1 if body[at] == "{" else at + 1
        kind = body[begin:at].strip()
        inner = kind[kind.index("{") + 1 : closing(kind, kind.index("{"))] if "{" in kind else None
        found[match[1]] = (bool(match[2]), kind, None if inner is None else fields(inner + ";"))
        at += 1
    return found


def interfaces() -> dict[str, dict[str, Any]]:
    text = contract()
    found = {}
    for match in re.finditer(r"export interface (\w+) \{", text):
        found[match[1]] = fields(text[match.end() : closing(text, match.end() - 1)])
    return found


NOT_SENT = {"Matrix"}
"""Shapes that the page makes of what is sent in binary."""


def shape_of(annotation: Any) -> type[BaseModel] | None:
    """The shape that an annotation holds, in a list or not."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in typing.get_args(annotation):
        found = shape_of(part)
        if found is not None:
            return found
    return None


def may_be_missing(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def check(shape: type[BaseModel], wanted: dict[str, Any], name: str) -> None:
    assert list(shape.model_fields) == list(wanted), name
    for field, (optional, _, inner) in wanted.items():
        annotation = shape.model_fields[field].annotation
        assert may_be_missing(annotation) == optional, f"{name}.{field}"
        if inner is not None:
            nested = shape_of(annotation)
            assert nested is not None, f"{name}.{field}"
            check(nested, inner, f"{name}.{field}")


@pytest.mark.parametrize("name", sorted(set(interfaces()) - NOT_SENT))
def test_a_shape_has_the_fields_that_the_contract_says(name: str) -> None:
    check(getattr(wire, name), interfaces()[name], name)


def test_every_shape_of_the_contract_is_known() -> None:
    assert len(interfaces()) > 20
    assert all(hasattr(wire, name) for name in set(interfaces()) - NOT_SENT)


@pytest.mark.parametrize(("name", "kind"), [("TaskKind", wire.TaskKind), ("Side", wire.Side)])
def test_a_choice_has_the_same_words(name: str, kind: Any) -> None:
    (line,) = re.findall(rf"export type {name} = ([^;]+);", contract())
    assert re.findall(r'"([^"]+)"', line) == list(typing.get_args(kind))


def literals(annotation: Any) -> set[str]:
    if typing.get_origin(annotation) is Literal:
        return {value for value in typing.get_args(annotation) if isinstance(value, str)}
    return (
        set().union(*(literals(part) for part in typing.get_args(annotation))) if typing.get_args(annotation) else set()
    )


@pytest.mark.parametrize("name", sorted(set(interfaces()) - NOT_SENT))
def test_where_a_field_is_a_choice_of_words_they_are_the_same(name: str) -> None:
    shape = getattr(wire, name)
    for field, (_, kind, inner) in interfaces()[name].items():
        if inner is None and '"' in kind:
            assert set(re.findall(r'"([^"]+)"', kind)) == literals(shape.model_fields[field].annotation), field


def test_the_events_of_a_run_are_those_of_the_contract() -> None:
    (union,) = re.findall(r"export type RunEvent =(.*?);\n\n", contract() + "\n\n", flags=re.DOTALL)
    objects = [fields(body + ";") for body in re.findall(r"\{(.*?)\}", union)]
    shapes = typing.get_args(wire.RunEvent)
    assert [list(shape.model_fields) for shape in shapes] == [list(one) for one in objects]
    assert [shape.model_fields["event"].default for shape in shapes] == [one["event"][1].strip('"') for one in objects]


def test_settings_that_are_asked_for_are_some_of_those_there_are() -> None:
    assert list(wire.SomeDecodingSettings.model_fields) == list(wire.DecodingSettings.model_fields)
    assert "Partial<DecodingSettings>" in interfaces()["RunRequest"]["decoding"][1]


def test_what_is_not_there_is_left_out() -> None:
    assert wire.RunRequest(text="a").plain() == {"text": "a"}


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(ValueError, match="extra"):
        wire.RunRequest.model_validate({"text": "a", "texts": "b"})
