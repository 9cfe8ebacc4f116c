"""The notebooks run from beginning to end, and their stored outputs are those of their cells."""

import json
from pathlib import Path
from typing import Any

import pytest
from scripts import notebooks

SMALL = {
    "your-own-translator": {"STEPS": 10, "PAIRS": 700},
    "looking-inside": {"SENTENCE": "See you."},
    "language-model": {"STEPS": 20, "SENTENCES": 500},
    "from-n-gram-to-transformer": {"STEPS": 3, "PAIRS": 400, "TEST": 8, "RUNGS": ["dnn2"], "TOKENS": 3000},
}


def test_all_notebooks_are_tested() -> None:
    assert {path.stem for path in notebooks.notebooks()} == set(SMALL)


def kinds_of_outputs(notebook: dict[str, Any]) -> list[list[str]]:
    """For every cell, whether it printed something and whether it showed a value."""
    return [[output["output_type"] for output in cell.get("outputs", [])] for cell in notebook["cells"]]


@pytest.mark.parametrize("name", SMALL)
def test_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    path = notebooks.FOLDER / f"{name}.ipynb"
    assert kinds_of_outputs(notebooks.run(path, SMALL[name])) == kinds_of_outputs(json.loads(path.read_text()))


@pytest.mark.parametrize("name", SMALL)
def test_notebook_is_valid(name: str) -> None:
    """What nbformat 4.5 requires."""
    notebook = json.loads((notebooks.FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    required = {"code": {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}}
    for cell in notebook["cells"]:
        assert set(cell) == required.get(cell["cell_type"], {"cell_type", "id", "metadata", "source"})
    first = next(cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    assert first["metadata"]["tags"] == ["parameters"]


def test_links_between_notebooks_have_a_target() -> None:
    for path in notebooks.notebooks():
        text = "".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
        for target in {part.split(")")[0] for part in text.split("](")[1:]}:
            assert target.startswith("https://") or (path.parent / target).is_file(), target
