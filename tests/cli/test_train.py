"""`regard train` and `regard cost`."""

import json
import os
import shlex
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from regard.cli.training_display import TrainingDisplay
from regard.task.recipe_io import read_recipe
from regard.task.run import expected_cost
from tests.task.small import child, command, pairs, quick_runs, write_aligned, write_recipe_file, write_table

pytestmark = pytest.mark.start_early(8)


@pytest.fixture(autouse=True)
def quick(tmp_path: Path) -> Iterator[None]:
    with quick_runs(tmp_path / "cache"):
        yield


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    write_aligned(tmp_path, pairs(30))
    data = {"train": [{"source": "train.en", "target": "train.de"}]}
    return write_recipe_file(tmp_path / "small.toml", data, "train.steps=6")


def test_only_the_folder_goes_to_standard_output(recipe: Path, tmp_path: Path) -> None:
    done = command("train", recipe, "--out", tmp_path / "run")
    assert (done.code, done.out) == (0, f"{tmp_path / 'run'}\n")
    assert "step 6 of 6  loss " in done.err
    assert "validation at step 6: loss " in done.err


def test_default_folder_is_named_after_the_recipe(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("train", recipe).out == "runs/small\n"
    assert (tmp_path / "runs" / "small" / "run.json").is_file()


def test_expected_cost_is_logged_before_the_first_step(recipe: Path, tmp_path: Path) -> None:
    lines = command("train", recipe, "--out", tmp_path / "run").err.splitlines()
    (estimate,) = [number for number, line in enumerate(lines) if line.startswith("Estimate: ")]
    (first,) = [number for number, line in enumerate(lines) if line.startswith("step 1 ")]
    assert "parameters" in lines[estimate]
    assert estimate < first


def test_fused_kernels_are_logged_before_the_first_step(recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    lines = command("train", recipe, "--out", tmp_path / "run", "--device", "cpu").err.splitlines()
    assert lines.index("Using fused CPU kernels.") < lines.index(
        next(line for line in lines if line.startswith("step 1 "))
    )


def test_missing_numba_is_logged(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.kernels.dispatch.has_numba", lambda: False)
    lines = command("train", recipe, "--out", tmp_path / "run", "--device", "cpu").err.splitlines()
    (kernels,) = [line for line in lines if line.startswith("Using ")]
    assert "numba is not installed" in kernels


def test_training_on_two_aligned_files(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    source, target = write_aligned(tmp_path / "own", pairs(25, seed=4))
    done = command("train", recipe, "--source", source, "--target", target, "--out", tmp_path / "run")
    assert (done.code, "1 of 25 pairs is held out" in done.err) == (0, True)


def test_training_on_a_table(recipe: Path, tmp_path: Path) -> None:
    path = write_table(tmp_path / "own.tsv", pairs(25, seed=4))
    done = command("train", recipe, "--pairs", path, "--out", tmp_path / "run")
    assert (done.code, "1 of 25 pairs is held out" in done.err) == (0, True)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--source", "a.en"], "--source and --target"),
        (["--pairs", "a.tsv", "--source", "a.en"], "--pairs and --source/--target both name the data"),
        (["--device", "abacus"], "--device abacus"),
        (["--set", "steps"], "expected a key and a value"),
    ],
)
def test_contradictory_options_are_refused(args: list[str], message: str, recipe: Path, tmp_path: Path) -> None:
    done = command("train", recipe, "--out", tmp_path / "run", *args)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
    assert not (tmp_path / "run").exists()


def test_unknown_recipe_is_refused_with_a_suggestion() -> None:
    done = command("train", "quik")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "'quik'" in done.err
    assert "did you mean quick or quick-lm?" in done.err


def test_existing_run_folder_is_refused(recipe: Path, tmp_path: Path) -> None:
    command("train", recipe, "--out", tmp_path / "run")
    done = command("train", recipe, "--out", tmp_path / "run")
    assert (done.code, done.out) == (2, "")
    assert "--resume" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_stopped_run_names_the_command_that_resumes_it(number: signal.Signals, tmp_path: Path, recipe: Path) -> None:
    changes = ("train.steps=60", "train.log_every=5", "train.save_every=1000", "train.validate_every=1000")
    args = [arg for change in changes for arg in ("--set", change)]
    process = child("train", recipe, "--out", tmp_path / "run", *args)
    assert process.stderr is not None
    assert process.stdout is not None
    log = ""
    for line in process.stderr:
        log += line
        if line.startswith("step 5 "):
            process.send_signal(number)
            break
    out, rest = process.communicate()
    log += rest
    assert (process.returncode, out, "Traceback" in log) == (130, "", False)
    summary, _, resume_command = log.splitlines()[-1].partition(" Continue with: ")
    assert summary.startswith("Stopped after step ")
    assert resume_command == f"regard train {tmp_path / 'run'} --resume"
    done = command(*shlex.split(resume_command)[1:])
    assert (done.code, done.out) == (0, f"{tmp_path / 'run'}\n")
    assert "Resuming from step " in done.err


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run gets SIGTERM at its third step."""
    interrupted = False

    def on_train_metrics(self: TrainingDisplay, step: int, values: Mapping[str, float]) -> None:
        nonlocal interrupted
        if step == 3 and not interrupted:
            interrupted = True
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TrainingDisplay, "on_train_metrics", on_train_metrics)


@pytest.mark.usefixtures("stopping")
def test_resume_command_is_quoted_for_a_shell(recipe: Path, tmp_path: Path) -> None:
    done = command("train", recipe, "--out", tmp_path / "my run")
    resume_command = done.err.splitlines()[-1].partition(" Continue with: ")[2]
    assert command(*shlex.split(resume_command)[1:]).code == 0


@pytest.mark.usefixtures("stopping")
def test_resumed_run_keeps_the_name_of_its_recipe(recipe: Path, tmp_path: Path) -> None:
    command("train", recipe, "--out", tmp_path / "run")
    assert command("train", tmp_path / "run", "--resume").code == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["origin"]["recipe"] == "small"


@pytest.mark.usefixtures("stopping")
def test_unfinished_run_is_used_with_a_message(recipe: Path, tmp_path: Path) -> None:
    command("train", recipe, "--out", tmp_path / "run")
    done = command("translate", tmp_path / "run", "red")
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert f"{tmp_path / 'run'} has not finished" in done.err


def test_cost_prints_the_parameters() -> None:
    done = command("cost", "quick", "--hardware", "h200")
    assert done.code == 0
    assert done.out.startswith(f"{expected_cost(read_recipe('quick')).parameters:,} parameters ")


def test_cost_estimates_the_time_on_this_machine() -> None:
    done = command("cost", "quick", "--device", "cpu")
    assert (done.code, "minutes on this cpu" in done.out) == (0, True)


def test_cost_uses_overrides() -> None:
    shown = [command("cost", "quick", "--hardware", "h200", *args).out for args in ((), ("--set", "model.width=256"))]
    assert shown[0].split()[0] != shown[1].split()[0]


def test_unknown_hardware_is_refused_with_the_known() -> None:
    done = command("cost", "quick", "--hardware", "abacus")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "--hardware abacus: expected one of h200" in done.err
