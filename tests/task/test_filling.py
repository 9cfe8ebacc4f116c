"""A recipe for gaps becomes a model that finds hidden words from both sides."""

import json
import os
import random
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard import UserError
from regard.data.asked import AskedBatch
from regard.data.gaps import Gaps, GapsConfig
from regard.data.rows import RowBatch
from regard.task import Filler, load_filler, read_recipe, train
from regard.task.filling import FillingTask
from regard.task.filling_recipe import FillingRecipe
from regard.task.testing import run_tests
from regard.train.loss import word_loss
from regard.train.surroundings import StoppedError
from regard.train.world import ALONE
from tests.task.encoders import long, write_recipe
from tests.task.small import Heard, quick_runs, sentences

TEXT = "\n".join(sentences(120)) + "\n"
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
LINES = {"data.rows": "packed", "data.train.0.unit": "line", "data.valid.unit": "line"}


def counted(count: int) -> str:
    """Lines that count from somewhere on: whatever is hidden, its neighbours say what it was."""
    dice = random.Random(1)
    lines = [[NUMBERS[(first + place) % 10] for place in range(dice.randint(3, 9))]
             for first in dice.choices(range(10), k=count)]  # fmt: skip
    return "".join(" ".join(line) + "\n" for line in lines)


@pytest.fixture(autouse=True, scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with quick_runs(tmp_path_factory.mktemp("cache")):
        yield


def recipe_file(place: Path, text: str = TEXT, **changes: Any) -> Path:
    (place / "text.txt").write_text(text, encoding="utf-8")
    data = {
        "train": [{"path": "text.txt", "end": 0.8}],
        "valid": {"path": "text.txt", "begin": 0.8},
        "context": 16,
    }
    return write_recipe(place, "filling", data, **changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that can count."""
    place = tmp_path_factory.mktemp("filling")
    changes = [*(f"{key}={value}" for key, value in LINES.items()), "model.position.kind=rotary", "model.width=32"]
    changes += ["train.schedule.kind=linear", *long(300)]
    train(read_recipe(recipe_file(place, counted(400)), changes), place / "run")
    return place / "run"


def opened(path: Path, folder: Path, *changes: str) -> FillingTask:
    recipe = read_recipe(path, changes)
    assert isinstance(recipe, FillingRecipe)
    folder.mkdir(exist_ok=True)
    return FillingTask.begin(recipe, folder, lambda sentence: None, ALONE)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_a_text_is_learnt_by_heart(trained: Path) -> None:
    score = json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]
    assert score["accuracy"] > 85  # where a whole line is hidden nobody knows
    assert score["asked"] > 20


def test_a_run_ends_as_a_folder_with_all_there_is_to_know(trained: Path) -> None:
    assert {"recipe.toml", "tokenizer.json", "run.json", "model.safetensors", "README.md"} <= set(os.listdir(trained))
    card = (trained / "README.md").read_text()
    assert "| test set | accuracy | loss | perplexity |" in card
    assert "regard fill THIS-FOLDER" in card


def test_it_opens_as_a_filler_that_looks_both_ways(trained: Path) -> None:
    model = regard.load(trained)
    assert isinstance(model, Filler)
    ((from_left, *_),) = model.fill("one two three [MASK]")
    ((from_right, *_),) = model.fill("[MASK] five six seven")
    assert (from_left.text, from_right.text) == ("four", "four")


def test_what_it_says_of_the_validation_part_is_worked_out_again_row_by_row(tmp_path: Path) -> None:
    """The same words are hidden, all by the mask; each row goes through the model by itself."""
    train(read_recipe(recipe_file(tmp_path)), tmp_path / "run")
    told = json.loads((tmp_path / "run" / "run.json").read_text())["origin"]["scores"]["valid"]
    filler = load_filler(tmp_path / "run")
    ids = [*filler.text.encode(TEXT[int(len(TEXT) * 0.8) :]), filler.text.separator]
    windows = [ids[first : first + 16] for first in range(1, len(ids), 16)]  # the first token is only read
    words = torch.zeros(len(windows), 16, dtype=torch.long)
    for row, window in zip(words, windows, strict=True):
        row[: len(window)] = torch.tensor(window)
    gaps = Gaps(
        GapsConfig(masked=1.0, random=0.0), mask=3, vocabulary=filler.text.vocabulary, special=filler.text.special
    )
    tokens, wanted = gaps.make(words.numpy(), torch.tensor([len(window) for window in windows]).numpy(),
                               epoch=0, number=0)  # fmt: skip
    nats, asked, correct = 0.0, 0, 0
    for row, right, window in zip(tokens, wanted, windows, strict=True):
        with torch.no_grad():
            scores = filler.encoder(torch.from_numpy(row[None, : len(window)])).log_softmax(-1)[0]
        for place in range(len(window)):
            if right[place] >= 0:
                assert row[place] == filler.mask
                nats -= float(scores[place, right[place]])
                asked += 1
                correct += int(scores[place].argmax()) == right[place]
    assert (told["asked"], told["correct"]) == (asked, correct)
    assert told["nats"] == pytest.approx(nats, abs=1e-3)


@pytest.mark.parametrize(("rows", "more"), [("contiguous", ["gaps.whole_words=true"]), ("random", []), ("packed", [])])
def test_scoring_only_what_is_asked_for_gives_the_loss_of_scoring_all(
    rows: str, more: list[str], tmp_path: Path
) -> None:
    """Loss and gradients of a batch, beside those of scores for every cell."""
    task = opened(recipe_file(tmp_path), tmp_path / "run", f"data.rows={rows}", "data.train.0.unit=line", *more)
    model = task.model.double()
    batch = next(task.batches.epochs())
    assert isinstance(batch, AskedBatch)
    assert batch.wanted.shape[1] < batch.tokens.shape[1]
    wanted = torch.full_like(batch.tokens, -1).scatter(1, batch.places, batch.wanted)
    whole = model(batch.tokens, lengths=batch.lengths, documents=batch.documents)
    losses = [task.loss(model, batch), word_loss(whole, wanted)]
    assert int(losses[0].count) == int(losses[1].count) == batch.count
    torch.testing.assert_close(losses[0].total, losses[1].total)
    slopes = [torch.autograd.grad(loss.total, list(model.parameters())) for loss in losses]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)


def test_packed_documents_do_not_see_each_other(tmp_path: Path) -> None:
    """The loss of a packed row is that of its documents, each alone."""
    task = opened(recipe_file(tmp_path), tmp_path / "run", "data.rows=packed", "data.train.0.unit=line")
    model = task.model.eval().double()
    batch = next(task.batches.epochs())
    assert isinstance(batch, AskedBatch)
    assert batch.documents is not None
    tokens = model.config.tokens
    wanted = torch.full_like(batch.tokens, -1).scatter(1, batch.places, batch.wanted)
    total = 0.0
    with torch.no_grad():
        packed = task.plain_loss(model, batch)
        for row, right, documents in zip(batch.tokens, wanted, batch.documents, strict=True):
            for number in range(int(documents.max()) + 1):
                here = documents == number
                assert (int(row[here][0]), int(row[here][-1])) == (tokens.classify, tokens.separator)
                total += float(word_loss(model(row[here][None]), right[here][None]).plain)
    assert float(packed.plain) == pytest.approx(total)


@pytest.mark.parametrize("rows", ["contiguous", "random", "packed"])
def test_a_run_stopped_and_resumed_ends_bit_for_bit_as_one_that_was_not(rows: str, tmp_path: Path) -> None:
    class Stopping(Heard):
        def stepped(self, step: int, values: Mapping[str, float]) -> None:
            if step == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    recipe = read_recipe(recipe_file(tmp_path), [f"data.rows={rows}", "data.train.0.unit=line"])
    train(recipe, tmp_path / "straight")
    with pytest.raises(StoppedError):
        train(recipe, tmp_path / "run", listener=Stopping())
    train(recipe, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == weights(tmp_path / "straight")


def test_validation_hides_the_same_words_each_time_and_training_others(tmp_path: Path) -> None:
    task = opened(recipe_file(tmp_path), tmp_path / "run")
    (first,), (second,) = task.validation(), task.validation()
    assert torch.equal(first.tokens, second.tokens)
    asked = first.tokens.gather(1, first.places)[first.wanted >= 0]
    assert (asked == task.tokenizer.mask).all()
    assert 0.1 < len(asked) / int(first.lengths.sum()) < 0.2
    batches = task.batches.epochs()
    hidden = [_hidden(next(batches)) for _ in range(2 * len(task.batches))]
    assert hidden[: len(task.batches)] != hidden[len(task.batches) :]


def _hidden(batch: RowBatch) -> list[list[int]]:
    listed: list[list[int]] = batch.wanted.tolist()
    return listed


def test_a_finished_run_knows_its_scores_and_can_be_scored_again(trained: Path) -> None:
    told = json.loads((trained / "run.json").read_text())["origin"]["scores"]["valid"]
    assert train(read_recipe(trained), trained, resume=True).scores["valid"].rounded() == told
    assert run_tests(trained)["valid"].rounded() == told


def test_another_run_can_start_from_its_weights(trained: Path, tmp_path: Path) -> None:
    path = write_recipe(tmp_path, "filling", {"train": [{"path": "text.txt"}], "context": 16}, model=None)
    (tmp_path / "text.txt").write_text(counted(20), encoding="utf-8")
    task = opened(path, tmp_path / "opened", f"init_from={trained}")
    before = load_filler(trained)
    assert task.tokenizer.fingerprint == before.text.fingerprint
    for key, value in before.encoder.state_dict().items():
        torch.testing.assert_close(task.model.state_dict()[key], value, rtol=0, atol=0)
    heard = Heard()
    train(read_recipe(path, [f"init_from={trained}", "train.steps=1"]), tmp_path / "run", listener=heard)
    assert f"Starting from the weights and the tokenizer of {trained}." in heard.text
    with pytest.raises(UserError, match=r"does not fit the recipe's model: for .* Leave \[model\] out"):
        opened(path, tmp_path / "opened", f"init_from={trained}", "model.width=16")


def test_a_text_of_ones_own_is_read_as_the_recipes_is(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(TEXT, encoding="utf-8")
    recipe = read_recipe("brown-fill", own=tmp_path / "mine.txt")
    assert isinstance(recipe, FillingRecipe)
    assert [(part.unit, part.end) for part in recipe.data.train] == [("file", 0.95), ("line", 0.95)]
    assert (recipe.data.valid.begin, recipe.data.valid.unit) == (0.95, "file")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "change", "sentence"),
    [
        ("", [], "there is no text"),
        (TEXT, ["data.context=300"], "one row alone has 300 tokens"),
        (TEXT, ["task=fillng"], "did you mean 'filling'"),
        (TEXT, ["model.vocabulary=9"], "model.vocabulary: this follows from the tokenizer"),
        (TEXT, ["model.head.kind=none"], "must be \"fill\""),
        (TEXT, ["model.head.kind=tag"], "model.head.labels: this key is required"),
        (TEXT, ["gaps.shar=0.2"], "did you mean 'share'"),
        (TEXT, ["gaps.masked=0.95"], "gaps.random: found 0.1, and 0.95 are masked"),
        (TEXT, ["train.shapes=4"], "train.shapes: found 4, but all rows have data.context tokens"),
        (TEXT, ["tokenizer.kind=bpe", "tokenizer.vocabulary=260"], "need 262"),
        (TEXT, ["init_from=en-tr"], "holds no encoder"),
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


def test_what_it_costs_is_of_the_batches_there_are(tmp_path: Path) -> None:
    task = opened(recipe_file(tmp_path), tmp_path / "run", "train.accumulate=2", "data.context=64")
    work, batch = task.work(), next(iter(task.batches.epochs()))
    assert (work.rows, work.target) == batch.tokens.shape
    assert (work.asked, work.steps, work.accumulate, work.passes) == (batch.wanted.shape[1], 12, 2, 1)
    assert work == task.recipe.likely_work()
