"""Imports between rooms go one way: down the list in docs/architecture.md."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "regard"


def listed() -> list[str]:
    """The rooms in the order the page lists them, from the top down."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([a-z]+)(?:\.py|/)` \|", page, re.MULTILINE)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rooms a file imports from."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard."):
            rooms.add((node.module or "").split(".")[1])
    return rooms - {room_of(path)}


def test_the_page_lists_every_room() -> None:
    there = {room_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert set(listed()) == there


@pytest.mark.parametrize("room", listed())
def test_a_room_imports_only_from_rooms_below_it(room: str) -> None:
    order = listed()
    below = set(order[order.index(room) + 1 :])
    for path in PACKAGE.rglob("*.py"):
        if room_of(path) == room:
            assert imported(path) <= below, path


def test_no_file_imports_what_another_keeps_private() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard"):
                assert not [alias.name for alias in node.names if alias.name.startswith("_")], path
