"""The package as a stranger gets it: a wheel, in an empty environment."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


def test_the_wheel_installs_in_an_empty_environment_and_runs(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "environment", cwd=tmp_path)
    python = tmp_path / "environment" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
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
