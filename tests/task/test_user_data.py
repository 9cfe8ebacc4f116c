"""A user's own data for every task: however little it is, a model is trained on it, and scored on what was held out."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from regard import UserError
from regard.run import read_metadata
from regard.task.evaluate import evaluate
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from tests.task.small import RecordingCallback, pairs, quick_runs, sentences

pytestmark = pytest.mark.start_early(1)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def write_pairs(folder: Path, count: int) -> Path:
    path = folder / "pairs.csv"
    path.write_text("en,de\n" + "".join(f"{source},{target}\n" for source, target in pairs(count)), encoding="utf-8")
    return path


def write_text(folder: Path, count: int) -> Path:
    path = folder / "text.txt"
    path.write_text("\n".join(sentences(count)) + "\n", encoding="utf-8")
    return path


def write_labels(folder: Path, count: int) -> Path:
    path = folder / "labels.csv"
    path.write_text("text,label\n" + "".join(f"{text},{text.count('o') % 2}\n" for text in sentences(count)))
    return path


def write_tags(folder: Path, count: int) -> Path:
    path = folder / "tags.jsonl"
    words = [text.split() for text in sentences(count)]
    rows = [{"tokens": row, "tags": ["early" if word < "m" else "late" for word in row]} for row in words]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_trees(folder: Path, count: int) -> Path:
    path = folder / "trees.mrg"
    rows = (text.split() for text in sentences(count))
    trees = [f"(S (A {first}) (B {' '.join(f'(C {word})' for word in rest)}))\n" for first, *rest in rows]
    path.write_text("".join(trees))
    return path


def write_images(folder: Path, count: int) -> Path:
    for number in range(count):
        path = folder / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 7), (number, 9 * number, 0)).save(path)
    return folder / "images"


@dataclass(frozen=True)
class Case:
    """A task: how its data is written, how much is too little to hold some out, and the recipe trained on it."""

    write: Callable[[Path, int], Path]
    few: int
    recipe: str
    overrides: tuple[str, ...] = ()


SMALL = ("model.width=16", "train.steps=3", "train.validate_every=3", "train.save_every=3", "train.precision=float32")
ENCODER = ("model.encoder.layers=1", "model.encoder.attention.heads=2")
DECODER = ("model.decoder.layers=1", "model.decoder.attention.heads=2")
CHARACTERS = ("tokenizer.kind=character",)
CASES = {
    "translation": Case(write_pairs, 19, "quick", (*CHARACTERS, *ENCODER, *DECODER)),
    "language-modeling": Case(write_text, 20, "shakespeare-cpu", DECODER),
    "masked-lm": Case(write_text, 20, "brown-fill", (*CHARACTERS, *ENCODER)),
    "token-classification": Case(write_tags, 10, "gum-tags", (*CHARACTERS, *ENCODER)),
    "text-classification": Case(write_labels, 12, "", (*CHARACTERS, *ENCODER)),
    "parsing": Case(write_trees, 8, "gum-parse", (*CHARACTERS, *ENCODER, *DECODER)),
    "image-classification": Case(write_images, 6, "digits", ENCODER),
}


RECIPE = """
description = "A recipe that does not ship."
task = "text-classification"
data = { train = [{ path = "another.tsv" }] }
train = { steps = 1000, schedule = { kind = "linear", lr = 0.01, warmup_steps = 100 } }
"""


def run(task: str, count: int, folder: Path) -> tuple[Path, dict[str, object], str]:
    case, name = CASES[task], CASES[task].recipe
    if name == "":
        name = str(folder / "recipe.toml")
        Path(name).write_text(RECIPE)
    recipe = read_recipe(name, [*SMALL, *case.overrides], data=case.write(folder, count))
    callback = RecordingCallback()
    result = train(recipe, folder / "run", callback=callback)
    return folder / "run", dict(result.scores), callback.text


@pytest.mark.parametrize("task", CASES)
def test_held_out_part_is_scored_again_as_after_training(task: str, tmp_path: Path) -> None:
    """The user's files may be gone by then."""
    folder, scores, log = run(task, 100, tmp_path)
    assert list(scores) == ["held-out"]
    assert "held out for validation (data.dev_size)" in log
    (held_out,) = folder.glob("held-out.*")
    before = held_out.read_bytes()
    longer = read_recipe(folder, ["train.steps=4", "train.save_every=1"])
    extended = train(longer, folder, resume=True)  # refused if the batches are not the same
    scores = dict(extended.scores)
    assert held_out.read_bytes() == before
    for path in tmp_path.glob("[!r]*"):
        path.rename(path.with_name(f"moved-{path.name}"))
    assert str(evaluate(folder)["held-out"]) == str(scores["held-out"])
    assert str(evaluate(folder, "held-out")["held-out"]) == str(scores["held-out"])


@pytest.mark.parametrize("task", CASES)
def test_model_is_trained_on_very_little_data(task: str, tmp_path: Path) -> None:
    """Nothing is held out, and a batch is no larger than the data."""
    folder, scores, log = run(task, CASES[task].few, tmp_path)
    assert (scores, "none is held out" in log) == ({}, True)
    assert "Each batch has all of the data, which is less than train.batch_tokens" in log
    assert read_metadata(folder)["origin"]["steps"] == 3
    with pytest.raises(UserError, match="without test sets"):
        evaluate(folder)
