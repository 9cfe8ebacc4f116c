"""The page in the package is the one that its source gives."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "src" / "regard" / "look" / "static"
PLACE = '<script type="application/json" id="embedded"></script>'


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("There is no Node here, so the page cannot be built again and compared.")
    if not (WEB / "node_modules" / "esbuild").is_dir():
        pytest.skip("The page's tools are not installed; `make tools` installs them where there is npm.")
    return found


def test_built_again_the_page_is_the_same(node: str, tmp_path: Path) -> None:
    done = subprocess.run([node, "build.mjs", str(tmp_path)], cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_bytes() for path in STATIC.iterdir()}
    assert set(built) == set(kept)
    for name, content in built.items():
        assert content == kept[name], f"{name} is not what its source gives; run `make page` and commit what it writes."


def test_types_are_right(node: str) -> None:
    compiler = WEB / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run([node, str(compiler), "--project", "."], cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_page_loads_nothing_from_elsewhere() -> None:
    """Names of namespaces and texts that are shown are no addresses to load from."""
    for name in ("index.html", "standalone.html"):
        text = (STATIC / name).read_text(encoding="utf-8")
        head = text[: text.index("<body")]
        assert 'src="http' not in text
        assert 'href="http' not in head.replace("<style>", "")
        assert text.count(PLACE) == 1
    assert "import(" not in (STATIC / "page.js").read_text(encoding="utf-8")


def test_what_is_locked_names_no_registry_but_the_public_one() -> None:
    packages = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert {each["resolved"].split("/")[2] for each in packages.values() if "resolved" in each} <= {
        "registry.npmjs.org"
    }
    assert all("integrity" in each for name, each in packages.items() if name)


def test_the_licences_of_all_that_is_bundled_are_there() -> None:
    text = (STATIC / "LICENCES.txt").read_text(encoding="utf-8")
    for name in json.loads((WEB / "package.json").read_text(encoding="utf-8"))["dependencies"]:
        assert f"{name} " in text
