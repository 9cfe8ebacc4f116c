"""Imports between top-level packages go one way: down the list in docs/architecture.md."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "regard"


def layers() -> list[str]:
    """The top-level packages and modules in the order of the page, from the top down."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([a-z]+)(?:\.py|/)` \|", page, re.MULTILINE)


def package_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_packages(path: Path) -> set[str]:
    """The other top-level packages that a file imports from."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard."):
            packages.add((node.module or "").split(".")[1])
    return packages - {package_of(path)}


def test_architecture_page_lists_every_package() -> None:
    existing = {package_of(path) for path in PACKAGE.rglob("*.py")} - {"__init__", "__main__"}
    assert set(layers()) == existing


@pytest.mark.parametrize("package", layers())
def test_package_imports_only_from_packages_below_it(package: str) -> None:
    order = layers()
    below = set(order[order.index(package) + 1 :])
    for path in PACKAGE.rglob("*.py"):
        if package_of(path) == package:
            assert imported_packages(path) <= below, path


def test_no_file_imports_private_names_of_another() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard"):
                assert not [alias.name for alias in node.names if alias.name.startswith("_")], path
