"""The wheel: its contents, and its installation into an empty environment."""

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

pytestmark = pytest.mark.start_early(4)

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "fixtures" / "format-1" / "encoder-decoder"


def run(*command: str | Path, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_contains_exactly_the_source_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packaged = {name for name in archive.namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    source_files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert packaged == {name for name in source_files if "__pycache__" not in name and ".egg-info" not in name}


def declared_dependencies(wheel: Path) -> list[str]:
    """The dependencies in a wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])


def resolve_dependencies(
    lines: list[str], installed: dict[str, Distribution], extras: Set[str] = frozenset()
) -> dict[str, Distribution]:
    """The installed distributions of these dependencies, and of theirs, recursively."""
    for requirement in map(Requirement, lines):
        applies = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in (*extras, "")
        )
        key = canonicalize_name(requirement.name)
        if applies and key not in installed:
            installed[key] = distribution(requirement.name)
            resolve_dependencies(installed[key].requires or [], installed, requirement.extras)
    return installed


def link_distributions(distributions: Iterable[Distribution], packages: Path) -> None:
    """Symlink the files and folders of these distributions into an environment."""
    for dist in distributions:
        for top in {file.parts[0] for file in dist.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            link = packages / top
            if not link.exists():
                link.symlink_to(Path(str(dist.locate_file(top))))


def test_wheel_installs_in_an_empty_environment_and_runs(wheel: Path, tmp_path: Path) -> None:
    """Its declared dependencies are symlinked, because downloading them would take minutes."""
    run(sys.executable, "-m", "venv", "environment", cwd=tmp_path)
    python = tmp_path / "environment" / "bin" / "python"
    (packages,) = (tmp_path / "environment" / "lib").glob("*/site-packages")
    dependencies = resolve_dependencies(declared_dependencies(wheel), {})
    assert {"torch", "safetensors", "sympy"} <= dependencies.keys()  # sympy is a dependency of PyTorch
    assert not {"fastapi", "numba", "pytest", "transformers"} & dependencies.keys()
    link_distributions(dependencies.values(), packages)
    run(python, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", wheel, cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    assert run(tmp_path / "environment" / "bin" / "regard", "--version", cwd=tmp_path).startswith("regard 0.")
    code = f"import regard; print(tuple(regard.load({str(FOLDER)!r}).logits([[3, 4, 5]], [[1, 7]]).shape))"
    assert run(python, "-W", "error", "-c", code, cwd=tmp_path) == "(1, 2, 11)\n"
    translate = [tmp_path / "environment" / "bin" / "regard", "translate", "en-tr", "The cat ate the mouse."]
    assert run(*translate, cwd=tmp_path) == "Kedi fareyi yedi.\n"
    settings = [tmp_path / "environment" / "bin" / "regard", "settings", "warmup"]
    assert "train.schedule.warmup_steps\n" in run(*settings, cwd=tmp_path)  # read from the installed sources


def test_constraints_pin_exact_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all("==" in pin for pin in pins)
