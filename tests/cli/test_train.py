"""`regard train`, `regard recipes` and `regard cost` as a person meets them."""

import json
import os
import shlex
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from regard.cli.progress import TrainingDisplay
from regard.task import read_recipe, shipped_recipes
from regard.task.training import likely_cost
from tests.task.small import child, command, pairs, quick_runs, write_aligned, write_recipe_file, write_table


@pytest.fixture(autouse=True)
def quick(tmp_path: Path) -> Iterator[None]:
    with quick_runs(tmp_path / "cache"):
        yield


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    write_aligned(tmp_path, pairs(30))
    data = {"train": [{"source": "train.en", "target": "train.de"}]}
    return write_recipe_file(tmp_path / "small.toml", data, "train.steps=6")


# Training.


def test_the_folder_goes_to_standard_output_and_all_else_to_standard_error(recipe: Path, tmp_path: Path) -> None:
    done = command("train", recipe, "--out", tmp_path / "run")
    assert (done.code, done.out) == (0, f"{tmp_path / 'run'}\n")
    assert "step 6 of 6  loss " in done.err
    assert "validation at step 6: loss " in done.err


def test_without_a_folder_a_run_is_called_by_its_recipe(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command("train", recipe).out == "runs/small\n"
    assert (tmp_path / "runs" / "small" / "run.json").is_file()


def test_what_a_run_will_take_is_said_before_it_begins(recipe: Path, tmp_path: Path) -> None:
    lines = command("train", recipe, "--out", tmp_path / "run").err.splitlines()
    (said,) = [number for number, line in enumerate(lines) if line.startswith("Before it begins: ")]
    (first,) = [number for number, line in enumerate(lines) if line.startswith("step 1 ")]
    assert "parameters" in lines[said]
    assert said < first


def test_which_form_steps_take_is_said_before_the_first(recipe: Path, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    lines = command("train", recipe, "--out", tmp_path / "run", "--device", "cpu").err.splitlines()
    assert lines.index("Steps take the fast form for this CPU.") < lines.index(
        next(line for line in lines if line.startswith("step 1 "))
    )


def test_without_numba_a_run_says_what_would_make_it_faster(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.fast.swift_training.find_spec", lambda name: None)
    lines = command("train", recipe, "--out", tmp_path / "run", "--device", "cpu").err.splitlines()
    (said,) = [line for line in lines if line.startswith("Steps take ")]
    assert said == ("Steps take the plain form, not the fast one: numba is not installed (pip install 'regard[fast]').")


def test_ones_own_two_files_are_trained_on(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    source, target = write_aligned(tmp_path / "own", pairs(25, seed=4))
    done = command("train", recipe, "--source", source, "--target", target, "--out", tmp_path / "run")
    assert (done.code, "1 of 25 pairs are held out" in done.err) == (0, True)


def test_ones_own_table_is_trained_on(recipe: Path, tmp_path: Path) -> None:
    path = write_table(tmp_path / "own.tsv", pairs(25, seed=4))
    done = command("train", recipe, "--pairs", path, "--out", tmp_path / "run")
    assert (done.code, "1 of 25 pairs are held out" in done.err) == (0, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--source", "a.en"], "--source and --target belong together"),
        (["--pairs", "a.tsv", "--source", "a.en"], "--pairs and --source/--target both name the data"),
        (["--device", "abacus"], "--device abacus: there is no such device here"),
        (["--set", "steps"], "expected a key and a value"),
    ],
)
def test_options_that_make_no_sense_are_a_line_and_code_two(
    words: list[str], said: str, recipe: Path, tmp_path: Path
) -> None:
    done = command("train", recipe, "--out", tmp_path / "run", *words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert not (tmp_path / "run").exists()


def test_an_unknown_recipe_is_a_line_and_code_two() -> None:
    done = command("train", "quik")
    assert (done.code, done.err) == (
        2,
        "regard: There is no recipe named 'quik'; did you mean quick? A file of your own ends in .toml.\n",
    )


def test_training_twice_into_a_folder_says_how_to_go_on(recipe: Path, tmp_path: Path) -> None:
    command("train", recipe, "--out", tmp_path / "run")
    done = command("train", recipe, "--out", tmp_path / "run")
    assert (done.code, done.out) == (2, "")
    assert "go on with it by --resume" in done.err


# Stopping.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_run_asked_to_stop_says_how_to_go_on_and_that_works(
    number: signal.Signals, tmp_path: Path, recipe: Path
) -> None:
    changes = ("train.steps=60", "train.log_every=5", "train.save_every=1000", "train.validate_every=1000")
    words = [word for change in changes for word in ("--set", change)]
    process = child("train", recipe, "--out", tmp_path / "run", *words)
    assert process.stderr is not None
    assert process.stdout is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith("step 5 "):
            process.send_signal(number)
            break
    out, rest = process.communicate()
    said += rest
    assert (process.returncode, out, "Traceback" in said) == (130, "", False)
    sentence, _, advice = said.splitlines()[-1].partition(" Go on with: ")
    assert sentence.startswith("Stopped after step ")
    assert advice == f"regard train {tmp_path / 'run'} --resume"
    done = command(*shlex.split(advice)[1:])
    assert (done.code, done.out) == (0, f"{tmp_path / 'run'}\n")
    assert "Going on from step " in done.err


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run is asked to stop at its third step."""
    asked = False

    def stepped(self: TrainingDisplay, step: int, values: Mapping[str, float]) -> None:
        nonlocal asked
        if step == 3 and not asked:
            asked = True
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(TrainingDisplay, "stepped", stepped)


@pytest.mark.usefixtures("stopping")
def test_how_to_go_on_is_said_so_that_a_shell_takes_it(recipe: Path, tmp_path: Path) -> None:
    done = command("train", recipe, "--out", tmp_path / "my run")
    advice = done.err.splitlines()[-1].partition(" Go on with: ")[2]
    assert command(*shlex.split(advice)[1:]).code == 0


@pytest.mark.usefixtures("stopping")
def test_a_run_that_went_on_by_its_folder_is_still_called_by_its_recipe(recipe: Path, tmp_path: Path) -> None:
    command("train", recipe, "--out", tmp_path / "run")
    assert command("train", tmp_path / "run", "--resume").code == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["origin"]["recipe"] == "small"


@pytest.mark.usefixtures("stopping")
def test_a_run_that_has_not_finished_says_so_when_it_is_used(recipe: Path, tmp_path: Path) -> None:
    command("train", recipe, "--out", tmp_path / "run")
    done = command("translate", tmp_path / "run", "red")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"this run has not finished; go on with it by `regard train {tmp_path / 'run'} --resume`" in done.err


# Recipes.


def test_recipes_lists_every_recipe_with_what_it_is() -> None:
    shown = command("recipes").out
    for one in shipped_recipes():
        assert f"\n{one.name} " in f"\n{shown}"
        assert one.recipe.description in shown


def test_recipes_shows_the_score_to_expect_and_whose_it_is() -> None:
    lines = {line.split()[0]: line for line in command("recipes").out.splitlines() if not line.startswith(" ")}
    quick = read_recipe("quick").expect
    assert quick is not None
    assert f"BLEU {quick.scores['test'].bleu:.1f}" in lines["quick"]
    assert "BLEU 27.3 (not measured here; Vaswani et al. 2017" in lines["transformer-base"]


def test_recipes_stand_in_two_columns_however_long_their_names_are() -> None:
    width = max(len(one.name) for one in shipped_recipes())
    lines = command("recipes").out.splitlines()
    assert {line[width] for line in lines} == {" "}
    assert all(line[width + 1] != " " for line in lines)
    assert [line[:width].rstrip() for line in lines[::2]] == [one.name for one in shipped_recipes()]


def test_recipes_as_json_are_an_object_a_line() -> None:
    facts = [json.loads(line) for line in command("recipes", "--json").out.splitlines()]
    assert [one["name"] for one in facts] == [one.name for one in shipped_recipes()]
    assert all(one.keys() == {"name", "task", "description", "expect"} for one in facts)


# Cost.


def test_cost_names_the_parameters_of_a_recipe() -> None:
    done = command("cost", "quick", "--on", "h200")
    assert done.code == 0
    assert done.out.startswith(f"{likely_cost(read_recipe('quick')).parameters:,} parameters ")


def test_cost_guesses_the_minutes_on_this_machine() -> None:
    done = command("cost", "quick", "--device", "cpu")
    assert (done.code, "minutes on this cpu" in done.out) == (0, True)


def test_cost_follows_changes() -> None:
    shown = [command("cost", "quick", "--on", "h200", *words).out for words in ((), ("--set", "model.width=256"))]
    assert shown[0].split()[0] != shown[1].split()[0]


def test_cost_on_unknown_hardware_lists_what_is_known() -> None:
    done = command("cost", "quick", "--on", "abacus")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "known hardware is h200" in done.err
