"""A model of any task is scored on its own test sets as when its run was over."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from regard import UserError
from regard.run import read_facts
from regard.task import read_recipe, train
from regard.task.testing import run_tests, task_of
from tests.task.small import command, quick_runs, save_random_model, sentences
from tests.task.small_pictures import write_recipe

STACK = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}
TRAIN = {"steps": 4, "tokens": 256, "schedule": {"kind": "constant", "rate": 0.01, "warmup": 0}}
TREES = "\n".join(f"(S (NP (DT the) (NN {noun})) (VP (VBZ {verb})))" for noun in ("cat", "dog") for verb in ("a", "b"))


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def language_recipe(place: Path) -> Path:
    (place / "text.txt").write_text("\n".join(sentences(80)), encoding="utf-8")
    values = {
        "description": "Small.",
        "task": "language",
        "data": {
            "train": [{"path": "text.txt", "end": 0.8}],
            "valid": {"path": "text.txt", "begin": 0.8, "end": 0.9},
            "test": {"last": {"path": "text.txt", "begin": 0.9}},
            "context": 16,
        },
        "tokenizer": {"kind": "character"},
        "model": {"width": 16, "decoder": STACK},
        "train": TRAIN,
    }
    return written(place, values)


def parsing_recipe(place: Path) -> Path:
    (place / "trees.mrg").write_text(TREES, encoding="utf-8")
    part = {"path": "trees.mrg"}
    values = {
        "description": "Small.",
        "task": "parsing",
        "data": {"train": [part], "test": {"first": part, "second": part}},
        "tokenizer": {"kind": "character"},
        "model": {"width": 16, "encoder": STACK, "decoder": STACK},
        "train": TRAIN,
        "decode": {"beams": 2, "penalty": "none", "longest_factor": 4.0},
    }
    return written(place, values)


def written(place: Path, values: dict[str, object]) -> Path:
    path = place / "small.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for task, make in (("language", language_recipe), ("parsing", parsing_recipe), ("pictures", write_recipe)):
        place = tmp_path_factory.mktemp(task)
        train(read_recipe(make(place)), place / "run")
        made[task] = place / "run"
    return made


@pytest.mark.parametrize("task", ["language", "parsing", "pictures"])
def test_the_scores_are_those_of_the_run(task: str, runs: dict[str, Path]) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs[task].rglob("*")}
    wanted = read_facts(runs[task])["origin"]["scores"]
    assert task_of(runs[task]) == task
    assert {name: score.rounded() for name, score in run_tests(runs[task]).items()} == wanted
    assert {path: path.stat().st_mtime_ns for path in runs[task].rglob("*")} == before


def test_one_set_can_be_asked_for_and_the_validation_part_too(runs: dict[str, Path]) -> None:
    assert list(run_tests(runs["parsing"], "second")) == ["second"]
    assert list(run_tests(runs["language"], "valid")) == ["valid"]
    assert list(run_tests(runs["pictures"], "valid")) == ["valid"]


def test_a_run_that_started_from_another_is_scored_without_that_one(runs: dict[str, Path], tmp_path: Path) -> None:
    for task, make in (("language", language_recipe), ("pictures", write_recipe)):
        place = tmp_path / task
        place.mkdir()
        first = place / "first"
        first.symlink_to(runs[task])
        train(read_recipe(make(place), [f"init_from={first}"]), place / "run")
        first.unlink()
        wanted = read_facts(place / "run")["origin"]["scores"]
        assert {name: score.rounded() for name, score in run_tests(place / "run").items()} == wanted


def test_what_searches_can_be_given_beams(runs: dict[str, Path]) -> None:
    assert run_tests(runs["parsing"], "first", beams=1)
    with pytest.raises(UserError, match="--beams is for models that search"):
        run_tests(runs["pictures"], beams=1)


def test_the_command_prints_what_was_found(runs: dict[str, Path]) -> None:
    for task, words in (("language", "loss "), ("parsing", "F1 "), ("pictures", "accuracy ")):
        done = command("score", runs[task], "--device", "cpu")
        assert (done.code, done.err) == (0, "")
        assert all(line.startswith(f"{runs[task]} on ") and words in line for line in done.out.splitlines())
    done = command("score", runs["parsing"], "--test", "first", "--beams", 1)
    assert len(done.out.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--against", "other"], "--against is for translations, and"),
        (["--pairs", "pairs.tsv"], "--pairs is for translations, and"),
        (["--source", "a", "--reference", "b"], "--source is for translations, and"),
        (["--lowercase"], "--lowercase is for translations, and"),
        (["--tokenised"], "--tokenised is for translations, and"),
        (["--sentences"], "--sentences is for translations, and"),
        (["--beams", "2"], "--beams is for models that search"),
        (["--test", "other"], "has no test set 'other'; it has test, valid"),
    ],
)
def test_what_does_not_belong_to_the_task_is_refused(words: list[str], sentence: str, runs: dict[str, Path]) -> None:
    done = command("score", runs["pictures"], *words)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1


def test_a_folder_that_says_nothing_of_its_task_is_left_to_those_who_translate(tmp_path: Path) -> None:
    assert task_of(save_random_model(tmp_path / "run")) is None
    assert task_of(tmp_path / "nowhere") is None
