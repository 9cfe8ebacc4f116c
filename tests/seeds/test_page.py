"""docs/lectures.md is up to date: the tests and parts it names exist, and its table is the computed one."""

import ast
import pkgutil
import re
from pathlib import Path

from regard.look.positions.requirements import REQUIREMENTS, SCHEMES, requirements

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "lectures.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`(test_\w+)`", PAGE))


def names_of_tests(files: list[Path]) -> set[str]:
    """The names of the test functions in these files."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    functions = {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in functions if name.startswith("test_")}


def test_every_test_named_on_the_page_exists() -> None:
    assert NAMED - names_of_tests(list((ROOT / "tests").rglob("test_*.py"))) == set()


def test_every_test_of_the_decks_is_named_on_the_page() -> None:
    here = Path(__file__)
    assert names_of_tests([file for file in here.parent.glob("test_*.py") if file != here]) - NAMED == set()


def test_every_part_named_on_the_page_exists() -> None:
    for name in re.findall(r"`(regard\.[\w.]+)`", PAGE):
        assert pkgutil.resolve_name(name) is not None


def test_table_of_requirements_on_the_page_is_the_computed_one() -> None:
    lines = [("scheme", *REQUIREMENTS), ("---",) * (1 + len(REQUIREMENTS))]
    for name, scheme in SCHEMES.items():
        lines.append((name, *("yes" if holds else "no" for holds in requirements(scheme).values())))
    assert "\n".join(f"| {' | '.join(cells)} |" for cells in lines) in PAGE
