"""The commands as a person meets them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from tests.task.small import command


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


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A REGARD_DATA with one damaged set, and a cache of its own."""
    path = tmp_path / "own" / "brown" / "brown.txt.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"damaged")
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "own"


def test_data_sets_are_listed_a_line_each_with_where_they_are(own_data: Path) -> None:
    lines = run("data", "list").stdout.splitlines()
    found = {line.split()[0]: line for line in lines}
    assert len(found) == len(lines) == 14
    assert " REGARD_DATA " in found["brown"]
    assert " to be downloaded " in found["multi30k"]
    assert " no public address " in found["gum"]


def test_data_sets_are_listed_as_json(own_data: Path) -> None:
    facts = [json.loads(line) for line in run("data", "list", "--json").stdout.splitlines()]
    brown = next(one for one in facts if one["name"] == "brown")
    assert brown["folder"] == str(own_data / "brown")
    assert brown["counts"] == {"brown.txt.gz": 57340}


def test_a_data_set_at_hand_is_answered_with_its_folder(own_data: Path) -> None:
    done = run("data", "get", "brown")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{own_data / 'brown'}\n", "")


def test_a_data_set_that_cannot_be_had_is_one_line_and_code_two(own_data: Path) -> None:
    done = run("data", "get", "gum")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("regard: gum: no public address is known")


@pytest.mark.parametrize("words", [("brown",), ()])
def test_a_check_that_fails_names_the_file_and_leaves_with_code_one(own_data: Path, words: tuple[str, ...]) -> None:
    done = run("data", "check", *words)
    bad = [line for line in done.stdout.splitlines() if not line.startswith("good")]
    assert (done.returncode, bad) == (1, [f"differs  {own_data / 'brown' / 'brown.txt.gz'}"])


def test_the_set_that_ships_is_good(own_data: Path) -> None:
    done = run("data", "check", "tatoeba-en-tr-small")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["good"] * 3


def test_a_check_of_an_unknown_set_is_code_two(own_data: Path) -> None:
    done = run("data", "check", "browm")
    assert done.returncode == 2
    assert "did you mean brown?" in done.stderr


def test_a_model_is_exported_with_a_sentence(tmp_path: Path) -> None:
    done = command("export", "en-tr", "hf", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{tmp_path / 'out'}: exported as PegasusForConditionalGeneration")
    assert (tmp_path / "out" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("en-tr", "onnx"), id="unknown target"),
        pytest.param(("en-xx", "hf"), id="unknown model"),
        pytest.param(("en-tr", "hf", "--quantization", "int8"), id="quantized for transformers"),
        pytest.param(("en-tr", "ctranslate2", "--quantization", "int3"), id="unknown numbers"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(tmp_path: Path, words: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    done = command("export", words[0], words[1], out, *words[2:])
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert not out.exists()


def test_help_does_not_wait_for_pytorch() -> None:
    code = "import sys, regard.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
