"""Generated parts of the documentation are up to date with the results and the code that they quote."""

import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import config_docs

from regard.model import read_config

ROOT = Path(__file__).parent.parent


def test_tables_and_figures_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "update_docs.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_config_in_the_scaling_page_is_the_slides_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    from doc_figures.slide import slide_model

    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    text = page.split("```json\n")[1].split("```")[0]
    assert read_config(json.loads(text)).plain() == slide_model().plain()


def test_every_name_in_the_glossary_can_be_imported() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`(regard\.[\w.]+)`", page))
    assert len(names) > 50
    for name in sorted(names):
        assert pkgutil.resolve_name(name) is not None


def test_training_page_lists_every_environment_variable_that_the_package_uses() -> None:
    page = next(ROOT.glob("docs/**/training.md")).read_text(encoding="utf-8")
    table = page.partition("### Environment variables")[2]
    used = set()
    for path in (ROOT / "src" / "regard").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "environ" in line:
                used |= set(re.findall(r'"([A-Z][A-Z_]+)"', line))
    assert {"REGARD_CACHE", "REGARD_DATA"} <= used
    assert not {name for name in used if f"`{name}`" not in table}


def test_configuration_page_is_up_to_date() -> None:
    page = config_docs.PAGE.read_text(encoding="utf-8")
    assert page == config_docs.render(), "run `python scripts/config_docs.py`"


def test_links_in_the_configuration_page_have_a_heading() -> None:
    page = config_docs.render()
    anchors = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.*)$", page, re.M)
    }
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert len(links) > 40
    assert links <= anchors
