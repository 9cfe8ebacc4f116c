"""The messages in Python and in the page's contract are the same, field by field."""

import re
import typing
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from regard.look import schema

CONTRACT = Path(__file__).parents[2] / "web" / "src" / "contract.d.ts"
PAGE_ONLY = "// Between the page and its views."


def contract() -> str:
    """The part of the contract that Python shares, without comments."""
    text = CONTRACT.read_text(encoding="utf-8").split(PAGE_ONLY)[0]
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def closing(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise AssertionError("unbalanced brackets")


def fields(body: str) -> dict[str, Any]:
    """The fields of an interface: whether each is optional, its type, and the fields of that if it is an object."""
    result: dict[str, Any] = {}
    at = 0
    while match := re.compile(r"\s*(\w+)(\??):\s*").match(body, at):
        at = match.end()
        begin = at
        while at < len(body) and body[at] != ";":
            at = closing(body, at) + 1 if body[at] == "{" else at + 1
        kind = body[begin:at].strip()
        inner = kind[kind.index("{") + 1 : closing(kind, kind.index("{"))] if "{" in kind else None
        result[match[1]] = (bool(match[2]), kind, None if inner is None else fields(inner + ";"))
        at += 1
    return result


def interfaces() -> dict[str, dict[str, Any]]:
    text = contract()
    result = {}
    for match in re.finditer(r"export interface (\w+) \{", text):
        result[match[1]] = fields(text[match.end() : closing(text, match.end() - 1)])
    return result


NOT_SENT = {"Matrix"}
"""Interfaces that the page builds from binary responses."""


def message_in(annotation: Any) -> type[BaseModel] | None:
    """The message class in an annotation, such as that of a list's items."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in typing.get_args(annotation):
        result = message_in(part)
        if result is not None:
            return result
    return None


def is_optional(annotation: Any) -> bool:
    return type(None) in typing.get_args(annotation)


def check(message: type[BaseModel], interface: dict[str, Any], name: str) -> None:
    assert list(message.model_fields) == list(interface), name
    for field, (optional, _, inner) in interface.items():
        annotation = message.model_fields[field].annotation
        assert is_optional(annotation) == optional, f"{name}.{field}"
        if inner is not None:
            nested = message_in(annotation)
            assert nested is not None, f"{name}.{field}"
            check(nested, inner, f"{name}.{field}")


@pytest.mark.parametrize("name", sorted(set(interfaces()) - NOT_SENT))
def test_message_has_the_fields_of_the_contract(name: str) -> None:
    check(getattr(schema, name), interfaces()[name], name)


def test_every_interface_has_a_message() -> None:
    assert len(interfaces()) > 20
    assert all(hasattr(schema, name) for name in set(interfaces()) - NOT_SENT)


def test_attention_types_are_those_of_the_contract() -> None:
    (line,) = re.findall(r"export type AttentionType = ([^;]+);", contract())
    assert re.findall(r'"([^"]+)"', line) == list(typing.get_args(schema.AttentionType))


def literals(annotation: Any) -> set[str]:
    if typing.get_origin(annotation) is Literal:
        return {value for value in typing.get_args(annotation) if isinstance(value, str)}
    return (
        set().union(*(literals(part) for part in typing.get_args(annotation))) if typing.get_args(annotation) else set()
    )


@pytest.mark.parametrize("name", sorted(set(interfaces()) - NOT_SENT))
def test_literals_are_those_of_the_contract(name: str) -> None:
    message = getattr(schema, name)
    for field, (_, kind, inner) in interfaces()[name].items():
        if inner is None and '"' in kind:
            assert set(re.findall(r'"([^"]+)"', kind)) == literals(message.model_fields[field].annotation), field


def test_run_events_are_those_of_the_contract() -> None:
    (union,) = re.findall(r"export type RunEvent =(.*?);\n\n", contract() + "\n\n", flags=re.DOTALL)
    objects = [fields(body + ";") for body in re.findall(r"\{(.*?)\}", union)]
    events = typing.get_args(schema.RunEvent)
    assert [list(event.model_fields) for event in events] == [list(each) for each in objects]
    names = [each["event"][1].strip('"') for each in objects]
    assert [event.model_fields["event"].default for event in events] == names


def test_overrides_have_the_fields_of_the_settings() -> None:
    assert list(schema.DecodingOverrides.model_fields) == list(schema.DecodingSettings.model_fields)
    assert "Partial<DecodingSettings>" in interfaces()["RunRequest"]["decoding"][1]


def test_unset_fields_are_left_out() -> None:
    assert schema.RunRequest(text="a").to_dict() == {"text": "a"}


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="extra"):
        schema.RunRequest.model_validate({"text": "a", "texts": "b"})
