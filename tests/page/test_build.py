"""The built page in the package is up to date with its source, and loads nothing from other sites."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.start_early(9)

ROOT = Path(__file__).parents[2]
WEB = ROOT / "web"
STATIC = ROOT / "src" / "regard" / "look" / "static"
EMBEDDED_DATA = '<script type="application/json" id="embedded"></script>'


@pytest.fixture(scope="module")
def node() -> str:
    executable = shutil.which("node")
    if executable is None:
        pytest.skip("Node is not installed, so the page cannot be rebuilt and compared.")
    if not (WEB / "node_modules" / "esbuild").is_dir():
        pytest.skip("The page's build tools are not installed; install them with `make tools`.")
    return executable


def test_rebuilt_page_is_identical(node: str, tmp_path: Path) -> None:
    done = subprocess.run([node, "build.mjs", str(tmp_path)], cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in STATIC.iterdir()}
    assert set(built) == set(committed)
    for name, content in built.items():
        assert content == committed[name], f"{name} is out of date; run `make page` and commit the result."


def test_types_check(node: str) -> None:
    compiler = WEB / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run([node, str(compiler), "--project", "."], cwd=WEB, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_page_loads_nothing_from_other_sites() -> None:
    """URLs in XML namespaces and displayed texts are not loaded."""
    for name in ("index.html", "standalone.html"):
        text = (STATIC / name).read_text(encoding="utf-8")
        head = text[: text.index("<body")]
        assert 'src="http' not in text
        assert 'href="http' not in head.replace("<style>", "")
        assert text.count(EMBEDDED_DATA) == 1
    assert "import(" not in (STATIC / "page.js").read_text(encoding="utf-8")


def test_lock_file_uses_the_public_registry_only() -> None:
    packages = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert {package["resolved"].split("/")[2] for package in packages.values() if "resolved" in package} <= {
        "registry.npmjs.org"
    }
    assert all("integrity" in package for name, package in packages.items() if name)


def test_licenses_of_bundled_packages_are_included() -> None:
    text = (STATIC / "LICENSES.txt").read_text(encoding="utf-8")
    for name in json.loads((WEB / "package.json").read_text(encoding="utf-8"))["dependencies"]:
        assert f"{name} " in text
