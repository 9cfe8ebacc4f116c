"""The `regard` command: help, errors, datasets, export."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from tests.task.small import command


def run(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "regard", *map(str, args)], capture_output=True, text=True, encoding="utf-8"
    )


def test_version() -> None:
    assert run("--version").stdout == f"regard {regard.__version__}\n"


def test_help_is_the_default() -> None:
    assert "import" in run().stdout + run().stderr


def test_user_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = run("import", tmp_path / "nowhere", tmp_path / "out")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("regard: ")


def test_missing_argument_is_named() -> None:
    done = run("import", "folder")
    assert done.returncode == 2
    assert done.stderr.endswith("Error: Missing argument 'OUT'.\n")


def test_unknown_command_exits_with_code_2() -> None:
    done = run("imprt")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.fixture
def user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A REGARD_DATA folder with one damaged dataset, and an empty cache."""
    path = tmp_path / "own" / "brown" / "brown.txt.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "own"


def test_data_list(user_data: Path) -> None:
    lines = run("data", "list").stdout.splitlines()
    rows = {line.split()[0]: line for line in lines}
    assert len(rows) == len(lines) == 16
    assert " REGARD_DATA " in rows["brown"]
    assert " downloadable " in rows["multi30k"]
    assert " not downloadable " in rows["gum"]


def test_data_list_as_json(user_data: Path) -> None:
    facts = [json.loads(line) for line in run("data", "list", "--json").stdout.splitlines()]
    brown = next(one for one in facts if one["name"] == "brown")
    assert brown["folder"] == str(user_data / "brown")
    assert brown["counts"] == {"brown.txt.gz": 57340}


def test_data_get_prints_the_folder(user_data: Path) -> None:
    done = run("data", "get", "brown")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{user_data / 'brown'}\n", "")


def test_data_get_without_a_url_is_refused(user_data: Path) -> None:
    done = run("data", "get", "gum")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("regard: gum: ")


@pytest.mark.parametrize("args", [("brown",), ()])
def test_data_check_reports_damaged_files(user_data: Path, args: tuple[str, ...]) -> None:
    done = run("data", "check", *args)
    bad = [line for line in done.stdout.splitlines() if not line.startswith("good")]
    assert (done.returncode, bad) == (1, [f"differs  {user_data / 'brown' / 'brown.txt.gz'}"])


def test_data_check_of_the_included_dataset(user_data: Path) -> None:
    done = run("data", "check", "tatoeba-en-tr-small")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["good"] * 3


def test_data_check_of_an_unknown_dataset_is_refused(user_data: Path) -> None:
    done = run("data", "check", "browm")
    assert done.returncode == 2
    assert "did you mean brown?" in done.stderr


def test_export(tmp_path: Path) -> None:
    done = command("export", "en-tr", "hf", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{tmp_path / 'out'}: exported as PegasusForConditionalGeneration")
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(("en-tr", "onnx"), id="unknown target"),
        pytest.param(("en-xx", "hf"), id="unknown model"),
        pytest.param(("en-tr", "hf", "--quantization", "int8"), id="quantized for transformers"),
        pytest.param(("en-tr", "ctranslate2", "--quantization", "int3"), id="unknown numbers"),
    ],
)
def test_impossible_exports_are_refused(tmp_path: Path, args: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    done = command("export", args[0], args[1], out, *args[2:])
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert not out.exists()


def test_cli_does_not_import_pytorch() -> None:
    code = "import sys, regard.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
