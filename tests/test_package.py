"""The package as a stranger gets it: a wheel, in an empty environment."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Set
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "fixtures" / "format-1" / "encoder-decoder"


def run(*command: str | Path, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    wanted = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert held == {name for name in wanted if "__pycache__" not in name and ".egg-info" not in name}


def declared(wheel: Path) -> list[str]:
    """The dependencies that a wheel names."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])


def needed(lines: list[str], found: dict[str, Distribution], extras: Set[str] = frozenset()) -> dict[str, Distribution]:
    """Declared dependencies, theirs, and so on, as they are installed here."""
    for wanted in map(Requirement, lines):
        here = wanted.marker is None or any(wanted.marker.evaluate({"extra": extra}) for extra in (*extras, ""))
        key = canonicalize_name(wanted.name)
        if here and key not in found:
            found[key] = distribution(wanted.name)
            needed(found[key].requires or [], found, wanted.extras)
    return found


def link(needs: Iterable[Distribution], packages: Path) -> None:
    """Have these distributions, and no others, in an environment: a link for each file or folder of theirs."""
    for one in needs:
        for top in {file.parts[0] for file in one.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            place = packages / top
            if not place.exists():
                place.symlink_to(Path(str(one.locate_file(top))))


def test_the_wheel_installs_in_an_empty_environment_and_runs(wheel: Path, tmp_path: Path) -> None:
    """Dependencies are those that are declared, linked from here: downloading them again would take minutes."""
    run(sys.executable, "-m", "venv", "environment", cwd=tmp_path)
    python = tmp_path / "environment" / "bin" / "python"
    (packages,) = (tmp_path / "environment" / "lib").glob("*/site-packages")
    needs = needed(declared(wheel), {})
    assert {"torch", "safetensors", "sympy"} <= needs.keys()  # sympy is one of PyTorch's
    assert not {"fastapi", "numba", "pytest", "transformers"} & needs.keys()
    link(needs.values(), packages)
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", wheel, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    assert run(tmp_path / "environment" / "bin" / "regard", "--version", cwd=tmp_path).startswith("regard 0.")
    code = f"import regard; print(tuple(regard.load({str(FOLDER)!r}).logits([[3, 4, 5]], [[1, 7]]).shape))"
    assert run(python, "-W", "error", "-c", code, cwd=tmp_path) == "(1, 2, 11)\n"
    translate = [tmp_path / "environment" / "bin" / "regard", "translate", "en-tr", "The cat ate the mouse."]
    assert run(*translate, cwd=tmp_path) == "Kedi fareyi yedi.\n"


def test_constraints_pin_everything_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all("==" in pin for pin in pins)
