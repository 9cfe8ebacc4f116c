"""The commands as a person meets them."""

import subprocess
import sys
from pathlib import Path

import regard


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "regard", *map(str, words)], capture_output=True, text=True, encoding="utf-8"
    )


def test_the_version_is_the_packages() -> None:
    assert run("--version").stdout == f"regard {regard.__version__}\n"


def test_without_a_command_help_is_shown() -> None:
    assert "import" in run().stdout + run().stderr


def test_what_a_person_got_wrong_is_one_line_and_code_two(tmp_path: Path) -> None:
    done = run("import", tmp_path / "nowhere", tmp_path / "out")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("regard: ")


def test_a_missing_argument_is_named_in_plain_lines() -> None:
    done = run("import", "folder")
    assert done.returncode == 2
    assert done.stderr.endswith("Error: Missing argument 'OUT'.\n")


def test_an_unknown_command_leaves_with_code_two() -> None:
    done = run("imprt")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
