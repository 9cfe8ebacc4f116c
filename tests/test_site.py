"""`make docs` builds the documentation site without a warning, and the site loads nothing from the network."""

import re
import subprocess
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

for needed in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(
        needed, reason="The site is built with the extra docs: pip install -c constraints.txt '.[docs]'."
    )

ROOT = Path(__file__).parent.parent
LOADING = {"audio", "embed", "iframe", "image", "img", "input", "link", "object", "script", "source", "use", "video"}
"""Elements that load what their attributes name; `a`, which only links to it, is none of them."""


def build_site(out: Path) -> Path:
    """Build the site with the command of the Makefile: a warning, such as a link without a target, is an error."""
    (line,) = re.findall(r"^\t\$\(BIN\)/python -m (sphinx .*) docs build/site$", makefile(), re.MULTILINE)
    arguments = [sys.executable, "-m", *line.split(), "--doctree-dir", str(out / "doctrees"), "docs", str(out / "site")]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "site"


def makefile() -> str:
    return (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_site(tmp_path_factory.mktemp("docs"))


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


class ResourceParser(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag in LOADING:
            self.addresses += [value or "" for name, value in attrs if name in ("src", "srcset", "href", "data")]


def test_site_loads_nothing_from_the_network(site: Path) -> None:
    for path in site.rglob("*.html"):
        parser = ResourceParser()
        parser.feed(path.read_text(encoding="utf-8"))
        assert parser.addresses or "_downloads" in path.parts  # reports, which hold everything themselves
        assert not [address for address in parser.addresses if re.match(r"\w+:(?<!data:)|//", address)], path
    for path in site.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"url\(\s*[\"']?(?:https?:)?//|@import", text), path


def test_a_page_that_loads_from_the_network_is_found() -> None:
    parser = ResourceParser()
    parser.feed('<a href="https://a.org">text</a><script src="https://b.org/x.js"></script><img src="c.png">')
    assert parser.addresses == ["https://b.org/x.js", "c.png"]
