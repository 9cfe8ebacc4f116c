"""The language modeling task: training, validation loss and resuming."""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

import regard
from regard import UserError
from regard.data.text.documents import TextConfig, count_text
from regard.decode import DecodeConfig
from regard.run import load_model
from regard.task.language_modeling.pipeline import TextGenerator
from regard.task.language_modeling.recipe import LanguageModelingRecipe
from regard.task.language_modeling.task import LanguageModelingTask
from regard.task.recipe_io import read_recipe
from regard.task.run import train
from regard.train.distributed.process_group import SINGLE_PROCESS
from tests.task.small import RecordingCallback, quick_runs, sentences


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def recipe_file(place: Path, text: str, **changes: Any) -> Path:
    (place / "text.txt").write_text(text, encoding="utf-8")
    values: dict[str, Any] = {
        "description": "A small recipe to test with.",
        "task": "language-modeling",
        "data": {
            "train": [{"path": "text.txt", "end": 0.8}],
            "valid": {"path": "text.txt", "begin": 0.8},
            "context_length": 16,
        },
        "tokenizer": {"kind": "character"},
        "model": {"width": 16, "decoder": {"layers": 1, "attention": {"heads": 2}, "feed_forward": {"hidden": 32}}},
        "train": {
            "steps": 12,
            "batch_tokens": 128,
            "log_every": 1,
            "validate_every": 6,
            "save_every": 4,
            "schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0},
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


def opened(path: Path, folder: Path) -> LanguageModelingTask:
    recipe = read_recipe(path)
    assert isinstance(recipe, LanguageModelingRecipe)
    folder.mkdir()
    return LanguageModelingTask.prepare(recipe, folder, lambda sentence: None, SINGLE_PROCESS)


def test_run_folder_is_complete(trained: Path) -> None:
    assert {"recipe.toml", "tokenizer.json", "run.json", "model.safetensors", "README.md"} <= set(os.listdir(trained))
    card = (trained / "README.md").read_text()
    assert "| test set | loss | perplexity | bits per byte |" in card
    assert "regard generate THIS-FOLDER" in card


def test_validation_loss_is_the_mean_over_all_tokens(trained: Path) -> None:
    """Each token but the first is scored once, in windows of the context length; here one window at a time."""
    origin = json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]
    generator = TextGenerator.load(trained)
    part = TextConfig(path=str(trained.parent / "text.txt"), begin=0.8)
    text = TEXT[int(len(TEXT) * 0.8) :]
    ids = [*generator.tokenizer.encode(text), generator.end_id]
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


def test_experts_bias_is_not_rounded_in_a_float16_run(tmp_path: Path) -> None:
    path = recipe_file(tmp_path, TEXT)
    experts = '{kind = "moe", hidden = 16, experts = 4, top_k = 2, balancing = "bias"}'
    biases = []
    for dtype in ("float32", "float16"):
        changes = [f"model.decoder.feed_forward={experts}", f"train.save_dtype={dtype}", "train.steps=4"]
        train(read_recipe(path, changes), tmp_path / dtype)
        model = load_model(tmp_path / dtype).model
        biases.append(torch.cat([bias for name, bias in model.named_buffers() if name.endswith("expert_bias")]))
    assert torch.equal(*biases)
    assert not torch.equal(biases[0], biases[0].half().float())


def test_load_opens_a_text_generator_that_generates(trained: Path) -> None:
    model = regard.load(trained)
    assert isinstance(model, TextGenerator)
    assert model.generate("red", max_new_tokens=5)


def test_packed_documents_are_independent(tmp_path: Path) -> None:
    """The loss of a packed row is the sum of its documents' losses, each by itself after BOS."""
    data = {"train": [{"path": "text.txt", "unit": "line"}], "packing": "packed"}
    task = opened(recipe_file(tmp_path, TEXT, data=data), tmp_path / "run")
    task.model.eval()
    batch = next(task.batches.epochs())
    assert batch.documents is not None
    total = 0.0
    with torch.no_grad():
        packed = task.nll(task.model, batch)
        for tokens, expected, documents in zip(batch.tokens, batch.targets, batch.documents, strict=True):
            for number in range(int(documents.max()) + 1):
                here = documents == number
                scores = task.model(tokens[here][None]).log_softmax(-1)[0]
                total -= float(scores.gather(1, expected[here][:, None]).sum())
    assert float(packed.nll) == pytest.approx(total, rel=1e-5)


def test_small_text_is_memorized(tmp_path: Path) -> None:
    changes = {"steps": 150, "validate_every": 150, "save_every": 150, "batch_tokens": 256}
    path = recipe_file(tmp_path, "the cat ate the mouse. " * 40, train=read_train() | changes)
    scores = train(read_recipe(path), tmp_path / "run").scores
    assert scores["valid"].loss < 0.5  # the first letters of a window do not determine its position in the sentence
    assert (
        TextGenerator.load(tmp_path / "run").generate(
            "the cat ate", max_new_tokens=10, decode=DecodeConfig(beam_size=1)
        )
        == " the mouse"
    )


def read_train() -> dict[str, Any]:
    return {"schedule": {"kind": "constant", "lr": 0.01, "warmup_steps": 0}, "log_every": 50}


def test_finished_run_returns_its_scores(trained: Path) -> None:
    again = train(read_recipe(trained), trained, resume=True)
    assert (
        again.scores["valid"].loss
        == json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]["loss"]
    )


def test_init_from_starts_from_its_weights(trained: Path, tmp_path: Path) -> None:
    path = recipe_file(tmp_path, TEXT)
    recipe = read_recipe(path, [f"init_from={trained}", "train.steps=1"])
    callback = RecordingCallback()
    train(recipe, tmp_path / "run", callback=callback)
    assert "Starting from the weights and the tokenizer of" in callback.text


@pytest.mark.parametrize(
    ("text", "change", "sentence"),
    [
        ("", [], "there is no text"),
        ("x", [], "there is no text between 0.0 and 0.8"),
        (TEXT, ["data.context_length=200"], "train.batch_tokens: found .*; a single row has 200 tokens"),
        (TEXT, ["task=langauge-modeling"], "did you mean 'language-modeling'"),
        (TEXT, ["model.vocab_size=9"], "follows from the data"),
        (TEXT, ["data.packing=packed", "data.append_eos=false"], "data.append_eos: packed documents"),
        (
            TEXT,
            ["train.length_buckets=4"],
            "train.length_buckets: found 4, but all rows have data.context_length tokens",
        ),
        (TEXT, ["train.monitor=score"], "train.monitor: found 'score', but a language model is evaluated by its loss"),
        (TEXT, ["data.train.0.path=nowhere.txt"], "nowhere.txt"),
    ],
)  # fmt: skip
def test_invalid_recipe_is_named_and_leaves_no_folder(
    text: str, change: list[str], sentence: str, tmp_path: Path
) -> None:
    path = recipe_file(tmp_path, text)
    with pytest.raises(UserError, match=sentence):
        train(read_recipe(path, change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_user_data(tmp_path: Path) -> None:
    """Read like the recipe's text; a twentieth of its lines is held out."""
    path = recipe_file(
        tmp_path, TEXT, data={"train": [{"path": "text.txt", "unit": "line"}], "valid": {"path": "text.txt"}}
    )
    (tmp_path / "mine.txt").write_text("".join(f"my own text {number}\n" for number in range(50)))
    recipe = read_recipe(path, data=tmp_path / "mine.txt")
    assert isinstance(recipe, LanguageModelingRecipe)
    data, mine = recipe.data, str(tmp_path / "mine.txt")
    assert data.train == (TextConfig(path=mine, unit="line"),)
    assert (data.valid, data.context_length, recipe.expect) == (None, 16, None)
    train(recipe, tmp_path / "run")
