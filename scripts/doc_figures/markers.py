"""Markers in Markdown pages, and the functions that fill them."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_TABLES: dict[str, Callable[[], str]] = {}
_FIGURES: dict[str, Callable[[], str]] = {}
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end table -->)", re.DOTALL)
_FIGURE = re.compile(r"(<!-- fig: ([\w-]+) -->).*?(<!-- end fig -->)", re.DOTALL)


def table(
    header: str,
) -> Callable[[Callable[[], Iterable[Iterable[object]]]], Callable[[], Iterable[Iterable[object]]]]:
    """Register a function that yields the rows of a table. `header` names the columns, separated by ` | `."""

    def register(rows: Callable[[], Iterable[Iterable[object]]]) -> Callable[[], Iterable[Iterable[object]]]:
        columns = [column.strip() for column in header.split("|")]

        def text() -> str:
            lines = [columns, ["---"] * len(columns), *([str(cell) for cell in row] for row in rows())]
            wrong = next((line for line in lines if len(line) != len(columns)), None)
            if wrong is not None:
                raise ValueError(f"table {rows.__name__} has {len(columns)} columns, but this row: {wrong}")
            return "".join(f"| {' | '.join(line)} |\n" for line in lines)

        _TABLES[rows.__name__.replace("_", "-")] = text
        return rows

    return register


def figure(value: Callable[[], str]) -> Callable[[], str]:
    """Register a function that returns one figure as text."""
    _FIGURES[value.__name__.replace("_", "-")] = value
    return value


def render(text: str, page: str) -> str:
    """A page with its tables and figures filled in."""

    def fill(known: dict[str, Callable[[], str]]) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            if match[2] not in known:
                raise KeyError(f"{page}: there is no table or figure named {match[2]}")
            return match[1] + known[match[2]]() + match[3]

        return replace

    return _FIGURE.sub(fill(_FIGURES), _TABLE.sub(fill(_TABLES), text))


def cases(name: str) -> list[dict[str, Any]]:
    """All cases of a results file."""
    text = (ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8")
    all_cases: list[dict[str, Any]] = json.loads(text)["cases"]
    return all_cases


def case(name: str, start: str) -> dict[str, Any]:
    """The only case of a results file whose name starts with `start`."""
    (matching,) = [each for each in cases(name) if each["case"].startswith(start)]
    return matching
