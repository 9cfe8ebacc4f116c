"""Evaluating a run folder of any task on its recipe's test sets gives the scores recorded by the run."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import regard
from regard import UserError
from regard.run import read_metadata
from regard.task.evaluate import compares_texts, evaluate, recorded_task
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.task.encoders import write_recipe as write_encoder_recipe
from tests.task.small import command, quick_runs, save_random_model, sentences
from tests.task.small_images import write_recipe

STACK = {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}
TRAIN = {"steps": 4, "batch_tokens": 256, "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0}}
TREES = "\n".join(f"(S (NP (DT the) (NN {noun})) (VP (VBZ {verb})))" for noun in ("cat", "dog") for verb in ("a", "b"))


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def language_modeling_recipe(base: Path) -> Path:
    (base / "text.txt").write_text("\n".join(sentences(80)), encoding="utf-8")
    values = {
        "description": "Small.",
        "task": "language-modeling",
        "data": {
            "train": [{"path": "text.txt", "end": 0.8}],
            "valid": {"path": "text.txt", "begin": 0.8, "end": 0.9},
            "test": {"last": {"path": "text.txt", "begin": 0.9}},
            "context_length": 16,
        },
        "tokenizer": {"kind": "character"},
        "model": {"width": 16, "decoder": STACK},
        "train": TRAIN,
    }
    return write_values(base, values)


def parsing_recipe(base: Path) -> Path:
    (base / "trees.mrg").write_text(TREES, encoding="utf-8")
    part = {"path": "trees.mrg"}
    values = {
        "description": "Small.",
        "task": "parsing",
        "data": {"train": [part], "test": {"first": part, "second": part}},
        "tokenizer": {"kind": "character"},
        "model": {"width": 16, "encoder": STACK, "decoder": STACK},
        "train": TRAIN,
        "decode": {"beam_size": 2, "length_penalty": {"kind": "none"}, "max_length_ratio": 4.0},
    }
    return write_values(base, values)


def write_values(base: Path, values: dict[str, object]) -> Path:
    path = base / "small.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for task, make in (
        ("language-modeling", language_modeling_recipe),
        ("parsing", parsing_recipe),
        ("image-classification", write_recipe),
    ):
        base = tmp_path_factory.mktemp(task)
        train(read_recipe(make(base)), base / "run")
        folders[task] = base / "run"
    return folders


@pytest.mark.parametrize("task", ["language-modeling", "parsing", "image-classification"])
def test_scores_equal_those_of_the_run(task: str, runs: dict[str, Path]) -> None:
    before = {path: path.stat().st_mtime_ns for path in runs[task].rglob("*")}
    expected = read_metadata(runs[task])["origin"]["scores"]
    info = recorded_task(runs[task])
    assert info is not None
    assert (info.name, compares_texts(runs[task])) == (task, False)
    assert {name: score.rounded() for name, score in evaluate(runs[task]).items()} == expected
    assert {path: path.stat().st_mtime_ns for path in runs[task].rglob("*")} == before


def test_one_test_set_or_the_validation_set_can_be_selected(runs: dict[str, Path]) -> None:
    assert list(evaluate(runs["parsing"], "second")) == ["second"]
    assert list(evaluate(runs["language-modeling"], "valid")) == ["valid"]
    assert list(evaluate(runs["image-classification"], "valid")) == ["valid"]


def test_evaluation_does_not_need_init_from(runs: dict[str, Path], tmp_path: Path) -> None:
    for task, make in (("language-modeling", language_modeling_recipe), ("image-classification", write_recipe)):
        base = tmp_path / task
        base.mkdir()
        pretrained = base / "pretrained"
        pretrained.symlink_to(runs[task])
        train(read_recipe(make(base), [f"init_from={pretrained}"]), base / "run")
        pretrained.unlink()
        expected = read_metadata(base / "run")["origin"]["scores"]
        assert {name: score.rounded() for name, score in evaluate(base / "run").items()} == expected


SENTENCES = ["a great film\tpraise", "a dull film\tblame", "a warm film\tpraise", "a cold film\tblame"] * 3


def classification_recipe(base: Path) -> Path:
    for name in ("train", "test"):
        (base / f"{name}.tsv").write_text("".join(f"{line}\n" for line in SENTENCES), encoding="utf-8")
    data = {"train": [{"path": "train.tsv"}], "test": {"test": {"path": "test.tsv"}}}
    return write_encoder_recipe(base, "text-classification", data)


def tagging_recipe(base: Path) -> Path:
    for name in ("train", "test"):
        (base / f"{name}.txt").write_text("the/DT cat/NN\na/DT dog/NN barks/VB\n" * 3, encoding="utf-8")
    data = {
        "train": [{"path": "train.txt", "format": "slashes"}],
        "test": {"test": {"path": "test.txt", "format": "slashes"}},
    }
    return write_encoder_recipe(base, "token-classification", data)


def text_recipe(base: Path, task: str) -> Path:
    for name in ("train", "test"):
        (base / f"{name}.txt").write_text("some words of a text to read\n" * 20, encoding="utf-8")
    data = {"train": [{"path": "train.txt"}], "test": {"test": {"path": "test.txt"}}, "context_length": 16}
    if task == "masked-lm":
        return write_encoder_recipe(base, task, data)
    model, tokenizer = {"width": 16, "decoder": STACK}, {"kind": "character"}
    values = {"description": "Small.", "task": task, "data": data, "tokenizer": tokenizer, "model": model}
    return write_values(base, values | {"train": TRAIN})


def treebank_recipe(base: Path) -> Path:
    path = parsing_recipe(base)
    (base / "train.mrg").write_text(TREES, encoding="utf-8")
    path.write_text(path.read_text(encoding="utf-8").replace("trees.mrg", "train.mrg", 1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "make",
    [
        classification_recipe,
        tagging_recipe,
        treebank_recipe,
        write_recipe,
        lambda base: text_recipe(base, "language-modeling"),
        lambda base: text_recipe(base, "masked-lm"),
    ],
    ids=[
        "text-classification",
        "token-classification",
        "parsing",
        "image-classification",
        "language-modeling",
        "masked-lm",
    ],
)
def test_evaluation_reads_only_the_test_sets(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(read_recipe(make(tmp_path)), tmp_path / "run")
    (training_data,) = tmp_path.glob("train.*")
    training_data.unlink()
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "new-cache"))
    expected = read_metadata(tmp_path / "run")["origin"]["scores"]
    assert {name: score.rounded() for name, score in evaluate(tmp_path / "run").items()} == expected
    assert "train" not in expected
    (test_data, *_) = [path for pattern in ("test.*", "trees.mrg") for path in tmp_path.glob(pattern)]
    own = evaluate(tmp_path / "run", data=test_data)
    assert own["given"].rounded() == next(iter(expected.values()))
    assert evaluate(regard.load(tmp_path / "run"), data=test_data) == own
    done = command("score", tmp_path / "run", "--data", test_data, "--json", "--device", "cpu")
    assert json.loads(done.out).items() >= {"test": "given", **own["given"].rounded()}.items()
    test_data.unlink()
    done = command("score", tmp_path / "run", "--device", "cpu")
    assert done.code == 2
    assert test_data.name in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_beam_size_needs_a_model_that_searches(runs: dict[str, Path]) -> None:
    assert evaluate(runs["parsing"], "first", beam_size=1)
    with pytest.raises(UserError, match="--beam-size"):
        evaluate(runs["image-classification"], beam_size=1)


def test_command_prints_the_scores(runs: dict[str, Path]) -> None:
    for task, metric in (("language-modeling", "loss "), ("parsing", "F1 "), ("image-classification", "accuracy ")):
        done = command("score", runs[task], "--device", "cpu")
        assert (done.code, done.err) == (0, "")
        assert all(line.startswith(f"{runs[task]} on ") and metric in line for line in done.out.splitlines())
    done = command("score", runs["parsing"], "--test", "first", "--beam-size", 1)
    assert len(done.out.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--against", "other"], "--against"),
        (["--pairs", "pairs.tsv"], "--pairs"),
        (["--source", "a", "--reference", "b"], "--source"),
        (["--lowercase"], "--lowercase"),
        (["--tokenized"], "--tokenized"),
        (["--sentences"], "--sentences"),
        (["--beam-size", "2"], "--beam-size"),
        (["--test", "other"], "'other'; it has test, valid"),
    ],
)
def test_options_of_other_tasks_are_refused(options: list[str], message: str, runs: dict[str, Path]) -> None:
    done = command("score", runs["image-classification"], *options)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_folder_without_a_recorded_task_has_none(tmp_path: Path) -> None:
    assert recorded_task(save_random_model(tmp_path / "run")) is None
    assert recorded_task(tmp_path / "nowhere") is None


# A user's own data


@pytest.fixture(scope="module")
def labeler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("labeler")
    train(read_recipe(classification_recipe(base)), base / "run")
    return base / "run"


def test_settings_say_how_data_is_read(labeler: Path, tmp_path: Path) -> None:
    lines = [line.split("\t") for line in SENTENCES]
    path = tmp_path / "other.tsv"
    path.write_text("".join(f"{number}\t{label}\t{text}\n" for number, (text, label) in enumerate(lines)), "utf-8")
    own = evaluate(labeler, data=path, settings={"columns": [3, 2]})["given"]
    assert own == evaluate(labeler)["test"]
    done = command("score", labeler, "--data", path, "--set", "data.columns=[3,2]", "--json", "--device", "cpu")
    report = json.loads(done.out)
    assert (report["items"], report["unit"], set(report["f1"])) == (len(SENTENCES), "texts", {"praise", "blame"})


def test_range_of_a_recipes_text_does_not_apply_to_own_data(runs: dict[str, Path]) -> None:
    """The recipe tests on the last tenth of a text; a given text is read from its beginning to its end."""
    text = runs["language-modeling"].parent / "text.txt"
    score: Any = evaluate(runs["language-modeling"], data=text)["given"]
    assert score.bytes == text.stat().st_size - 1  # the first character is only read
    assert (
        f"({score.tokens:,} tokens in windows of 16, {score.bytes:,} bytes)"
        in command("score", runs["language-modeling"], "--data", text, "--device", "cpu").out
    )


BAD_DATA = {
    "missing.tsv": (None, "missing.tsv"),
    "empty.tsv": ("", "empty.tsv"),
    "trees.txt": (TREES, "trees.txt, line 1"),
    "short.tsv": ("a film\tpraise\na film\n", "short.tsv, line 2"),
    "swapped.tsv": ("praise\ta film\nblame\ta dull film\n", "swapped.tsv"),
    "other.jsonl": ('{"text": "a film"}\n', "other.jsonl, line 1"),
    "treebank.mrg": (TREES, "treebank.mrg"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_wrong_data_is_refused_with_file_and_line(name: str, labeler: Path, tmp_path: Path) -> None:
    text, named = BAD_DATA[name]
    if text is not None:
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = command("score", labeler, "--data", tmp_path / name, "--device", "cpu")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert str(tmp_path / named) in done.err


@pytest.mark.parametrize("task", ["language-modeling", "parsing", "image-classification"])
def test_empty_data_is_refused(task: str, runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    path = tmp_path / ("empty" if task == "image-classification" else "empty.txt")
    done = command("score", runs[task], "--data", path, "--device", "cpu")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert str(path) in done.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--data", "x.tsv", "--test", "test"], "--test"),
        (["--set", "data.columns=[1,2]"], "--data"),
        (["--data", "x.tsv", "--set", "data.colums=[1,2]"], "data.colums"),
        (["--data", "x.tsv", "--set", "data.train=1"], "data.train"),
        (["--data", "x.tsv", "--logprobs"], "--logprobs"),
    ],
)
def test_options_that_do_not_fit_own_data_are_refused(options: list[str], named: str, labeler: Path) -> None:
    done = command("score", labeler, *options, "--device", "cpu")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert named in done.err
