"""A recipe for a text becomes a model that foretells and writes it."""

import json
import math
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import regard
from regard import UserError
from regard.data.texts import TextConfig, count_text
from regard.decode import DecodeConfig
from regard.task import Generator, load_generator, read_recipe, train
from regard.task.language import LanguageTask
from regard.task.language_recipe import LanguageRecipe
from regard.train.surroundings import StoppedError
from regard.train.world import ALONE
from tests.task.small import Heard, quick_runs, sentences


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def recipe_file(place: Path, text: str, **changes: Any) -> Path:
    (place / "text.txt").write_text(text, encoding="utf-8")
    values: dict[str, Any] = {
        "description": "A small recipe to test with.",
        "task": "language",
        "data": {
            "train": [{"path": "text.txt", "end": 0.8}],
            "valid": {"path": "text.txt", "begin": 0.8},
            "context": 16,
        },
        "tokenizer": {"kind": "character"},
        "model": {"width": 16, "decoder": {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}},
        "train": {
            "steps": 12,
            "tokens": 128,
            "log_every": 1,
            "validate_every": 6,
            "save_every": 4,
            "schedule": {"kind": "constant", "rate": 0.01, "warmup": 0},
        },
    }
    for key, value in changes.items():
        values[key] = values[key] | value if isinstance(value, dict) else value
    path = place / "small.toml"
    path.write_text(tomli_w.dumps(values), encoding="utf-8")
    return path


TEXT = "\n".join(sentences(120)) + "\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("language")
    train(read_recipe(recipe_file(place, TEXT)), place / "run")
    return place / "run"


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def opened(path: Path, folder: Path) -> LanguageTask:
    recipe = read_recipe(path)
    assert isinstance(recipe, LanguageRecipe)
    folder.mkdir()
    return LanguageTask.begin(recipe, folder, lambda sentence: None, ALONE)


def test_a_run_from_one_text_file_ends_as_a_folder_with_all_there_is_to_know(trained: Path) -> None:
    assert {"recipe.toml", "tokenizer.json", "run.json", "model.safetensors", "README.md"} <= set(os.listdir(trained))
    card = (trained / "README.md").read_text()
    assert "| test set | loss | perplexity | bits per byte |" in card
    assert "regard generate THIS-FOLDER" in card


def test_what_it_says_of_the_validation_part_is_the_mean_over_all_of_it(trained: Path) -> None:
    """Each token but the first once, in windows of the context, worked out here one window at a time."""
    origin = json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]
    generator = load_generator(trained)
    part = TextConfig(path=str(trained.parent / "text.txt"), begin=0.8)
    text = TEXT[int(len(TEXT) * 0.8) :]
    ids = [*generator.text.encode(text), generator.end]
    nats = 0.0
    for first in range(0, len(ids) - 1, 16):
        window = ids[first : first + 17]
        with torch.no_grad():
            scores = generator.language_model(torch.tensor([window[:-1]])).log_softmax(-1)[0]
        nats -= float(scores.gather(1, torch.tensor(window[1:])[:, None]).sum())
    assert origin["tokens"] == len(ids) - 1
    assert origin["loss"] == pytest.approx(nats / (len(ids) - 1), abs=1e-4)
    assert origin["bytes"] == count_text(part).bytes - 1
    assert origin["bits_per_byte"] == pytest.approx(nats / math.log(2) / origin["bytes"], abs=1e-4)


def test_it_opens_as_a_generator_and_writes(trained: Path) -> None:
    model = regard.load(trained)
    assert isinstance(model, Generator)
    assert model.generate("red", limit=5)


@pytest.mark.parametrize("rows", ["contiguous", "random", "packed"])
def test_a_run_stopped_and_resumed_ends_bit_for_bit_as_one_that_was_not(rows: str, tmp_path: Path) -> None:
    class Stopping(Heard):
        def stepped(self, step: int, values: Mapping[str, float]) -> None:
            if step == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    recipe = read_recipe(recipe_file(tmp_path, TEXT), [f"data.rows={rows}", "data.train.0.unit=line"])
    train(recipe, tmp_path / "straight")
    with pytest.raises(StoppedError):
        train(recipe, tmp_path / "run", listener=Stopping())
    train(recipe, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")


def test_packed_documents_do_not_see_each_other(tmp_path: Path) -> None:
    """The loss of a packed row is that of its documents, each alone behind the start token."""
    task = opened(recipe_file(tmp_path, TEXT, data={"train": [{"path": "text.txt", "unit": "line"}], "rows": "packed"}),
                  tmp_path / "run")  # fmt: skip
    task.model.eval()
    batch = next(task.batches.epochs())
    assert batch.documents is not None
    total = 0.0
    with torch.no_grad():
        packed = task.plain_loss(task.model, batch)
        for tokens, wanted, documents in zip(batch.tokens, batch.wanted, batch.documents, strict=True):
            for number in range(int(documents.max()) + 1):
                here = documents == number
                scores = task.model(tokens[here][None]).log_softmax(-1)[0]
                total -= float(scores.gather(1, wanted[here][:, None]).sum())
    assert float(packed.plain) == pytest.approx(total, rel=1e-5)


def test_a_text_is_learnt_by_heart(tmp_path: Path) -> None:
    changes = {"steps": 150, "validate_every": 150, "save_every": 150, "tokens": 256}
    path = recipe_file(tmp_path, "the cat ate the mouse. " * 40, train=read_train() | changes)
    scores = train(read_recipe(path), tmp_path / "run").scores
    assert scores["valid"].loss < 0.5  # a window's first letters do not say where in the sentence it begins
    assert (
        load_generator(tmp_path / "run").generate("the cat ate", limit=10, decode=DecodeConfig(beams=1)) == " the mouse"
    )


def read_train() -> dict[str, Any]:
    return {"schedule": {"kind": "constant", "rate": 0.01, "warmup": 0}, "log_every": 50}


def test_a_finished_run_knows_its_scores_again(trained: Path) -> None:
    again = train(read_recipe(trained), trained, resume=True)
    assert (
        again.scores["valid"].loss
        == json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]["loss"]
    )


def test_another_run_can_start_from_its_weights(trained: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, TEXT)
    recipe = read_recipe(path, [f"init_from={trained}", "train.steps=1"])
    heard = Heard()
    train(recipe, tmp_path / "run", listener=heard)
    assert "Starting from the weights and the tokenizer of" in heard.text


@pytest.mark.parametrize(
    ("text", "change", "sentence"),
    [
        ("", [], "there is no text"),
        ("x", [], "there is no text between 0.0 and 0.8"),
        (TEXT, ["data.context=200"], "one row alone has 200 tokens"),
        (TEXT, ["task=langauge"], "did you mean 'language'"),
        (TEXT, ["model.vocabulary=9"], "follows from the tokenizer"),
        (TEXT, ["data.rows=packed", "data.ends=false"], "begin and end somewhere"),
        (TEXT, ["train.shapes=4"], "train.shapes: found 4, but all rows have data.context tokens"),
        (TEXT, ["train.watch=score"], "train.watch: found 'score', but a language model is judged by its loss"),
        (TEXT, ["data.train.0.path=nowhere.txt"], "nowhere.txt"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence_and_nothing_is_left(
    text: str, change: list[str], sentence: str, tmp_path: Path
) -> None:
    path = recipe_file(tmp_path, text)
    with pytest.raises(UserError, match=sentence):
        train(read_recipe(path, change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_recipe_can_be_trained_on_a_text_of_ones_own(tmp_path: Path) -> None:
    """Read as the recipe's own text is; the last twentieth is not learnt from."""
    path = recipe_file(
        tmp_path, TEXT, data={"train": [{"path": "text.txt", "unit": "line"}], "valid": {"path": "text.txt"}}
    )
    (tmp_path / "mine.txt").write_text("my own text\n" * 50)
    recipe = read_recipe(path, own=tmp_path / "mine.txt")
    assert isinstance(recipe, LanguageRecipe)
    data, mine = recipe.data, str(tmp_path / "mine.txt")
    assert data.train == (TextConfig(path=mine, end=0.95, unit="line"),)
    assert data.valid == TextConfig(path=mine, begin=0.95, unit="line")
    assert (data.context, recipe.expect) == (16, None)
    train(recipe, tmp_path / "run")
